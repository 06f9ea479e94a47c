"""The angles of rotary positions, computed once per batch instead of once per layer."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapter_probe.data.packing import Group

_MOST_POSITIONS = 16_384  # cache limit: 16 MiB in float32 at a head width of 128


class Angles:
    """Cosines and sines of one model's rotary positions.

    Args:
        encoder: the encoder, with a module `rotary_emb` if it has rotary positions.
    """

    def __init__(self, encoder: PreTrainedModel):
        self._encoder = encoder
        self._kept: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Angles:
        return Angles(deepcopy(self._encoder, memo))

    def kind(self, module: nn.Module) -> str | None:
        """The rotation of an attention module's layer; None if the model has only one."""
        if not isinstance(getattr(self._encoder.rotary_emb, "rope_type", None), dict):
            return None
        return str(self._encoder.config.layer_types[module.layer_idx])

    def __call__(self, like: Tensor, group: Group, kind: str | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[1, length, width]`` of a group's positions, in the type of `like`."""
        # Tensors created in inference mode cannot be used with gradients.
        mode = (like.dtype, like.device, torch.is_inference_mode_enabled())
        key = (group.length, kind, *mode)
        if key not in self._kept:
            kept = sum(cos.shape[1] for cos, _ in self._kept.values())
            if kept + group.length > _MOST_POSITIONS:
                self._kept.clear()
            self._kept[key] = self._computed(like, group, kind)
        return self._kept[key]

    def _computed(self, like: Tensor, group: Group, kind: str | None) -> tuple[Tensor, Tensor]:
        positions = torch.arange(group.length, device=like.device)[None]
        cos, sin = self._encoder.rotary_emb(like, positions, *(() if kind is None else (kind,)))
        return cos.to(like.dtype), sin.to(like.dtype)
