"""Score against the standard deviation of the initialisation (Houlsby et al. 2019, Fig. 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from adapter_probe.analysis.published import published_init_sweep
from adapter_probe.analysis.study_records import StudyRecord, SweepRecord
from adapter_probe.analysis.sweeps import chosen_trials
from adapter_probe.known_tasks import known_task
from adapter_probe.wording import common_value, metric_name, score_axis, score_text, task_label

from . import style
from .curves import (
    SERIES,
    LegendEntry,
    MarkerStyle,
    ScoreSeries,
    add_legend,
    decade_ticks,
    dot_of,
    draw_trials,
    has_dots,
    line_of,
    line_props,
    numbers_of,
    tidy_axes,
)
from .drawing import SOURCE, Drawing, caption_of, identity_of, undefined_text
from .layout import before_drawing, one_panel, size_in_points
from .style import escape_mathtext
from .sweep_words import MEANS, diverged_text, dots_text, runs_text
from .venues import FigureOptions

_POINT = ["task", "metric", "method", "size", "init_std"]
DEFAULT_STD = 1e-2  # the paper's
_ASPECT = 0.66  # height over width of the panel in a narrow figure
_DODGE = 0.07  # decades between the raw trials of two series
_ROW = 0.08  # of the axes' height: a row at the foot, where a series' diverged trials are marked
_NUMBER = 0.9  # of a tick label's size: the number of diverged trials


def sweep_series(sweep: pd.DataFrame, trials: pd.DataFrame | None, paper: bool) -> list[ScoreSeries]:
    """The series of a sweep by task and size, with the paper's curve for its tasks and metric."""
    sizes = sweep["size"] if "size" in sweep else pd.Series(0, index=sweep.index)
    chosen = None if trials is None else chosen_trials(trials[trials["method"] == "adapters"], _POINT)
    found = []
    for (task, metric, size), points in sweep.groupby(["task", "metric", sizes], sort=False, dropna=False):
        known = known_task(str(task))
        beside = paper and known and metric == known.metric
        found.append(
            ScoreSeries(
                task_label(str(task)) + (f", size {size}" if sizes.nunique() > 1 else ""),
                points.sort_values("init_std", ignore_index=True),
                None if chosen is None else _trials_of(points, chosen),
                published_init_sweep(known.name) if beside else None,
            )
        )
    return found


def _trials_of(points: pd.DataFrame, chosen: pd.DataFrame) -> pd.DataFrame:
    """The trials that the points aggregate."""
    keys = [name for name in ("task", "metric", "init_std", "size") if name in points]
    return chosen.merge(points[keys].drop_duplicates(), on=keys, how="inner")


