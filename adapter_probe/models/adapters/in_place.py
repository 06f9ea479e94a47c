"""Activations in place, where no gradient wants what they overwrite: they cost what they read and write."""

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


def activated(activation: nn.Module, fresh: Tensor) -> Tensor:
    """``activation(fresh)``, to rounding; without gradients `fresh` may be overwritten."""
    in_place = None if torch.is_grad_enabled() else _IN_PLACE.get(type(activation))
    return activation(fresh) if in_place is None else in_place(fresh)
