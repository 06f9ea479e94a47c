"""One task's trade-off on one axes: means, single trials, full fine-tuning, the frontier, and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from adapter_probe.analysis.sweeps import pareto_frontier
from adapter_probe.metrics import sign_of
from adapter_probe.settings import Axis
from adapter_probe.wording import method_label, score_axis, score_text

from . import curves, style
from .curves import MarkerStyle, ScoreSeries
from .layout import title_above
from .legends import LegendEntry, PointLabel, add_legend, label_points
from .style import escape_mathtext


class Cost(NamedTuple):
    """What a score is drawn against: the axis, its unit and column, and how captions say it."""

    axis: str
    unit: float
    column: str
    told: str
    at_most: str


COSTS: dict[Axis, Cost] = {
    "parameters": Cost(
        "trained parameters per task, without the head", 1.0, "trained_parameters",
        "the number of parameters trained per task, without the head (and a pooler that the base lacks); "
        "{axis}",
        "with at most that many parameters",
    ),
    "memory": Cost(
        "peak memory in training (GB)", 1e9, "peak_memory_gb",
        "the peak of memory in training: tensors on an accelerator, else the whole process",
        "with at most that much memory",
    ),
    "seconds": Cost(
        "seconds per training step", 1.0, "seconds_per_step",
        "the mean time of a training step, without evaluation", "at no more time per step",
    ),
    "bytes": Cost(
        "size of a task's checkpoint (MB)", 1e6, "checkpoint_mb",
        "the size of the file with a task's trained tensors", "with at most that many bytes",
    ),
}  # fmt: skip
_SIZES_SHOWN, _FEW = (1, 8, 64, 512), 5  # of many adapter sizes; how many are not many


def draw(
    curve: ScoreSeries,
    ax: Axes | None = None,
    *,
    beside: Sequence[ScoreSeries] = (),
    legend: bool = True,
) -> Axes:
    """Draw one task.

    Below the numbers of parameters are percentages of the base; with published values, whose base is another
    one, the axis has percentages alone, each of its own base. Means with their s.e.m.; single trials as small
    dots, crosses at the bottom for diverged trials; full fine-tuning's mean dotted over its s.e.m.; the
    Pareto frontier as a grey staircase; the majority class and the score without pretraining as lines, or in
    the notes alone where they lie below the axis.

    Args:
        beside: all tasks of the figure, whose parameter axis is the same; by default this task alone.
        legend: whether to draw a legend, headed by the task's name and scores; otherwise these stand above.
    """
    ax, beside = plt.gca() if ax is None else ax, beside or [curve]
    marks = curves.marks_of(name for one in beside for name in _methods_of(one))
    factor, label = score_axis(curve.metric)
    shares = in_shares(beside)
    curves.tidy_axes(ax)
    if shares:
        curve = curve.in_percent()
    if curve.x == "parameters":
        base = np.nan if shares else curve.base_parameters
        curves.count_ticks(ax, limits_of(beside), curve.nothing, base, shares=shares)
    else:
        curves.decade_ticks(ax, *limits_of(beside))
        curves.few_ticks(ax)
    ax.set_xlabel(parameter_axis(beside))
    ax.set_ylabel(f"validation {label}")
    _draw_levels(ax, curve, factor)
    _draw_results(ax, curve, factor, marks)
    _set_height(ax, curve, factor)
    if np.isfinite(curve.majority):
        curves.majority_line(ax, factor * curve.majority)
    _draw_diverged(ax, curve, marks)
    points = curve.points[curves.far_below(curve.points, "mean")]
    x = points["trained_parameters"].to_numpy(float)
    values = factor * points["mean"].to_numpy(float)
    curves.mark_far_below(ax, points["method"], x, values, digits=1 if factor > 1 else 2)
    if legend:
        add_legend(ax, legend_entries([curve], [ax]), _notes(curve))
    else:
        title_above(ax, _notes(curve))
    label_points(ax, _labels(curve, factor, marks))
    return ax


def in_shares(series: Sequence[ScoreSeries]) -> bool:
    """Whether the parameter axis has percentages of the base: beside published values, of another base."""
    known = all(np.isfinite(curve.base_parameters) for curve in series)
    return known and any(curve.published is not None for curve in series)


def parameter_axis(series: Sequence[ScoreSeries]) -> str:
    """The label of the axis."""
    known = any(np.isfinite(curve.base_parameters) for curve in series)
    more = " (% of its own base)" if in_shares(series) else ", and % of the base" if known else ""
    return f"{COSTS[series[0].x].axis}{more}{curves.LOG}"


def limits_of(series: Sequence[ScoreSeries]) -> tuple[float, float]:
    """Limits of the parameter axis that include all series and the paper's values."""
    if in_shares(series):
        series = [curve.in_percent() for curve in series]
    counts = [curve.points["trained_parameters"].to_numpy(float) for curve in series]
    counts += [c.published["trained_parameters"].to_numpy(float) for c in series if c.published is not None]
    counts += [c.others["trained_parameters"].to_numpy(float) for c in series if c.others is not None]
    return curves.count_limits(counts)


