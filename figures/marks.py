"""Marks on a grid: the tolerance line, rings and triangles on cells, and notes in the empty corner."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection, LineCollection, PolyCollection

from adapter_probe.analysis.removable import Segment

from . import style
from .grid import NUMBER, SMALL_CELL, Cells, cell_size
from .layout import before_drawing

_INDENT, _LEADING = 0.4, 1.28  # of the notes, relative to their font size
_MOST_BREAKS = 3  # of notes that are too long
_BRIEFLY = (("switched off", "off"), ("majority class", "majority"), ("not significant", "n.s."))


def draw_tolerance_border(ax: Axes, edges: Sequence[Segment]) -> None:
    """The tolerance line with a halo; outlines of single layers are drawn between the two."""
    lines = [
        LineCollection(edges, colors=colour, capstyle="projecting", zorder=zorder, label=label)
        for colour, zorder, label in (
            (ax.get_facecolor(), 1.9, "halo"),
            (style.line_colour(), 2.1, "tolerance border"),
        )
    ]
    for line in lines:
        ax.add_collection(line, autolim=False)

    def fit(ax: Axes) -> None:
        for line, units in zip(lines, (style.BORDER_HALO, style.BORDER)):
            line.set_linewidth(min(units * style.scale_factor(), 0.3 * cell_size(ax)))

    before_drawing(ax, fit)


def draw_rings(ax: Axes, positions: np.ndarray) -> None:
    """A ring in each cell ``[cells, 2]``: its middle, or with numbers its upper left corner.

    On the right of a number it would read as a degree sign.
    """
    rings = EllipseCollection(
        [0.16], [0.16], [0], units="xy", offsets=positions[:, ::-1] + 0.5, offset_transform=ax.transData,
        facecolors=style.WHITE, edgecolors=style.INK, zorder=4, label="rings",
    )  # fmt: skip
    ax.add_collection(rings, autolim=False)

    def fit(ax: Axes) -> None:
        cell = cell_size(ax)
        shown = [t for t in ax.texts if t.get_visible() and t.get_label() == NUMBER]
        wide, place = (0.16, (0.15, 0.15)) if shown else (0.3, (0.5, 0.45))
        if any("\n" in text.get_text() for text in shown):  # two lines leave less of the corner
            wide, place = 0.12, (0.11, 0.11)
        rings.set_offsets(positions[:, ::-1] + place)
        rings.set_widths([wide])
        rings.set_heights([wide])
        rings.set_linewidth(0.4 * style.scale_factor() if cell > SMALL_CELL else 0.0)
        rings.set_facecolor(style.WHITE if cell > SMALL_CELL else style.INK)

    before_drawing(ax, fit)


def draw_triangles(ax: Axes, positions: np.ndarray, inks: Sequence[str]) -> None:
    """A triangle that fills the lower left corner of each cell ``[cells, 2]``, in black or white."""
    corner = positions[:, ::-1] + (0.06, 0.94)  # clear of the gap, in which the black line runs
    shape = np.array([(0, 0), (0.2, 0), (0, -0.2)])
    triangles = corner[:, None] + shape  # [cells, 3, 2]
    ax.add_collection(PolyCollection(triangles, facecolors=inks, linewidths=0, label="triangles", zorder=1.5))


def write_notes(ax: Axes, lines: Sequence[str], cells: Cells) -> None:
    """Write the lines in the lower left corner, at the largest font size that does not touch the cells.

    If even the smallest font does not fit, what is in brackets at the end of lines is left out, words are
    shortened, long lines go to the foot and are broken, and then lines that touch cells are left out, the
    first one last. A ring in the lines becomes a dot where the cells are so small that they have dots.
    """
    at = {"xycoords": "axes fraction", "textcoords": "offset points", "in_layout": False}
    notes = [ax.annotate(line, (0, 0), xytext=(0, 0), **at) for line in (*lines, *[""] * _MOST_BREAKS)]
    starts = np.array(
        [cells.positions[cells.positions[:, 0] == row, 1].min() for row in range(len(cells.firsts))]
    )

    def in_the_way(shown: Sequence[str], size: float, cell: float) -> list[int]:
        """Which lines touch the cells next to them."""
        found = []
        for index, line in enumerate(shown):
            bottom = _INDENT * size + (len(shown) - 1 - index) * _LEADING * size
            rows = len(starts) - 1 - np.arange(int(bottom // cell), int((bottom + size) // cell) + 1)
            free = cell * starts[np.clip(rows, 0, None)].min()
            if rows.min() < 0 or _INDENT * size + style.text_width(line, size) > free - _INDENT * size:
                found.append(index)
        return found

    def fit(ax: Axes) -> None:
        sizes = np.arange(max(style.tick_size(), style.SMALLEST_SIZE), style.SMALLEST_SIZE - 0.1, -0.5)
        cell = cell_size(ax)
        said = [line if cell > SMALL_CELL else line.replace("○", "•") for line in lines]
        short = [line.split(" (")[0] for line in said]
        brief = [reduce(lambda line, pair: line.replace(*pair), _BRIEFLY, line) for line in short]
        broken = [*brief[:1], *sorted(brief[1:], key=len)]  # there is more room at the foot
        tried = [said, short, brief, broken]
        for _ in range(_MOST_BREAKS):
            bad = in_the_way(broken, sizes[-1], cell)
            widths = {index: style.text_width(broken[index], sizes[-1]) for index in bad}
            at = max(widths, key=widths.__getitem__, default=0)
            halves = style.wrap_text(broken[at], sizes[-1], 0.68 * widths[at]).split("\n") if bad else []
            broken = [*broken[:at], *halves, *broken[at + 1 :]] if len(halves) == 2 else broken
            tried.append(broken)
        fitting = ((some, size) for some in tried for size in sizes if not in_the_way(some, size, cell))
        said, size = next(fitting, (brief, sizes[-1]))
        shown = list(range(len(said)))
        while shown and (bad := in_the_way([said[i] for i in shown], size, cell)):
            del shown[max(bad) or min(1, len(shown) - 1)]
        for index, note in enumerate(notes):
            note.set(visible=index in shown, size=size, text=said[index] if index < len(said) else "")
        for above, index in enumerate(reversed(shown)):
            notes[index].xyann = (_INDENT * size, _INDENT * size + above * _LEADING * size)

    before_drawing(ax, fit)
