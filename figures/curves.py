"""What figures of sweeps and trade-offs share: marks distinct without colour, axes, legends, captions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from adapter_probe.analysis.score_changes import section_of
from adapter_probe.analysis.study_records import SweepRecord, TradeoffRecord
from adapter_probe.settings import Axis
from adapter_probe.wording import count_text, percent_text, printable, range_text, rounded, task_label

from . import style
from .layout import before_drawing, size_in_points
from .legends import LegendEntry

FOOT = 0.06  # fraction of the axes' height: position of marks without a value
_FAR = 0.6  # of the range of scores
_ZERO_BELOW = 6.0  # methods without trained parameters are drawn this factor left of the fewest
MEANS = "Marks show means over seeds, bars their standard errors (no bar for a single run)"
LOG = " (log scale)"
"""What labels and captions of logarithmic axes end with."""
ARROWS = "Hollow marks with an arrow lie below the range of the axis; their values are printed next to them."
_COUNT = "trained_parameters"
_MAJORITY = "majority class"
_SPREADS = ("min", "max", "p20_points", "p80_points", "iqm_low_points", "iqm_high_points")


@dataclass(frozen=True, eq=False)
class ScoreSeries:
    """One task's scores, ready to be drawn.

    Attributes:
        points: columns of ``sweep.csv``, of one task and size, or of ``tradeoff.csv``, of one task.
        trials: the rows of ``trials.csv`` for these points; None if there are none.
        x: what the column `trained_parameters` has: where on the axis a point is, see `positions`, or
            another cost.
        nothing: where the axis has 0; NaN where nothing is there.
        others: results of other people, columns of `adapter_probe.analysis.costs.beside`; or None.
    """

    name: str
    points: pd.DataFrame
    trials: pd.DataFrame | None = None
    published: pd.DataFrame | None = None
    x: Axis = "parameters"
    others: pd.DataFrame | None = None
    tried: int = 1
    nothing: float = float("nan")

    @property
    def metric(self) -> str:
        """The score's name."""
        return str(self.points["metric"].iloc[0])

    @property
    def majority(self) -> float:
        """The score of the most frequent class, as a fraction; NaN if it is not known."""
        return float(self.points["majority_score"].iloc[0])

    @property
    def has_majority(self) -> bool:
        """Whether the score of the most frequent class is known."""
        return bool(np.isfinite(self.majority))

    @property
    def has_means(self) -> bool:
        """Whether a point is the mean of several runs."""
        return bool((self.points["n"] > 1).any())

    @property
    def base_parameters(self) -> float:
        """Number of parameters of the base, computed from the percentages; NaN if unknown."""
        if self.x != "parameters":
            return float("nan")
        counts, shares = self.points["trained_parameters_without_head"], self.points["percent_of_base"]
        known = (100 * counts / shares)[shares > 0]
        return float(known.iloc[-1]) if len(known) else float("nan")

    def in_percent(self) -> ScoreSeries:
        """The same with `trained_parameters` as percentages of the base, the published ones of their own.

        The paper plots the whole of its base as the most top layers.
        """

        def shares(frame: pd.DataFrame | None, base: float) -> pd.DataFrame | None:
            return frame if frame is None else frame.assign(trained_parameters=100 * frame[_COUNT] / base)

        theirs = self.published
        whole = float("nan") if theirs is None else float(theirs[_COUNT].max())
        own = self.base_parameters
        points, trials = shares(self.points, own), shares(self.trials, own)
        nothing = 100 * self.nothing / own
        return replace(self, points=points, trials=trials, published=shares(theirs, whole), nothing=nothing)


@dataclass(frozen=True)
class MarkerStyle:
    """The style of a series; every series has a different marker, so that colour is not required.

    Colours are from the palettes of Okabe and Ito and of Tol, the line is empty for points that are not
    joined, and the marker's size is in units.
    """

    colour: str
    marker: str | tuple[int, int, int]
    line: str | tuple[int, tuple[int, ...]] = "-"
    size: float = 3.4


