"""The trade-off over all tasks: score less that of full fine-tuning, and score by adapter size.

Of the differences, one panel shows the 20th, 50th and 80th percentile over tasks, as Houlsby et al. 2019 do
(Figs 1 and 3); the other the interquartile mean with its interval (Agarwal et al. 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from adapter_probe.analysis.published import published_aggregate, published_sizes
from adapter_probe.analysis.study_records import StudyRecord, TradeoffRecord
from adapter_probe.analysis.sweeps import TRADEOFF_POINT
from adapter_probe.known_tasks import known_task
from adapter_probe.results.schema import SIZES_COLUMNS
from adapter_probe.wording import count_text, is_loss, method_label, range_text, task_label

from . import curves, style
from .curves import MarkerStyle
from .drawing import SOURCE, Drawing, caption_of, identity_of, of_kind, undefined_text
from .layout import WIDE, fit_height, legend_below, new_figure, one_panel, title_above
from .legends import LegendEntry
from .style import escape_mathtext
from .venues import FigureOptions

_MEAN = MarkerStyle("#000000", "o", "-", 3.8)
_ASPECT, _LOWEST_ROW, _LEGEND = 0.62, 1.8, 1.4  # height over width of a panel; inches
_SHOWN = 0.05  # points: less is not seen as a difference from 0


@dataclass(frozen=True)
class AggregatePanel:
    """One panel: the columns of centre and spread, and their labels."""

    middle: str
    low: str
    high: str
    words: str


VIEWS = (
    AggregatePanel("p50_points", "p20_points", "p80_points", "median, 20th–80th percentile"),
    AggregatePanel("iqm_points", "iqm_low_points", "iqm_high_points", "interquartile mean, 95% interval"),
)


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure over all tasks of each trade-off of several, with its CSV and caption."""
    for study, suffix in of_kind(studies, TradeoffRecord):
        frame, tasks = study.aggregate, list(dict.fromkeys(study.tradeoff["task"]))
        losses = {is_loss(metric) for metric in study.tradeoff["metric"]}
        if frame is None or frame["n_tasks"].max() < 2:
            continue
        known = [known_task(task) for task in tasks]  # the paper's sets are GLUE and additional tasks
        glue = sum(task is not None and task.in_glue for task in known) * 2 >= len(tasks)
        published = published_aggregate("glue" if glue else "additional") if options.paper else None
        figure = aggregate_figure(frame, options, published, losses == {True})
        title = f"{len(tasks)} tasks: difference to full fine-tuning against trained parameters"
        numbers = curves.with_published(frame, published)
        caption = _caption(frame, tasks, glue if options.paper else None, True in losses)
        caption = caption_of([caption, _runs(study), *curves.told_sentences([study])])
        yield Drawing(f"tradeoff-aggregate{suffix}", title, figure, numbers, caption, identity_of([study]))


def _runs(study: TradeoffRecord) -> str:
    """Seeds and settings of the points, as a sentence."""
    tried = curves.rates_tried(study.trials, TRADEOFF_POINT)
    return f"{curves.runs_text(study.tradeoff, [study.trials], tried)}."


def aggregate_figure(
    frame: pd.DataFrame, options: FigureOptions, published: pd.DataFrame | None = None, losses: bool = False
) -> Figure:
    """Panels of percentiles and interquartile mean, next to or above one another, on one scale."""
    width = options.width("full")
    columns = 2 if width >= WIDE else 1
    with style.paper_style(options.venue):
        figure = new_figure(width, 3 * width)
        own = [] if published is None else [published["trained_parameters"].to_numpy(float)]
        limits = curves.count_limits([_positions(frame), *own])
        for index, view in enumerate(VIEWS):
            ax = figure.add_subplot(3 - columns, columns, index + 1)
            ax.set_box_aspect(_ASPECT)
            draw(frame, ax, view=view, published=None if index else published, limits=limits)
            if losses:
                ax.set_ylabel("mean of full fine-tuning − loss (points)")
            ax.set_ylim(*_height(frame, published))
            if columns == 2 and index:
                ax.tick_params(axis="y", labelleft=False)
                ax.set_ylabel("")
            if columns == 1 and not index:
                ax.set_xlabel("")
        legend_below(figure, legend_entries(frame, published))
        return fit_height(figure, max(options.venue.tallest, _LEGEND + (3 - columns) * _LOWEST_ROW))


def _positions(frame: pd.DataFrame) -> np.ndarray:
    """Positions along the axis: numbers of parameters, with methods that train none at the far left."""
    return curves.positions(frame["trained_parameters_without_head"]).to_numpy()


def _height(frame: pd.DataFrame, published: pd.DataFrame | None) -> tuple[float, float]:
    far = curves.far_below(frame, VIEWS[0].middle)
    names = [name for view in VIEWS for name in (view.middle, view.low, view.high)]
    values = [np.zeros(1), frame.loc[~far, names].to_numpy(float).ravel()]
    values += [] if published is None else [published["p50_points"].to_numpy(float)]
    known = np.concatenate(values)
    known = known[np.isfinite(known)]
    spare = max(known.max() - known.min(), 1.0)
    return known.min() - (0.18 if far.any() else 0.06) * spare, known.max() + 0.08 * spare


