"""What every figure with curves shares: marks that need no colour, axes, the legend below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from . import style
from .labels import Room

FOOT = 0.06  # of the axes' height: where marks stand that have no value, or one below the axis
_FAR = 0.6  # of the range of scores

Entry = tuple[Artist, str]
"""A legend's handle and its words."""

_HANDLE, _PAD, _COLUMN_GAP, _ROW = 2.4, 0.5, 1.6, 1.35  # of a legend, in its letters' sizes


@dataclass(frozen=True)
class Mark:
    """How a series looks; no two share a marker, so that no one needs the colour.

    Attributes:
        colour: hex, of Okabe and Ito's palette.
        marker: Matplotlib's sign.
        line: line style; empty for points that nothing joins.
        size: of the marker, units.
    """

    colour: str
    marker: str
    line: str = "-"
    size: float = 3.4


METHODS = {
    "adapters": Mark("#d55e00", "o"),
    "top_layers": Mark("#0072b2", "s", "--", 3.1),
    "layernorm_only": Mark("#009e73", "D", "", 3.6),
    "head_only": Mark("#9467a0", "v", "", 4.0),
    "full": Mark("#000000", "*", "", 6.0),
}
SERIES = (
    Mark("#0072b2", "o"),
    Mark("#d55e00", "s", "--", 3.1),
    Mark("#009e73", "^", "-.", 3.8),
    Mark("#9467a0", "D", ":", 3.1),
    Mark("#000000", "v", (0, (5, 1)), 3.8),
    Mark("#b8860b", "P", (0, (3, 1, 1, 1, 1, 1)), 4.0),
)
"""For series that have no look of their own, such as tasks; used in turn."""


def tidy_axes(ax: Axes) -> None:
    """Light grid below the data."""
    unit = style.unit()
    ax.set_axisbelow(True)
    ax.grid(True, which="major", color=style.GRID, linewidth=0.5 * unit)
    ax.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))  # no halves: short labels
    ax.xaxis.labelpad = ax.yaxis.labelpad = 2 * unit


def decade_ticks(ax: Axes, low: float, high: float, least: float | None = None) -> None:
    """Log axis from `low` to `high`: a tick a decade, small ones between, drawn as one.

    Matplotlib's own small ticks are objects with labels; forty of them a panel take most of a figure's time.

    Args:
        ax: at its place.
        low: limit.
        high: limit.
        least: the first value that ticks make sense for; by default `low`.
    """
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    first, last = np.floor(np.log10(least or low)), np.ceil(np.log10(high))
    decades = 10.0 ** np.arange(first, last + 1)
    shown = decades[(decades >= (least or low)) & (decades <= high)]
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"$10^{{{np.log10(value):.0f}}}$"))
    ax.xaxis.set_minor_locator(NullLocator())
    between = np.outer(decades, np.arange(2, 10)).ravel()
    small_ticks(ax, between[(between >= (least or low)) & (between <= high)], top=False)


def small_ticks(ax: Axes, places: np.ndarray, *, top: bool, length: float = 1.2) -> None:
    """Tick marks without labels outside the lower or upper end, `length` units long."""
    unit, height = style.unit(), 72 * ax.get_position().height * ax.figure.get_figheight()
    start, end = (1.0, 1 + length * unit / height) if top else (0.0, -length * unit / height)
    marks = [((x, start), (x, end)) for x in places]
    look = {"colors": style.INK, "linewidths": (0.4 if length < 2 else 0.6) * unit, "clip_on": False}
    ax.add_collection(
        LineCollection(marks, transform=ax.get_xaxis_transform(), label="ticks", **look), autolim=False
    )


def line_of(mark: Mark, *, published: bool = False) -> Line2D:
    """A legend's handle for a series; published ones are thin and hollow."""
    return Line2D([], [], **look_of(mark, published=published))


def look_of(mark: Mark, *, published: bool = False) -> dict[str, object]:
    """What `Axes.plot` takes for a series."""
    unit = style.unit()
    if published:
        return {
            "color": mark.colour, "marker": mark.marker, "linestyle": ":" if mark.line else "",
            "linewidth": 0.8 * unit, "markersize": 0.8 * mark.size * unit, "markerfacecolor": style.WHITE,
            "markeredgewidth": 0.6 * unit,
        }  # fmt: skip
    return {
        "color": mark.colour, "marker": mark.marker, "linestyle": mark.line, "linewidth": 1.1 * unit,
        "markersize": mark.size * unit, "markeredgewidth": 0.0,
    }  # fmt: skip


