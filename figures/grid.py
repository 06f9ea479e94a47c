"""A grid of spans: row = first layer, column = last layer. Cells, marks on them, layer numbers.

Sizes that depend on the cells' size, such as their numbers, are set when the axes are drawn: a grid fits any
axes, and still does after these are resized.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import EllipseCollection, LineCollection, PolyCollection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, Locator

from adapter_probe.analysis.removable import Segment
from adapter_probe.wording import cell_text, number_of

from . import style
from .layout import before_drawing, settle, size_in_points
from .levels import Scale, as_drawn, mappable

NUMBER = "number"
"""Label of the texts that are a cell's number."""
_UNDEFINED = "#8c8c8c"
_GAP, _OUTLINE = 0.7, 0.8  # units: between cells, and around single layers
SMALL_CELL = 5.0  # points: smaller cells have no gaps between them, and dots instead of rings
_INSET = 0.24  # in cells: inset of small squares on each side
_SQUARE = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])
_INDENT, _LEADING, _APART = 0.4, 1.28, 0.8  # of the notes, relative to their font size; from the row labels
_MOST_BREAKS = 3  # of notes that are too long
_BRIEFLY = (("switched off", "off"), ("majority class", "majority"), ("not significant", "n.s."))


@dataclass(frozen=True, eq=False)
class Cells:
    """Positions of spans in their grid.

    A grid has a row for each first layer that occurs and a column for each last one, so that groups of
    layers, some layers of a model and single layers have grids without gaps.

    Attributes:
        positions: int ``[spans, 2]``, row and column of each span.
    """

    firsts: np.ndarray
    lasts: np.ndarray
    positions: np.ndarray

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Cells:
        """The grid of a table of spans, each of which is there once."""
        first, last = frame["first"].to_numpy(int), frame["last"].to_numpy(int)
        firsts, rows = np.unique(first, return_inverse=True)
        lasts, columns = np.unique(last, return_inverse=True)
        return cls(firsts, lasts, np.column_stack([rows, columns]))

    def matrix(self, values: np.ndarray) -> np.ndarray:
        """Values ``[spans]`` as ``[rows, columns]``, NaN where there is no span."""
        grid = np.full((len(self.firsts), len(self.lasts)), np.nan)
        grid[self.positions[:, 0], self.positions[:, 1]] = values
        return grid

    def squares(self, chosen: np.ndarray, inset: float = 0.0) -> np.ndarray:
        """Corners ``[chosen, 4, 2]`` as x, y of the cells chosen, each drawn in by `inset` cells."""
        return self.positions[chosen][:, None, ::-1] + inset + (1 - 2 * inset) * _SQUARE

    @property
    def shortest(self) -> np.ndarray:
        """Bool ``[spans]``: single layers or single groups, i.e. spans that contain no other span."""
        rows, columns = self.positions.T
        inside = (rows >= rows[:, None]) & (columns <= columns[:, None])  # [spans, spans]
        return inside.sum(axis=1) == 1


Form = tuple[np.ndarray, Sequence[str]]
"""Numbers as one form of cells prints them, float ``[spans]``, and their texts; no texts for none."""


def forms_of(
    drops: np.ndarray,
    metric: str | None,
    spread: Sequence[float] | None = None,
    *,
    numbers: bool = True,
) -> list[Form]:
    """What cells may print of drops ``[spans]``, from the most digits to the fewest, which need less room.

    Args:
        spread: printed in a second line, where there is room for it.
        numbers: whether to print any.
    """
    forms: list[Form] = []
    for whole in (False, True):
        texts = [cell_text(drop, metric, whole=whole) for drop in drops]
        forms.append((np.array([number_of(text) for text in texts]), texts))
        if spread is not None:
            below = [cell_text(sd, metric, whole=whole) for sd in spread]
            forms.insert(whole, (forms[-1][0], [f"{one}\n± {sd}" for one, sd in zip(texts, below)]))
    if not numbers:
        return [(forms[0][0], [])]
    same = np.array_equal(forms[0][0], forms[-1][0], equal_nan=True)  # without a decimal nothing is lost
    return forms[1::2] if same and spread is None else forms