def _full(curve: ScoreSeries) -> tuple[float, float]:
    """Mean and s.e.m. of full fine-tuning, fractions; NaN if there is none."""
    rows = curve.points[curve.points["method"] == "full"]
    return (float(rows["mean"].iloc[0]), float(rows["sem"].iloc[0])) if len(rows) else (np.nan, np.nan)


def _draw_levels(ax: Axes, curve: ScoreSeries, factor: float) -> None:
    """Full fine-tuning's mean over its standard error, and the frontier."""
    unit, ink = style.scale_factor(), style.line_colour()
    mean, sem = (factor * value for value in _full(curve))
    if np.isfinite(mean):
        ax.axhline(mean, color=style.FAINT, linestyle=":", linewidth=0.8 * unit, zorder=1.5)
    if np.isfinite(mean) and sem > 0:
        ax.axhspan(mean - sem, mean + sem, color=ink, alpha=0.09, linewidth=0, zorder=1)
    x, y = frontier(curve.points, sign_of(curve.metric))
    if len(x) > 1:
        x, y = np.repeat(x, 2)[1:], factor * np.repeat(y, 2)[:-1]
        ax.plot(x, y, label="frontier", color=ink, alpha=0.55, linewidth=0.6 * unit, zorder=1.8)


def frontier(points: pd.DataFrame, sign: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The Pareto frontier: numbers of parameters, ascending, and mean scores; `sign` is -1 for a loss."""
    best = points[pareto_frontier(points["trained_parameters"], sign * points["mean"])]
    corners = best[["trained_parameters", "mean"]].astype(float).drop_duplicates()
    corners = corners.sort_values("mean", ascending=sign > 0)
    return corners["trained_parameters"].to_numpy(), corners["mean"].to_numpy()


def _methods_of(curve: ScoreSeries) -> list[str]:
    """The methods of a task, those of other people's results included."""
    theirs = [] if curve.others is None else curve.others["method"].tolist()
    return [*curve.points["method"], *theirs]


def _draw_results(ax: Axes, curve: ScoreSeries, factor: float, marks: Mapping[str, MarkerStyle]) -> None:
    """Means with their standard errors, single trials, and the results of the paper and of other people."""
    unit, trials = style.scale_factor(), curve.trials
    for method, rows in () if curve.published is None else curve.published.groupby("method"):
        props = curves.line_props(curves.METHODS[str(method)], published=True)
        ax.plot(rows["trained_parameters"], factor * rows["mean"], zorder=2, label="published", **props)
    for method, rows in () if curve.others is None else curve.others.groupby("method"):
        x, y, props = rows["trained_parameters"], factor * rows["mean"], curves.hollow(marks[str(method)])
        ax.errorbar(x, y, factor * rows["sem"], elinewidth=0.6 * unit, zorder=2.8, label="others", **props)
    for method, mark in marks.items():
        if trials is not None and len(own := trials[(trials["method"] == method) & trials["score"].notna()]):
            curves.draw_trials(ax, own["trained_parameters"], factor * own["score"], mark.colour)
        if len(rows := curve.points[curve.points["method"] == method]):
            x, y = rows["trained_parameters"].astype(float), factor * rows["mean"]
            props = curves.line_props(mark) | {"elinewidth": 0.8 * unit}
            ax.errorbar(x, y, factor * rows["sem"], zorder=3, **props)


def _set_height(ax: Axes, curve: ScoreSeries, factor: float) -> None:
    """Limits of the score axis: all values, and at the bottom the crosses."""
    points = curve.points[~curves.far_below(curve.points, "mean")]
    shown = [points[name].to_numpy(float) for name in ("mean", "min", "max")]
    shown += [(points["mean"] + side * points["sem"]).to_numpy(float) for side in (-1, 1)]
    shown += [curve.published["mean"].to_numpy(float)] if curve.published is not None else []
    if curve.others is not None:
        theirs, bars = curve.others["mean"].to_numpy(float), curve.others["sem"].fillna(0).to_numpy(float)
        shown += [theirs - bars, theirs + bars]
    low, high = curves.ends_of([factor * values for values in shown], 0.01 * factor)
    majority = factor * curve.majority
    if low - 0.5 * (high - low) < majority < low:
        low = majority
    high = max(high, majority) if np.isfinite(majority) else high
    spare = high - low
    marked = curve.points["diverged"].sum() or len(points) < len(curve.points)
    foot = 0.16 if marked else 0.08
    ax.set_ylim(low - foot * spare, high + 0.12 * spare)


def _draw_diverged(ax: Axes, curve: ScoreSeries, marks: Mapping[str, MarkerStyle]) -> None:
    unit = style.scale_factor()
    for row in curve.points[curve.points["diverged"] > 0].itertuples():
        colour = marks[row.method].colour if row.method in marks else style.FAINT
        ax.plot([row.trained_parameters], [curves.FOOT], marker="x", markersize=3.4 * unit, linestyle="",
                markeredgewidth=0.9 * unit, color=colour, transform=ax.get_xaxis_transform(),
                zorder=4)  # fmt: skip


def _notes(curve: ScoreSeries) -> list[str]:
    """The task's name, and the scores of full fine-tuning and of the majority class."""
    lines, metric = [escape_mathtext(curve.name)], curve.metric
    if np.isfinite(mean := _full(curve)[0]):
        lines.append(f"full {score_text(mean, metric)}")
    if np.isfinite(curve.majority):
        lines.append(f"majority {score_text(curve.majority, metric)}")
        if curve.points["mean"].max() <= curve.majority:
            lines.append("no adaptation is better")
    return lines


def _labels(curve: ScoreSeries, factor: float, marks: Mapping[str, MarkerStyle]) -> list[PointLabel]:
    """Label some sizes and depths next to their marks, one's own first."""
    theirs = () if curve.others is None else (curve.others.assign(k=pd.NA),)
    labels = []
    for points in (curve.points[~curves.far_below(curve.points, "mean")], *theirs):
        words = named_points(points)
        known = points[points["mean"].notna() & points.index.isin(list(words))]
        labels += [
            PointLabel(words[index], float(count), factor * mean, marks[method].colour)
            for index, count, mean, method in zip(
                known.index, known["trained_parameters"], known["mean"], known["method"]
            )
        ]
    return labels


def legend_entries(series: Sequence[ScoreSeries], axes: Sequence[Axes]) -> list[LegendEntry]:
    """Legend handles and labels: methods, then everything else that is drawn on the series' axes."""
    points = pd.concat([curve.points for curve in series], ignore_index=True)
    marks = curves.marks_of(name for curve in series for name in _methods_of(curve))
    unit, own = style.scale_factor(), set(points["method"])
    entries = [
        (
            Line2D([], [], **(curves.line_props(mark) if name in own else curves.hollow(mark))),
            method_label(name),
        )
        for name, mark in marks.items()
    ]
    entries += curves.majority_entries(axes)
    grey = Line2D([], [], color=style.line_colour(), alpha=0.55, linewidth=0.6 * unit)
    entries.append((grey, "Pareto frontier"))
    if curves.has_dots(series):
        entries.append((curves.dot_of(), "single trial"))
    if points["diverged"].sum():
        props = {"markersize": 3.4 * unit, "markeredgewidth": 0.9 * unit, "color": style.FAINT}
        entries.append((Line2D([], [], linestyle="", marker="x", **props), "trials diverged"))
    if any(curve.published is not None for curve in series):
        entries.append((curves.published_handle(), "Houlsby et al. 2019"))
    if any(curve.others is not None for curve in series):  # the caption names their sources
        handle = Line2D([], [], **curves.hollow(MarkerStyle(style.FAINT, "o")))
        entries.append((handle, "hollow: results of others"))
    return entries


def named_points(points: pd.DataFrame) -> dict[int, str]:
    """Labels of points: `8` for that size or rank, `k = 1` for that many top layers; some of many."""
    words = {}
    for _, family in points.groupby("method"):
        sizes = family["size"].dropna().astype(int)
        few = len(sizes) <= _FEW
        words |= {
            index: f"{size}"
            for index, size in sizes.items()
            if few or size in _SIZES_SHOWN or size == sizes.max()
        }
    depths = points.loc[points["method"] == "top_layers", "k"].dropna().astype(int).sort_values()
    shown = {*depths.iloc[:2], *depths.iloc[[len(depths) // 2, -1]]} if len(depths) else set()
    return {**words, **{index: f"k = {k}" for index, k in depths.items() if k in shown}}
