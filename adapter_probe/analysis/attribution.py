"""Attribution of a drop to layers: interactions of spans, and each layer's share.

With d[a, b] the drop of span a..b (0 for empty spans), a span's *interaction* is the part of its drop that
shorter spans do not explain, ``m(a, b) = d[a, b] - d[a + 1, b] - d[a, b - 1] + d[a + 1, b - 1]``, the
Harsanyi dividend of the game on a chain of layers; a layer's *share*, its Myerson value on the chain, is
``sum of m(a, b) / (b - a + 1) over a <= layer <= b``. The shares sum to the drop of all layers together.
Sources: Harsanyi 1963; Myerson 1977, Mathematics of Operations Research 2.
"""

from __future__ import annotations

import numpy as np


def interactions(drops: np.ndarray) -> np.ndarray:
    """Interactions from drops.

    Args:
        drops: ``[..., layers, layers]`` by first and last layer; entries below the diagonal are ignored.

    Returns:
        interactions of the same shape; NaN below the diagonal.
    """
    n = drops.shape[-1]
    first, last = np.triu_indices(n)
    m = np.full(drops.shape, np.nan)
    m[..., first, last] = span_interactions(drops[..., first, last], n)
    return m


def span_interactions(drops: np.ndarray, n_layers: int) -> np.ndarray:
    """The same from drops ``[..., spans]`` of all spans, in the order of `contiguous_spans`."""
    first, last = np.triu_indices(n_layers)
    empty = len(first)  # the column of the empty span, with drop 0
    place = np.full((n_layers + 1, n_layers + 1), empty)
    place[first, last + 1] = np.arange(empty)  # by first layer and one past the last
    padded = np.concatenate([drops, np.zeros((*drops.shape[:-1], 1))], axis=-1)
    m = padded[..., place[first, last + 1]]
    m -= padded[..., place[first + 1, last + 1]]
    m -= padded[..., place[first, last]]
    m += padded[..., place[first + 1, last]]
    return m


def shares(drops: np.ndarray) -> np.ndarray:
    """Each layer's share of the drop of all layers, ``[..., layers]``, from drops as in `interactions`."""
    first, last = np.triu_indices(drops.shape[-1])
    return layer_shares(interactions(drops)[..., first, last], drops.shape[-1])


def layer_shares(interactions: np.ndarray, n_layers: int) -> np.ndarray:
    """The same from interactions ``[..., spans]`` of all spans, in the order of `contiguous_spans`."""
    first, last = np.triu_indices(n_layers)
    layers = np.arange(n_layers)[:, None]
    inside = (first <= layers) & (layers <= last)  # [layers, spans]
    return interactions @ (inside / (last - first + 1)).T
