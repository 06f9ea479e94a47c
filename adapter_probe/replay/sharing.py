"""Copies of a model that share its tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor, nn


def sharing(model: nn.Module) -> nn.Module:
    """A copy with the same tensors and switches of its own."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})


def cast_copy(
    model: nn.Module, dtype: torch.dtype, instead: Mapping[nn.Module, nn.Module] | None = None
) -> nn.Module:
    """A copy that shares its tensors, but for those that are stored in another floating-point precision.

    Quantised weights are kept, and buffers of the model that are computed and not stored, such as rotary
    frequencies; but not those of tuners, such as the projections of a VeRA that were drawn again.

    Args:
        model: the model.
        dtype: the precision.
        instead: modules that stand in the copy in place of some of the model's, which are not copied.
    """
    stored = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    tuners = (module for module in model.modules() if type(module).__module__.startswith("peft."))
    stored |= {id(buffer) for module in tuners for buffer in module.buffers(recurse=False)}

    def cast(tensor: Tensor) -> Tensor:
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.is_floating_point()
        if id(tensor) not in stored or not plain or tensor.dtype == dtype:
            return tensor
        other = tensor.detach().to(dtype)
        return nn.Parameter(other, requires_grad=False) if isinstance(tensor, nn.Parameter) else other

    tensors = chain(model.parameters(), model.buffers())
    memo: dict[int, object] = {id(tensor): cast(tensor) for tensor in tensors}
    memo |= {id(module): other for module, other in (instead or {}).items()}
    return copy.deepcopy(model, memo)


def can_share(model: nn.Module) -> bool:
    """Whether copies work: hooks that move weights belong to the modules of one model, as a lock does."""
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        return False
    try:
        sharing(model)
    except Exception:  # whatever a class of the user's raises
        return False
    return True
