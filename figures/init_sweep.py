"""Does the initialisation's scale matter? Score against its std (Houlsby et al. 2019, Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from adapter_probe.analysis.published import PUBLISHED_TASKS, published_init_sweep
from adapter_probe.analysis.sweeps import chosen_trials

from . import style
from .captions import init_sweep_caption
from .curves import SERIES, Entry, Mark, dot_of, legend_height, line_of, look_of, place_legend, tidy_axes
from .drawing import Drawing, add_axes
from .labels import Room, text_box
from .venues import Look
from .wording import known_task, literal, score_axis, task_label

STEM = "init-sweep"
_POINT = ["task", "metric", "method", "size", "init_std"]
DEFAULT_STD = 1e-2  # the paper's
_LEFT, _RIGHT, _TOP, _BELOW, _ASPECT = 32.0, 5.0, 4.0, 25.0, 0.66  # units; height over width
_DODGE = 0.07  # decades between the raw trials of two series
_ROW = 9.0  # units: a row at the foot, where a series' diverged trials are marked
_PLACES = 17  # along its line, where the name of the majority class is tried


@dataclass(frozen=True, eq=False)
class SweepSeries:
    """One task's sweep.

    Attributes:
        name: for the legend.
        points: columns of ``sweep.csv``, of one task and size.
        trials: rows of ``trials.csv`` that the points are of; None where there are none.
        published: the paper's curve of the same task and metric, or None.
    """

    name: str
    points: pd.DataFrame
    trials: pd.DataFrame | None = None
    published: pd.DataFrame | None = None

    @property
    def metric(self) -> str:
        """The score's name."""
        return str(self.points["metric"].iloc[0])

    @property
    def majority(self) -> float:
        """The score of the commonest class, a fraction; NaN where unknown."""
        return float(self.points["majority_score"].iloc[0])


def sweep_series(sweep: pd.DataFrame, trials: pd.DataFrame | None, paper: bool) -> list[SweepSeries]:
    """A sweep, task by task and size by size; the paper's curve comes with its tasks and accuracy."""
    sizes = sweep["size"] if "size" in sweep else pd.Series(0, index=sweep.index)
    chosen = None if trials is None else chosen_trials(trials[trials["method"] == "adapters"], _POINT)
    found = []
    for (task, metric, size), points in sweep.groupby(["task", "metric", sizes], sort=False, dropna=False):
        known = known_task(str(task))
        beside = paper and known in PUBLISHED_TASKS and metric == "accuracy"
        found.append(
            SweepSeries(
                task_label(str(task)) + (f", size {size}" if sizes.nunique() > 1 else ""),
                points.sort_values("init_std", ignore_index=True),
                None if chosen is None else _trials_of(points, chosen),
                published_init_sweep(known) if beside else None,
            )
        )
    return found


def _trials_of(points: pd.DataFrame, chosen: pd.DataFrame) -> pd.DataFrame:
    """The trials that the points are of."""
    keys = [name for name in ("task", "metric", "init_std", "size") if name in points]
    return chosen.merge(points[keys].drop_duplicates(), on=keys, how="inner")


def init_sweep(series: Sequence[SweepSeries], look: Look, identity: Mapping[str, object]) -> Drawing:
    """The figure of one or several tasks, with its CSV and caption."""
    names = " and ".join(dict.fromkeys(one.name for one in series))
    title = f"{names}: score against the initialisation's std"
    figure = init_sweep_figure(series, look)
    return Drawing(STEM, title, figure, _numbers(series), init_sweep_caption(series), identity)


def init_sweep_figure(series: Sequence[SweepSeries], look: Look) -> Figure:
    """One axes, the legend below."""
    width = look.width("half")
    with style.paper_style(look.venue):
        u = style.unit()
        across = 72 * width - u * (_LEFT + _RIGHT)
        legend = _legend(series)
        words = legend_height(legend, 72 * width)
        foot = words + u * _BELOW
        tall = min(_ASPECT * across, 72 * look.venue.tallest - foot - u * _TOP, 170 * u)
        figure = Figure(figsize=(width, (foot + tall + u * _TOP) / 72))
        draw(series, add_axes(figure, (u * _LEFT, foot, across, tall)))
        place_legend(figure, legend, 0.0, 0.0, 72 * width)
    return figure


