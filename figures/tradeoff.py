"""Score against the number of trained parameters, by task (Houlsby et al. 2019, Fig. 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adapter_probe.analysis.costs import beside, with_costs
from adapter_probe.analysis.published import published_tradeoff
from adapter_probe.analysis.study_records import StudyRecord, TradeoffRecord
from adapter_probe.analysis.sweeps import TRADEOFF_POINT, chosen_trials
from adapter_probe.errors import ResultsError
from adapter_probe.known_tasks import known_task
from adapter_probe.settings import Axis
from adapter_probe.wording import (
    BASELINE,
    METHOD_LABELS,
    common_value,
    metric_name,
    score_text,
    task_label,
)

from . import style
from .curves import ScoreSeries, far_below, numbers_of
from .drawing import SOURCE, Drawing, caption_of, identity_of, undefined_text
from .layout import WIDE, fit_height, legend_below, new_figure
from .naming import suffix_of
from .sweep_words import ARROWS, BASELINE_WORDS, MEANS, diverged_text, dots_text, rates_tried, runs_text
from .tradeoff_panel import AXES, UNITS, draw, in_shares, legend_entries, parameter_axis
from .venues import FigureOptions

_ASPECT, _NARROWEST, _LOWEST_ROW, _LEGEND = 0.7, 1.8, 1.9, 1.4  # height over width of a panel; inches


_COSTS: dict[Axis, str] = {
    "parameters": "the number of parameters trained per task, including the head; {axis}",
    "memory": "the peak of memory in training: tensors on an accelerator, else the whole process",
    "seconds": "the mean time of a training step, without evaluation",
    "bytes": "the size of the file with a task's trained tensors",
}
_COLUMNS: dict[Axis, str] = {
    "parameters": "trained_parameters", "memory": "peak_memory_gb", "seconds": "seconds_per_step",
    "bytes": "checkpoint_mb",
}  # fmt: skip
_LITTLE: dict[Axis, str] = {
    "parameters": "with at most that many parameters", "memory": "with at most that much memory",
    "seconds": "at no more time per step", "bytes": "with at most that many bytes",
}  # fmt: skip


def tradeoff_series(
    record: TradeoffRecord, paper: bool, x: Axis = "parameters", overlay: pd.DataFrame | None = None
) -> list[ScoreSeries]:
    """The series of a trade-off by task, with the paper's curve for its tasks and metric, and other results.

    Raises:
        ResultsError: the trials did not record this cost, or the other results do not fit.
    """
    tradeoff, found = record.tradeoff, []
    tried = rates_tried(record.trials, TRADEOFF_POINT)
    others = beside(overlay, dict(zip(tradeoff["task"], tradeoff["metric"])), x)
    if paper and others:
        raise ResultsError(
            "--paper draws percentages of each base, which is not known of --overlay; give one of them"
        )
    chosen = None if record.trials is None else chosen_trials(record.trials)
    if x != "parameters":
        tradeoff, chosen = with_costs(record, x, UNITS[x])
    for (task, metric), points in tradeoff.groupby(["task", "metric"], sort=False):
        known = known_task(str(task))
        known_there = paper and x == "parameters" and known and metric == known.metric
        own = chosen is not None and (chosen["task"] == task) & (chosen["metric"] == metric)
        alone, points = points[points["method"] == BASELINE], points[points["method"] != BASELINE]
        found.append(
            ScoreSeries(
                task_label(str(task)),
                points.sort_values("trained_parameters", ignore_index=True),
                None if chosen is None else chosen[own],
                published_tradeoff(known.name) if known_there else None,
                float(alone["mean"].iloc[0]) if len(alone) else float("nan"),
                x,
                others.get(str(task)),
                tried,
            )
        )
    return found


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

    Args:
        ax: Axes to draw on; by default the current Axes.
        task: task to draw; required only when the study has several.
        paper: whether to overlay the published curve.
        overlay: results of other people, see `adapter_probe.analysis.costs.read_overlay`.

    Raises:
        ResultsError: there is no such task, or there are several and none is given; or the cost is unknown.
    """
    tasks = list(record.tradeoff["task"].unique())
    if (task is None and len(tasks) > 1) or (task is not None and task not in tasks):
        raise ResultsError(f"task {task!r} is not in {record.folder}; give one of {', '.join(tasks)}")
    own = record.tradeoff["task"] == (task or tasks[0])
    return draw(tradeoff_series(replace(record, tradeoff=record.tradeoff[own]), paper, x, overlay)[0], ax)


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of each trade-off, one panel per task, with its CSV and caption."""
    tradeoffs = [study for study in studies if isinstance(study, TradeoffRecord)]
    for study in tradeoffs:
        curves = tradeoff_series(study, options.paper, options.x, options.overlay)
        names = " and ".join(dict.fromkeys(curve.name for curve in curves))
        title = f"{names}: score against {AXES[options.x].partition(' per task')[0].partition(' (')[0]}"
        stem = "tradeoff-tasks" if options.x == "parameters" else f"tradeoff-{options.x}"
        figure, numbers = tradeoff_figure(curves, options), numbers_of(curves, _baselines(curves))
        numbers = numbers.rename(columns={"trained_parameters": _COLUMNS[options.x]})
        made = Drawing(stem, title, figure, numbers, _caption(curves), identity_of([study]))
        yield made.renamed(suffix_of(study, tradeoffs))


def tradeoff_figure(curves: Sequence[ScoreSeries], options: FigureOptions) -> Figure:
    """One panel per task with a common parameter axis, and the legend below."""
    width, n = options.width("half" if len(curves) == 1 else "full"), len(curves)
    columns = 1 if width < WIDE else 2 if n in (2, 4) else min(n, int(width / _NARROWEST), 3)
    rows = -(-n // columns)
    metrics = {curve.metric for curve in curves}
    with style.paper_style(options.venue):
        figure = new_figure(width, (rows + 1) * width)
        for index, curve in enumerate(curves):
            ax = figure.add_subplot(rows, columns, index + 1)
            ax.set_box_aspect(_ASPECT if columns > 1 or width < WIDE else 0.5)
            draw(curve, ax, beside=curves, top_axis=index < columns, legend=False)
            last = index + columns >= n
            ax.set_xlabel(parameter_axis(curves) if last else "")
            ax.tick_params(axis="x", labelbottom=last)
            ax.set_ylabel("" if len(metrics) == 1 and index % columns else ax.get_ylabel())
        legend_below(figure, legend_entries(curves, figure.axes[:n]))
        return fit_height(figure, max(options.venue.tallest, _LEGEND + rows * _LOWEST_ROW))


def _baselines(curves: Sequence[ScoreSeries]) -> list[pd.DataFrame]:
    """The scores of the baseline without pretraining, one row per task."""
    return [
        pd.DataFrame([{"task": curve.points["task"].iloc[0], "metric": curve.metric, "method": BASELINE,
                       "label": METHOD_LABELS[BASELINE], "mean": curve.baseline, "source": "this run"}])
        for curve in curves
        if np.isfinite(curve.baseline)
    ]  # fmt: skip


def _others_text(curves: Sequence[ScoreSeries]) -> str:
    """Where the results of other people are from; empty if there are none."""
    found = [curve.others["source"] for curve in curves if curve.others is not None]
    sources = list(dict.fromkeys(name for one in found for name in one))
    if not sources:
        return ""
    return (
        f"Hollow marks without a line: results of other people, as given, from {'; '.join(sources)}. Base, "
        "data, training and what is counted as trained parameters may differ from this study."
    )


def _caption(curves: Sequence[ScoreSeries]) -> str:
    points = pd.concat([curve.points for curve in curves], ignore_index=True)
    metric, shares = common_value(curve.metric for curve in curves), in_shares(curves)
    named = "; ".join(f"{curve.name}: {metric_name(curve.metric)}" for curve in curves)
    majorities = ", ".join(
        f"{one.name} {score_text(one.majority, one.metric)}" for one in curves if np.isfinite(one.majority)
    )
    axis = (
        "as a percentage of the base model that is adapted: each line's own"
        if shares
        else "upper axis: percentage of the base model"
    )
    return caption_of(
        [
            f"Validation {metric_name(metric)} against {_COSTS[curves[0].x].format(axis=axis)}.",
            f"{MEANS}; labels give the size of the adapters, the rank of LoRA and the like, or the number"
            " k of fine-tuned top layers.",
            f"{runs_text(points, [curve.trials for curve in curves], max(curve.tried for curve in curves))}.",
            f"Scores: {named}." if metric is None else "",
            dots_text(curves),
            "Dotted line and band: mean and standard error of full fine-tuning."
            if (points["method"] == "full").any()
            else "",
            f"Grey staircase: the best mean score {_LITTLE[curves[0].x]}.",
            BASELINE_WORDS if any(np.isfinite(curve.baseline) for curve in curves) else "",
            f"Thin dashes: the majority class ({majorities}); where it lies below the axis, it is given in"
            " the notes alone."
            if majorities
            else "",
            diverged_text(int(points["diverged"].sum())),
            ARROWS if any(far_below(curve.points, "mean").any() for curve in curves) else "",
            f"Thin lines with hollow marks: {SOURCE}, Figs. 4 and 5 (BERT-base; SQuAD: BERT-large), at the"
            " numbers of parameters plotted there."
            if any(curve.published is not None for curve in curves)
            else "",
            _others_text(curves),
            undefined_text(int(points["mean"].isna().sum()), "Means left out"),
        ]
    )
