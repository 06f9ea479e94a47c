"""Activations fused with the preceding linear map, and steps in place, to reduce memory traffic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation, SiLUActivation

# By oneDNN's names: (kind, formula).
_NAMES: dict[type[nn.Module], tuple[str, str]] = {
    GELUActivation: ("gelu", "none"),
    NewGELUActivation: ("gelu", "tanh"),  # eight steps in transformers
    GELUTanh: ("gelu", "tanh"),
    nn.ReLU: ("relu", ""),
    nn.SiLU: ("swish", ""),
    SiLUActivation: ("swish", ""),
}
_gelu_: Callable[..., Tensor] = torch.ops.aten.gelu_.default
_IN_PLACE: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("gelu", "none"): _gelu_,
    ("gelu", "tanh"): partial(_gelu_, approximate="tanh"),
    ("relu", ""): torch.relu_,
    ("swish", ""): partial(F.silu, inplace=True),
}


class PackedMap:
    """Replacement of the `forward` of a linear map in bfloat16 on a CPU.

    PyTorch repacks the weights and writes the biases before every product, and applies the activation in a
    separate pass, which is significant next to a product on a matrix unit. Here the weights are packed once,
    and oneDNN applies biases and activation to the sums before they are rounded. Copies of a model share it,
    because it is immutable.
    """

    def __init__(self, linear: nn.Linear):
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = linear.bias

    def __deepcopy__(self, memo: object) -> PackedMap:
        return self

    def __call__(self, x: Tensor, kind: str = "none", formula: str = "") -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``, with an activation given by its oneDNN name."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, kind, [], formula)
        return out


def activated(activation: nn.Module, fresh: Tensor) -> Tensor:
    """``activation(fresh)`` up to rounding; without gradients, `fresh` may be overwritten."""
    names = _NAMES.get(type(activation))
    return activation(fresh) if names is None or torch.is_grad_enabled() else _IN_PLACE[names](fresh)


def activated_in_place(activation: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The forward of an activation that overwrites its argument and returns another view of it."""
    names = _NAMES.get(type(activation))
    if names is None or "forward" in vars(activation):
        return None
    in_place = _IN_PLACE[names]
    return lambda x: in_place(x).view_as(x)


def added(fresh: Tensor, other: Tensor) -> Tensor:
    """``fresh + other``; without gradients, `fresh` may be overwritten."""
    return fresh.add_(other) if _may_hold_result(fresh, other) else fresh + other


def multiplied(fresh: Tensor, other: Tensor) -> Tensor:
    """``fresh * other``; without gradients, `fresh` may be overwritten."""
    return fresh.mul_(other) if _may_hold_result(fresh, other) else fresh * other


def _may_hold_result(fresh: Tensor, other: Tensor) -> bool:
    """Whether a sum may overwrite `fresh`; with autocast, `other` can be in a higher precision."""
    return not torch.is_grad_enabled() and torch.result_type(fresh, other) == fresh.dtype


def mapped(linear: nn.Module, activation: nn.Module, x: Tensor) -> Tensor:
    """``activation(linear(x))`` up to rounding; fused if the map is packed and has no hooks."""
    packed, names = vars(linear).get("forward"), _NAMES.get(type(activation))
    hooked = linear._forward_hooks or linear._forward_pre_hooks
    if isinstance(packed, PackedMap) and names is not None and not hooked:
        return packed(x, *names)
    return activated(activation, linear(x))
