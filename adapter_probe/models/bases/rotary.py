"""Attention with rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .angles import Angles
from .attention import Attention, for_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapter_probe.data.packing import Group


class RotaryAttention(Attention):
    """Rotary positions: rotations of queries and keys, in layers that have them."""

    def __init__(self, encoder: PreTrainedModel, module: nn.Module, angles: Angles | None = None):
        super().__init__(encoder, module, angles)
        self._rotates = bool(getattr(module, "use_rope", True))
        self._kind = self.angles.kind(module)

    def rotate(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group) -> tuple[Tensor, Tensor]:
        """See `Attention.rotate`; the angles come from the model."""
        if not self._rotates:
            return query, key
        angles = self.angles(key, group, self._kind)  # [1 or n, length, width]
        cos, sin = (for_rows(t, len(key))[:, None] for t in angles)
        here = (cos, sin) if at is None else [for_rows(t, len(key), at)[:, None] for t in angles]
        return _rotated(query, *here), _rotated(key, cos, sin)


class CausalRotaryAttention(RotaryAttention):
    """Rotary positions in a decoder."""

    causal = True


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + width / 2}) by its angle; what lies beyond the angles' width stays."""
    rotated, rest = states[..., : cos.shape[-1]], states[..., cos.shape[-1] :]
    low, high = rotated.chunk(2, dim=-1)
    if torch.is_grad_enabled():
        rotated = rotated * cos + torch.cat([-high, low], dim=-1) * sin
    else:  # the same in fewer passes over memory
        rotated = rotated * cos
        for half, other, sine in zip(rotated.chunk(2, dim=-1), (-high, low), sin.chunk(2, dim=-1)):
            half += other * sine
    return torch.cat([rotated, rest], dim=-1) if rest.shape[-1] else rotated
