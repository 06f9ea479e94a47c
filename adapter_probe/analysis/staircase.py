"""The line that separates the spans within a tolerance from the others, shared by all grids."""

from __future__ import annotations

import numpy as np

Segment = tuple[tuple[int, int], tuple[int, int]]
"""Two corners ``(x, y)`` of cells; the cell in row r and column c reaches from (c, r) to (c + 1, r + 1)."""


def staircase(drops: np.ndarray, tolerance: float) -> list[Segment]:
    """The edges between a cell within the tolerance and a neighbour beyond it, for grids of any shape.

    Args:
        drops: points, ``[first, last]``; NaN where there is no cell. An edge needs a number on both sides.
        tolerance: points; a drop of exactly this size is within.

    Returns:
        edges, one cell long each.
    """
    within, cells = drops <= tolerance, ~np.isnan(drops)
    beside = (within[:, 1:] != within[:, :-1]) & cells[:, 1:] & cells[:, :-1]
    below = (within[1:] != within[:-1]) & cells[1:] & cells[:-1]
    upright = [((c + 1, r), (c + 1, r + 1)) for r, c in np.argwhere(beside).tolist()]
    level = [((c, r + 1), (c + 1, r + 1)) for r, c in np.argwhere(below).tolist()]
    return upright + level
