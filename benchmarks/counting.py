"""Floating-point operations, counted from shapes: what the method asks for, whatever the code does.

Counted are the products with the layers' own weights, attention's two products and what the sites add (a
bottleneck, or LoRA). Left out are the embeddings, pooler and head and all that is element by element. In our
own model the last layer carries on one position an example, as its head reads no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adapter_probe.probe.plan import nodes_by_site
from adapter_probe.spans import span_variants


@dataclass(frozen=True)
class Sublayers:
    """Multiply-adds of one pass over all texts: each sublayer's, and what its site adds.

    Attributes:
        inner: ``[sites]``, of the sublayer.
        added: ``[sites]``, of what stands at its site.
    """

    inner: np.ndarray
    added: np.ndarray


def sublayers(known: dict[str, Any], groups: list[list[int]], last_reads_one: bool) -> Sublayers:
    """Count one pass.

    Args:
        known: the case's shapes.
        groups: ``[examples, tokens each]`` of all that goes through, padding included.
        last_reads_one: whether the last layer carries on one position an example.
    """
    width, inner = known["hidden"], known["inner"]
    tokens = sum(n * length for n, length in groups)
    squares = sum(n * length**2 for n, length in groups)
    attention = 4 * width**2 * tokens + 2 * width * squares
    ffn = 2 * width * inner * tokens
    counts = np.tile([attention, ffn], known["layers"]).astype(float)
    added = np.tile(known["site_products"], known["layers"]).astype(float) * tokens
    if last_reads_one:
        texts = sum(n for n, _ in groups)
        inside = known["forks_early"][0]
        if inside:  # keys and values still need all positions, as does LoRA on the values
            counts[-2] = 2 * width**2 * (tokens + texts) + 2 * width * tokens
        else:  # their maps are applied to the one query and to what it reads
            counts[-2] = 4 * width**2 * texts + 2 * known["heads"] * width * tokens
        counts[-1] = 2 * width * inner * texts
        added[-2] *= (tokens + texts) / (2 * tokens) if inside else texts / tokens
        added[-1] *= texts / tokens
    return Sublayers(counts, added)


def operations(contender: str, known: dict[str, Any], groups: list[list[int]]) -> float:
    """Operations (two a multiply-add) of the whole grid of spans by one contender."""
    masks = span_variants(known["layers"]).masks
    own = contender.startswith(("tree", "loop"))
    one = sublayers(known, groups, last_reads_one=own)
    if not contender.startswith("tree"):
        return 2 * float(len(masks) * one.inner.sum() + (masks.sum(axis=0) * one.added).sum())
    early = np.tile(known["forks_early"], known["layers"])
    nodes = np.array(nodes_by_site(masks, early))
    on = np.array([int(np.unique(masks[:, : n + 1], axis=0)[:, n].sum()) for n in range(masks.shape[1])])
    return 2 * float((nodes * one.inner).sum() + (on * one.added).sum())
