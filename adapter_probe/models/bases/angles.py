"""The angles of rotary positions, computed once per batch instead of once per layer."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from adapter_probe.errors import ModelError

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
        self._kept: dict[tuple[object, ...], tuple[Tensor | None, Tensor, Tensor]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Angles:
        return Angles(deepcopy(self._encoder, memo))

    def kind(self, module: nn.Module) -> str | None:
        """The rotation of an attention module's layer; None if the model has only one."""
        if not isinstance(getattr(self._encoder.rotary_emb, "rope_type", None), dict):
            return None
        return str(self._encoder.config.layer_types[module.layer_idx])

    def __call__(self, like: Tensor, group: Group, kind: str | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[1 or n, length, width]`` of a group's positions, in the type of `like`.

        Raises:
            ModelError: the rotation depends on a text's length, and texts of different lengths share the
                group.
        """
        # Tensors created in inference mode cannot be used with gradients.
        mode = (like.dtype, like.device, torch.is_inference_mode_enabled())
        key = (group.length, id(group.positions), kind, *mode)
        if key not in self._kept:
            examples = 1 if group.positions is None else len(group.positions)
            kept = sum(cos.shape[:2].numel() for _, cos, _ in self._kept.values())
            if kept + examples * group.length > _MOST_POSITIONS:
                self._kept.clear()
            self._kept[key] = (group.positions, *self._computed(like, group, kind))
        return self._kept[key][1:]

    def _computed(self, like: Tensor, group: Group, kind: str | None) -> tuple[Tensor, Tensor]:
        self._refuse_mixed_lengths(group)
        positions = group.positions
        if positions is None:
            positions = torch.arange(group.length, device=like.device)[None]
        cos, sin = self._encoder.rotary_emb(like, positions, *(() if kind is None else (kind,)))
        return cos.to(like.dtype), sin.to(like.dtype)

    def _refuse_mixed_lengths(self, group: Group) -> None:
        rope = getattr(self._encoder.config, "rope_parameters", None) or {}
        limit = rope.get("original_max_position_embeddings") or self._encoder.config.max_position_embeddings
        if (
            group.sees is not None
            and rope.get("rope_type") in {"dynamic", "longrope"}
            and group.length > limit
        ):
            raise ModelError(
                f"{self._encoder.config.model_type} rotates positions by text length beyond {limit} tokens "
                f"(rope_type {rope['rope_type']!r}), so texts cannot share a context of this length"
            )
