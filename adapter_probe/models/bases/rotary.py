"""Attention with rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .angles import Angles
from .attention import Attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapter_probe.data.packing import Group


class RotaryAttention(Attention):
    """Rotary positions: rotations of queries and keys."""

    def __init__(self, encoder: PreTrainedModel, module: nn.Module, angles: Angles | None = None):
        super().__init__(encoder, module, angles)
        self._kind = self.angles.kind(module)

    def rotate(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group) -> tuple[Tensor, Tensor]:
        """See `Attention.rotate`; the angles come from the model."""
        angles = self.angles(key, group, self._kind)  # [1, length, width]
        cos, sin = (t[:, None] for t in angles)
        here = (cos, sin) if at is None else [t[0, at][:, None] for t in angles]
        return _rotated(query, *here), _rotated(key, cos, sin)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + width / 2}) by its angle."""
    low, high = states.chunk(2, dim=-1)
    if torch.is_grad_enabled():
        return states * cos + torch.cat([-high, low], dim=-1) * sin
    rotated = states * cos  # the same in fewer passes over memory
    for half, other, sine in zip(rotated.chunk(2, dim=-1), (-high, low), sin.chunk(2, dim=-1)):
        half += other * sine
    return rotated
