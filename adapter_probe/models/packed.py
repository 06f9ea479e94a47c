"""Packing of linear maps in bfloat16 for the processor's matrix unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .adapters.in_place import PackedMap


def can_pack_weight(weight: Tensor) -> bool:
    """Whether a weight is in bfloat16 on a CPU that oneDNN supports."""
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
        return False
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextmanager
def packed_frozen_maps(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Pack the frozen linear maps of layers as long as the context lasts, for training.

    The results are the same up to rounding; the packed weights take as much memory as those maps in bfloat16.
    """
    modules = dict.fromkeys(module for layer in layers for module in layer.modules())
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
    if type(module) is not nn.Linear or any(p.requires_grad for p in module.parameters(recurse=False)):
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