def far_below(points: pd.DataFrame, column: str) -> np.ndarray:
    """Heads on unadapted features, so far below all else that they would press it flat, bool `[rows]`.

    Args:
        points: columns `method`, `k` and the one asked for.
        column: the score.
    """
    bare = ((points["method"] == "head_only") | (points["k"] == 0).fillna(False)).to_numpy(bool)
    rest = points.loc[~bare, column].dropna()
    if rest.empty:
        return np.zeros(len(points), dtype=bool)
    floor = rest.min() - _FAR * (rest.max() - rest.min())
    return bare & (points[column] < floor).to_numpy(bool)


def mark_far_below(ax: Axes, methods: Sequence[str], x: np.ndarray, values: np.ndarray, digits: int) -> None:
    """Set such points at the foot, hollow, with an arrow and their value."""
    unit = style.unit()
    for method, place, value in zip(methods, x, values):
        mark = METHODS[method]
        look = look_of(mark) | {
            "markerfacecolor": style.WHITE,
            "markeredgewidth": 0.7 * unit,
            "linestyle": "",
        }
        at = ax.get_xaxis_transform()
        ax.plot([place], [FOOT], transform=at, zorder=4, label="far below", **look)
        text = f" ↓ {value:.{digits}f}".replace("-", "−")
        words = {"textcoords": "offset points", "va": "center_baseline", "color": mark.colour}
        ax.annotate(text, (place, FOOT), xycoords=at, xytext=(2 * unit, 0), size=style.tick_size(), **words)


def take_foot(room: Room, x: float) -> None:
    """Keep words away from where `mark_far_below` puts a point."""
    ((left, _),) = room.place(np.array([x]), np.array([1.0]))
    unit = style.unit()
    room.take_box((left - 4 * unit, 0.0, left + 5.5 * style.tick_size(), FOOT * room.height + 5 * unit))


def dot_of() -> Line2D:
    """A legend's handle for single trials."""
    return Line2D([], [], linestyle="", marker="o", markersize=1.9 * style.unit(), color=style.FAINT,
                  markeredgewidth=0, alpha=0.6)  # fmt: skip


def legend_layout(entries: Sequence[Entry], width: float) -> tuple[int, int, float]:
    """Columns, rows and letter size with which the legend fits `width` points."""
    size = style.tick_size()
    widest = max((style.text_width(label, size) for _, label in entries), default=0.0)
    column = widest + (_HANDLE + _PAD) * size
    gap = _COLUMN_GAP * size
    if column > width:
        return 1, len(entries), max(style.SMALLEST_SIZE, size * width / column)
    most = min(len(entries), int((width + gap) / (column + gap)))
    rows = -(-len(entries) // most) if most else 0
    return (-(-len(entries) // rows) if rows else 0), rows, size  # no more columns than these rows need


def legend_height(entries: Sequence[Entry], width: float) -> float:
    """Points that the legend fills."""
    _, rows, size = legend_layout(entries, width)
    return size * _ROW * rows + 2 * style.unit() if rows else 0.0


def place_legend(figure: Figure, entries: Sequence[Entry], x: float, y: float, width: float) -> None:
    """Set the legend, in rows and centred, its lower left corner at `x`, `y` points."""
    if not entries:
        return
    across, up = 72 * figure.get_size_inches()
    columns, _, size = legend_layout(entries, width)
    figure.legend(
        [handle for handle, _ in entries],
        [label for _, label in entries],
        loc="lower center",
        bbox_to_anchor=((x + width / 2) / across, (y + style.unit()) / up),
        ncols=columns,
        fontsize=size,
        handlelength=_HANDLE,
        handletextpad=_PAD,
        columnspacing=_COLUMN_GAP,
        labelspacing=_ROW - 1.0,
        borderpad=0,
        borderaxespad=0,
        numpoints=1,
    )
