"""How a drop is shared out between layers: interactions of spans, and each layer's share.

With d[a, b] the drop of span a..b and empty spans 0, a span's *interaction* is what it costs beyond its
parts, ``m(a, b) = d[a, b] - d[a + 1, b] - d[a, b - 1] + d[a + 1, b - 1]``, the Harsanyi dividend of the game
on a chain of layers; a layer's *share* is ``sum of m(a, b) / (b - a + 1) over a <= layer <= b``. The shares
sum to the drop of all layers together.
Sources: Harsanyi 1963; Myerson 1977, Mathematics of Operations Research 2.
"""

from __future__ import annotations

import numpy as np


def interactions(drops: np.ndarray) -> np.ndarray:
    """Interactions from drops.

    Args:
        drops: ``[..., layers, layers]`` by first and last layer; what lies below the diagonal is not read.

    Returns:
        shaped as `drops`; NaN below the diagonal.
    """
    n = drops.shape[-1]
    below = np.tril_indices(n, -1)
    padded = np.zeros((*drops.shape[:-2], n + 1, n + 1))
    padded[..., :n, 1:] = drops  # padded[a, b + 1] = d[a, b]
    padded[..., below[0], below[1] + 1] = 0.0  # a span whose last layer is below its first is empty
    m = padded[..., :n, 1:] - padded[..., 1:, 1:] - padded[..., :n, :n] + padded[..., 1:, :n]
    m[..., below[0], below[1]] = np.nan
    return m


def shares(drops: np.ndarray) -> np.ndarray:
    """Each layer's share of the drop of all layers, ``[..., layers]``, from drops as in `interactions`."""
    n = drops.shape[-1]
    first, last = np.triu_indices(n)
    each = interactions(drops)[..., first, last] / (last - first + 1)  # [..., spans]
    layers = np.arange(n)[:, None]
    inside = (first <= layers) & (layers <= last)  # [layers, spans]
    return each @ inside.T.astype(float)
