"""LoRA on a plain linear map as two finished weights, between which the switch chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from peft.tuners.lora.layer import Linear


class TwoWeights(nn.Module):
    """A linear map, and the same map with its low-rank change added.

    The change is added in at least float32 and rounded once; PEFT rounds the map and the change separately.

    Args:
        tuned: a module of PEFT for which `can_finish` is true.
    """

    def __init__(self, tuned: Linear):
        super().__init__()
        base = tuned.get_base_layer()
        self.off = base.weight
        self.bias = base.bias
        wide = torch.promote_types(base.weight.dtype, torch.float32)
        on = base.weight.detach().to(wide)
        for name in _active(tuned):
            a, b = (of[name].weight.detach().to(wide) for of in (tuned.lora_A, tuned.lora_B))
            on = on.addmm(b, a, alpha=tuned.scaling[name])
        self.on = nn.Parameter(on.to(base.weight.dtype), requires_grad=False)
        self.disable_adapters = False
        self._packed: tuple[Callable[[Tensor], Tensor], ...] = ()

    def pack(self, packed: Callable[[nn.Linear], Callable[[Tensor], Tensor]]) -> None:
        """Apply both weights by functions of the whole map; the added weight itself is freed."""
        maps = []
        for weight in (self.on, self.off):
            linear = nn.Linear(1, 1, bias=False, device="meta")
            linear.weight, linear.bias = nn.Parameter(weight, requires_grad=False), self.bias
            maps.append(packed(linear))
        self._packed = tuple(maps)
        self.on = nn.Parameter(self.on.new_empty(0), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """The weight in use, which some models look at."""
        return self.off if self.disable_adapters else self.on

    def enable_adapters(self, on: bool) -> None:
        """Choose the weight."""
        self.disable_adapters = not on

    def forward(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        if self._packed:
            return self._packed[self.disable_adapters](x)
        return F.linear(x, self.weight, self.bias)


def can_finish(module: nn.Module) -> bool:
    """Whether a module is plain LoRA on a plain linear map in memory, without hooks."""
    from peft.tuners.lora.layer import Linear

    if type(module) is not Linear or type(module.get_base_layer()) is not nn.Linear or module.fan_in_fan_out:
        return False
    names, base = _active(module), module.get_base_layer()
    plain = not any(name in module.lora_variant or module.lora_bias.get(name) for name in names)
    return plain and base.weight.device.type != "meta" and not _hooked(module)


def finish_maps(model: nn.Module) -> int:
    """Replace, in place, every map that can be finished; returns the bytes of the added weights."""
    added = 0
    for parent, name, module in list(_children(model)):
        if can_finish(module):
            finished = TwoWeights(module)
            setattr(parent, name, finished)
            added += finished.on.numel() * finished.on.element_size()
    return added


def bytes_of_finished(model: nn.Module) -> int:
    """The memory that `finish_maps` would add."""
    weights = (module.get_base_layer().weight for module in model.modules() if can_finish(module))
    return sum(weight.numel() * weight.element_size() for weight in weights)


def _children(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in model.modules():
        for name, child in parent.named_children():
            yield parent, name, child


def _active(module: Any) -> list[str]:
    return [name for name in module.active_adapters if name in module.lora_A]


def _hooked(module: nn.Module) -> bool:
    """Whether anything inside has hooks, such as those that move weights between devices."""
    return any(
        "forward" in vars(inner) or inner._forward_hooks or inner._forward_pre_hooks
        for inner in module.modules()
    )