METHODS = {
    "adapters": MarkerStyle("#d55e00", "o"),
    "top_layers": MarkerStyle("#0072b2", "s", "--", 3.1),
    "layernorm_only": MarkerStyle("#009e73", "D", "", 3.6),
    "head_only": MarkerStyle("#9467a0", "v", "", 4.0),
    "full": MarkerStyle("#000000", "*", "", 6.0),
    "lora": MarkerStyle("#882255", "^", "-.", 3.8),
    "dora": MarkerStyle("#cc5599", "P", ":", 4.0),
    "ia3": MarkerStyle("#b8860b", "X", "", 4.2),
    "vera": MarkerStyle("#332288", "p", (0, (5, 1)), 4.0),
    "ln_tuning": MarkerStyle("#117733", "d", "", 4.2),
    "bitfit": MarkerStyle("#8b4513", "<", "", 4.0),
}
_OTHERS = (
    MarkerStyle("#44757a", ">", (0, (3, 1, 1, 1, 1, 1)), 4.0),
    MarkerStyle("#6a3d9a", "H", (0, (1, 1)), 4.2),
    MarkerStyle("#a0522d", "8", (0, (4, 1, 1, 1)), 4.0),
    MarkerStyle("#2f6f9f", (4, 1, 0), (0, (2, 2)), 4.6),
)
SERIES = (
    MarkerStyle("#0072b2", "o"),
    MarkerStyle("#d55e00", "s", "--", 3.1),
    MarkerStyle("#009e73", "^", "-.", 3.8),
    MarkerStyle("#9467a0", "D", ":", 3.1),
    MarkerStyle("#000000", "v", (0, (5, 1)), 3.8),
    MarkerStyle("#b8860b", "P", (0, (3, 1, 1, 1, 1, 1)), 4.0),
)
"""Styles for series without a fixed style, such as tasks; used in turn."""


def marks_of(methods: Iterable[str]) -> dict[str, MarkerStyle]:
    """The styles of the methods of a figure; those without a fixed style share the others in turn."""
    present = sorted(map(str, set(methods)))
    others = [name for name in present if name not in METHODS]
    known = {name: mark for name, mark in METHODS.items() if name in present}
    return known | {name: _OTHERS[index % len(_OTHERS)] for index, name in enumerate(others)}


def majority_line(ax: Axes | None = None, height: float = 0.0) -> Line2D:
    """A line at the score of the majority class; a legend's handle without `ax`."""
    props = {"color": style.FAINT, "linestyle": (0, (8, 3)), "linewidth": 0.6 * style.scale_factor()}
    return Line2D([], [], **props) if ax is None else ax.axhline(height, zorder=1.6, label=_MAJORITY, **props)


def majority_entries(axes: Iterable[Axes]) -> list[LegendEntry]:
    """The legend's handle and label of `majority_line`, if one lies within its axes."""
    seen = any(
        line.get_label() == _MAJORITY and ax.get_ylim()[0] <= line.get_ydata()[0] <= ax.get_ylim()[1]
        for ax in axes
        for line in ax.lines
    )
    return [(majority_line(), _MAJORITY)] if seen else []


def numbers_of(series: Sequence[ScoreSeries]) -> pd.DataFrame:
    """What a figure draws: the means, then results of other people, then the paper's."""
    parts = [one.points.assign(source="this run") for one in series]
    others = [one.others for one in series if one.others is not None]
    published = [
        one.published.assign(task=one.name, metric=one.metric, source="Houlsby et al. 2019")
        for one in series
        if one.published is not None
    ]
    return pd.concat([*parts, *others, *published], ignore_index=True)


def with_published(frame: pd.DataFrame, published: pd.DataFrame | None) -> pd.DataFrame:
    """The rows of a figure, then the paper's if there are any, with a column that tells them apart."""
    theirs = [] if published is None else [published.assign(source="Houlsby et al. 2019")]
    return pd.concat([frame.assign(source="this run"), *theirs], ignore_index=True)


