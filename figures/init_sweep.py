"""Score against the standard deviation of the initialisation (Houlsby et al. 2019, Fig. 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from adapter_probe import wording
from adapter_probe.analysis.published import published_init_sweep
from adapter_probe.analysis.study_records import StudyRecord, SweepRecord
from adapter_probe.analysis.sweeps import SWEEP_POINT, chosen_trials, with_inits
from adapter_probe.known_tasks import known_task

from . import curves, style
from .curves import MarkerStyle, ScoreSeries
from .drawing import SOURCE, Drawing, caption_of, identity_of, undefined_text
from .layout import before_drawing, one_panel, size_in_points
from .legends import LegendEntry, with_legend
from .style import escape_mathtext
from .venues import FigureOptions

_ADAPTERS = "adapters"
DEFAULT_STD = 1e-2  # the paper's
_ASPECT = 0.66  # height over width of the panel in a narrow figure
_DODGE = 0.07  # decades between the raw trials of two series
_BETWEEN = 1.2  # decades between two named initialisations, and from the curve to the first
_ROW = 0.08  # of the axes' height: a row at the foot, where a series' diverged trials are marked
_NUMBER = 0.9  # of a tick label's size: the number of diverged trials


def sweep_series(sweep: pd.DataFrame, trials: pd.DataFrame | None, paper: bool) -> list[ScoreSeries]:
    """The series of a sweep by task, method and size, with the paper's curve for its tasks and metric."""
    chosen = None if trials is None else chosen_trials(with_inits(trials), SWEEP_POINT)
    tried = 1 if trials is None else curves.rates_tried(with_inits(trials), SWEEP_POINT)
    keys, found = ["task", "metric", "method", "size"], []
    several = {name: sweep[name].nunique() > 1 for name in ("method", "size")}
    for (task, metric, method, size), points in sweep.groupby(keys, sort=False, dropna=False):
        known = known_task(str(task))
        beside = paper and known and metric == known.metric and method == _ADAPTERS
        rank = "size" if method == _ADAPTERS else "rank"
        parts = [wording.task_label(str(task))]
        parts += [wording.method_label(method)] if several["method"] or method != _ADAPTERS else []
        parts += [f"{rank} {size}"] if several["size"] or method != _ADAPTERS else []
        published = published_init_sweep(known.name) if beside else None
        own = None if chosen is None else chosen.merge(points[SWEEP_POINT].drop_duplicates(), on=SWEEP_POINT)
        points = points.sort_values("init_std", ignore_index=True)
        found.append(ScoreSeries(", ".join(parts), points, own, published, tried=tried))
    return found


def init_sweep(record: SweepRecord, ax: Axes | None = None, *, paper: bool = False) -> Axes:
    """Draw the score against the standard deviation of the initialisation, on request with the published."""
    return with_legend(ax, partial(draw, sweep_series(record.sweep, record.trials, paper)), room=False)


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of all sweeps, as lines of one plot, with its CSV and caption."""
    sweeps = [study for study in studies if isinstance(study, SweepRecord)]
    series = [
        _in_folder(one, s, sweeps) for s in sweeps for one in sweep_series(s.sweep, s.trials, options.paper)
    ]
    if not series:
        return
    figure = one_panel(partial(draw, series), options, _ASPECT, 0.45, lowest=3.4)
    names = " and ".join(dict.fromkeys(one.name for one in series))
    title, numbers = f"{names}: score against initialisation std", curves.numbers_of(series)
    caption = caption_of([_caption(series), *curves.told_sentences(sweeps)])
    yield Drawing("init-sweep", title, figure, numbers, caption, identity_of(sweeps))


def _in_folder(series: ScoreSeries, study: SweepRecord, studies: Sequence[SweepRecord]) -> ScoreSeries:
    """The series, with its folder in the name if another series has the same task."""
    others = [
        wording.task_label(str(task)) for s in studies if s is not study for task in s.sweep["task"].unique()
    ]
    if series.name not in others:
        return series
    return replace(series, name=f"{series.name}, {study.folder.resolve().name}")


def draw(series: Sequence[ScoreSeries], ax: Axes) -> list[LegendEntry]:
    """Draw one or several sweeps without a legend; returns its entries.

    Means with their s.e.m.; single trials as small dots; crosses at the bottom with the number of diverged
    trials; the majority class dotted; the paper's curve thin and hollow.
    """
    factor, label = wording.score_axis(wording.common_value(one.metric for one in series))
    low, end = limits = _std_limits(series)
    curves.tidy_axes(ax)
    curves.count_ticks(ax, limits)
    ax.set_xlabel(r"std $\sigma$ of the initialisation" + curves.LOG)
    ax.set_ylabel(f"validation {label}")
    if places := _places(series):
        _add_categories(ax, places, limits)
    marked = []
    for index, one in enumerate(series):
        trials = None if one.trials is None else _with_places(one.trials, places)
        one = replace(one, points=_with_places(one.points, places), trials=trials)
        marked.append((one, curves.SERIES[index % len(curves.SERIES)]))
        _draw_series(ax, *marked[-1], factor, 10 ** ((index - (len(series) - 1) / 2) * _DODGE))
    lost = [(one.points[one.points["diverged"] > 0], mark) for one, mark in marked]
    lost = [(points, mark) for points, mark in lost if len(points)]
    _set_limits(ax, series, factor, len(lost))
    _draw_diverged(ax, lost)
    entries = _legend_entries(marked)
    if lost:
        cross = {"marker": "x", "color": style.FAINT, "markersize": 3.6 * style.scale_factor()}
        entries.append((Line2D([], [], linestyle="", **cross), "diverged / all trials"))
    if low < DEFAULT_STD < end and any((one.points["method"] == _ADAPTERS).any() for one in series):
        dashes = style.dashed(style.FAINT, 0.6)
        ax.axvline(DEFAULT_STD, zorder=1, **dashes)
        entries.append((Line2D([], [], **dashes), "default $10^{-2}$"))
    return entries


def _places(series: Sequence[ScoreSeries]) -> dict[str, float]:
    """Where named initialisations stand, to the right of all standard deviations."""
    names = dict.fromkeys(name for one in series for name in one.points["init"] if name)
    end = np.log10(_std_limits(series)[1])
    return {name: float(10 ** (end + _BETWEEN * (index + 0.7))) for index, name in enumerate(names)}


def _with_places(frame: pd.DataFrame, places: Mapping[str, float]) -> pd.DataFrame:
    return frame.assign(init_std=frame["init_std"].fillna(frame["init"].map(places).astype(float)))


def placed_inits(sweep: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Trials with the places in the figure of a sweep's named initialisations for standard deviations."""
    return _with_places(trials, _places(sweep_series(sweep, None, False)))


