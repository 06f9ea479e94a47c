"""The trade-off over all tasks: the score less full fine-tuning's against trained parameters.

Houlsby et al. 2019 (Figs 1 and 3) show the 20th, 50th and 80th percentile over tasks. Beside them stands the
interquartile mean with its bootstrap interval (Agarwal et al. 2021), which says how sure the middle is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from adapter_probe.analysis.published import published_aggregate
from adapter_probe.analysis.sweeps import METHOD_LABELS

from . import style
from .captions import aggregate_caption
from .curves import (
    METHODS,
    Entry,
    decade_ticks,
    far_below,
    legend_height,
    line_of,
    look_of,
    mark_far_below,
    place_legend,
    small_ticks,
    take_foot,
    tidy_axes,
)
from .drawing import Drawing, Place, add_axes
from .labels import Room, write_notes
from .tradeoff_panel import CURVES
from .venues import Look
from .wording import GLUE, count_text, known_task

STEM = "tradeoff-aggregate"
_LEFT, _RIGHT, _TOP, _BELOW, _BETWEEN, _ASPECT = 34.0, 5.0, 4.0, 25.0, 12.0, 0.62  # units; height over width
_LOWEST = 75.0  # units: of a panel, even if the figure is then taller than was asked for
_ZERO_BELOW = 6.0  # how many times fewer parameters than the fewest: where none at all is drawn


@dataclass(frozen=True)
class View:
    """One panel: which columns are the middle and the spread, and what they are called."""

    middle: str
    low: str
    high: str
    words: str


VIEWS = (
    View("p50_points", "p20_points", "p80_points", "median, 20th–80th percentile"),
    View("iqm_points", "iqm_low_points", "iqm_high_points", "interquartile mean, 95% interval"),
)


def aggregate(
    frame: pd.DataFrame, tasks: Sequence[str], look: Look, identity: Mapping[str, object]
) -> Drawing:
    """The figure over all tasks, with its CSV and caption.

    Args:
        frame: columns of ``aggregate.csv``.
        tasks: their names; they decide which of the paper's sets stands beside, if one is asked for.
        look: sizes.
        identity: what determines the numbers.
    """
    chosen = _set_of(tasks) if look.paper else None
    published = None if chosen is None else published_aggregate(chosen)
    figure = aggregate_figure(frame, look, published)
    title = f"{len(tasks)} tasks: score less full fine-tuning's against trained parameters"
    numbers = frame.assign(source="this run")
    if published is not None:
        numbers = pd.concat([numbers, published.assign(source="Houlsby et al. 2019")], ignore_index=True)
    return Drawing(STEM, title, figure, numbers, aggregate_caption(frame, tasks, chosen), identity)


def _set_of(tasks: Sequence[str]) -> str:
    """Which of the paper's sets of tasks these are like: GLUE, or the additional ones."""
    return "glue" if sum(known_task(task) in GLUE for task in tasks) * 2 >= len(tasks) else "additional"


def aggregate_figure(frame: pd.DataFrame, look: Look, published: pd.DataFrame | None = None) -> Figure:
    """Percentiles and interquartile mean, side by side or one above the other, on one scale."""
    width = look.width("full")
    with style.paper_style(look.venue):
        legend = legend_of(frame, published)
        places, tall = _lay_out(72 * width, 72 * look.venue.tallest, legend_height(legend, 72 * width))
        figure = Figure(figsize=(width, tall / 72))
        height, limits = _height(frame, published), _limits(frame, published)
        beside = places[0][1] == places[1][1]
        for index, (view, place) in enumerate(zip(VIEWS, places)):
            theirs = None if index else published
            shown = {"published": theirs, "limits": limits, "numbered": beside or bool(index)}
            ax = draw(frame, add_axes(figure, place), view=view, **shown)
            ax.set_ylim(*height)
            _write(ax, frame, view, theirs)
            if beside and index:
                ax.tick_params(axis="y", labelleft=False)
                ax.set_ylabel("")
        place_legend(figure, legend, 0.0, 0.0, 72 * width)
    return figure


