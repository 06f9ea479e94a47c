"""Tables of the studies in this project's layouts, and the formatting of their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.analysis.study_records import AblationRecord, StudyRecord, TradeoffRecord
from adapter_probe.wording import (
    count_text,
    drop_name,
    exact_note,
    number_text,
    share_text,
    span_text,
    task_label,
    tolerance_text,
    unit_name,
)

from .ablation_words import study_label, warnings_of
from .naming import suffix_of
from .size_robustness import tasks_of
from .tables import Table, is_greatest, score_cell
from .venues import FigureOptions

CHOSEN = (
    "Scores are measured on the validation data, on which the learning rate, the number of epochs and, for"
    " entries marked best, the size or depth were chosen."
)


def lay_out_tradeoff(tradeoff: pd.DataFrame) -> Table:
    """Every method with its parameters and its mean ± s.e.m. on each task; the best per task in bold."""
    keys, count = ["method", "size", "k"], "trained_parameters_without_head"
    known = tradeoff.groupby(keys, dropna=False)[count]  # the baseline's differ between tasks
    points = tradeoff.assign(**{count: known.transform("mean").round().astype(int)})
    points = points.sort_values([count, "label"], kind="stable")
    methods = points.drop_duplicates(keys)
    columns = points[["task", "metric"]].drop_duplicates()
    means, cells = pd.DataFrame(index=range(len(methods))), pd.DataFrame(index=range(len(methods)))
    cells["method"] = methods["label"].to_numpy(str)
    cells["parameters"] = [f"{n:,}" for n in methods[count]]
    cells["% of base"] = [share_text(share) for share in methods["percent_of_base"]]
    for task, metric in columns.itertuples(index=False):
        mine = points[(points["task"] == task) & (points["metric"] == metric)]
        rows = methods[keys].merge(mine, on=keys, how="left")
        name = task_heading(task, metric)
        means[name] = rows["mean"].to_numpy(float)
        cells[name] = [score_cell(*pair) for pair in zip(rows["mean"], rows["sem"])]
    best = np.concatenate([np.zeros((len(methods), 3), bool), is_greatest(means)], axis=1)
    caption = (
        f"Validation scores × 100, mean ± s.e.m. over seeds ({seeds_text(points)}), and the number of"
        f" parameters trained per task, without the head (mean over tasks). {CHOSEN}"
    )
    return Table("table-tradeoff", caption, cells, tradeoff, best)


def lay_out_sizes(sizes: pd.DataFrame) -> Table:
    """Mean over tasks and score on each task by adapter size; the best size per column in bold."""
    sizes = sizes.sort_values("size", ignore_index=True)
    tasks = tasks_of(sizes)
    cells = pd.DataFrame({"size": sizes["size"].astype(str)})
    cells["mean"] = [score_cell(*pair) for pair in zip(sizes["mean_score"], sizes["sem"])]
    for task in tasks:
        cells[task_label(task)] = [score_cell(score) for score in sizes[task]]
    best = np.concatenate(
        [np.zeros((len(sizes), 1), bool), is_greatest(sizes[["mean_score", *tasks]])], axis=1
    )
    caption = (
        "Validation score × 100 by adapter size: mean over"
        f" {count_text(len(tasks), 'task')} ± s.e.m. over seeds, where all tasks have the size, and each"
        f" task. {CHOSEN}"
    )
    return Table("table-sizes", caption, cells, sizes, best)


def lay_out_removable(removable: pd.DataFrame, record: AblationRecord) -> Table:
    """The longest removable span within each tolerance, by the estimate and by its interval."""
    metric = record.summary.metric
    drop = drop_name(metric)
    bases = {"estimate": "estimate", "interval": "95% CI"}
    rows = []
    for row in removable.itertuples():
        found = not pd.isna(row.first)
        bounded = found and not np.isnan(row.ci_low_points)
        rows.append(
            {
                f"{drop} of at most": tolerance_text(row.tolerance_points, metric),
                "criterion": bases.get(row.basis, row.basis),
                "layers": span_text(row.first, row.last) if found else "none",
                "number": f"{row.n_layers}" if found else "–",
                f"{drop} ({unit_name(metric)})": number_text(-row.delta_points, metric) if found else "–",
                "95% CI, upper bound": number_text(-row.ci_low_points, metric) if bounded else "–",
            }
        )
    text = pd.DataFrame(rows)
    caption = " ".join([*warnings_of([record]), ""]) + (
        f"{study_label(record)}: the longest span of layers whose adapters can be {record.summary.done}"
        f" without retraining, by the estimated {drop} or by the upper bound of its 95% paired bootstrap"
        f" interval{exact_note(metric)}."
    )
    return Table("table-removable", caption, text, removable, np.zeros(text.shape, bool), words=3)


def removable_tables(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Table]:
    """The removable spans of each ablation of spans that are switched off."""
    ablations = [study for study in studies if isinstance(study, AblationRecord) and not study.by_module]
    for study in ablations:
        if study.removable is not None and study.summary.study == "ablated":
            yield lay_out_removable(study.removable, study).renamed(suffix_of(study, ablations))


def tradeoff_tables(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Table]:
    """The points of each trade-off."""
    yield from of_tradeoffs(studies, lambda study: lay_out_tradeoff(study.tradeoff))


def sizes_tables(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Table]:
    """The adapter sizes of each trade-off that has several."""
    yield from of_tradeoffs(studies, lambda one: None if one.sizes is None else lay_out_sizes(one.sizes))


def of_tradeoffs(
    studies: Sequence[StudyRecord], lay_out: Callable[[TradeoffRecord], Table | None]
) -> Iterator[Table]:
    """The table of each trade-off, where it has one."""
    tradeoffs = [study for study in studies if isinstance(study, TradeoffRecord)]
    for study in tradeoffs:
        if (table := lay_out(study)) is not None:
            yield table.renamed(suffix_of(study, tradeoffs))


def task_heading(task: str, metric: str) -> str:
    """A task with its metric: `CoLA (MCC)`."""
    known = metrics.BY_NAME.get(metric)
    return f"{task_label(task)} ({(known and known.short) or metrics.metric_label(metric)})"


def multiple_text(total: float) -> str:
    """A multiple of the base model: `1.3×`; a dash if undefined."""
    return "–" if np.isnan(total) else f"{total:.1f}×"


def seeds_text(points: pd.DataFrame) -> str:
    """Number of trials per point: `n = 3`, `n = 2–3`."""
    counts = (points["n"] + points["diverged"]).astype(int)
    low, high = counts.min(), counts.max()
    return f"n = {high}" if low == high else f"n = {low}–{high}"
