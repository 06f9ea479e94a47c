"""Packing of linear maps in bfloat16 for the processor's matrix unit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .adapted import AdaptedModel
from .adapters.in_place import PackedMap
from .evaluation import Trainable


def can_pack(model: AdaptedModel) -> bool:
    """Whether the model is in bfloat16 on a CPU that oneDNN supports."""
    return can_pack_weight(next(model.base.parameters()))


def can_pack_weight(weight: Tensor) -> bool:
    """Whether a weight is in bfloat16 on a CPU that oneDNN supports."""
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
        return False
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_maps(model: AdaptedModel, drop: bool) -> None:
    """Replace every linear map in the layers, including adapters, by a `PackedMap`; see `can_pack`.

    Args:
        model: a model that is only used for evaluation afterwards.
        drop: free the original weights to save memory; afterwards, the model can only be called.
    """
    last = model.layers[-1].parts
    kept = {last.key, last.value}  # whose weights are read directly
    for layer in model.layers:
        for linear in layer.parts.whole.modules():
            if type(linear) is not nn.Linear or linear in kept or "forward" in vars(linear):
                continue
            linear.forward = PackedMap(linear)  # type: ignore[method-assign]
            if drop:
                linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)


@contextmanager
def packed_frozen_maps(model: Trainable) -> Iterator[None]:
    """Pack the frozen linear maps of a model's layers as long as the context lasts, for training.

    The results are the same; the packed weights take as much memory as those maps in bfloat16.
    """
    modules = dict.fromkeys(module for layer in model.layers for module in layer.parts.whole.modules())
    frozen = [module for module in modules if _is_frozen(module)]
    for linear in frozen:
        linear.forward = FrozenMap(linear)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for linear in frozen:
            del linear.forward


def _is_frozen(module: nn.Module) -> bool:
    """Whether the module is a plain linear map that does not train, and that oneDNN can pack."""
    if type(module) is not nn.Linear or any(p.requires_grad for p in module.parameters()):
        return False
    return can_pack_weight(module.weight) and "forward" not in vars(module)


class FrozenMap:
    """Replacement of the `forward` of a frozen linear map in bfloat16 on a CPU; see `PackedMap`."""

    def __init__(self, linear: nn.Linear):
        self._linear, self._packed = linear, PackedMap(linear)

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        weight = self._linear.weight
        out: Tensor = _Through.apply(x.to(weight.dtype), weight, self._packed)
        return out


class _Through(torch.autograd.Function):
    """A packed map; its gradient reads the plain weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, packed: PackedMap) -> Tensor:
        ctx.weight = weight
        return packed(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient @ ctx.weight, None, None