def draw(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    view: AggregatePanel,
    published: pd.DataFrame | None,
    limits: tuple[float, float],
) -> None:
    """Draw one view of ``aggregate.csv``, without a legend.

    Methods of several sizes are lines with a band, others points with a bar; a rim marks the
    Pareto frontier; the dotted line is full fine-tuning; published medians are thin and hollow.
    """
    curves.tidy_axes(ax)
    ax.set_xlabel("trained parameters per task, without the head" + curves.LOG)
    ax.set_ylabel("score − mean of full fine-tuning (points)")
    ax.axhline(0, color=style.FAINT, linestyle=":", linewidth=0.9 * style.scale_factor(), zorder=1.5)
    if published is not None:
        for method, rows in published.groupby("method"):
            props = curves.line_props(curves.METHODS[str(method)], published=True)
            ax.plot(rows["trained_parameters"], rows["p50_points"], zorder=2.4, **props)
    x, far = _positions(frame), curves.far_below(frame, VIEWS[0].middle)
    for method, mark in curves.marks_of(frame["method"]).items():
        chosen = (frame["method"] == method).to_numpy() & ~far
        if chosen.any():
            _draw_method(ax, x[chosen], frame[chosen], mark, view)
    values = frame.loc[far, view.middle].to_numpy(float)
    curves.mark_far_below(ax, frame.loc[far, "method"], x[far], values, digits=1)
    counts = frame["trained_parameters_without_head"].to_numpy(float)
    nothing = x[counts == 0][0] if (counts == 0).any() and (counts > 0).any() else np.nan
    curves.count_ticks(ax, limits, float(nothing))
    middle, spread = view.words.split(", ")
    if frame[view.low].isna().all():  # an interval over seeds needs two of them
        spread = "one seed, no interval"
    notes = [middle, f"{spread}, {count_text(int(frame['n_tasks'].max()), 'task')}"]
    title_above(ax, notes)


def _draw_method(
    ax: Axes, x: np.ndarray, rows: pd.DataFrame, mark: MarkerStyle, view: AggregatePanel
) -> None:
    unit = style.scale_factor()
    low, high, middle = (rows[name].to_numpy(float) for name in (view.low, view.high, view.middle))
    if mark.line and len(rows) > 1:
        ax.fill_between(x, low, high, color=mark.colour, alpha=0.16, linewidth=0, zorder=2)
        for edge in (low, high):
            ax.plot(x, edge, color=mark.colour, alpha=0.6, linewidth=0.5 * unit, zorder=2)
    else:
        ax.vlines(x, low, high, color=mark.colour, linewidth=0.8 * unit, zorder=2.5)
    ax.plot(x, middle, zorder=3, **curves.line_props(mark))
    if view is VIEWS[0]:  # the frontier is that of the medians
        best = rows["on_frontier"].to_numpy(bool)
        rim = {"linestyle": "", "markeredgecolor": style.INK, "markeredgewidth": 0.7 * unit}
        ax.plot(x[best], middle[best], zorder=3.5, label="frontier", **(curves.line_props(mark) | rim))


def legend_entries(frame: pd.DataFrame, published: pd.DataFrame | None) -> list[LegendEntry]:
    """Legend handles and labels: methods, the frontier, the paper."""
    unit, marks = style.scale_factor(), curves.marks_of(frame["method"])
    entries = [(curves.line_of(mark), method_label(name)) for name, mark in marks.items()]
    if frame["on_frontier"].any():
        rim = {"marker": "o", "markersize": 3.4 * unit, "markeredgewidth": 0.7 * unit}
        handle = Line2D([], [], linestyle="", color=style.GRID, markeredgecolor=style.INK, **rim)
        entries.append((handle, "with a rim: frontier of medians"))
    if published is not None:
        entries.append((curves.published_handle(), "Houlsby et al. 2019, median"))
    return entries


def _caption(
    frame: pd.DataFrame, tasks: Sequence[str], published_glue: bool | None, losses: bool = False
) -> str:
    counts = range_text(frame["n_tasks"].astype(int).tolist(), "task")
    interval = " with its 95% interval over seeds on these tasks (generalised interval of normal scores)"
    if frame["iqm_low_points"].isna().all():
        interval = " (one seed per task, so no interval)"
    name = "nine GLUE tasks, BERT-large" if published_glue else "17 additional tasks, BERT-base"
    return caption_of(
        [
            "Difference to the mean score of full fine-tuning on the same task, in points, against the number"
            f" of parameters trained per task, without the head (mean over tasks; log scale), for {counts}:"
            f" {', '.join(task_label(task) for task in tasks)}.",
            "Left or top: median and 20th to 80th percentile over tasks of the mean score over seeds. Right"
            f" or bottom: interquartile mean over all tasks' trials{interval}.",
            losses and "Of a loss, a positive difference is a lower one.",
            (frame.loc[frame["method"] == "full", "iqm_points"].abs() >= _SHOWN).any()
            and "Full fine-tuning itself is not at 0 there, because the interquartile mean of its trials is"
            " not their mean.",
            frame["on_frontier"].any() and "A rim marks the Pareto frontier of the medians.",
            curves.far_below(frame, "p50_points").any() and curves.ARROWS,
            (frame["trained_parameters_without_head"] == 0).any() and "At 0: only the head is trained.",
            published_glue is not None
            and f"Thin lines, hollow marks: medians of {SOURCE}, Fig. 3, {name}, including the head.",
            undefined_text(frame[["p50_points", "iqm_points"]].isna().any(axis=1).sum(), "Points left out"),
        ]
    )


