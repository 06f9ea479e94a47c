"""Layer spans and the on/off masks that they stand for.

A *site* is one adapter's place. Sites are numbered in the order the data meets them: layer 0 attention,
layer 0 feed-forward, layer 1 attention, and so on, two per layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

SITES_PER_LAYER = 2
SiteChoice = Literal["both", "attention", "ffn"]
_SITE_OFFSETS: dict[str, tuple[int, ...]] = {"both": (0, 1), "attention": (0,), "ffn": (1,)}


@dataclass(frozen=True, order=True)
class Span:
    """A contiguous run of layers, both ends inclusive, counted from 0."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"a span needs 0 <= first <= last, got {self.first}-{self.last}")

    @property
    def n_layers(self) -> int:
        """How many layers the span covers."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def contiguous_spans(n_layers: int) -> list[Span]:
    """All n(n+1)/2 spans of an n-layer model, ordered by first, then last layer."""
    return [Span(first, last) for first in range(n_layers) for last in range(first, n_layers)]


@dataclass(frozen=True)
class VariantSet:
    """The variants one ablation compares.

    Attributes:
        names: one name a row: ``intact``, ``none`` or the span as ``first-last``.
        spans: the row's span, or None for the reference rows.
        masks: bool ``[variants, sites]``; True = the site's adapter is on. Row 0 is the intact model.
    """

    names: tuple[str, ...]
    spans: tuple[Span | None, ...]
    masks: np.ndarray


def span_variants(n_layers: int, sites: SiteChoice = "both", complement: bool = False) -> VariantSet:
    """The intact model, then every contiguous span switched off (or, with `complement`, alone left on).

    With `complement` a last row ``none`` has every chosen site off: the floor that the spans are read
    against. Without it that row is the span of all layers.

    Args:
        n_layers: layers of the model.
        sites: which of a layer's sites the study switches; the others always stay on.
        complement: keep only the span's chosen sites on and switch the other layers' off.
    """
    spans = contiguous_spans(n_layers)
    chosen = np.zeros(n_layers * SITES_PER_LAYER, dtype=bool)
    for offset in _SITE_OFFSETS[sites]:
        chosen[offset::SITES_PER_LAYER] = True
    layer_of_site = np.repeat(np.arange(n_layers), SITES_PER_LAYER)
    inside = np.array([(s.first <= layer_of_site) & (layer_of_site <= s.last) for s in spans])
    off = chosen & (~inside if complement else inside)
    rows = [np.zeros_like(chosen)[None], off]
    names, row_spans = ["intact", *map(str, spans)], [None, *spans]
    if complement:
        rows.append(chosen[None])
        names.append("none")
        row_spans.append(None)
    return VariantSet(tuple(names), tuple(row_spans), ~np.concatenate(rows))
