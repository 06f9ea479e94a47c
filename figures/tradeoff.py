"""Score against the number of trained parameters, by task (Houlsby et al. 2019, Fig. 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adapter_probe import wording
from adapter_probe.analysis.costs import beside, with_costs
from adapter_probe.analysis.published import published_tradeoff
from adapter_probe.analysis.study_records import StudyRecord, TradeoffRecord
from adapter_probe.analysis.sweeps import TRADEOFF_POINT, chosen_trials
from adapter_probe.errors import ResultsError
from adapter_probe.known_tasks import known_task
from adapter_probe.settings import Axis

from . import curves, style
from .curves import ScoreSeries
from .drawing import SOURCE, Drawing, caption_of, identity_of, of_kind, undefined_text
from .layout import WIDE, fit_height, legend_below, new_figure
from .tradeoff_panel import COSTS, draw, in_shares, legend_entries, parameter_axis
from .venues import FigureOptions

_ASPECT, _NARROWEST, _LOWEST_ROW, _LEGEND = 0.7, 1.8, 1.9, 1.4  # height over width of a panel; inches
_TICK = 7.0  # points: the size of tick labels at which panels may be as narrow


def tradeoff_series(
    record: TradeoffRecord, paper: bool, x: Axis = "parameters", overlay: pd.DataFrame | None = None
) -> list[ScoreSeries]:
    """The series of a trade-off by task, with the paper's curve for its tasks and metric, and other results.

    Raises:
        ResultsError: the trials did not record this cost, or the other results do not fit.
    """
    tradeoff, found = record.tradeoff, []
    tried = curves.rates_tried(record.trials, TRADEOFF_POINT)
    others = beside(overlay, dict(zip(tradeoff["task"], tradeoff["metric"])), x)
    if paper and others:
        raise ResultsError(
            "--paper draws percentages of each base, which is not known of --overlay; give one of them"
        )
    chosen = None if record.trials is None else chosen_trials(record.trials)
    nothing = float("nan")
    if x != "parameters":
        tradeoff, chosen = with_costs(record, x, COSTS[x].unit)
    else:
        tradeoff, chosen = (one if one is None else _without_heads(one) for one in (tradeoff, chosen))
        nothing = float(tradeoff.loc[tradeoff[_COUNTED] == 0, "trained_parameters"].min())
    for (task, metric), points in tradeoff.groupby(["task", "metric"], sort=False):
        known = known_task(str(task))
        known_there = paper and x == "parameters" and known and metric == known.metric
        own = chosen is not None and (chosen["task"] == task) & (chosen["metric"] == metric)
        found.append(
            ScoreSeries(
                wording.task_label(str(task)),
                points.sort_values("trained_parameters", ignore_index=True),
                None if chosen is None else chosen[own],
                published_tradeoff(known.name) if known_there else None,
                x,
                others.get(str(task)),
                tried,
                nothing,
            )
        )
    return found


_COUNTED = "trained_parameters_without_head"


def _without_heads(frame: pd.DataFrame) -> pd.DataFrame:
    """A table with the numbers of parameters without heads on the axis, and those of all as `total`."""
    places = curves.positions(frame[_COUNTED])
    return frame.assign(total=frame["trained_parameters"], trained_parameters=places)


def tradeoff(
    record: TradeoffRecord,
    ax: Axes | None = None,
    *,
    task: str | None = None,
    x: Axis = "parameters",
    paper: bool = False,
    overlay: pd.DataFrame | None = None,
) -> Axes:
    """Draw one task's score against the number of trained parameters, or another cost.

    Arguments as of `adapter_probe.Tradeoff.plot`, and `overlay` as `analysis.costs.read_overlay` gives it.

    Raises:
        ResultsError: there is no such task, or there are several and none is given; or the cost is unknown.
    """
    tasks = list(record.tradeoff["task"].unique())
    if (task is None and len(tasks) > 1) or (task is not None and task not in tasks):
        raise ResultsError(f"task {task!r} is not in {record.folder}; give one of {', '.join(tasks)}")
    own = record.tradeoff["task"] == (task or tasks[0])
    return draw(tradeoff_series(replace(record, tradeoff=record.tradeoff[own]), paper, x, overlay)[0], ax)


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figures of each trade-off, a panel per task on as many pages as they need, with CSV and caption."""
    for study, suffix in of_kind(studies, TradeoffRecord):
        series, cost = tradeoff_series(study, options.paper, options.x, options.overlay), COSTS[options.x]
        stem = f"tradeoff-{'tasks' if options.x == 'parameters' else options.x}{suffix}"
        columns, pages = _pages(series, options)
        for number, page in enumerate(pages, 1):
            names = " and ".join(dict.fromkeys(curve.name for curve in page))
            title = f"{names}: score against {cost.axis.partition(' per task')[0].partition(' (')[0]}"
            numbers = curves.numbers_of(page)
            if options.x == "parameters":  # rows of others have no other number
                numbers["trained_parameters"] = numbers.pop("total").fillna(numbers["trained_parameters"])
            numbers = numbers.rename(columns={"trained_parameters": cost.column})
            told = curves.told_sentences([study], {str(curve.points["task"].iloc[0]) for curve in page})
            yield Drawing(
                f"{stem}-{number}" if len(pages) > 1 else stem, title,
                _tradeoff_figure(page, series, columns, options), numbers,
                caption_of([_caption(page), *told]), identity_of([study]),
            )  # fmt: skip


