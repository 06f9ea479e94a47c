"""A grid of spans: row = first layer, column = last layer. Cells by seaborn, axes with layer numbers.

Sizes that depend on the cells' size, such as their numbers, are set when the axes are drawn: a grid fits any
axes, and still does after these are resized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.ticker import FuncFormatter, Locator

from . import style
from .layout import before_drawing, size_in_points
from .levels import Scale, as_drawn, mappable

NUMBER = "number"
"""Label of the texts that are a cell's number."""
_UNDEFINED = "#8c8c8c"
_GAP, _OUTLINE = 0.7, 0.8  # units: between cells, and around single layers
SMALL_CELL = 5.0  # points: smaller cells have no gaps between them, and dots instead of rings
_INSET = 0.24  # in cells: inset of small squares on each side
_SQUARE = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])


@dataclass(frozen=True, eq=False)
class Cells:
    """Positions of spans in their grid.

    A grid has a row for each first layer that occurs and a column for each last one, so that groups of
    layers, some layers of a model and single layers have grids without gaps.

    Attributes:
        firsts: the rows' layers, ascending.
        lasts: the columns' layers, ascending.
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


def draw_cells(
    cells: Cells,
    values: np.ndarray,
    ax: Axes,
    *,
    scale: Scale,
    texts: Sequence[str],
    studied: str = "switched off",
    small: np.ndarray | None = None,
) -> None:
    """Draw the cells in the colours of their levels, with their numbers where they fit.

    A dash marks cells that are coloured as gains and have no number: in greyscale blue looks like red.

    Args:
        values: points, ``[spans]``; NaN is crossed out.
        ax: where.
        texts: the numbers ``[spans]``, empty for none. A second line is shown only where it fits.
        studied: what was done to the spans, as the axis labels say it.
        small: bool ``[spans]``, cells to draw as small squares without a number.
    """
    known = ~np.isnan(values)
    small = known & small if small is not None else np.zeros(len(values), bool)
    there = len(ax.texts)  # of the user's, or of an earlier drawing
    _draw_squares(cells, np.where(small, np.nan, values), ax, scale, texts)
    ax.grid(False)  # lines of the style in force would run through the notes
    mesh, numbers = ax.collections[-1], list(ax.texts)[there:]
    texts = [number.get_text() for number in numbers]
    squares = cells.squares(small, _INSET)
    colours = scale.colours(values[small])
    ax.add_collection(PolyCollection(squares, facecolors=colours, linewidths=0, label="small cells"))
    _draw_dashes(cells, small & scale.is_gain(values), values, ax, scale, height=0.5)
    dashes = _draw_dashes(cells, known & ~small & scale.is_gain(values), values, ax, scale)
    _cross_out(cells, ~known, ax)
    frames = PolyCollection([], facecolors="none", edgecolors=style.GREEN, label="single layers", zorder=2)
    ax.add_collection(frames, autolim=False)
    _name_axes(cells, ax, studied)

    def fit(ax: Axes) -> None:
        cell, unit = cell_size(ax), style.scale_factor()
        gap, width = min(_GAP * unit, 0.1 * cell), min(_OUTLINE * unit, 0.15 * cell)
        gap = gap if cell > SMALL_CELL else 0.0
        mesh.set_linewidth(gap)
        frames.set_linewidth(width)
        frames.set_verts(cells.squares(cells.shortest, (gap + width) / 2 / cell))
        size = number_size(texts, cell)
        shown = texts if size else [text.split("\n")[0] for text in texts]
        size = size or number_size(shown, cell)
        for number, text in zip(numbers, shown):
            number.set(visible=size is not None, size=size or style.SMALLEST_SIZE, text=text)
        dashes.set_visible(size is None)
        dashes.set_linewidth(min(0.6 * unit, 0.1 * cell))

    before_drawing(ax, fit)


def _draw_squares(cells: Cells, values: np.ndarray, ax: Axes, scale: Scale, texts: Sequence[str]) -> None:
    """The filled cells and their numbers, in black or white."""
    figure = ax.get_figure(root=True)
    colours, data, there = mappable(scale), cells.matrix(as_drawn(values)), len(ax.texts)
    labels = np.full(data.shape, "", dtype=object)
    labels[cells.positions[:, 0], cells.positions[:, 1]] = texts
    numbered = 1.5 * size_in_points(ax)[0] / data.shape[1] > 2 * style.SMALLEST_SIZE
    # seaborn draws the whole figure to see whether tick labels overlap, and there are none.
    figure.canvas.draw = lambda: setattr(figure, "stale", False)
    try:
        sns.heatmap(
            data, mask=np.isnan(data), vmin=0, vmax=1, cmap=colours.cmap, norm=colours.norm, cbar=False,
            square=True, annot=labels if numbered else None, fmt="",
            annot_kws={"va": "center", "linespacing": 1.0},
            linewidths=_GAP * style.scale_factor(), linecolor=ax.get_facecolor(),
            xticklabels=False, yticklabels=False, ax=ax,
        )  # fmt: skip
    finally:
        del figure.canvas.draw
    for text in list(ax.texts)[there:]:
        column, row = (int(place) for place in text.get_position())
        ink = style.text_colour(colours.to_rgba(data[row, column])[:3])
        text.set(color=ink, in_layout=False, label=NUMBER)


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


def cell_size(ax: Axes) -> float:
    """Side of a cell in points, as the axes are now placed."""
    left, right = ax.get_xlim()
    return size_in_points(ax)[0] / (right - left)


def number_size(texts: Sequence[str], cell: float) -> float | None:
    """Font size at which the widest number fits its cell, points; None if that is too small to read.

    Numbers keep clear of the cell's border, unless only the smallest letters fit.
    """
    lines = {line for text in texts for line in text.split("\n")}
    widest = max((style.text_width(line, 1.0) for line in lines), default=1.0)
    tall = 0.37 if any("\n" in text for text in texts) else 0.45
    fits = min(1.05 * style.tick_size(), tall * cell, 0.89 * cell / max(widest, 0.1))
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


def _name_axes(cells: Cells, ax: Axes, studied: str) -> None:
    ax.set_xlabel(f"last layer {studied}")
    ax.set_ylabel(f"first layer {studied}")
    ax.tick_params(axis="y", labelrotation=0)
    number_layers(ax.xaxis, cells.lasts)
    number_layers(ax.yaxis, cells.firsts)
