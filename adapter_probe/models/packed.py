"""Packed weights of linear maps, and activations and sums in place, to reduce memory traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation, SiLUActivation

_gelu_: Callable[..., Tensor] = torch.ops.aten.gelu_.default
_tanh_gelu_ = partial(_gelu_, approximate="tanh")
_silu_ = partial(F.silu, inplace=True)
_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    GELUActivation: _gelu_,
    NewGELUActivation: _tanh_gelu_,  # eight steps in transformers
    GELUTanh: _tanh_gelu_,
    nn.ReLU: torch.relu_,
    nn.SiLU: _silu_,
    SiLUActivation: _silu_,
}


class PackedMap:
    """Replacement of the `forward` of a linear map in bfloat16 on a CPU.

    PyTorch repacks the weights and writes the biases before every product, which is significant next to a
    product on a matrix unit. Here the weights are packed once. Copies of a model share it, because it is
    immutable.
    """

    def __init__(self, linear: nn.Linear):
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = linear.bias

    def __deepcopy__(self, memo: object) -> PackedMap:
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


def activated_in_place(activation: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The forward of an activation that overwrites its argument and returns another view of it."""
    in_place = _IN_PLACE.get(type(activation))
    if in_place is None or "forward" in vars(activation):
        return None
    return lambda x: in_place(x).view_as(x)


def added(fresh: Tensor, other: Tensor) -> Tensor:
    """``fresh + other``; without gradients, `fresh` may be overwritten."""
    # With autocast, `other` can be in a higher precision; in training, `fresh` may be of fewer positions.
    fits = torch.result_type(fresh, other) == fresh.dtype and fresh.shape == other.shape
    return fresh.add_(other) if fits and not torch.is_grad_enabled() else fresh + other


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