def _pages(series: Sequence[ScoreSeries], options: FigureOptions) -> tuple[int, list[list[ScoreSeries]]]:
    """The columns of panels, and the series of each page, whose rows are as many as a page is high."""
    width, n, venue = options.width("half" if len(series) == 1 else "full"), len(series), options.venue
    narrowest = _NARROWEST * venue.tick / _TICK
    columns = 1 if width < WIDE else 2 if n in (2, 4) else min(n, int(width / narrowest), 3)
    rows = -(-n // columns)
    n_pages = -(-rows // max(1, int((venue.tallest - _LEGEND) / _LOWEST_ROW)))
    ends = columns * np.cumsum([len(part) for part in np.array_split(np.arange(rows), n_pages)])
    return columns, [list(series[start:end]) for start, end in zip((0, *ends), ends)]


def _tradeoff_figure(
    series: Sequence[ScoreSeries], beside: Sequence[ScoreSeries], columns: int, options: FigureOptions
) -> Figure:
    """One panel per task with a parameter axis that is the same on all pages, and the legend below."""
    width, n = options.width("half" if len(beside) == 1 else "full"), len(series)
    rows = -(-n // columns)
    metrics = {curve.metric for curve in series}
    with style.paper_style(options.venue):
        figure = new_figure(width, (rows + 1) * width)
        for index, curve in enumerate(series):
            ax = figure.add_subplot(rows, columns, index + 1)
            ax.set_box_aspect(_ASPECT if columns > 1 or width < WIDE else 0.5)
            draw(curve, ax, beside=beside, legend=False)
            ax.tick_params(axis="x", labelbottom=index + columns >= n)
            if len(beside) > 1:
                ax.set_xlabel("")
                ax.set_ylabel(wording.score_axis(curve.metric)[1])
            if len(metrics) == 1 and index % columns:
                ax.set_ylabel("")
        axis = parameter_axis(beside) if len(beside) > 1 else ""
        legend_below(figure, legend_entries(series, figure.axes[:n]), axis)
        return fit_height(figure, max(options.venue.tallest, _LEGEND + rows * _LOWEST_ROW))


def _caption(series: Sequence[ScoreSeries]) -> str:
    points = pd.concat([curve.points for curve in series], ignore_index=True)
    metric, cost = wording.common_value(curve.metric for curve in series), COSTS[series[0].x]
    named = "; ".join(f"{curve.name}: {wording.metric_name(curve.metric)}" for curve in series)
    known = [one for one in series if np.isfinite(one.majority)]
    majorities = ", ".join(f"{one.name} {wording.score_text(one.majority, one.metric)}" for one in known)
    others = [curve.others["source"] for curve in series if curve.others is not None]
    sources = dict.fromkeys(name for one in others for name in one)
    axis = "below it the percentage of the base model"
    if in_shares(series):
        axis = "as a percentage of the base model that is adapted: each line's own"
    return caption_of(
        [
            f"Validation {wording.metric_name(metric)} against {cost.told.format(axis=axis)}{curves.LOG}.",
            f"{curves.MEANS}; labels give the size of the adapters, the rank of LoRA and the like, or the"
            " number k of fine-tuned top layers.",
            f"{curves.runs_text(points, [one.trials for one in series], max(one.tried for one in series))}.",
            np.isfinite(base := series[0].base_parameters)
            and f"The base has {round(base):,} parameters without a head.",
            metric is None and f"Scores: {named}.",
            curves.dots_text(series),
            (points["method"] == "full").any()
            and "Dotted line and band: mean and standard error of full fine-tuning.",
            f"Grey staircase: the best mean score {cost.at_most}.",
            majorities
            and f"Thin dashes: the majority class ({majorities}); where it lies below the axis, it is given"
            " in the notes alone.",
            curves.diverged_text(int(points["diverged"].sum())),
            any(curves.far_below(curve.points, "mean").any() for curve in series) and curves.ARROWS,
            any(curve.published is not None for curve in series)
            and f"Thin lines with hollow marks: {SOURCE}, Figs. 4 and 5 (BERT-base; SQuAD: BERT-large), at"
            " the numbers of parameters plotted there.",
            sources
            and "Hollow marks without a line: results of other people, as given, from "
            f"{'; '.join(sources)}. Base, data, training and what is counted as trained parameters may"
            " differ from this study.",
            undefined_text(points["mean"].isna().sum(), "Means left out"),
        ]
    )
