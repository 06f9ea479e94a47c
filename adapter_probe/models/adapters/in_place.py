"""Activations and sums in place, and packed weights, to reduce memory traffic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