def init_sweep(record: SweepRecord, ax: Axes | None = None, *, paper: bool = False) -> Axes:
    """Draw the score against the standard deviation of the initialisation.

    Args:
        record: the sweep.
        ax: Axes to draw on; by default the current Axes.
        paper: whether to overlay the published curve.
    """
    return draw(sweep_series(record.sweep, record.trials, paper), ax)


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of all sweeps, as lines of one plot, with its CSV and caption."""
    sweeps = [study for study in studies if isinstance(study, SweepRecord)]
    series = [
        _in_folder(one, s, sweeps) for s in sweeps for one in sweep_series(s.sweep, s.trials, options.paper)
    ]
    if not series:
        return

    def panel(ax: Axes) -> list[LegendEntry]:
        draw(series, ax, legend=False)
        return legend_entries(series)

    figure = one_panel(panel, options, _ASPECT, 0.45, lowest=3.4)
    names = " and ".join(dict.fromkeys(one.name for one in series))
    title, numbers = f"{names}: score against initialisation std", numbers_of(series)
    yield Drawing("init-sweep", title, figure, numbers, _caption(series), identity_of(sweeps))


def _in_folder(series: ScoreSeries, study: SweepRecord, studies: Sequence[SweepRecord]) -> ScoreSeries:
    """The series, with its folder in the name if another series has the same task."""
    others = [task_label(str(task)) for s in studies if s is not study for task in s.sweep["task"].unique()]
    if series.name not in others:
        return series
    return replace(series, name=f"{series.name}, {study.folder.resolve().name}")


def draw(series: Sequence[ScoreSeries], ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """Draw one or several sweeps.

    Means with their s.e.m.; single trials as small dots; crosses at the bottom with the number of diverged
    trials; the majority class dotted; the paper's curve thin and hollow.
    """
    ax = plt.gca() if ax is None else ax
    factor, label = score_axis(common_value(one.metric for one in series))
    tidy_axes(ax)
    decade_ticks(ax, *_std_limits(series))
    ax.xaxis.set_major_locator(LogLocator())  # fewer decades where they would touch
    ax.set_xlabel(r"std $\sigma$ of the initialisation")
    ax.set_ylabel(f"validation {label}")
    shifts = (np.arange(len(series)) - (len(series) - 1) / 2) * _DODGE
    for one, mark, shift in zip(series, _marks(series), shifts):
        _draw_series(ax, one, mark, factor, 10**shift)
    _set_limits(ax, series, factor)
    _draw_diverged(ax, series)
    if _shows_default(series):
        ax.axvline(DEFAULT_STD, zorder=1, **_default_line())
    if legend:
        add_legend(ax, legend_entries(series))
    return ax


def _marks(series: Sequence[ScoreSeries]) -> list[MarkerStyle]:
    return [SERIES[index % len(SERIES)] for index in range(len(series))]


def _draw_series(ax: Axes, one: ScoreSeries, mark: MarkerStyle, factor: float, shift: float) -> None:
    unit, points = style.scale_factor(), one.points
    if one.published is not None:
        props = line_props(mark, published=True)
        ax.plot(one.published["init_std"], factor * one.published["mean"], zorder=2, **props)
    if one.trials is not None:
        dots = one.trials[one.trials["score"].notna()]
        draw_trials(ax, shift * dots["init_std"], factor * dots["score"], mark.colour)
    x, y = points["init_std"], factor * points["mean"]
    ax.errorbar(x, y, factor * points["sem"], elinewidth=0.8 * unit, zorder=3, **line_props(mark))
    if np.isfinite(one.majority):
        ax.axhline(factor * one.majority, color=mark.colour, linestyle=":", linewidth=0.9 * unit, zorder=1.5)


def _set_limits(ax: Axes, series: Sequence[ScoreSeries], factor: float) -> None:
    """Limits of the score axis: all values, majority lines and, at the bottom, diverged trials."""
    shown = [one.points[name] for one in series for name in ("mean", "min", "max", "majority_score")]
    shown += [one.published["mean"] for one in series if one.published is not None]
    values = factor * np.concatenate([values.to_numpy(float) for values in shown])
    values = values[np.isfinite(values)]
    low, high = (values.min(), values.max()) if values.size else (0.0, factor)
    width, height = size_in_points(ax)
    height = min(height, _ASPECT * width)  # what the layout will leave of it
    foot = 0.06 + _row_height(height) * len(_with_diverged(series))  # of the axes' height
    inside = max(high - low, 0.02 * factor) / (1 - foot - 0.06)
    ax.set_ylim(low - foot * inside, high + 0.06 * inside)


def _row_height(height: float) -> float:
    """A row's share of axes of a height in points: at least a line of text, or rows would touch."""
    return max(_ROW, 1.1 * _NUMBER * style.tick_size() / height)


def _with_diverged(series: Sequence[ScoreSeries]) -> list[int]:
    """The series with diverged trials, in the order of their rows at the bottom."""
    return [index for index, one in enumerate(series) if one.points["diverged"].sum()]