def ends_of(values: Iterable[np.ndarray | pd.Series], least: float) -> tuple[float, float]:
    """The lowest and the highest of the finite values, at least this far apart; 0 and 1 without any."""
    known = np.concatenate([np.asarray(one, dtype=float) for one in values])
    known = known[np.isfinite(known)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    apart = max(0.0, least - (high - low)) / 2
    return low - apart, high + apart


def count_limits(counts: Sequence[np.ndarray]) -> tuple[float, float]:
    """Limits of an axis of numbers of parameters, or of another cost, around those above 0."""
    known = np.concatenate(counts)
    known = known[known > 0]
    return (float(known.min()) / 1.8, float(known.max()) * 1.8) if len(known) else (1.0, 10.0)


def tidy_axes(ax: Axes) -> None:
    """Light grid below the data, and few ticks on the scores' axis."""
    ax.set_axisbelow(True)
    ax.grid(True, which="major", **style.grid_props())
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))  # no halves: short labels


def decade_ticks(ax: Axes, low: float, high: float, least: float | None = None) -> None:
    """Log axis from `low` to `high`: a tick a decade, small ones between, from `least` or else from `low`."""
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    first, last = np.floor(np.log10(least or low)), np.ceil(np.log10(high))
    decades = 10.0 ** np.arange(first, last + 1)
    between = np.outer(decades, np.arange(2, 10)).ravel()
    ax.xaxis.set_major_locator(FixedLocator(_within(decades, least or low, high)))
    ax.xaxis.set_minor_locator(NullLocator())
    _small_ticks(ax, _within(between, least or low, high))


def positions(counts: pd.Series) -> pd.Series:
    """Places of numbers of parameters on a logarithmic axis, where 0 stands left of the smallest."""
    counts = counts.astype(float)
    known = counts[counts > 0]
    return counts.where(counts > 0, (known.min() if len(known) else 1.0) / _ZERO_BELOW)


def count_ticks(
    ax: Axes,
    limits: tuple[float, float],
    nothing: float = float("nan"),
    base: float = float("nan"),
    *,
    shares: bool = False,
) -> None:
    """A logarithmic axis, as of numbers of parameters, perhaps with 0, and below them shares of the base.

    Args:
        nothing: the place of 0, see `positions`; NaN without it.
        base: number of parameters of the base; NaN for no shares.
        shares: whether the numbers themselves are percentages.
    """
    has_zero = bool(np.isfinite(nothing))
    decade_ticks(ax, *limits, least=0.5 * _ZERO_BELOW * nothing if has_zero else None)
    decades = ax.get_xticks()
    powers = [f"{value:g}" if shares else f"$10^{{{np.log10(value):.0f}}}$" for value in decades]
    texts = [percent_text(100 * value / base) if np.isfinite(base) else "" for value in decades]

    def fit(ax: Axes) -> None:
        widest = "0.01" if shares else "100" if limits[0] >= 1 and np.isnan(base) else "1000"
        joined = [f"{power}\n{text}" if np.isfinite(base) else power for power, text in zip(powers, texts)]
        joined = _some_of(joined, (widest, *texts), ax, int(has_zero))
        ax.set_xticks([nothing, *decades] if has_zero else decades, labels=["0"] * has_zero + joined)

    fit(ax)
    before_drawing(ax, fit)


def _some_of(labels: Sequence[str], words: Sequence[str], ax: Axes, n_before: int) -> list[str]:
    """The labels of decades, of those that would touch each other or ticks before them some alone.

    The widest of `words` is as wide as the widest label.
    """
    low, high = ax.get_xlim()
    apart = size_in_points(ax)[0] / np.log10(high / low)
    widest = max(style.text_width(one, style.tick_size()) for one in words)
    step = max(1, int(np.ceil(1.2 * widest / apart)))
    return [label if (n + n_before) % step == 0 else "" for n, label in enumerate(labels)]


