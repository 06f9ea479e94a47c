"""LoRA on a plain linear map as finished weights, between which the switch chooses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .directions import of_product, peft_is_loaded

if TYPE_CHECKING:
    from peft.tuners.lora.layer import Linear


_ON, _OFF, _SCALED = "on", "off", "scaled"
STRENGTH = "_off_strength"
"""Attribute of modules with a strength of their own, which their copies have too."""


SEVERAL = "_several_adapters"
"""Attribute of modules with several active adapters, each of which has a switch of its own."""


def strength_of(module: nn.Module, strength: float) -> float:
    """What a module's change is multiplied by where it is off: its own strength, or that of all modules."""
    return float(vars(module).get(STRENGTH, strength))


class TwoWeights(nn.Module):
    """A linear map, the same with its low-rank change added, and that with the change scaled or truncated.

    The change is added in at least float32 and rounded once; PEFT rounds the map and the change separately.

    Args:
        tuned: a module of PEFT for which `can_finish` is true.
        strength: what the change is multiplied by in the third weight, unless `tuned` has a strength of its
            own; 0 for none.
        rank: how many directions of the change the third weight has; 0 for none.
    """

    def __init__(self, tuned: Linear, strength: float = 0.0, rank: int = 0):
        super().__init__()
        base = tuned.get_base_layer()
        self.off = base.weight
        self.bias = base.bias
        self.on = _finished(tuned, 1.0)
        strength = strength_of(tuned, strength)
        scaled = strength not in (0, 1) or rank
        self.scaled = _finished(tuned, strength or 1.0, rank) if scaled else None
        if STRENGTH in vars(tuned):
            vars(self)[STRENGTH] = strength
        half = base.weight.dtype.itemsize <= 2  # of which a rounded change cannot be taken back
        self._factors = [] if scaled or half else list(_factors(tuned))
        self._in_use = _ON
        self._packed: dict[str, Callable[[Tensor], Tensor]] = {}

    def change_packed(self, change: Callable[[Any], Any]) -> bool:
        """Change the functions of `pack`; whether there are any."""
        self._packed = {name: change(packed) for name, packed in self._packed.items()}
        return bool(self._packed)

    def pack(self, packed: Callable[[nn.Linear], Callable[[Tensor], Tensor]]) -> None:
        """Apply the weights by functions of the whole map; the added weights themselves are freed."""
        for name in (_ON, _OFF, _SCALED):
            weight = getattr(self, name)
            if weight is not None:
                linear = nn.Linear(1, 1, bias=False, device="meta")
                linear.weight, linear.bias = nn.Parameter(weight, requires_grad=False), self.bias
                self._packed[name] = packed(linear)
                if name != _OFF:
                    setattr(self, name, nn.Parameter(weight.new_empty(0), requires_grad=False))

    @property
    def weight(self) -> Tensor:
        """The weight in use, which some models look at."""
        weight: Tensor = getattr(self, self._in_use)
        return weight

    @property
    def disable_adapters(self) -> bool:
        """Whether the change is left out, as PEFT's modules say it."""
        return self._in_use == _OFF

    def enable_adapters(self, on: bool) -> None:
        """Choose the weight with or without the change."""
        self._in_use = _ON if on else _OFF

    def choose(self, on: bool) -> None:
        """Choose the weight with the change, or the third one."""
        assert on or self.scaled is not None, "it was made with a strength or a rank"
        self._in_use = _ON if on else _SCALED

    @property
    def has_change(self) -> bool:
        """Whether `change` gives the difference of the two weights' results, up to rounding."""
        return bool(self._factors) and STRENGTH not in vars(self)

    def change(self, x: Tensor) -> Tensor:
        """The low-rank change of ``[..., inputs]``, as ``[..., outputs]``."""
        changes = (F.linear(F.linear(x, a), b).mul_(scale) for b, a, scale in self._factors)
        return functools.reduce(Tensor.add_, changes)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        if self._packed:
            return self._packed[self._in_use](x)
        return F.linear(x, self.weight, self.bias)


def _finished(tuned: Linear, strength: float, rank: int = 0) -> nn.Parameter:
    base = tuned.get_base_layer()
    wide = torch.promote_types(base.weight.dtype, torch.float32)
    weight = base.weight.detach().to(wide)
    for b, a, scale in _factors(tuned):
        if 0 < rank < len(a):
            b, a = (one.to(weight) for one in of_product(b, a).factors(rank))
        factor = torch.tensor(strength * scale, dtype=wide)  # infinite where it overflows
        weight = weight.addmm(b, a, alpha=float(factor))
    return nn.Parameter(weight.to(base.weight.dtype), requires_grad=False)


def _factors(tuned: Linear) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Of each adapter B ``[outputs, rank]``, A ``[rank, inputs]`` and the factor of their product."""
    weight = tuned.get_base_layer().weight
    wide = torch.promote_types(weight.dtype, torch.float32)
    for name in _active(tuned):
        b, a = (of[name].weight.detach().to(weight.device, wide) for of in (tuned.lora_B, tuned.lora_A))
        yield b, a, tuned.scaling[name]


def is_plain_lora(module: nn.Module) -> bool:
    """Whether a module adds a low-rank change, which PEFT multiplies by its `scaling`: no DoRA."""
    if not peft_is_loaded():
        return False
    from peft.tuners.lora.layer import LoraLayer

    if not isinstance(module, LoraLayer):
        return False
    return not any(name in getattr(module, "lora_variant", {}) for name in module.active_adapters)


def can_finish(module: nn.Module) -> bool:
    """Whether a module is plain LoRA on a plain linear map in memory, without hooks."""
    if not peft_is_loaded():
        return False
    from peft.tuners.lora.layer import Linear

    if type(module) is not Linear or type(module.get_base_layer()) is not nn.Linear or module.fan_in_fan_out:
        return False
    names, base = _active(module), module.get_base_layer()
    if SEVERAL in vars(module):
        return False
    plain = not any(name in module.lora_variant or module.lora_bias.get(name) for name in names)
    return plain and base.weight.device.type != "meta" and not _hooked(module)


def finish_maps(model: nn.Module, strength: float = 0.0, rank: int = 0) -> int:
    """Replace, in place, every map that can be finished; returns the bytes of the added weights."""
    added = 0
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if can_finish(module):
                finished = TwoWeights(module, strength, rank)
                setattr(parent, name, finished)
                added += sum(w.nbytes for w in (finished.on, finished.scaled) if w is not None)
    return added


def bytes_of_finished(model: nn.Module) -> int:
    """The memory that `finish_maps` would add."""
    weights = (module.get_base_layer().weight for module in model.modules() if can_finish(module))
    return sum(weight.numel() * weight.element_size() for weight in weights)


def _active(module: Any) -> list[str]:
    return [name for name in module.active_adapters if name in module.lora_A]


def _hooked(module: nn.Module) -> bool:
    """Whether anything inside has hooks, such as those that move weights between devices."""
    return any(
        "forward" in vars(inner) or inner._forward_hooks or inner._forward_pre_hooks
        for inner in module.modules()
    )