def draw_cells(
    cells: Cells,
    forms: Sequence[Form],
    ax: Axes,
    *,
    scale: Scale,
    studied: str = "switched off",
    small: np.ndarray | None = None,
) -> list[Text]:
    """Draw the cells in the colours of their levels, with their numbers where they fit; the numbers.

    The first form whose numbers fit is shown, and the colours are those of the numbers that it prints. A dash
    marks cells that are coloured as gains and have no number: in greyscale blue looks like red.

    Args:
        forms: see `forms_of`; points, NaN is crossed out.
        studied: what was done to the spans, as the axis labels say it.
        small: bool ``[spans]``, cells to draw as small squares without a number.
    """
    values = forms[0][0]
    known = ~np.isnan(values)
    small = known & small if small is not None else np.zeros(len(values), bool)
    full = known & ~small
    there = len(ax.texts)  # of the user's, or of an earlier drawing
    mesh = _draw_squares(cells, np.where(full, values, np.nan), ax, scale)
    ax.grid(False)  # lines of the style in force would run through the notes
    if 1.5 * size_in_points(ax)[0] / len(cells.lasts) > 2 * style.SMALLEST_SIZE and any(forms[0][1]):
        _write_numbers(cells.positions[full], [forms[0][1][n] for n in np.flatnonzero(full)], ax)
    numbers = list(ax.texts)[there:]
    squares = cells.squares(small, _INSET)
    colours = scale.colours(values[small])
    ax.add_collection(PolyCollection(squares, facecolors=colours, linewidths=0, label="small cells"))
    _draw_dashes(cells, small & scale.is_gain(values), values, ax, scale, height=0.5)
    dashes = _draw_dashes(cells, full & scale.is_gain(values), values, ax, scale)
    _cross_out(cells, ~known, ax)
    frames = PolyCollection([], facecolors="none", edgecolors=style.GREEN, label="single layers", zorder=2)
    ax.add_collection(frames, autolim=False)
    _label_layers(ax, cells, studied)
    before_drawing(ax, _Fitted(cells, forms, full, scale, mesh, frames, numbers, dashes))
    return numbers


def _label_layers(ax: Axes, cells: Cells, studied: str) -> None:
    """The axes' names and the layers' numbers."""
    ax.set_xlabel(f"last layer {studied}")
    ax.set_ylabel(f"first layer {studied}")
    ax.tick_params(axis="y", labelrotation=0)
    ax.tick_params(length=0)
    number_layers(ax.xaxis, cells.lasts)
    number_layers(ax.yaxis, cells.firsts)


@dataclass(frozen=True, eq=False)
class _Fitted:
    """Fits what `draw_cells` has drawn to the size of the cells, which is known when the axes are drawn.

    Attributes:
        forms: see `forms_of`.
        full: bool ``[spans]``, the cells that have a number.
        numbers: of the full cells; empty where there is no room for any.
    """

    cells: Cells
    forms: Sequence[Form]
    full: np.ndarray
    scale: Scale
    squares: QuadMesh
    frames: PolyCollection
    numbers: Sequence[Text]
    dashes: LineCollection

    def __call__(self, ax: Axes) -> None:
        cell, unit = cell_size(ax), style.scale_factor()
        gap, width = min(_GAP * unit, 0.1 * cell), min(_OUTLINE * unit, 0.15 * cell)
        gap = gap if cell > SMALL_CELL else 0.0
        self.squares.set_linewidth(gap)
        self.frames.set_linewidth(width)
        self.frames.set_verts(self.cells.squares(self.cells.shortest, (gap + width) / 2 / cell))
        shown, size = _fitting(self.forms if self.numbers else [], self.full, cell)
        printed = np.where(self.full, shown[0] if shown else self.forms[0][0], np.nan)
        self.squares.set_array(np.ma.masked_invalid(self.cells.matrix(as_drawn(printed))))
        for number, index in zip(self.numbers, np.flatnonzero(self.full)):
            number.set(visible=shown is not None, size=size)
            if shown:
                colour = self.scale.colours(printed[[index]])[0]
                number.set(text=shown[1][index], color=style.text_colour(colour))
        self.dashes.set_visible(shown is None)
        self.dashes.set_linewidth(min(0.6 * unit, 0.1 * cell))


def _fitting(forms: Sequence[Form], full: np.ndarray, cell: float) -> tuple[Form | None, float]:
    """The first form whose numbers of the `full` cells fit, and their size in points; None if none does."""
    for form in forms:
        if size := number_size([form[1][index] for index in np.flatnonzero(full)], cell):
            return form, size
    return None, style.SMALLEST_SIZE


