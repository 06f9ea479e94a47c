"""One grid of layer spans: what the score loses without each span's adapters (Houlsby et al. 2019, Fig. 6).

Row = first layer of the span, column = last. Colours are the levels of `DropScale`; a black line parts the
spans within the tolerance from those beyond it; single layers are outlined. Nothing rests on colour alone:
lightness falls with the drop, gains carry a plus, and line and outlines differ in place and weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from adapter_probe.analysis.deltas import Study, drop_points, span_grid

from . import style
from .levels import DropScale
from .wording import cell_text

Segment = tuple[tuple[float, float], tuple[float, float]]

# Points.
_GAP, _OUTLINE = 0.7, 0.8
_SMALLEST_NUMBER, _LARGEST_NUMBER = 4.6, 7.5
_INDENT, _LEADING, _TASK_EXTRA = 3.0, 1.28, 1.0  # of the notes; leading = line height over font size
_UNDEFINED = "#8c8c8c"


def draw(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    n_layers: int | None = None,
    notes: Sequence[str] = (),
    tolerance: float = 1.0,
    scale: DropScale | None = None,
    study: Study = "ablated",
) -> Axes:
    """Draw one grid, without its colour bar. Numbers and notes are set to fit the axes' present size.

    Args:
        frame: columns `first`, `last`, `delta_points` (negative = loss). With a bool column `significant`,
            cells where it is False carry a ring. An undefined delta (NaN) is crossed out.
        ax: within `style.paper_style`, already at its place.
        n_layers: layers of the model; by default one more than the greatest last layer.
        notes: lines for the empty corner. A single layer leaves no such corner and gets no notes.
        tolerance: points that the black line stands for.
        scale: the levels; by default the smallest scale that is true of the frame.
        study: what happened to the spans; it names the axes.

    Raises:
        ResultsError: the frame is not a grid of spans.
    """
    drops = drop_points(span_grid(frame, n_layers=n_layers))  # [first, last]
    n_layers = len(drops)
    scale = DropScale.spanning(drops) if scale is None else scale
    cells = frame[["first", "last"]].to_numpy(int)  # [cells, 2]
    values = drops[cells[:, 0], cells[:, 1]]  # [cells]
    known = ~np.isnan(values)
    cell = _prepare_axes(ax, n_layers, study)
    _draw_cells(ax, cells[known], values[known], scale, cell)
    _draw_undefined(ax, cells[~known], cell)
    border = tolerance_border(drops, tolerance)
    _draw_lines(ax, border, style.PAPER, style.BORDER_HALO)
    _draw_outlines(ax, cells, cell)
    _draw_lines(ax, border, style.INK, style.BORDER)
    _draw_numbers(ax, cells[known], values[known], scale, cell)
    legend = [] if known.all() else ["crossed out: undefined"]
    if "significant" in frame.columns:
        unsure = ~frame["significant"].to_numpy(bool) & known
        _draw_rings(ax, cells[unsure], cell)
        legend += ["○ not significant"] if unsure.any() else []
    _place_notes(ax, [*notes, *legend], n_layers, cell)
    return ax


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


def _prepare_axes(ax: Axes, n_layers: int, study: Study) -> float:
    """Set limits, ticks and labels; returns the side of a cell in points."""
    ax.set(xlim=(-0.5, n_layers - 0.5), ylim=(n_layers - 0.5, -0.5), aspect="equal")
    ax.set_xlabel(f"last {study} layer", labelpad=2)
    ax.set_ylabel(f"first {study} layer", labelpad=2)
    ax.spines[:].set_visible(False)
    ax.apply_aspect()
    cell = 72 * ax.get_position().width * ax.figure.get_figwidth() / n_layers
    room = 1.5 * style.text_width("00", style.TICK_SIZE)
    step = next(step for step in (1, 2, 4, 5, 10, 20, n_layers) if step * cell >= room or step >= n_layers)
    ax.set_xticks(range(0, n_layers, step))
    ax.set_yticks(range(0, n_layers, step))
    return float(cell)


def _squares(cells: np.ndarray, inset: float = 0.0) -> np.ndarray:
    """Corners `[cells, 4, 2]` as x, y of the cells, each drawn in by `inset` cells."""
    corners = (0.5 - inset) * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    return cells[:, None, ::-1] + corners


def _draw_cells(ax: Axes, cells: np.ndarray, values: np.ndarray, scale: DropScale, cell: float) -> None:
    squares = _squares(cells, _GAP / 2 / cell)
    ax.add_collection(PolyCollection(squares, facecolors=scale.colours(values), linewidths=0, label="cells"))


def _draw_undefined(ax: Axes, cells: np.ndarray, cell: float) -> None:
    """Cross the cells out; lines, as not every program that shows SVG knows hatching."""
    squares = _squares(cells, _GAP / cell)  # [cells, 4, 2]
    look = {"colors": _UNDEFINED, "linewidths": 0.5}
    strokes = [corners[list(pair)] for corners in squares for pair in ((0, 2), (1, 3))]
    ax.add_collection(LineCollection(strokes, label="undefined", **look))
    ax.add_collection(PolyCollection(squares, facecolors="none", edgecolors=_UNDEFINED, linewidths=0.5))


def _draw_outlines(ax: Axes, cells: np.ndarray, cell: float) -> None:
    """Frame the single layers, inside their cells so that the black line stays whole where both meet."""
    squares = _squares(cells[cells[:, 0] == cells[:, 1]], (_GAP + _OUTLINE) / 2 / cell)
    look = {"facecolors": "none", "edgecolors": style.GREEN, "linewidths": _OUTLINE}
    ax.add_collection(PolyCollection(squares, label="single layers", zorder=2, **look))


def _draw_lines(ax: Axes, segments: list[Segment], colour: str, width: float) -> None:
    look = {"colors": colour, "linewidths": width, "capstyle": "projecting"}  # projecting: whole corners
    ax.add_collection(LineCollection(segments, label="border", zorder=2, **look))


def _draw_numbers(ax: Axes, cells: np.ndarray, values: np.ndarray, scale: DropScale, cell: float) -> None:
    """Write the drops where the widest fits its cell; elsewhere gains alone are marked, by their plus."""
    texts = [cell_text(value) for value in values]
    widest = max((style.text_width(text, 1.0) for text in texts), default=1.0)
    size = min(_LARGEST_NUMBER, 0.38 * cell, 0.78 * cell / widest)
    if size < _SMALLEST_NUMBER:
        texts = ["+" if value < 0 else "" for value in values]
        size = 0.65 * cell
    for (first, last), text, colour in zip(cells, texts, scale.colours(values)):
        if text:
            ink = style.text_colour(colour)
            ax.text(last, first, text, size=size, color=ink, ha="center", va="center_baseline")


def _draw_rings(ax: Axes, cells: np.ndarray, cell: float) -> None:
    """A small ring in the upper right corner of each cell."""
    radius = float(np.clip(0.08 * cell, 0.7, 2.0))
    margin = (_GAP / 2 + _OUTLINE + radius + 0.5) / cell
    look = {"s": (2 * radius) ** 2, "facecolors": style.PAPER, "edgecolors": style.INK, "linewidths": 0.4}
    ax.scatter(cells[:, 1] + 0.5 - margin, cells[:, 0] - 0.5 + margin, label="rings", zorder=4, **look)


def _place_notes(ax: Axes, lines: Sequence[str], n_layers: int, cell: float) -> None:
    """Set the lines in the lower left corner, as large as keeps them clear of the cells."""
    if n_layers == 1 or not lines:
        return
    folded = [part for line in lines for part in line.replace(", n =", ",\nn =").split("\n")]
    sizes = np.arange(style.NOTE_SIZE, style.SMALLEST_SIZE - 0.1, -0.5)
    options = [(list(lines), s) for s in sizes[sizes >= 6]] + [(folded, s) for s in sizes]
    chosen, size = next((o for o in options if _notes_fit(*o, n_layers, cell)), options[-1])
    for index, line in enumerate(reversed(chosen)):
        offset = (_INDENT, _INDENT + index * _LEADING * size)
        task = index == len(chosen) - 1
        place = {"xytext": offset, "xycoords": "axes fraction", "textcoords": "offset points"}
        ax.annotate(line, (0, 0), size=size + task * _TASK_EXTRA, **place)


def _notes_fit(lines: Sequence[str], size: float, n_layers: int, cell: float) -> bool:
    """Whether each line, from the bottom up, ends before the lowest cell at its height begins."""
    for index, line in enumerate(reversed(lines)):
        own_size = size + _TASK_EXTRA * (index == len(lines) - 1)
        top = _INDENT + index * _LEADING * size + own_size
        row = n_layers - 1 - int(top // cell)
        if _INDENT + style.text_width(line, own_size) > row * cell - _INDENT:
            return False
    return True