def _draw_diverged(ax: Axes, series: Sequence[ScoreSeries]) -> None:
    """A cross per point with diverged trials and their number of all trials; one row per series."""
    unit, across = style.scale_factor(), ax.get_xaxis_transform()
    cross = {"marker": "x", "markersize": 3.4 * unit, "markeredgewidth": 0.9 * unit, "linestyle": ""}
    words = {"ha": "right", "va": "center_baseline", "size": _NUMBER * style.tick_size()}
    rows = []
    for index in _with_diverged(series):
        points, colour = series[index].points, _marks(series)[index].colour
        points, marked = points[points["diverged"] > 0], []
        for one in points.itertuples():
            (mark,) = ax.plot([one.init_std], [0], transform=across, color=colour, zorder=4, **cross)
            at = {"xycoords": across, "xytext": (-2.4 * unit, 0), "textcoords": "offset points"}
            text = f"{one.diverged}/{one.n + one.diverged} "
            marked.append((mark, ax.annotate(text, (one.init_std, 0), color=colour, **at, **words)))
        rows.append(marked)

    def set_levels(ax: Axes) -> None:
        high = _row_height(size_in_points(ax)[1])
        for row, marked in enumerate(rows):
            for mark, text in marked:
                mark.set_ydata([0.03 + (row + 0.5) * high])
                text.xy = (text.xy[0], 0.03 + (row + 0.5) * high)

    before_drawing(ax, set_levels)


def _std_limits(series: Sequence[ScoreSeries]) -> tuple[float, float]:
    """Limits of the axis of standard deviations."""
    stds = np.concatenate([one.points["init_std"] for one in series])
    return float(stds.min()) / 2.2, float(stds.max()) * 2.2


def _shows_default(series: Sequence[ScoreSeries]) -> bool:
    low, high = _std_limits(series)
    return low < DEFAULT_STD < high


def _default_line() -> dict[str, object]:
    return {"color": style.FAINT, "linestyle": (0, (4, 2)), "linewidth": 0.6 * style.scale_factor()}


def legend_entries(series: Sequence[ScoreSeries]) -> list[LegendEntry]:
    """Legend handles and labels: means, the paper's values, majority classes, then the symbols."""
    marked = list(zip(series, _marks(series)))
    entries: list[LegendEntry] = [
        (line_of(mark), f"{escape_mathtext(one.name)}, mean ± s.e.m.") for one, mark in marked
    ]
    entries += [
        (line_of(mark, published=True), f"{one.name}, Houlsby et al. 2019")
        for one, mark in marked
        if one.published is not None
    ]
    majorities = {one.majority: (one, mark) for one, mark in reversed(marked) if np.isfinite(one.majority)}
    for one, mark in reversed(majorities.values()):
        line = Line2D([], [], color=mark.colour, linestyle=":", linewidth=0.9 * style.scale_factor())
        entries.append((line, f"majority class, {score_text(one.majority, one.metric)}"))
    if has_dots(series):
        entries.append((dot_of(), "single trial"))
    if _with_diverged(series):
        cross = Line2D(
            [], [], linestyle="", marker="x", color=style.FAINT, markersize=3.6 * style.scale_factor()
        )
        entries.append((cross, "diverged / all trials"))
    if _shows_default(series):
        entries.append((Line2D([], [], **_default_line()), "default $10^{-2}$"))
    return entries


def _caption(series: Sequence[ScoreSeries]) -> str:
    metric = common_value(one.metric for one in series)
    missing = int(sum(one.points["mean"].isna().sum() for one in series))
    majorities = [
        f", majority class {score_text(one.majority, one.metric)}" if np.isfinite(one.majority) else ""
        for one in series
    ]
    return caption_of(
        [
            f"Validation {metric_name(metric)} against the standard deviation σ of the adapters'"
            " initialisation (normal distribution truncated at two σ).",
            f"{MEANS}.",
            *(
                f"{one.name}: {runs_text(one.points, [one.trials])}{majority}."
                for one, majority in zip(series, majorities)
            ),
            dots_text(series),
            diverged_text(int(sum(one.points["diverged"].sum() for one in series))),
            "Dotted line: the majority class." if any(majorities) else "",
            f"Thin line with hollow marks: {SOURCE}, Fig. 6, BERT-base."
            if any(one.published is not None for one in series)
            else "",
            undefined_text(missing, "Means left out"),
        ]
    )
