"""Copies of a model that share its tensors."""

from __future__ import annotations

import copy
from itertools import chain

from torch import nn


def sharing(model: nn.Module) -> nn.Module:
    """A copy with the same tensors and switches of its own."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})


def can_share(model: nn.Module) -> bool:
    """Whether copies work: hooks that move weights belong to the modules of one model."""
    return not any(hasattr(module, "_hf_hook") for module in model.modules())