def _draw_squares(cells: Cells, values: np.ndarray, ax: Axes, scale: Scale) -> QuadMesh:
    """The filled cells."""
    colours, data = mappable(scale), cells.matrix(as_drawn(values))
    edges = {"linewidths": _GAP * style.scale_factor(), "edgecolor": ax.get_facecolor()}
    squares = ax.pcolormesh(np.ma.masked_invalid(data), cmap=colours.cmap, norm=colours.norm, **edges)
    ax.set(xlim=(0, data.shape[1]), ylim=(data.shape[0], 0), aspect="equal")
    ax.spines[:].set_visible(False)
    return squares


def _write_numbers(positions: np.ndarray, texts: Sequence[str], ax: Axes) -> None:
    """A text in the middle of each cell ``[cells, 2]``."""
    words = {"ha": "center", "va": "center", "linespacing": 1.0, "in_layout": False, "label": NUMBER}
    for (row, column), text in zip(positions.tolist(), texts):
        ax.text(column + 0.5, row + 0.5, text, **words)


def _draw_dashes(
    cells: Cells, chosen: np.ndarray, values: np.ndarray, ax: Axes, scale: Scale, height: float = 0.8
) -> LineCollection:
    """A short horizontal line in each chosen cell, placed so that the ring fits in the middle."""
    row, column = cells.positions[chosen].T
    y = row + height
    ends = np.stack([column + 0.36, y, column + 0.64, y], axis=1).reshape(-1, 2, 2)
    inks = [style.text_colour(colour) for colour in scale.colours(values[chosen])]
    dashes = LineCollection(ends, colors=inks, linewidths=0.6 * style.scale_factor(), label="dashes")
    ax.add_collection(dashes)
    return dashes


def _cross_out(cells: Cells, chosen: np.ndarray, ax: Axes) -> None:
    """Cross out undefined cells with lines, because some SVG viewers do not support hatching."""
    frames = cells.squares(chosen, 0.05)  # [chosen, 4, 2]
    strokes = [corners[list(pair)] for corners in frames for pair in ((0, 2), (1, 3))]
    strokes += [corners[[0, 1, 2, 3, 0]] for corners in frames]
    width = 0.5 * style.scale_factor()
    ax.add_collection(LineCollection(strokes, colors=_UNDEFINED, linewidths=width, label="undefined"))


def numbers_sentence(figure: Figure, stem: str) -> str:
    """Where the numbers of a finished figure's cells are, if the cells have no room for them; else empty."""
    settle(figure)
    numbers = [text for ax in figure.axes for text in ax.texts if text.get_label() == NUMBER]
    if any(text.get_visible() for text in numbers):
        return ""
    return f"At this width, cells have no room for their numbers, which are in {stem}.csv."


def cell_size(ax: Axes) -> float:
    """Side of a cell in points, as the axes are now placed."""
    left, right = ax.get_xlim()
    return size_in_points(ax)[0] / (right - left)


def number_size(texts: Sequence[str], cell: float) -> float | None:
    """Font size at which the widest number fits its cell, points; None if that is too small to read.

    Numbers keep clear of the cell's border, unless only the smallest letters fit; powers of ten always do,
    because a row of them that touch is one long number to the eye.
    """
    lines = {line for text in texts for line in text.split("\n")}
    widest = max((style.text_width(line, 1.0) for line in lines), default=1.0)
    tall = 0.37 if any("\n" in text for text in texts) else 0.49
    most = 0.79 if any("e" in line for line in lines) else 0.91
    fits = min(1.05 * style.tick_size(), tall * cell, most * cell / max(widest, 0.1))
    clear = min(fits, 0.79 * cell / max(widest, 0.1))
    return max(clear, style.SMALLEST_SIZE) if fits >= style.SMALLEST_SIZE else None


class _LayerLocator(Locator):
    """Every position, or every second, fourth, ... if the layer numbers would overlap."""

    def __init__(self, layers: np.ndarray, offset: float):
        self._n, self._offset, self._height = len(layers), offset, style.tick_size()
        self._width = style.text_width(str(layers[-1]), self._height)

    def __call__(self) -> np.ndarray:
        upright = self.axis.axis_name == "y"
        widest = self._height if upright else self._width
        cell = size_in_points(self.axis.axes)[upright] / self._n
        steps = (1, 2, 4, 5, 10, 20, self._n)
        step = next(step for step in steps if step * cell >= 1.4 * widest or step >= self._n)
        places = np.arange(0, self._n, step)
        if self._n - 1 - places[-1] and (len(places) > 1 or (self._n - 1) * cell >= 1.4 * widest):
            near = len(places) > 1 and (self._n - 1 - places[-1]) * cell < 1.4 * widest
            places = np.append(places[: len(places) - near], self._n - 1)  # the last layer has its number
        return places + self._offset


