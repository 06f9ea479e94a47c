"""Copies of a model that share its tensors."""

from __future__ import annotations

import copy
from collections import OrderedDict
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from .recording import is_moved

_HELD = (dict, OrderedDict, set)  # what modules have many of, mostly empty


def sharing(model: nn.Module) -> nn.Module:
    """A copy with the same tensors and switches of its own."""
    return copy_with(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})


def copy_with(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """What `copy.deepcopy` returns, in a third of the time: most of it goes into empty dictionaries.

    Args:
        memo: what stands in the copy for objects of the model, by their identity; copied modules are added.
    """
    plain = [m for m in model.modules() if id(m) not in memo and _is_copied_by_state(type(m))]
    memo |= {id(module): type(module).__new__(type(module)) for module in plain}
    for module in plain:
        state = {
            name: copy.deepcopy(value, memo)
            if type(value) not in _HELD or value
            else memo.setdefault(id(value), type(value)())
            for name, value in module.__getstate__().items()
        }
        memo[id(module)].__setstate__(state)
    return copy.deepcopy(model, memo)


def _is_copied_by_state(cls: type[nn.Module]) -> bool:
    """Whether `copy.deepcopy` makes an empty module and gives it a copy of the state of the other."""
    own = {"__deepcopy__", "__reduce__", "__reduce_ex__", "__getnewargs_ex__", "__getnewargs__", "__slots__"}
    return all(kind is object or own.isdisjoint(vars(kind)) for kind in cls.__mro__)


def cast_copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy that shares its tensors, but for those that are stored in another floating-point precision.

    Quantised weights are kept, and buffers of the model that are computed and not stored, such as rotary
    frequencies; but not those of tuners, such as the projections of a VeRA that were drawn again.
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
    return copy_with(model, {id(tensor): cast(tensor) for tensor in tensors})


def can_share(model: nn.Module) -> bool:
    """Whether copies work: hooks that move weights belong to the modules of one model, as a lock does."""
    if is_moved(model):
        return False
    try:
        sharing(model)
    except Exception:  # whatever a class of the user's raises
        return False
    return True
