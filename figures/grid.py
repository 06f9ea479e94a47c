"""What every grid of spans shares: axes, square cells, outlined single layers, notes in the corner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from . import style

GAP, OUTLINE = 0.7, 0.8  # units: between cells, and around single layers
SMALLEST_NUMBER, LARGEST_NUMBER = style.SMALLEST_SIZE, 7.5  # points, and units
_INDENT, _LEADING, _TASK_EXTRA = 3.0, 1.28, 1.0  # of the notes: units, line height over font size, points
_LEAST_NOTE = 6.0  # points: below this, lines are folded first
_UNDEFINED = "#8c8c8c"


def prepare_axes(ax: Axes, n_layers: int, x_label: str, y_label: str) -> float:
    """Set limits, ticks and labels; returns the side of a cell in points."""
    ax.set(xlim=(-0.5, n_layers - 0.5), ylim=(n_layers - 0.5, -0.5), aspect="equal")
    ax.set_xlabel(x_label, labelpad=2 * style.unit())
    ax.spines[:].set_visible(False)
    ax.apply_aspect()
    side = 72 * ax.get_position().width * ax.figure.get_figwidth()
    short = f"{y_label.split()[0]} layer"
    ax.set_ylabel(style.fitting([y_label, short], style.label_size(), side), labelpad=2 * style.unit())
    cell = side / n_layers
    room = 1.5 * style.text_width("00", style.tick_size())
    step = next(step for step in (1, 2, 4, 5, 10, 20, n_layers) if step * cell >= room or step >= n_layers)
    ax.set_xticks(range(0, n_layers, step))
    ax.set_yticks(range(0, n_layers, step))
    return float(cell)


def squares(cells: np.ndarray, inset: float = 0.0) -> np.ndarray:
    """Corners `[cells, 4, 2]` as x, y of the cells, each drawn in by `inset` cells."""
    corners = (0.5 - inset) * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    return cells[:, None, ::-1] + corners


def draw_cells(ax: Axes, cells: np.ndarray, colours: Sequence[str], cell: float, inset: float = 0.0) -> None:
    """Fill the cells `[cells, 2]`, first and last layer, drawn in by a white gap or by `inset` cells."""
    filled = squares(cells, max(inset, GAP * style.unit() / 2 / cell))
    ax.add_collection(PolyCollection(filled, facecolors=colours, linewidths=0, label="cells"))


def draw_undefined(ax: Axes, cells: np.ndarray, cell: float) -> None:
    """Cross the cells out; lines, as not every program that shows SVG knows hatching."""
    frames = squares(cells, GAP * style.unit() / cell)  # [cells, 4, 2]
    width = 0.5 * style.unit()
    look = {"colors": _UNDEFINED, "linewidths": width}
    strokes = [corners[list(pair)] for corners in frames for pair in ((0, 2), (1, 3))]
    ax.add_collection(LineCollection(strokes, label="undefined", **look))
    ax.add_collection(PolyCollection(frames, facecolors="none", edgecolors=_UNDEFINED, linewidths=width))


def draw_outlines(ax: Axes, cells: np.ndarray, cell: float) -> None:
    """Frame the single layers, inside their cells so that the black line stays whole where both meet."""
    frames = squares(cells[cells[:, 0] == cells[:, 1]], (GAP + OUTLINE) * style.unit() / 2 / cell)
    look = {"facecolors": "none", "edgecolors": style.GREEN, "linewidths": OUTLINE * style.unit()}
    ax.add_collection(PolyCollection(frames, label="single layers", zorder=2, **look))


def number_size(texts: Sequence[str], cell: float) -> float | None:
    """Font size at which the widest number fits its cell, points; None if that is too small to read."""
    widest = max((style.text_width(text, 1.0) for text in texts), default=1.0)
    size = min(LARGEST_NUMBER * style.unit(), 0.4 * cell, 0.89 * cell / widest)
    return size if size >= SMALLEST_NUMBER else None


def place_notes(ax: Axes, lines: Sequence[str], n_layers: int, cell: float) -> None:
    """Set the lines in the lower left corner, as large as keeps them clear of the cells.

    Where even the smallest letters do not fit, lines in the way stay out: the caption says what they do.
    """
    if n_layers == 1 or not lines:
        return
    folded = [part for line in lines for part in line.replace(", n =", ",\nn =").split("\n")]
    sizes = np.arange(style.tick_size(), style.SMALLEST_SIZE - 0.1, -0.5)
    options = [(list(lines), s) for s in sizes[sizes >= _LEAST_NOTE]] + [(folded, s) for s in sizes]
    last = (_without_those_in_the_way(folded, sizes[-1], n_layers, cell), sizes[-1])
    chosen, size = next((o for o in options if not _in_the_way(*o, n_layers, cell)), last)
    indent = _INDENT * style.unit()
    for index, line in enumerate(reversed(chosen)):
        offset = (indent, indent + index * _LEADING * size)
        task = index == len(chosen) - 1
        place = {"xytext": offset, "xycoords": "axes fraction", "textcoords": "offset points"}
        ax.annotate(line, (0, 0), size=size + task * _TASK_EXTRA, **place)


def _without_those_in_the_way(lines: Sequence[str], size: float, n_layers: int, cell: float) -> list[str]:
    """As many lines as fit; the first, the task, goes last."""
    left = list(lines)
    while left and (found := _in_the_way(left, size, n_layers, cell)):
        del left[max(found) or min(1, len(left) - 1)]
    return left


def _in_the_way(lines: Sequence[str], size: float, n_layers: int, cell: float) -> list[int]:
    """Which lines end where the lowest cell at their height has begun."""
    indent, found = _INDENT * style.unit(), []
    for index, line in enumerate(reversed(lines)):
        own_size = size + _TASK_EXTRA * (index == len(lines) - 1)
        top = indent + index * _LEADING * size + own_size
        row = n_layers - 1 - int(top // cell)
        if indent + style.text_width(line, own_size) > row * cell - indent:
            found.append(len(lines) - 1 - index)
    return found
