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
    d = np.zeros((*drops.shape[:-2], n + 1, n + 1))  # by first layer and one past the last; 0 of empty spans
    d[..., :n, 1:] = np.triu(drops)
    m: np.ndarray = d[..., :n, 1:] - d[..., 1:, 1:]  # in place, since there are thousands of resamples
    m -= d[..., :n, :n]
    m += d[..., 1:, :n]
    below = np.tril_indices(n, -1)
    m[..., below[0], below[1]] = np.nan
    return m


def shares(drops: np.ndarray) -> np.ndarray:
    """Each layer's share of the drop of all layers, ``[..., layers]``, from drops as in `interactions`."""
    n = drops.shape[-1]
    first, last = np.triu_indices(n)
    layers = np.arange(n)[:, None]
    inside = (first <= layers) & (layers <= last)  # [layers, spans]
    return interactions(drops)[..., first, last] @ (inside / (last - first + 1)).T