def draw(series: Sequence[SweepSeries], ax: Axes) -> Axes:
    """Draw the sweeps into axes that already stand at their place, within `style.paper_style`.

    Means with their s.e.m.; single trials as small dots; a cross at the foot, with their number, where trials
    diverged; the majority class dotted; the paper's curve thin and hollow.
    """
    metrics = {one.metric for one in series}
    factor, label = score_axis(metrics.pop() if len(metrics) == 1 else None)
    tidy_axes(ax)
    ax.set_xscale("log")
    ax.set_xlabel(r"std $\sigma$ of the initialisation")
    texts = [f"validation {label}", label]
    ax.set_ylabel(style.fitting(texts, style.label_size(), 1.1 * Room(ax).height))
    shifts = (np.arange(len(series)) - (len(series) - 1) / 2) * _DODGE
    for one, mark, shift in zip(series, _marks(series), shifts):
        _draw_series(ax, one, mark, factor, 10**shift)
    _set_limits(ax, series, factor)
    _draw_diverged(ax, series)
    _label_lines(ax, series, factor)
    return ax


def _marks(series: Sequence[SweepSeries]) -> list[Mark]:
    return [SERIES[index % len(SERIES)] for index in range(len(series))]


def _draw_series(ax: Axes, one: SweepSeries, mark: Mark, factor: float, shift: float) -> None:
    unit, points = style.unit(), one.points
    if one.published is not None:
        look = look_of(mark, published=True)
        ax.plot(one.published["init_std"], factor * one.published["mean"], zorder=2, **look)
    if one.trials is not None:
        dots = one.trials[one.trials["score"].notna()]
        look = {"s": (1.9 * unit) ** 2, "color": mark.colour, "alpha": 0.45, "linewidths": 0}
        ax.scatter(shift * dots["init_std"], factor * dots["score"], zorder=2.5, label="trials", **look)
    x, y = points["init_std"], factor * points["mean"]
    ax.errorbar(x, y, factor * points["sem"], elinewidth=0.8 * unit, zorder=3, **look_of(mark))
    if np.isfinite(one.majority):
        ax.axhline(factor * one.majority, color=mark.colour, linestyle=":", linewidth=0.9 * unit, zorder=1.5)


