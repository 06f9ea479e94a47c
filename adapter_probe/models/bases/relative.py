"""Attention with relative positions: MPNet's bias per distance, and DeBERTa's distance vectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .attention import Attention, split_heads

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapter_probe.data.packing import Group

    from .angles import Angles
    from .parts import LayerParts


class BiasedAttention(Attention):
    """A learned bias for every distance and head, the same in all layers."""

    def prepare(self, parts: LayerParts, longest: int) -> Tensor:
        """``[1, heads, longest, longest]``; shorter examples use its corner."""
        some = self.encoder.encoder.relative_attention_bias.weight.new_empty(1, longest, 0)
        bias: Tensor = self.encoder.encoder.compute_position_bias(some)
        return bias

    def bias(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group, shared: Any) -> Tensor:
        """See `Attention.bias`."""
        corner = shared[:, :, : group.length, : group.length]
        # [1, heads, queries, length] -> [rows, heads, queries, length]
        return corner if at is None else corner[0].transpose(0, 1)[at].transpose(1, 2)


class DisentangledAttention(Attention):
    """Disentangled attention: content to content, content to position, and position to content.

    With key k_j, query q_i and the vectors of the distance r = i - j, the product is
    q_i . k_j + q_i . k'_r + k_j . q'_r, each over sqrt(head width times the number of terms).
    Source: He et al. 2021 (arXiv 2006.03654), section 3.1.
    """

    reads = ("pos_key_proj", "pos_query_proj", "pos_proj", "pos_q_proj", "q_bias", "v_bias")

    def __init__(self, encoder: PreTrainedModel, module: nn.Module, angles: Angles | None = None):
        super().__init__(encoder, module, angles)
        self._terms = tuple(term for term in ("c2p", "p2c") if term in module.pos_att_type)
        width = module.all_head_size // self.n_heads
        self.scale = 1 / math.sqrt(width * (1 + len(self._terms)))
        self._span = int(getattr(module, "pos_ebd_size", 0) or getattr(module, "max_relative_positions", 0))
        self._kept: tuple[tuple[object, ...], tuple[Tensor, int, int]] | None = None

    def projections(self, parts: LayerParts) -> dict[str, nn.Module | None]:
        """The modules for keys (term c2p) and queries (p2c) of distances."""
        if self.module.share_att_key:
            return {"c2p": parts.key, "p2c": parts.query}
        names = {"c2p": "pos_key_proj", "p2c": "pos_query_proj"}
        return {term: getattr(self.module, name, None) for term, name in names.items()}

    def prepare(self, parts: LayerParts, longest: int) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Rows of the distances ``[longest, longest]`` and, for each term, ``[heads, distances, width]``."""
        if not self.module.relative_attention or not self._terms:
            return None
        all_vectors = self.module.pos_dropout(self.encoder.encoder.get_rel_embedding())
        rows, first, last = self._rows_kept(longest, all_vectors.device)
        vectors = all_vectors[first : last + 1]
        projections = self.projections(parts)
        tables = {
            term: split_heads(projections[term](vectors)[None], -1, self.n_heads)[0] for term in self._terms
        }
        return rows, tables

    def _rows_kept(self, longest: int, device: torch.device) -> tuple[Tensor, int, int]:
        """`_rows` on the device, kept until a batch has another longest text."""
        key = (longest, device, torch.is_inference_mode_enabled())  # see `Angles`
        if self._kept is None or self._kept[0] != key:
            rows, first, last = self._rows(longest)
            self._kept = key, (rows.to(device), first, last)
        return self._kept[1]

    def _rows(self, longest: int) -> tuple[Tensor, int, int]:
        """Rows of the distances ``[longest, longest]``, counted from the first; the first and the last."""
        distances = self.encoder.encoder.get_rel_pos(torch.empty(1, longest, 0))[0]
        rows = (distances + self._span).clamp(0, 2 * self._span - 1)
        first, last = int(rows[0, -1]), int(rows[-1, 0])  # no other distance is farther
        return rows - first, first, last

    def bias(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group, shared: Any) -> Tensor | None:
        """The terms with distances in them."""
        if shared is None:
            return None
        length, (rows, tables) = key.shape[2], shared
        here = rows[:length, :length]
        # [rows or 1, 1, queries, length]
        here = (here[None] if at is None else here[at])[:, None]
        shape = (*query.shape[:3], length)
        total = query.new_zeros(())
        if "c2p" in tables:
            total = total + (query @ tables["c2p"].transpose(-1, -2)).gather(-1, here.expand(shape))
        if "p2c" in tables:
            products = key @ tables["p2c"].transpose(-1, -2)  # [rows, heads, length, distances]
            there = here.transpose(-1, -2).expand(*shape[:2], length, shape[2])
            total = total + products.gather(-1, there).transpose(-1, -2)
        return total * self.scale


class InterleavedDisentangledAttention(DisentangledAttention):
    """The first version of DeBERTa: one projection, with the three parts of each head adjacent."""

    def projections(self, parts: LayerParts) -> dict[str, nn.Module | None]:
        """See `DisentangledAttention.projections`."""
        names = {"c2p": "pos_proj", "p2c": "pos_q_proj"}
        return {term: getattr(self.module, name, None) for term, name in names.items()}

    def project(
        self, parts: LayerParts, states: Tensor, wanted: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Attention.project`."""
        query, key, value = super().project(parts, states, wanted)
        return query + self.module.q_bias, key, value + self.module.v_bias