def _lay_out(width: float, tallest: float, words: float) -> tuple[list[Place], float]:
    """Places of both panels, and the figure's height, points."""
    u = style.unit()
    foot, left = words + u * _BELOW, u * _LEFT
    if width >= 72 * 4.5:
        across = (width - u * (_LEFT + _RIGHT + _BETWEEN)) / 2
        tall = min(_ASPECT * across, tallest - foot - u * _TOP)
        places = [(left + index * (across + u * _BETWEEN), foot, across, tall) for index in range(2)]
        return places, foot + tall + u * _TOP
    across = width - u * (_LEFT + _RIGHT)
    tall = min(0.85 * _ASPECT * across, (tallest - foot - u * (_TOP + _BETWEEN)) / 2)
    tall = max(tall, _LOWEST * u)
    places = [(left, foot + index * (tall + u * _BETWEEN), across, tall) for index in (1, 0)]
    return places, foot + 2 * tall + u * (_TOP + _BETWEEN)


def _positions(frame: pd.DataFrame) -> np.ndarray:
    """Where the rows stand along the axis: parameters, and left of all where none are trained."""
    counts = frame["trained_parameters_without_head"].to_numpy(float)
    known = counts[counts > 0]
    return np.where(counts > 0, counts, (known.min() if len(known) else 1.0) / _ZERO_BELOW)


def _height(frame: pd.DataFrame, published: pd.DataFrame | None) -> tuple[float, float]:
    far = far_below(frame, VIEWS[0].middle)
    frame, shown_all = frame[~far], not far.any()
    names = [name for view in VIEWS for name in (view.middle, view.low, view.high)]
    values = [frame[name].to_numpy(float) for name in names]
    values += [published["p50_points"].to_numpy(float)] if published is not None else []
    known = np.concatenate([*values, [0.0]])
    known = known[np.isfinite(known)]
    spare = max(known.max() - known.min(), 1.0)
    return known.min() - (0.06 if shown_all else 0.18) * spare, known.max() + 0.08 * spare


def draw(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    view: View = VIEWS[0],
    published: pd.DataFrame | None = None,
    limits: tuple[float, float] | None = None,
    numbered: bool = True,
) -> Axes:
    """Draw one view into axes that already stand at their place, within `style.paper_style`.

    Lines with a band for adapters and top layers, points with a bar for the rest; a black rim marks the
    Pareto frontier; the dotted line is full fine-tuning.

    Args:
        frame: columns of ``aggregate.csv``.
        ax: where.
        view: which columns.
        published: the paper's percentiles, whose middles are drawn thin and hollow; None for none.
        limits: of the parameters; by default as wide as what is drawn.
        numbered: whether the parameters stand below.
    """
    tidy_axes(ax)
    _set_labels(ax, numbered)
    ax.axhline(0, color=style.FAINT, linestyle=":", linewidth=0.9 * style.unit(), zorder=1.5)
    if published is not None:
        for method, rows in published.groupby("method"):
            look = look_of(METHODS[str(method)], published=True)
            ax.plot(rows["trained_parameters"], rows["p50_points"], zorder=2.4, **look)
    x, far = _positions(frame), far_below(frame, VIEWS[0].middle)
    for method in METHODS:
        chosen = (frame["method"] == method).to_numpy() & ~far
        if chosen.any():
            _draw_method(ax, x[chosen], frame[chosen], method, view)
    values = frame.loc[far, view.middle].to_numpy(float)
    mark_far_below(ax, frame.loc[far, "method"], x[far], values, digits=1)
    _set_ticks(ax, frame, limits or _limits(frame, published), numbered)
    return ax


def _draw_method(ax: Axes, x: np.ndarray, rows: pd.DataFrame, method: str, view: View) -> None:
    unit, mark = style.unit(), METHODS[method]
    low, high, middle = (rows[name].to_numpy(float) for name in (view.low, view.high, view.middle))
    if method in CURVES and len(rows) > 1:
        ax.fill_between(x, low, high, color=mark.colour, alpha=0.16, linewidth=0, zorder=2)
        for edge in (low, high):
            ax.plot(x, edge, color=mark.colour, alpha=0.6, linewidth=0.5 * unit, zorder=2)
    else:
        ax.vlines(x, low, high, color=mark.colour, linewidth=0.8 * unit, zorder=2.5)
    ax.plot(x, middle, zorder=3, **look_of(mark))
    if view is VIEWS[0]:  # the frontier is that of the medians
        best = rows["on_frontier"].to_numpy(bool)
        rim = {"linestyle": "", "markeredgecolor": style.INK, "markeredgewidth": 0.7 * unit}
        ax.plot(x[best], middle[best], zorder=3.5, label="frontier", **(look_of(mark) | rim))