def _set_limits(ax: Axes, series: Sequence[SweepSeries], factor: float) -> None:
    """Room for every value, the majority lines and, at the foot, for what diverged."""
    stds = np.unique(np.concatenate([one.points["init_std"] for one in series]))
    ax.set_xlim(stds[0] / 2.2, stds[-1] * 2.2)
    room = Room(ax)
    decades = np.arange(np.floor(np.log10(stds[0])), np.ceil(np.log10(stds[-1])) + 1)
    step = 1 if len(decades) * 3.2 * style.tick_size() < room.width else 2
    ax.xaxis.set_major_locator(FixedLocator(10 ** decades[(len(decades) - 1) % step :: step]))
    ax.xaxis.set_minor_locator(FixedLocator(10**decades) if step > 1 else NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
    shown = [one.points[name] for one in series for name in ("mean", "min", "max", "majority_score")]
    shown += [one.published["mean"] for one in series if one.published is not None]
    values = factor * np.concatenate([values.to_numpy(float) for values in shown])
    values = values[np.isfinite(values)]
    low, high = (values.min(), values.max()) if values.size else (0.0, factor)
    spare = max(high - low, 0.02 * factor)
    rows = len(_with_diverged(series))
    foot = min(0.6, (style.unit() * (_ROW * rows + 5) if rows else 0.06 * room.height) / room.height)
    inside = spare / (1 - foot - 0.06)  # the axes' height in data, with the foot and a little above
    ax.set_ylim(low - foot * inside, high + 0.06 * inside)


def _with_diverged(series: Sequence[SweepSeries]) -> list[int]:
    """Which series have diverged trials, in the order of their rows at the foot."""
    return [index for index, one in enumerate(series) if one.points["diverged"].sum()]


def _draw_diverged(ax: Axes, series: Sequence[SweepSeries]) -> None:
    """A cross a point with trials that diverged, and how many of all; a row at the foot a series."""
    unit, across, room = style.unit(), ax.get_xaxis_transform(), Room(ax)
    cross = {"marker": "x", "markersize": 3.4 * unit, "markeredgewidth": 0.9 * unit, "linestyle": ""}
    words = {
        "ha": "right",
        "va": "center_baseline",
        "size": 0.9 * style.tick_size(),
        "annotation_clip": False,
    }
    for row, index in enumerate(_with_diverged(series)):
        points, colour = series[index].points, _marks(series)[index].colour
        level = (row + 0.5) * _ROW * unit
        for one in points[points["diverged"] > 0].itertuples():
            ax.plot([one.init_std], [level / room.height], transform=across, color=colour, zorder=4, **cross)
            at = {"xycoords": across, "xytext": (-2.4 * unit, level), "textcoords": "offset points"}
            text = f"{one.diverged}/{one.n + one.diverged} "
            ax.annotate(text, (one.init_std, 0), color=colour, **at, **words)


def _label_lines(ax: Axes, series: Sequence[SweepSeries], factor: float) -> None:
    """Name the paper's std and the majority classes, where nothing else is."""
    room = _room_of(ax, series, factor)
    low, high = ax.get_xlim()
    if low < DEFAULT_STD < high:
        ax.axvline(
            DEFAULT_STD, color=style.FAINT, linestyle=(0, (4, 2)), linewidth=0.6 * style.unit(), zorder=1
        )
    size, stems = style.tick_size(), set()
    for one, mark in zip(series, _marks(series)):
        if not np.isfinite(one.majority) or one.majority in stems:
            continue
        stems.add(one.majority)
        shown = f"{factor * one.majority:.1f}%" if factor > 1 else f"{one.majority:.3f}"
        text = f"majority class, {shown}"
        ((_, y),) = room.place(np.array([DEFAULT_STD]), np.array([factor * one.majority]))
        width = style.text_width(text, size)
        boxes = [
            text_box(text, size, left, bottom)
            for left in np.linspace(3.0, room.width - width - 3.0, _PLACES)
            for bottom in (y + 1.5, y - size - 1.5)
        ]
        box = min((box for box in boxes if room.holds(box)), key=room.crowd, default=None)
        if box is not None and not room.crowd(box):
            room.write(text, box, size, mark.colour if len(series) > 1 else style.FAINT)


def _room_of(ax: Axes, series: Sequence[SweepSeries], factor: float) -> Room:
    room, unit = Room(ax), style.unit()
    for one in series:
        x, y = one.points["init_std"].to_numpy(float), factor * one.points["mean"].to_numpy(float)
        room.take_line(x, y)
        room.take_points(x, y, 3 * unit)
        for at, mean, sem in zip(x, y, factor * one.points["sem"].to_numpy(float)):
            room.take_line(np.array([at, at]), np.array([mean - sem, mean + sem]), unit)
        for end in ("min", "max"):
            room.take_points(x, factor * one.points[end].to_numpy(float), 1.5 * unit)
        if one.published is not None:
            room.take_line(one.published["init_std"], factor * one.published["mean"])
        if np.isfinite(one.majority):
            level = np.full(2, factor * one.majority)
            room.take_line(np.array(ax.get_xlim()), level, 0.4)
    if rows := len(_with_diverged(series)):
        room.take_box((0.0, 0.0, room.width, rows * _ROW * unit))
    return room


def _legend(series: Sequence[SweepSeries]) -> list[Entry]:
    entries: list[Entry] = [
        (line_of(mark), f"{literal(one.name)}, mean ± s.e.m.") for one, mark in zip(series, _marks(series))
    ]
    entries += [
        (line_of(mark, published=True), f"{one.name}, Houlsby et al. 2019")
        for one, mark in zip(series, _marks(series))
        if one.published is not None
    ]
    if any(one.trials is not None and len(one.trials) for one in series):
        entries.append((dot_of(), "single trial"))
    if any(one.points["diverged"].sum() for one in series):
        cross = Line2D([], [], linestyle="", marker="x", color=style.FAINT, markersize=3.6 * style.unit())
        entries.append((cross, "diverged, of all"))
    line = Line2D([], [], color=style.FAINT, linestyle=(0, (4, 2)), linewidth=0.6 * style.unit())
    stds = np.concatenate([one.points["init_std"] for one in series])
    if stds.min() / 2.2 < DEFAULT_STD < stds.max() * 2.2:
        entries.append((line, "default $10^{-2}$"))
    return entries


def _numbers(series: Sequence[SweepSeries]) -> pd.DataFrame:
    """The means, then the paper's."""
    parts = [one.points.assign(source="this run") for one in series]
    parts += [
        one.published.assign(task=one.name, metric=one.metric, source="Houlsby et al. 2019")
        for one in series
        if one.published is not None
    ]
    return pd.concat(parts, ignore_index=True)
