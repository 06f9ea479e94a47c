"""Which linear maps of a model in bfloat16 are packed for the processor's matrix unit."""

from __future__ import annotations

import torch
from torch import nn

from .adapted import AdaptedModel
from .adapters.in_place import PackedMap
from .adapters.low_rank import LowRank


def can_pack(model: AdaptedModel) -> bool:
    """Whether the model is in bfloat16, on a processor for which oneDNN multiplies it."""
    parameter = next(model.base.parameters())
    if parameter.dtype != torch.bfloat16 or parameter.device.type != "cpu":
        return False
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_maps(model: AdaptedModel, drop: bool) -> None:
    """Have every linear map in the layers, adapters included, compute by a `PackedMap`; see `can_pack`.

    Args:
        model: for evaluation alone, from now on.
        drop: give up the weights as they were, to save memory: the model is good for nothing but its calls.
    """
    kept = _read_elsewhere(model)
    for layer in model.layers:
        for linear in layer.parts.whole.modules():
            if type(linear) is not nn.Linear or linear in kept or "forward" in vars(linear):
                continue
            linear.forward = PackedMap(linear)  # type: ignore[method-assign]
            if drop:
                linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)


def _read_elsewhere(model: AdaptedModel) -> set[nn.Module | None]:
    """Maps whose weights others read: the last layer folds keys and values into its query; LoRA likewise."""
    last = model.layers[-1].parts
    changes = [module for module in model.base.modules() if isinstance(module, LowRank)]
    return {last.key, last.value, *(linear for change in changes for linear in change.reads)}
