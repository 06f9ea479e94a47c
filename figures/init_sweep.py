"""Score against the standard deviation of the initialisation (Houlsby et al. 2019, Fig. 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from adapter_probe.analysis.published import published_init_sweep
from adapter_probe.analysis.study_records import StudyRecord, SweepRecord
from adapter_probe.analysis.sweeps import SWEEP_POINT, chosen_trials, with_inits
from adapter_probe.known_tasks import known_task
from adapter_probe.wording import (
    common_value,
    method_label,
    metric_name,
    score_axis,
    score_text,
    task_label,
)

from . import style
from .curves import (
    SERIES,
    MarkerStyle,
    ScoreSeries,
    decade_ticks,
    dot_of,
    draw_trials,
    ends_of,
    has_dots,
    line_of,
    line_props,
    numbers_of,
    tidy_axes,
)
from .drawing import SOURCE, Drawing, caption_of, identity_of, undefined_text
from .layout import before_drawing, one_panel, size_in_points
from .legends import LegendEntry, add_legend
from .style import escape_mathtext
from .sweep_words import MEANS, diverged_text, dots_text, rates_tried, runs_text
from .venues import FigureOptions

_ADAPTERS = "adapters"
DEFAULT_STD = 1e-2  # the paper's
_ASPECT = 0.66  # height over width of the panel in a narrow figure
_DODGE = 0.07  # decades between the raw trials of two series
_BETWEEN = 0.9  # decades between two named initialisations, and from the curve to the first
_ROW = 0.08  # of the axes' height: a row at the foot, where a series' diverged trials are marked
_NUMBER = 0.9  # of a tick label's size: the number of diverged trials


def sweep_series(sweep: pd.DataFrame, trials: pd.DataFrame | None, paper: bool) -> list[ScoreSeries]:
    """The series of a sweep by task, method and size, with the paper's curve for its tasks and metric."""
    chosen = None if trials is None else chosen_trials(with_inits(trials), SWEEP_POINT)
    tried = 1 if trials is None else rates_tried(with_inits(trials), SWEEP_POINT)
    keys, found = ["task", "metric", "method", "size"], []
    several = {name: sweep[name].nunique() > 1 for name in ("method", "size")}
    for (task, metric, method, size), points in sweep.groupby(keys, sort=False, dropna=False):
        known = known_task(str(task))
        beside = paper and known and metric == known.metric and method == _ADAPTERS
        rank = "size" if method == _ADAPTERS else "rank"
        parts = [task_label(str(task))]
        parts += [method_label(method)] if several["method"] or method != _ADAPTERS else []
        parts += [f"{rank} {size}"] if several["size"] or method != _ADAPTERS else []
        found.append(
            ScoreSeries(
                ", ".join(parts),
                points.sort_values("init_std", ignore_index=True),
                None if chosen is None else _trials_of(points, chosen),
                published_init_sweep(known.name) if beside else None,
                tried=tried,
            )
        )
    return found


def _trials_of(points: pd.DataFrame, chosen: pd.DataFrame) -> pd.DataFrame:
    """The trials that the points aggregate."""
    return chosen.merge(points[SWEEP_POINT].drop_duplicates(), on=SWEEP_POINT, how="inner")


def init_sweep(record: SweepRecord, ax: Axes | None = None, *, paper: bool = False) -> Axes:
    """Draw the score against the standard deviation of the initialisation.

    Args:
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
    ax.xaxis.set_major_locator(_Decades(*_std_limits(series)))
    ax.set_xlabel(r"std $\sigma$ of the initialisation")
    ax.set_ylabel(f"validation {label}")
    _add_categories(ax, series)
    series = [_placed(one, _places(series)) for one in series]
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


class _Decades(LogLocator):
    """Ticks at decades within limits, fewer where they would touch."""

    def __init__(self, low: float, high: float):
        super().__init__()
        self._limits = low, high

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        """The ticks; see Matplotlib."""
        ticks = np.asarray(super().tick_values(vmin, vmax))
        return ticks[(ticks >= self._limits[0]) & (ticks <= self._limits[1])]


def _places(series: Sequence[ScoreSeries]) -> dict[str, float]:
    """Where named initialisations stand, to the right of all standard deviations."""
    names = dict.fromkeys(name for one in series for name in one.points["init"] if name)
    end = np.log10(_std_limits(series)[1])
    return {name: float(10 ** (end + _BETWEEN * (index + 0.7))) for index, name in enumerate(names)}


def _placed(one: ScoreSeries, places: Mapping[str, float]) -> ScoreSeries:
    """A series with the places of its named initialisations for standard deviations."""
    trials = None if one.trials is None else _with_places(one.trials, places)
    return replace(one, points=_with_places(one.points, places), trials=trials)


def _with_places(frame: pd.DataFrame, places: Mapping[str, float]) -> pd.DataFrame:
    return frame.assign(init_std=frame["init_std"].fillna(frame["init"].map(places).astype(float)))


def placed_inits(sweep: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Trials with the places in the figure of a sweep's named initialisations for standard deviations."""
    return _with_places(trials, _places(sweep_series(sweep, None, False)))


