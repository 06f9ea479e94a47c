"""One grid of layer spans: what the score loses without each span's adapters (Houlsby et al. 2019, Fig. 6).

Row = first layer of the span, column = last. Colours are the levels of `DropScale`; a black line parts the
spans within the tolerance from those beyond it; single layers are outlined. Nothing rests on colour alone:
lightness falls with the drop, gains carry a plus, and line and outlines differ in place and weight.
A ring in a cell's upper right corner says that the difference is not significant, a triangle in its lower
left one that a shorter span inside this one costs more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from adapter_probe.analysis.deltas import Study, drop_points, span_grid

from . import style
from .grid import (
    GAP,
    OUTLINE,
    draw_cells,
    draw_outlines,
    draw_undefined,
    number_size,
    place_notes,
    prepare_axes,
)
from .levels import DropScale
from .wording import cell_text

Segment = tuple[tuple[float, float], tuple[float, float]]


def draw(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    n_layers: int | None = None,
    notes: Sequence[str] = (),
    tolerance: float = 1.0,
    scale: DropScale | None = None,
    study: Study = "ablated",
    test: str | None = None,
) -> Axes:
    """Draw one grid, without its colour bar. Numbers and notes are set to fit the axes' present size.

    Args:
        frame: columns `first`, `last`, `delta_points` (negative = loss). With a bool column `significant`,
            cells where it is False carry a ring; with `non_monotone`, those where it is True a triangle. An
            undefined delta (NaN) is crossed out.
        ax: within `style.paper_style`, already at its place.
        n_layers: layers of the model; by default one more than the greatest last layer.
        notes: lines for the empty corner. A single layer leaves no such corner and gets no notes.
        tolerance: points that the black line stands for.
        scale: the levels; by default the smallest scale that is true of the frame.
        study: what happened to the spans; it names the axes.
        test: what the rings rest on, a word for the notes.

    Raises:
        ResultsError: the frame is not a grid of spans.
    """
    drops = drop_points(span_grid(frame, n_layers=n_layers))  # [first, last]
    n_layers = len(drops)
    scale = DropScale.spanning(drops) if scale is None else scale
    cells = frame[["first", "last"]].to_numpy(int)  # [cells, 2]
    values = drops[cells[:, 0], cells[:, 1]]  # [cells]
    known = ~np.isnan(values)
    cell = prepare_axes(ax, n_layers, f"last {study} layer", f"first {study} layer")
    draw_cells(ax, cells[known], scale.colours(values[known]), cell)
    draw_undefined(ax, cells[~known], cell)
    border = tolerance_border(drops, tolerance)
    _draw_lines(ax, border, style.WHITE, style.BORDER_HALO)
    draw_outlines(ax, cells, cell)
    _draw_lines(ax, border, style.INK, style.BORDER)
    _draw_numbers(ax, cells[known], values[known], scale, cell)
    legend = [] if known.all() else ["crossed out: undefined"]
    if (marked := marked_cells(frame, "non_monotone", True)).any():
        _draw_triangles(ax, cells[marked], values[marked], scale, cell)
        legend.append("◣ a shorter span inside costs more")
    if (unsure := marked_cells(frame, "significant", False)).any():
        _draw_rings(ax, cells[unsure], cell)
        legend.append(f"○ not significant ({test}, Holm)" if test else "○ not significant")
    place_notes(ax, [*notes, *legend], n_layers, cell)
    return ax


def marked_cells(frame: pd.DataFrame, column: str, value: bool) -> np.ndarray:
    """Where a bool column has the value and the delta is defined, bool `[rows]`; nowhere without it."""
    if column not in frame.columns:
        return np.zeros(len(frame), dtype=bool)
    return (frame[column].to_numpy(bool) == value) & frame["delta_points"].notna().to_numpy()


def tolerance_border(drops: np.ndarray, tolerance: float) -> list[Segment]:
    """The edges that part a cell within the tolerance from a neighbour beyond it, for grids of any shape.

    Args:
        drops: points, `[first, last]`; NaN where there is no cell. An edge needs a number on both sides.
        tolerance: points; a drop of exactly this much is within.

    Returns:
        Segments `((x, y), (x, y))` one cell long; cell `[first, last]` spans `last ± 0.5` by `first ± 0.5`.
    """
    within, cells = drops <= tolerance, ~np.isnan(drops)
    beside = (within[:, 1:] != within[:, :-1]) & cells[:, 1:] & cells[:, :-1]
    below = (within[1:] != within[:-1]) & cells[1:] & cells[:-1]
    upright = [((c + 0.5, r - 0.5), (c + 0.5, r + 0.5)) for r, c in np.argwhere(beside).tolist()]
    level = [((c - 0.5, r + 0.5), (c + 0.5, r + 0.5)) for r, c in np.argwhere(below).tolist()]
    return upright + level


def _draw_lines(ax: Axes, segments: list[Segment], colour: str, width: float) -> None:
    look = {"colors": colour, "linewidths": width * style.unit(), "capstyle": "projecting"}  # whole corners
    ax.add_collection(LineCollection(segments, label="border", zorder=2, **look))


def _draw_numbers(ax: Axes, cells: np.ndarray, values: np.ndarray, scale: DropScale, cell: float) -> None:
    """Write the drops where the widest fits its cell; elsewhere gains alone are marked, by their plus."""
    texts = [cell_text(value) for value in values]
    if (size := number_size(texts, cell)) is None:
        texts = ["+" if value < 0 else "" for value in values]
        size = 0.65 * cell
    for (first, last), text, colour in zip(cells, texts, scale.colours(values)):
        if text:
            ink = style.text_colour(colour)
            ax.text(last, first, text, size=size, color=ink, ha="center", va="center_baseline")


def _draw_rings(ax: Axes, cells: np.ndarray, cell: float) -> None:
    """A small ring in the upper right corner of each cell."""
    unit = style.unit()
    radius = float(np.clip(0.08 * cell, 0.7, 2.0 * unit))
    margin = ((GAP / 2 + OUTLINE) * unit + radius + 0.5) / cell
    look = {
        "s": (2 * radius) ** 2,
        "facecolors": style.WHITE,
        "edgecolors": style.INK,
        "linewidths": 0.4 * unit,
    }
    ax.scatter(cells[:, 1] + 0.5 - margin, cells[:, 0] - 0.5 + margin, label="rings", zorder=4, **look)


def _draw_triangles(ax: Axes, cells: np.ndarray, values: np.ndarray, scale: DropScale, cell: float) -> None:
    """A small triangle that fills the lower left corner of each cell, in black or white."""
    unit = style.unit()
    side = float(np.clip(0.2 * cell, 1.6, 4.0 * unit)) / cell
    # Clear of the gap, in which the black line runs.
    x, y = cells[:, 1] - 0.5 + GAP * unit / cell, cells[:, 0] + 0.5 - GAP * unit / cell  # [cells]
    corners = np.stack([np.stack([x, y], 1), np.stack([x + side, y], 1), np.stack([x, y - side], 1)], 1)
    colours = [style.text_colour(colour) for colour in scale.colours(values)]
    ax.add_collection(
        PolyCollection(corners, facecolors=colours, linewidths=0, label="triangles", zorder=1.5)
    )