def sizes_drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of each trade-off with several adapter sizes, with its CSV and caption."""
    for study, suffix in of_kind(studies, TradeoffRecord):
        if study.sizes is None or len(study.sizes) < 2:
            continue
        published = published_sizes() if options.paper else None
        figure = one_panel(
            partial(draw_sizes, study.sizes, published=published), options, 0.8, 0.5, lowest=3.4
        )
        caption = _sizes_caption(study.sizes, options.paper)
        caption = caption_of([caption, _runs(study), *curves.told_sentences([study])])
        numbers = curves.with_published(study.sizes, published)
        title, identity = "score against adapter size", identity_of([study])
        yield Drawing(f"size-robustness{suffix}", title, figure, numbers, caption, identity)


def tasks_of(frame: pd.DataFrame) -> list[str]:
    """The columns of the tasks."""
    return [str(name) for name in frame.columns if name not in SIZES_COLUMNS]


def draw_sizes(frame: pd.DataFrame, ax: Axes, *, published: pd.DataFrame | None) -> list[LegendEntry]:
    """Draw ``sizes.csv``: one line per task, and their mean with its standard error; the legend's entries."""
    frame, tasks = frame.sort_values("size"), tasks_of(frame)
    names = {task: escape_mathtext(task_label(task)) for task in tasks}
    apart = frame["sem"].notna().any()  # not with one seed
    mean = f"mean over tasks{' ± s.e.m.' if apart else ''}"
    if len(tasks) == 1:
        mean = f"{names[tasks[0]]}{', mean ± s.e.m.' if apart else ''}"
    curves.tidy_axes(ax)
    ax.grid(False, axis="x")
    ax.set_xscale("log", base=2)
    x, known = frame["size"].astype(float), frame["mean_score"].notna()
    bars = curves.line_props(_MEAN) | {"color": style.line_colour(), "elinewidth": 0.8 * style.scale_factor()}
    if known.any():
        scores = (100 * frame.loc[known, name] for name in ("mean_score", "sem"))
        ax.errorbar(x[known], *scores, label=mean, zorder=4, **bars)
    if published is not None:
        props = curves.line_props(curves.METHODS["adapters"], published=True) | {"color": style.line_colour()}
        label = "Houlsby et al. 2019, 8 GLUE tasks"
        ax.plot(published["size"], 100 * published["mean_score"], zorder=3, label=label, **props)
    if len(tasks) > 1:  # one task is the mean
        import seaborn  # here, since it loads SciPy's statistics, which takes a second

        lines = frame.melt("size", tasks, "task", "score").dropna()
        lines = lines.assign(size=lines["size"].astype(float), score=100 * lines["score"].astype(float))
        lines["task"] = lines["task"].map(names)
        seaborn.lineplot(
            lines, x="size", y="score", hue="task", style="task", estimator=None, zorder=2, ax=ax,
            palette=seaborn.color_palette("colorblind", len(tasks)), linewidth=0.9 * style.scale_factor(),
        )  # fmt: skip
        ax.get_legend().remove()
    sizes = np.unique(np.concatenate([x, [] if published is None else published["size"].astype(float)]))
    ax.set_xlim(sizes[0] / 1.35, sizes[-1] * 1.35)
    shown = sizes[:: -1 - len(sizes) // 9]  # from the greatest down, few enough not to touch
    ax.set_xticks(shown, labels=[f"{size:.0f}" for size in shown])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("adapter size" + curves.LOG)
    ax.set_ylabel("validation score × 100")
    entries = zip(*ax.get_legend_handles_labels())
    return sorted(entries, key=lambda entry: not isinstance(entry[0], ErrorbarContainer))


def _sizes_caption(frame: pd.DataFrame, paper: bool) -> str:
    tasks = tasks_of(frame)
    mean = f"their mean over {count_text(len(tasks), 'task')}"
    if frame["mean_score"].isna().any():
        mean += " at the sizes that all of them have"
    bars = "bars show the standard error of the mean over seeds, propagated from the tasks"
    bars = bars if frame["sem"].notna().any() else "one seed, so without bars"
    return caption_of(
        [
            f"Validation score against adapter size{curves.LOG}, one line per task and {mean}; {bars}.",
            paper
            and f"Thin line with hollow marks: {SOURCE}, section 3.6, mean over eight GLUE tasks, "
            "BERT-large.",
            undefined_text(frame[tasks].isna().to_numpy().sum(), "Values left out"),
        ]
    )