def _add_categories(ax: Axes, series: Sequence[ScoreSeries]) -> None:
    """Extend the axis by the named initialisations, beyond a line."""
    places = _places(series)
    if not places:
        return
    low, end = _std_limits(series)
    ax.set_xlim(low, max(places.values()) * 10 ** (0.6 * _BETWEEN))
    ax.axvline(end, color=style.FAINT, linewidth=0.6 * style.scale_factor(), zorder=1)
    words = {"rotation": 40, "ha": "right", "rotation_mode": "anchor", "size": style.tick_size()}
    ax.set_xticks(list(places.values()), [escape_mathtext(name) for name in places], minor=True, **words)
    ax.tick_params(axis="x", which="minor", length=ax.xaxis.get_major_ticks(1)[0].get_tick_padding() * 0.6)
    ax.set_xlabel(r"std $\sigma$ of the initialisation, and PEFT's by name")


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
    for named, look in ((False, {}), (True, {"linestyle": ""})):
        own = points[(points["init"] != "") == named]
        x, y, bars = own["init_std"], factor * own["mean"], factor * own["sem"]
        if len(own):
            ax.errorbar(x, y, bars, elinewidth=0.8 * unit, zorder=3, **line_props(mark) | look)
    if np.isfinite(one.majority):
        ax.axhline(factor * one.majority, color=mark.colour, linestyle=":", linewidth=0.9 * unit, zorder=1.5)


def _set_limits(ax: Axes, series: Sequence[ScoreSeries], factor: float) -> None:
    """Limits of the score axis: all values, majority lines and, at the bottom, diverged trials."""
    shown = [one.points[name] for one in series for name in ("mean", "min", "max", "majority_score")]
    shown += [one.published["mean"] for one in series if one.published is not None]
    low, high = ends_of([factor * values for values in shown], 0.02 * factor)
    width, height = size_in_points(ax)
    height = min(height, _ASPECT * width)  # what the layout will leave of it
    foot = 0.06 + _row_height(height) * len(_with_diverged(series))  # of the axes' height
    inside = (high - low) / (1 - foot - 0.06)
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
    stds = np.concatenate([one.points.loc[one.points["init"] == "", "init_std"] for one in series])
    if not stds.size:  # only named ones, which stand to the right of an empty range
        return DEFAULT_STD / 1.1, DEFAULT_STD
    return float(stds.min()) / 2.2, float(stds.max()) * 2.2


def _shows_default(series: Sequence[ScoreSeries]) -> bool:
    low, high = _std_limits(series)
    return low < DEFAULT_STD < high and any((one.points["method"] == _ADAPTERS).any() for one in series)


def _default_line() -> dict[str, object]:
    return {"color": style.FAINT, "linestyle": (0, (4, 2)), "linewidth": 0.6 * style.scale_factor()}


def legend_entries(series: Sequence[ScoreSeries]) -> list[LegendEntry]:
    """Legend handles and labels: means, the paper's values, majority classes, then the symbols."""
    marked = list(zip(series, _marks(series)))
    entries: list[LegendEntry] = [
        (line_of(mark), escape_mathtext(one.name) + (", mean ± s.e.m." if one.has_means else ""))
        for one, mark in marked
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


def _drawn_text(series: Sequence[ScoreSeries]) -> str:
    """What is drawn with that standard deviation, by which distribution."""
    adapters = [bool((one.points["method"] == _ADAPTERS).all()) for one in series]
    texts = ["the adapters' initialisation (normal distribution truncated at two σ)"] * any(adapters)
    texts += ["the matrix A of LoRA (normal distribution), while B is zero"] * (not all(adapters))
    return " or of ".join(texts)


def _caption(series: Sequence[ScoreSeries]) -> str:
    metric = common_value(one.metric for one in series)
    missing = int(sum(one.points["mean"].isna().sum() for one in series))
    majorities = [
        f", majority class {score_text(one.majority, one.metric)}" if np.isfinite(one.majority) else ""
        for one in series
    ]
    return caption_of(
        [
            f"Validation {metric_name(metric)} against the standard deviation σ of {_drawn_text(series)}.",
            "To the right of the line: initialisations of PEFT by name." if _places(series) else "",
            f"{MEANS}." if any(one.has_means for one in series) else "",
            *(
                f"{one.name}: {runs_text(one.points, [one.trials], one.tried)}{majority}."
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