def _add_categories(ax: Axes, places: Mapping[str, float], limits: tuple[float, float]) -> None:
    """Extend the axis by the named initialisations, beyond a line."""
    ax.set_xlim(limits[0], max(places.values()) * 10 ** (0.6 * _BETWEEN))
    ax.axvline(limits[1], color=style.FAINT, linewidth=0.6 * style.scale_factor(), zorder=1)
    low, high = np.log10(ax.get_xlim())
    size, apart = style.tick_size(), _BETWEEN * size_in_points(ax)[0] / (high - low)
    turned = {"rotation": 40} if apart > 1.6 * size else {"rotation": 90, "va": "center"}
    words = {"ha": "right", "rotation_mode": "anchor", "size": size, **turned}
    ax.set_xticks(list(places.values()), [escape_mathtext(name) for name in places], minor=True, **words)
    ax.tick_params(axis="x", which="minor", length=ax.xaxis.get_major_ticks(1)[0].get_tick_padding() * 0.6)
    ax.set_xlabel(rf"std $\sigma$ of the initialisation{curves.LOG}, and PEFT's by name")


def _draw_series(ax: Axes, one: ScoreSeries, mark: MarkerStyle, factor: float, shift: float) -> None:
    unit, points = style.scale_factor(), one.points
    if one.published is not None:
        props = curves.line_props(mark, published=True)
        ax.plot(one.published["init_std"], factor * one.published["mean"], zorder=2, **props)
    if one.trials is not None:
        dots = one.trials[one.trials["score"].notna()]
        curves.draw_trials(ax, shift * dots["init_std"], factor * dots["score"], mark.colour)
    for named, look in ((False, {}), (True, {"linestyle": ""})):
        own = points[(points["init"] != "") == named]
        x, y, bars = own["init_std"], factor * own["mean"], factor * own["sem"]
        if len(own):
            ax.errorbar(x, y, bars, elinewidth=0.8 * unit, zorder=3, **curves.line_props(mark) | look)
    if one.has_majority:
        ax.axhline(factor * one.majority, color=mark.colour, linestyle=":", linewidth=0.9 * unit, zorder=1.5)


def _set_limits(ax: Axes, series: Sequence[ScoreSeries], factor: float, n_rows: int) -> None:
    """Limits of the score axis: all values, majority lines and, at the bottom, diverged trials."""
    shown = [one.points[name] for one in series for name in ("mean", "min", "max", "majority_score")]
    shown += [one.published["mean"] for one in series if one.published is not None]
    low, high = curves.ends_of([factor * values for values in shown], 0.02 * factor)
    width, height = size_in_points(ax)
    height = min(height, _ASPECT * width)  # what the layout will leave of it
    foot = 0.06 + _row_height(height) * n_rows  # of the axes' height
    inside = (high - low) / (1 - foot - 0.06)
    ax.set_ylim(low - foot * inside, high + 0.06 * inside)