def few_ticks(ax: Axes) -> None:
    """Labelled ticks at plain numbers on a log axis that may span less than a decade."""
    low, high = ax.get_xlim()
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    choices = ([1], [1, 3], [1, 2, 5], [1, 2, 3, 5, 7], range(1, 10))
    within = [_within(np.outer(decades, choice).ravel(), low, high) for choice in choices]
    within.append(_within(np.asarray(MaxNLocator(4).tick_values(low, high)), low, high))
    ax.xaxis.set_major_locator(FixedLocator(next((one for one in within if len(one) > 2), within[-1])))
    ax.xaxis.set_major_formatter("{x:g}")


def _small_ticks(ax: Axes, places: np.ndarray) -> None:
    """Marks without labels below the axes, drawn as one.

    Matplotlib's own are objects with labels; forty of them a panel take most of a figure's time.
    """
    marks = LineCollection(
        [[(x, 0.0), (x, -0.015)] for x in places], colors=style.line_colour(),
        linewidths=0.4 * style.scale_factor(), transform=ax.get_xaxis_transform(), clip_on=False,
        label="ticks",
    )  # fmt: skip
    marks.set_in_layout(False)
    ax.add_collection(marks, autolim=False)


def _within(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return values[(values >= low) & (values <= high)]


def line_of(mark: MarkerStyle, *, published: bool = False) -> Line2D:
    """A legend's handle for a series; published ones are thin and hollow."""
    return Line2D([], [], **line_props(mark, published=published))


def line_props(mark: MarkerStyle, *, published: bool = False) -> dict[str, object]:
    """What `Axes.plot` takes for a series."""
    unit = style.scale_factor()
    if published:
        return {
            "color": mark.colour, "marker": mark.marker, "linestyle": ":" if mark.line else "",
            "linewidth": 0.8 * unit, "markersize": 0.8 * mark.size * unit, "markerfacecolor": style.WHITE,
            "markeredgewidth": 0.6 * unit,
        }  # fmt: skip
    return {
        "color": mark.colour, "marker": mark.marker, "linestyle": mark.line,
        "markersize": mark.size * unit, "markeredgewidth": 0.0,
    }  # fmt: skip


def hollow(mark: MarkerStyle) -> dict[str, object]:
    """What `Axes.plot` takes for results of other people, and for values below the axis."""
    edge = 0.7 * style.scale_factor()
    return line_props(mark) | {"linestyle": "", "markerfacecolor": style.WHITE, "markeredgewidth": edge}


def published_handle() -> Line2D:
    """A legend's handle for published values of any method."""
    return Line2D([], [], **line_props(METHODS["adapters"], published=True) | {"color": style.FAINT})


def has_dots(series: Iterable[ScoreSeries]) -> bool:
    """Whether dots of single trials are visible; that of a point's only trial lies below its mean."""
    return any(one.trials is not None and one.has_means for one in series)


def far_below(points: pd.DataFrame, column: str) -> np.ndarray:
    """Heads on unadapted features, so far below all else that they would press it flat, bool `[rows]`."""
    bare = ((points["method"] == "head_only") | (points["k"] == 0).fillna(False)).to_numpy(bool)
    drawn = [name for name in (column, *_SPREADS) if name in points]
    rest = points.loc[~bare, drawn].to_numpy(float)
    rest = rest[np.isfinite(rest)]
    if not rest.size:
        return np.zeros(len(points), dtype=bool)
    floor = rest.min() - _FAR * (rest.max() - rest.min())
    return bare & (points[column] < floor).to_numpy(bool)


def mark_far_below(ax: Axes, methods: Sequence[str], x: np.ndarray, values: np.ndarray, digits: int) -> None:
    """Set such points at the foot, hollow, with an arrow and their value."""
    unit, lift = style.scale_factor(), 0.75 * style.tick_size() / 72  # inches: letters end above the axis
    at = ax.get_xaxis_transform()
    at += ScaledTranslation(0, lift, ax.get_figure(root=True).dpi_scale_trans)
    words = {"xytext": (2 * unit, 0), "textcoords": "offset points", "va": "center_baseline", "zorder": 3.8}
    words["bbox"] = {"boxstyle": "square,pad=0.02", "fc": ax.get_facecolor(), "ec": "none", "lw": 0.0}
    for method, place, value in zip(methods, x, values):
        mark = METHODS[method]
        ax.plot([place], [0], transform=at, zorder=4, label="far below", **hollow(mark))
        text, size = f" ↓ {rounded(value, digits)}", style.tick_size()
        ax.annotate(text, (place, 0), xycoords=at, size=size, color=mark.colour, **words)


def draw_trials(ax: Axes, x: pd.Series, y: pd.Series, colour: str) -> None:
    """Single trials as small dots."""
    size = (1.9 * style.scale_factor()) ** 2
    ax.scatter(x.to_numpy(float), y.to_numpy(float), s=size, color=colour, alpha=0.45, linewidth=0,
               zorder=2.5, label="trials")  # fmt: skip


def dot_of() -> Line2D:
    """A legend's handle for single trials."""
    return Line2D([], [], linestyle="", marker="o", markersize=1.9 * style.scale_factor(), color=style.FAINT,
                  markeredgewidth=0, alpha=0.6)  # fmt: skip


def runs_text(points: pd.DataFrame, tables: Iterable[pd.DataFrame | None], tried: int = 1) -> str:
    """How many seeds a point has, which ones, and their settings, of so many learning rates tried."""
    counted = range_text((points["n"] + points["diverged"]).astype(int).tolist(), "seed")
    known = sorted({int(seed) for trials in tables if trials is not None for seed in trials["seed"].dropna()})
    seeds = f" ({'seed ' * (len(known) == 1)}{', '.join(map(str, known))})" if known else ""
    return f"{counted} per point{seeds}{_settings(points, tried)}"


def told_sentences(
    records: Iterable[SweepRecord | TradeoffRecord], tasks: Container[str] | None = None
) -> list[str]:
    """The base of each study and the numbers of its examples, of some tasks or all, where they are known."""
    found = []
    for record in records:
        told = section_of(section_of(record.identity, "study"), "told")
        if base := told.get("base"):
            found.append(f"Base: {printable(str(base))}.")
        sizes = [
            f"{task_label(task)} {own['train']:,} and {own['validation']:,}"
            for task, own in section_of(told, "examples").items()
            if tasks is None or task in tasks
        ]
        if sizes:
            found.append(f"Examples trained and scored on: {'; '.join(sizes)}.")
    return list(dict.fromkeys(found))


def rates_tried(trials: pd.DataFrame | None, point: Sequence[str]) -> int:
    """The most learning rates that all trials of a point have."""
    if trials is None or trials.empty:
        return 1
    return int(trials.groupby(list(point), dropna=False)["learning_rate"].nunique().max())


def dots_text(series: Sequence[ScoreSeries]) -> str:
    """What the small dots mean; empty if there are none."""
    return "Small dots are single trials, each at its best epoch." if has_dots(series) else ""


def _settings(points: pd.DataFrame, tried: int) -> str:
    """The chosen learning rate and epochs, and how they were chosen."""
    rates = points["learning_rate"].dropna().unique()
    epochs = points["epochs"].dropna().unique()
    of = f" out of up to {tried} learning rates" if tried > 1 else ""
    if len(rates) == 1 and len(epochs) == 1:
        chosen = f" (chosen per point on validation data{of}, and the same for all)" if of else ""
        return f", learning rate {rates[0]:g}{chosen}, {count_text(int(epochs[0]), 'epoch')}"
    return (
        f", learning rate and number of epochs chosen per point{of} (largest share of seeds that did not"
        " diverge, then best mean)"
    )


def diverged_text(lost: int) -> str:
    """What the crosses mean, with the number of diverged trials; empty if there are none."""
    if not lost:
        return ""
    return (
        "Crosses at the bottom: points with diverged trials, which are excluded from the mean"
        f" ({count_text(lost, 'trial')} in total)."
    )
