"""Activations at the cost of what they read and write: within the map before them, or in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation, SiLUActivation

_gelu_: Callable[..., Tensor] = torch.ops.aten.gelu_.default
_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    GELUActivation: _gelu_,
    NewGELUActivation: partial(_gelu_, approximate="tanh"),  # the same formula, there in eight steps
    GELUTanh: partial(_gelu_, approximate="tanh"),
    nn.ReLU: torch.relu_,
    nn.SiLU: partial(F.silu, inplace=True),
    SiLUActivation: partial(F.silu, inplace=True),
}
# By oneDNN's names: (kind, formula).
_FUSED: dict[type[nn.Module], tuple[str, str]] = {
    GELUActivation: ("gelu", "none"),
    NewGELUActivation: ("gelu", "tanh"),
    GELUTanh: ("gelu", "tanh"),
    nn.ReLU: ("relu", ""),
    nn.SiLU: ("swish", ""),
    SiLUActivation: ("swish", ""),
}


class PackedMap:
    """What a linear map in bfloat16 computes on a processor, in place of its `forward`.

    PyTorch's own call rearranges the weights and lays the biases down before every product, and leaves the
    activation to a pass of its own, which shows beside a product on a matrix unit. Here the weights are
    rearranged once, and oneDNN adds the biases and acts on the sums before they are rounded. Copies of a
    model share it, as nothing in it changes.
    """

    def __init__(self, linear: nn.Linear):
        self._weight, self._bias = (
            torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach()),
            linear.bias,
        )

    def __deepcopy__(self, memo: object) -> PackedMap:
        return self

    def __call__(self, x: Tensor, kind: str = "none", formula: str = "") -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``, with an activation by oneDNN's names."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, kind, [], formula)
        return out


def activated(activation: nn.Module, fresh: Tensor) -> Tensor:
    """``activation(fresh)``, to rounding; without gradients `fresh` may be overwritten."""
    in_place = None if torch.is_grad_enabled() else _IN_PLACE.get(type(activation))
    return activation(fresh) if in_place is None else in_place(fresh)


def mapped(linear: nn.Module, activation: nn.Module, x: Tensor) -> Tensor:
    """``activation(linear(x))``, to rounding; in one call where the map is packed and has no hooks."""
    packed, names = vars(linear).get("forward"), _FUSED.get(type(activation))
    hooked = linear._forward_hooks or linear._forward_pre_hooks
    if isinstance(packed, PackedMap) and names is not None and not hooked:
        return packed(x, *names)
    return activated(activation, linear(x))