def _row_height(height: float) -> float:
    """A row's share of axes of a height in points: at least a line of text, or rows would touch."""
    return max(_ROW, 1.1 * _NUMBER * style.tick_size() / height)


def _draw_diverged(ax: Axes, lost: Sequence[tuple[pd.DataFrame, MarkerStyle]]) -> None:
    """A cross per point with diverged trials and their number of all trials; one row per series."""
    unit, across = style.scale_factor(), ax.get_xaxis_transform()
    cross = {"marker": "x", "markersize": 3.4 * unit, "markeredgewidth": 0.9 * unit, "linestyle": ""}
    words = {"ha": "right", "va": "center_baseline", "size": _NUMBER * style.tick_size()}
    at = {"xycoords": across, "xytext": (-2.4 * unit, 0), "textcoords": "offset points"}
    rows = []
    for points, series in lost:
        marked = []
        for one in points.itertuples():
            (mark,) = ax.plot([one.init_std], [0], transform=across, color=series.colour, zorder=4, **cross)
            text = f"{one.diverged}/{one.n + one.diverged} "
            marked.append((mark, ax.annotate(text, (one.init_std, 0), color=series.colour, **at, **words)))
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
    stds = np.concatenate([one.points.loc[one.points["init"] == "", "init_std"] for one in series])
    if not stds.size:  # only named ones, which stand to the right of an empty range
        return DEFAULT_STD / 1.1, DEFAULT_STD
    return float(stds.min()) / 2.2, float(stds.max()) * 2.2


def _legend_entries(marked: Sequence[tuple[ScoreSeries, MarkerStyle]]) -> list[LegendEntry]:
    """Legend handles and labels: means, the paper's values, majority classes, then single trials."""
    entries: list[LegendEntry] = [
        (curves.line_of(mark), escape_mathtext(one.name) + (", mean ± s.e.m." if one.has_means else ""))
        for one, mark in marked
    ]
    entries += [
        (curves.line_of(mark, published=True), f"{one.name}, Houlsby et al. 2019")
        for one, mark in marked
        if one.published is not None
    ]
    majorities = {one.majority: (one, mark) for one, mark in reversed(marked) if one.has_majority}
    for one, mark in reversed(majorities.values()):
        line = Line2D([], [], color=mark.colour, linestyle=":", linewidth=0.9 * style.scale_factor())
        entries.append((line, f"majority class, {wording.score_text(one.majority, one.metric)}"))
    if curves.has_dots(one for one, _ in marked):
        entries.append((curves.dot_of(), "single trial"))
    return entries


def _about(one: ScoreSeries) -> str:
    """A series with the size of its adapters, if that is not in its name, and of its base, where known."""
    first, known = one.points.iloc[0], one.trials is not None and "base_parameters" in one.trials
    sized = first["method"] == _ADAPTERS and pd.notna(first["size"])
    parts = [f"adapters of size {int(first['size'])}"] if sized and ", size " not in one.name else []
    counts = one.trials["base_parameters"].dropna().unique() if known else []
    parts += [f"base of {int(counts[0]):,} parameters"] if len(counts) == 1 else []
    return f"{one.name} ({', '.join(parts)})" if parts else one.name


def _caption(series: Sequence[ScoreSeries]) -> str:
    metric = wording.common_value(one.metric for one in series)
    adapters = [bool((one.points["method"] == _ADAPTERS).all()) for one in series]
    told = ["the adapters' initialisation (normal distribution truncated at two σ)"] * any(adapters)
    told += ["the matrix A of LoRA (normal distribution), while B is zero"] * (not all(adapters))
    of_runs = []
    for one in series:
        runs = curves.runs_text(one.points, [one.trials], one.tried)
        score = wording.score_text(one.majority, one.metric)
        of_runs.append(f"{_about(one)}: {runs}{f', majority class {score}' if one.has_majority else ''}.")
    return caption_of(
        [
            f"Validation {wording.metric_name(metric)} against the standard deviation σ{curves.LOG}"
            f" of {' or of '.join(told)}.",
            _places(series) and "To the right of the line: initialisations of PEFT by name.",
            any(one.has_means for one in series) and f"{curves.MEANS}.",
            *of_runs,
            curves.dots_text(series),
            curves.diverged_text(int(sum(one.points["diverged"].sum() for one in series))),
            any(one.has_majority for one in series) and "Dotted line: the majority class.",
            any(one.published is not None for one in series)
            and f"Thin line with hollow marks: {SOURCE}, Fig. 6, BERT-base.",
            undefined_text(sum(one.points["mean"].isna().sum() for one in series), "Means left out"),
        ]
    )