def _set_labels(ax: Axes, numbered: bool) -> None:
    """As much as the axes' sides hold; the caption says the rest."""
    room, size = Room(ax), style.label_size()
    shared = "trained parameters per task"
    if numbered:
        ax.set_xlabel(style.fitting([f"{shared}, without the head", shared], size, room.width))
    texts = ["score − full fine-tuning (points)", "difference (points)"]
    ax.set_ylabel(style.fitting(texts, size, room.height))


def _limits(frame: pd.DataFrame, published: pd.DataFrame | None) -> tuple[float, float]:
    """Of the parameters, wide enough for ours and the paper's."""
    known = [_positions(frame)]
    known += [] if published is None else [published["trained_parameters"].to_numpy(float)]
    return float(np.concatenate(known).min()) / 1.8, float(np.concatenate(known).max()) * 1.8


def _set_ticks(ax: Axes, frame: pd.DataFrame, limits: tuple[float, float], numbered: bool) -> None:
    """A tick a decade, and one that says 0 where a method trains nothing but the head."""
    counts = frame["trained_parameters_without_head"].to_numpy(float)
    nothing = (counts == 0).any() and (counts > 0).any()
    decade_ticks(ax, *limits, least=0.5 * counts[counts > 0].min() if nothing else None)
    ax.tick_params(axis="x", labelbottom=numbered)
    if nothing:
        place = float(_positions(frame)[counts == 0][0])
        small_ticks(ax, np.array([place]), top=False, length=2.0)
        at = {
            "xycoords": ax.get_xaxis_transform(),
            "textcoords": "offset points",
            "ha": "center",
            "va": "top",
        }
        word = "0" if numbered else ""
        ax.annotate(word, (place, 0), xytext=(0, -4 * style.unit()), size=style.tick_size(), **at)


def _write(ax: Axes, frame: pd.DataFrame, view: View, published: pd.DataFrame | None) -> None:
    """Say what the panel shows, where nothing is drawn."""
    room, x = Room(ax), _positions(frame)
    for method in METHODS:
        chosen = (frame["method"] == method).to_numpy()
        for name in (view.low, view.middle, view.high):
            values = frame.loc[chosen, name].to_numpy(float)
            room.take_line(x[chosen], values)
            room.take_points(x[chosen], values, 2.4 * style.unit())
    if published is not None:
        for _, rows in published.groupby("method"):
            room.take_line(rows["trained_parameters"], rows["p50_points"], 1.5 * style.unit())
    room.take_line(np.array(ax.get_xlim()), np.zeros(2), 0.4)
    for place in x[far_below(frame, VIEWS[0].middle)]:
        take_foot(room, float(place))
    middle, spread = view.words.split(", ")
    write_notes(room, [middle, f"{spread}, {count_text(int(frame['n_tasks'].max()), 'task')}"])


def legend_of(frame: pd.DataFrame, published: pd.DataFrame | None) -> list[Entry]:
    """The legend's entries: methods, the frontier, the paper."""
    unit = style.unit()
    entries: list[Entry] = [
        (line_of(mark), METHOD_LABELS[name])
        for name, mark in METHODS.items()
        if (frame["method"] == name).any()
    ]
    if frame["on_frontier"].any():
        rim = {"marker": "o", "markersize": 3.4 * unit, "markeredgewidth": 0.7 * unit}
        handle = Line2D([], [], linestyle="", color=style.GRID, markeredgecolor=style.INK, **rim)
        entries.append((handle, "black rim: frontier of medians"))
    if published is not None:
        look = look_of(METHODS["adapters"], published=True) | {"color": style.FAINT}
        entries.append((Line2D([], [], **look), "Houlsby et al. 2019, median"))
    return entries