def number_layers(axis: Axis, layers: np.ndarray, offset: float = 0.5) -> None:
    """Label an axis with the layers at positions `offset`, 1 + `offset`, ..."""
    axis.set_major_locator(_LayerLocator(layers, offset))
    axis.set_major_formatter(FuncFormatter(lambda x, _: str(layers[int(x)])))


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
    first one, which may be broken, last. A ring in the lines becomes a dot where the cells are so small that
    they have dots.
    """
    at = {"xycoords": "axes fraction", "textcoords": "offset points", "in_layout": False}
    notes = [ax.annotate(line, (0, 0), xytext=(0, 0), **at) for line in (*lines, *[""] * _MOST_BREAKS)]
    starts = np.array(
        [cells.positions[cells.positions[:, 0] == row, 1].min() for row in range(len(cells.firsts))]
    )

    def fit(ax: Axes) -> None:
        corner = _Corner(starts, cell_size(ax))
        said, size = corner.fitting(lines)
        shown = list(range(len(said)))
        while shown and (bad := corner.in_the_way([said[i] for i in shown], size)):
            del shown[max(bad) or min(1, len(shown) - 1)]
        for index, note in enumerate(notes):
            note.set(visible=index in shown, size=size, text=said[index] if index < len(said) else "")
        for above, index in enumerate(reversed(shown)):
            notes[index].xyann = (_APART * size, _INDENT * size + above * _LEADING * size)

    before_drawing(ax, fit)


@dataclass(frozen=True, eq=False)
class _Corner:
    """The empty lower left corner of a grid, in which notes stand.

    Attributes:
        starts: int ``[rows]``, the first column of each row that has a cell.
        cell: side of a cell, points.
    """

    starts: np.ndarray
    cell: float

    def in_the_way(self, shown: Sequence[str], size: float) -> list[int]:
        """Which lines touch the cells next to them, at a font size in points."""
        found = []
        for index, line in enumerate(shown):
            bottom = _INDENT * size + (len(shown) - 1 - index) * _LEADING * size
            above = np.arange(int(bottom // self.cell), int((bottom + size) // self.cell) + 1)
            rows = len(self.starts) - 1 - above
            free = self.cell * self.starts[np.clip(rows, 0, None)].min()
            if rows.min() < 0 or (_APART + _INDENT) * size + style.text_width(line, size) > free:
                found.append(index)
        return found

    def fitting(self, lines: Sequence[str]) -> tuple[list[str], float]:
        """The lines in the longest words that fit, and their size; the shortest words if none do."""
        sizes = np.arange(max(style.tick_size(), style.SMALLEST_SIZE), style.SMALLEST_SIZE - 0.1, -0.5)
        said = [line if self.cell > SMALL_CELL else line.replace("○", "•") for line in lines]
        short = [line.split(" (")[0] for line in said]
        brief = [reduce(lambda line, pair: line.replace(*pair), _BRIEFLY, line) for line in short]
        tried = [said, short, brief, *self._broken(brief, sizes[-1])]
        for some in tried:
            for size in sizes:
                if not self.in_the_way(some, size):
                    return some, size
        name = brief[:1]
        if self.in_the_way(name, sizes[-1]):
            name = _in_halves(name[0], sizes[-1])
        return [*name, *brief[1:]], sizes[-1]

    def _broken(self, lines: Sequence[str], size: float) -> Iterator[list[str]]:
        """The long lines at the foot, where there is more room; then with more and more of them broken."""
        broken = [*lines[:1], *sorted(lines[1:], key=len)]
        yield broken
        for _ in range(_MOST_BREAKS):
            if bad := self.in_the_way(broken, size):
                at = max(bad, key=lambda index: style.text_width(broken[index], size))
                halves = _in_halves(broken[at], size)
                broken = [*broken[:at], *halves, *broken[at + 1 :]] if len(halves) == 2 else broken
            yield broken


def _in_halves(line: str, size: float) -> list[str]:
    """A line that is broken near its middle, if it can be."""
    return style.wrap_text(line, size, 0.68 * style.text_width(line, size)).split("\n")
