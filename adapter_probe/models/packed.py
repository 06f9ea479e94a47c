"""Packing of linear maps in bfloat16 for the processor's matrix unit."""

from __future__ import annotations

import torch
from torch import nn

from .adapted import AdaptedModel
from .adapters.in_place import PackedMap
from .adapters.low_rank import LowRank


def can_pack(model: AdaptedModel) -> bool:
    """Whether the model is in bfloat16 on a CPU that oneDNN supports."""
    parameter = next(model.base.parameters())
    if parameter.dtype != torch.bfloat16 or parameter.device.type != "cpu":
        return False
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_maps(model: AdaptedModel, drop: bool) -> None:
    """Replace every linear map in the layers, including adapters, by a `PackedMap`; see `can_pack`.

    Args:
        model: a model that is only used for evaluation afterwards.
        drop: free the original weights to save memory; afterwards, the model can only be called.
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
    """Maps whose weights are read directly: keys and values of the last layer, and maps with LoRA."""
    last = model.layers[-1].parts
    changes = [module for module in model.base.modules() if isinstance(module, LowRank)]
    return {last.key, last.value, *(linear for change in changes for linear in change.reads)}
