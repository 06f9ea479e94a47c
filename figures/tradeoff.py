"""Score against the number of trained parameters, by task (Houlsby et al. 2019, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adapter_probe.analysis.method_labels import BASELINE, METHOD_LABELS
from adapter_probe.analysis.published import published_tradeoff
from adapter_probe.analysis.studies import TradeoffRecord
from adapter_probe.analysis.sweeps import chosen_trials
from adapter_probe.errors import ResultsError
from adapter_probe.known_tasks import known_task

from . import style
from .curves import ScoreSeries, numbers_of
from .drawing import Drawing
from .layout import WIDE, fit_height, legend_below, new_figure
from .sweep_captions import tradeoff_caption
from .tradeoff_panel import draw, legend_entries, limits_of
from .venues import FigureOptions
from .wording import task_label

STEM = "tradeoff-tasks"
_ASPECT, _NARROWEST, _LOWEST_ROW, _LEGEND = 0.7, 1.8, 1.9, 1.4  # height over width of a panel; inches


def tradeoff_series(tradeoff: pd.DataFrame, trials: pd.DataFrame | None, paper: bool) -> list[ScoreSeries]:
    """The series of a trade-off by task, with the paper's curve for its tasks and metric."""
    chosen, found = None if trials is None else chosen_trials(trials), []
    for (task, metric), points in tradeoff.groupby(["task", "metric"], sort=False):
        known = known_task(str(task))
        beside = paper and known and metric == known.metric
        own = chosen is not None and (chosen["task"] == task) & (chosen["metric"] == metric)
        alone, points = points[points["method"] == BASELINE], points[points["method"] != BASELINE]
        found.append(
            ScoreSeries(
                task_label(str(task)),
                points.sort_values("trained_parameters", ignore_index=True),
                None if chosen is None else chosen[own],
                published_tradeoff(known.name) if beside else None,
                float(alone["mean"].iloc[0]) if len(alone) else float("nan"),
            )
        )
    return found


def tradeoff(
    record: TradeoffRecord, ax: Axes | None = None, *, task: str | None = None, paper: bool = False
) -> Axes:
    """Draw one task's score against the number of trained parameters.

    Args:
        record: the trade-off.
        ax: Axes to draw on; by default the current Axes.
        task: task to draw; required only when the study has several.
        paper: whether to overlay the published curve.

    Raises:
        ResultsError: there is no such task, or there are several and none is given.
    """
    tasks = list(record.tradeoff["task"].unique())
    if (task is None and len(tasks) > 1) or (task is not None and task not in tasks):
        raise ResultsError(f"task {task!r} is not in {record.folder}; give one of {', '.join(tasks)}")
    points = record.tradeoff[record.tradeoff["task"] == (task or tasks[0])]
    curve = tradeoff_series(points, record.trials, paper)[0]
    return draw(curve, ax)


def tradeoff_drawing(
    curves: Sequence[ScoreSeries], options: FigureOptions, identity: Mapping[str, object]
) -> Drawing:
    """The figure of all tasks, with its CSV and caption."""
    names = " and ".join(dict.fromkeys(curve.name for curve in curves))
    title = f"{names}: score against trained parameters"
    figure = tradeoff_figure(curves, options)
    return Drawing(
        STEM, title, figure, numbers_of(curves, _baselines(curves)), tradeoff_caption(curves), identity
    )


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
            draw(curve, ax, limits=limits_of(curves), top_axis=index < columns, legend=False)
            last = index + columns >= n
            ax.set_xlabel("trained parameters per task" if last else "")
            ax.tick_params(axis="x", labelbottom=last)
            ax.set_ylabel("" if len(metrics) == 1 and index % columns else ax.get_ylabel())
        legend_below(figure, legend_entries(curves))
        lowest = _LEGEND + rows * _LOWEST_ROW if rows > 1 else 0.0
        return fit_height(figure, max(options.venue.tallest, lowest))


def _baselines(curves: Sequence[ScoreSeries]) -> list[pd.DataFrame]:
    """The scores of the baseline without pretraining, one row per task."""
    return [
        pd.DataFrame([{"task": curve.points["task"].iloc[0], "metric": curve.metric, "method": BASELINE,
                       "label": METHOD_LABELS[BASELINE], "mean": curve.baseline, "source": "this run"}])
        for curve in curves
        if np.isfinite(curve.baseline)
    ]  # fmt: skip
