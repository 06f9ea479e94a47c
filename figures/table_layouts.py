"""Tables of the studies: in this project's layouts, and in those of Houlsby et al. 2019, Tables 1 and 2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe import metrics, wording
from adapter_probe.analysis.published import published_glue, published_tasks
from adapter_probe.analysis.study_records import AblationRecord, StudyRecord, TradeoffRecord
from adapter_probe.known_tasks import KNOWN_TASKS, known_task

from .ablation_words import Words, checkpoint_sentence, warnings_of
from .aggregate import tasks_of
from .curves import told_sentences
from .drawing import caption_of, of_kind, suffix_of
from .tables import Table, is_best, score_cell
from .venues import FigureOptions

_USUAL_SIZE = 64
_TOTALS = (
    "Total parameters: for all these tasks together, as a multiple of the base model; trained per task:"
    " percentage of the base model; both without the head."
)
_TASK = ["task", "metric"]
_CHOSEN = (
    "Scores are measured on the validation data, on which the learning rate, the number of epochs and, for"
    " entries marked best, the size or depth were chosen."
)


def lay_out_tradeoff(tradeoff: pd.DataFrame) -> Table:
    """Every method with its parameters and its mean ± s.e.m. on each task; the best per task in bold."""
    keys, count = ["method", "size", "k"], "trained_parameters_without_head"
    known = tradeoff.groupby(keys, dropna=False)[count]
    points = tradeoff.assign(**{count: known.transform("mean").round().astype(int)})
    points = points.sort_values([count, "label"], kind="stable")
    methods = points.drop_duplicates(keys)
    columns = points[["task", "metric"]].drop_duplicates()
    scored = columns["metric"].tolist()
    means, cells = pd.DataFrame(index=range(len(methods))), pd.DataFrame(index=range(len(methods)))
    cells["method"] = methods["label"].to_numpy(str)
    cells["parameters"] = [f"{n:,}" for n in methods[count]]
    cells["% of base"] = [wording.share_text(share) for share in methods["percent_of_base"]]
    for task, metric in columns.itertuples(index=False):
        mine = points[(points["task"] == task) & (points["metric"] == metric)]
        rows = methods[keys].merge(mine, on=keys, how="left")
        name = task_heading(task, metric)
        means[name] = rows["mean"].to_numpy(float)
        cells[name] = [score_cell(*pair) for pair in zip(rows["mean"], rows["sem"])]
    best = np.concatenate([np.zeros((len(methods), 3), bool), is_best(means, scored)], axis=1)
    caption = (
        f"Validation scores × 100, mean ± s.e.m. over seeds ({seeds_text(points)}), and the number of"
        f" parameters trained per task, without the head (mean over tasks). {_CHOSEN}"
    )
    return Table("table-tradeoff", caption, cells, tradeoff, best)


def lay_out_sizes(sizes: pd.DataFrame, tradeoff: pd.DataFrame) -> Table:
    """Mean over tasks and score on each task by adapter size; the best size per column in bold."""
    sizes = sizes.sort_values("size", ignore_index=True)
    tasks = tasks_of(sizes)
    cells = pd.DataFrame({"size": sizes["size"].astype(str)})
    cells["mean"] = [score_cell(*pair) for pair in zip(sizes["mean_score"], sizes["sem"])]
    for task in tasks:
        cells[wording.task_label(task)] = [score_cell(score) for score in sizes[task]]
    metric_of = dict(zip(tradeoff["task"], tradeoff["metric"]))
    scored = [metric_of[task] for task in tasks]
    best = np.insert(is_best(sizes[["mean_score", *tasks]], [_of_mean(scored), *scored]), 0, False, axis=1)
    caption = (
        "Validation score × 100 by adapter size: mean over"
        f" {wording.count_text(len(tasks), 'task')} ± s.e.m. over seeds, where all tasks have the size, and"
        f" each task. {_CHOSEN}"
    )
    return Table("table-sizes", caption, cells, sizes, best)


def lay_out_removable(removable: pd.DataFrame, record: AblationRecord) -> Table:
    """The longest removable span within each tolerance, by the estimate and by a bound for the choice."""
    metric, words, rows = record.summary.metric, Words.of(record), []
    heads = [f"{words.drop} of at most", "criterion", "layers", "number"]
    heads += [
        f"{name} ({unit})" if (unit := words.unit.strip()) else name for name in (words.drop, "95% bound")
    ]
    for row in removable.itertuples():
        found = ["none", "–", "–", "–"]
        if not pd.isna(row.first):
            found = [wording.span_text(row.first, row.last), f"{row.n_layers}"]
            found.append(wording.number_text(-row.delta_points, metric))
            bounded = not np.isnan(row.bound_low_points)
            found.append(wording.number_text(-row.bound_low_points, metric) if bounded else "–")
        criterion = "95% bound" if row.basis == "interval" else row.basis
        rows.append([wording.tolerance_text(row.tolerance_points, metric), criterion, *found])
    text = pd.DataFrame(rows, columns=heads)
    caption = " ".join([*warnings_of([record]), checkpoint_sentence(record), ""]) + (
        f"{f'{record.stack}: the' if record.stack else 'The'} longest span of layers with at most the"
        f" {words.drop} of the first column when its {words.adapters} are {words.done} without retraining, by"
        " the estimate or by a one-sided 95% bound that holds although the span is chosen by it."
    )
    return Table("table-removable", caption, text, removable, np.zeros(text.shape, bool), words=3)


def tables(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Table]:
    """The removable spans of each ablation whose spans are switched off, and the tables of each trade-off."""
    ablations = [study for study in studies if isinstance(study, AblationRecord) and not study.by_module]
    for study in ablations:
        if study.removable is not None and study.summary.study == "ablated":
            yield lay_out_removable(study.removable, study).renamed(suffix_of(study, ablations))
    layouts = (
        lambda one: lay_out_tradeoff(one.tradeoff),
        lambda one: tasks_table(one.tradeoff, options.paper),
        lambda one: glue_table(one.tradeoff, options.paper),
        lambda one: None if one.sizes is None else lay_out_sizes(one.sizes, one.tradeoff),
    )
    for lay_out in layouts:
        for tradeoff, suffix in of_kind(studies, TradeoffRecord):
            if (table := lay_out(tradeoff)) is not None:
                caption = caption_of([table.caption, *told_sentences([tradeoff])])
                yield replace(table, caption=caption).renamed(suffix)


def task_heading(task: str, metric: str) -> str:
    """A task with its metric: `CoLA (MCC)`."""
    known = metrics.BY_NAME.get(metric)
    return f"{wording.task_label(task)} ({(known and known.short) or metrics.metric_label(metric)})"


def multiple_text(total: float) -> str:
    """A multiple of the base model: `1.3×`; a dash if undefined."""
    return "–" if np.isnan(total) else f"{wording.rounded(total)}×"


def seeds_text(points: pd.DataFrame) -> str:
    """Number of trials per point: `n = 3`, `n = 2–3`."""
    counts = (points["n"] + points["diverged"]).astype(int)
    low, high = counts.min(), counts.max()
    return f"n = {high}" if low == high else f"n = {low}–{high}"


def glue_table(tradeoff: pd.DataFrame, paper: bool = False) -> Table | None:
    """Methods in rows, GLUE tasks in columns, as the paper's Table 1; None with fewer than two GLUE tasks.

    The average is the mean of the columns, with weights of one half for MNLI-m and MNLI-mm if both are
    present, and is left out if a column is empty. Total parameters are those of one base plus every task's
    trained parameters, as a multiple of the base; full fine-tuning needs one base per task.
    """
    tasks = _glue_tasks(tradeoff)
    if len(tasks) < 2:
        return None
    names = {known: task_heading(known, metric) for known, (_, metric) in tasks.items()}
    rows = [
        {"method": label, **_totals(found), **dict(zip(names.values(), found["mean"]))}
        for label, found in _picked(tradeoff, tasks.values()).items()
        if found["method"].notna().any()
    ]
    own = len(rows)
    numbers = pd.DataFrame(rows + (_published_rows(names) if paper else []))
    numbers["average"] = _average(numbers, names)
    columns = [*names.values(), "average"]
    text = pd.DataFrame({"method": numbers["method"]})
    text["total params"] = [multiple_text(total) for total in numbers["total_multiple"]]
    text["trained/task"] = [wording.percent_text(share) for share in numbers["trained_percent"]]
    for name in columns:
        text[name] = [score_cell(score) for score in numbers[name]]
    best = np.zeros(text.shape, bool)  # test-server scores are not compared with validation scores
    scored = [metric for _, metric in tasks.values()]
    best[:own, 3:] = is_best(numbers.loc[: own - 1, columns], [*scored, _of_mean(scored)])
    sizes = [f"{names[known]} {size}" for known, size in _best_sizes(tradeoff, tasks).items()]
    halves = ", with half weight for MNLI-m and MNLI-mm" if {"mnli", "mnli-mm"} <= names.keys() else ""
    caption = (
        f"GLUE, scores × 100, mean over seeds. Average: mean of the columns{halves}. {_TOTALS}"
        f"{' Best adapter size: ' + ', '.join(sizes) + '.' if sizes else ''} {_CHOSEN}"
        f"{' Rows of Houlsby et al. (2019): GLUE test server, BERT-large.' if paper else ''}"
    )
    return Table("table-glue", caption, text, numbers, best, rules=(own,) if paper else ())


def _best_sizes(tradeoff: pd.DataFrame, tasks: Mapping[Any, tuple[str, str]]) -> dict[Any, int]:
    """The adapter size with the best mean, by task; empty if the tasks have only one size."""
    adapters = tradeoff[tradeoff["method"] == "adapters"].set_index(_TASK, drop=False)
    adapters = adapters[adapters.index.isin(list(tasks.values()))]
    if adapters["size"].nunique() < 2:
        return {}
    best = _best(adapters).drop_duplicates(_TASK)["size"]
    return {name: int(best[task]) for name, task in tasks.items() if task in best.index}


def tasks_table(tradeoff: pd.DataFrame, paper: bool = False) -> Table:
    """Tasks in rows, methods in columns with their s.e.m., as in the paper's Table 2; best per row in bold.

    On request with the paper's columns, for tasks of the same name.
    """
    tasks = list(dict.fromkeys(zip(tradeoff["task"], tradeoff["metric"])))
    picked = _picked(tradeoff, tasks)
    means = {label: found["mean"].to_numpy(float) for label, found in picked.items()}
    sems = {label: found["sem"].to_numpy(float) for label, found in picked.items()}
    totals = {label: _totals(found) for label, found in picked.items()}
    beside = paper and _add_published_tasks(tasks, means, sems, totals)
    scores, spread = pd.DataFrame(means), pd.DataFrame(sems)
    text = pd.DataFrame({"task": [task_heading(task, metric) for task, metric in tasks]})
    numbers = pd.DataFrame(tasks, columns=["task", "metric"])
    for label in scores:
        text[label] = [score_cell(*pair) for pair in zip(scores[label], spread[label])]
        numbers[label], numbers[f"{label} sem"] = scores[label], spread[label]
    if sizes := _best_sizes(tradeoff, {task: task for task in tasks}):
        numbers["best size"] = [sizes.get(task) for task in tasks]
        text["best size"] = [str(sizes.get(task, "–")) for task in tasks]
    text = pd.concat([text, _foot(scores, totals)], ignore_index=True).fillna("")
    best = np.zeros(text.shape, bool)
    best[: len(tasks), 1 : 1 + len(picked)] = is_best(
        scores.iloc[:, : len(picked)], [metric for _, metric in tasks], axis=1
    )
    theirs = " Columns of Houlsby et al. (2019): test accuracy, BERT-base." if beside else ""
    caption = (
        f"Scores × 100, mean ± s.e.m. over seeds ({seeds_text(tradeoff)}). Average: mean of the rows."
        f" {_TOTALS}"
        f"{' Best size: adapter size with the best mean score.' if sizes else ''}"
        f" {_CHOSEN}{theirs}"
    )
    return Table("table-tasks", caption, text, numbers, best, rules=(len(tasks),))


def _foot(scores: pd.DataFrame, totals: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """The rows below the tasks: average and numbers of parameters."""
    rows = {
        "average": [score_cell(scores[label].mean(skipna=False)) for label in scores],
        "total parameters": [multiple_text(totals[label]["total_multiple"]) for label in scores],
        "trained per task": [wording.percent_text(totals[label]["trained_percent"]) for label in scores],
    }
    return pd.DataFrame([dict(zip(["task", *scores], [name, *cells])) for name, cells in rows.items()])


def _picked(tradeoff: pd.DataFrame, tasks: Iterable[tuple[str, str]]) -> dict[str, pd.DataFrame]:
    """The methods in the columns of Table 2 and rows of Table 1, as far as the trade-off has them.

    Returns:
        by label, the point that stands for the method on each task; a row of NaN if the task lacks it.
    """
    methods = dict(iter(tradeoff.groupby("method")))
    adapters = methods.get("adapters", tradeoff.iloc[:0])
    sizes = sorted(adapters["size"].dropna().astype(int).unique())
    usual = min(sizes, key=lambda size: abs(np.log2(size / _USUAL_SIZE)), default=None)
    found = {wording.METHOD_LABELS["full"]: methods.get("full")}
    if "top_layers" in methods:
        found["best top layers"] = _best(methods["top_layers"])
    if len(sizes) > 1:
        found[f"adapters, best of {sizes[0]}–{sizes[-1]}"] = _best(adapters)
    if usual is not None:
        found[f"adapters {usual}"] = adapters[adapters["size"] == usual]
    found |= {wording.METHOD_LABELS[name]: methods.get(name) for name in ("layernorm_only", "head_only")}
    wanted = pd.MultiIndex.from_tuples(list(tasks), names=_TASK)
    return {
        label: points.drop_duplicates(_TASK).set_index(_TASK).reindex(wanted)
        for label, points in found.items()
        if points is not None
    }


def _best(points: pd.DataFrame) -> pd.DataFrame:
    """The points from the best mean to the worst; among equals, those with the fewest parameters first."""
    known = points[points["mean"].notna()]
    known = known.assign(rank=-known["mean"] * known["metric"].map(metrics.sign_of))
    return known.sort_values(["rank", "trained_parameters"])


def _of_mean(scored: Sequence[str]) -> str:
    """A metric that is a loss if the mean of scores by these metrics is one of losses."""
    return next((metric for metric in scored if metrics.sign_of(metric) > 0), scored[0])


def _totals(picked: pd.DataFrame) -> dict[str, float]:
    """Parameters over tasks: total as a multiple of the base, and percentage of the base per task."""
    if picked["method"].isna().any():
        return {"total_multiple": float("nan"), "trained_percent": float("nan")}
    shares = picked["percent_of_base"].to_numpy(float)  # NaN without a base
    whole = (picked["method"] == "full").all()
    return {"total_multiple": shares.sum() / 100 + (not whole), "trained_percent": shares.mean()}


def _glue_tasks(tradeoff: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """The task and metric of each GLUE task in the paper's order, for the metric that GLUE reports."""
    found = {}
    for known, fixed in KNOWN_TASKS.items():
        points = tradeoff[[fixed.in_glue and known_task(task) is fixed for task in tradeoff["task"]]]
        if len(points):
            wanted = fixed.table_metrics[0]
            metric = wanted if (points["metric"] == wanted).any() else points["metric"].iloc[0]
            found[known] = (str(points["task"].iloc[0]), str(metric))
    return found


def _average(numbers: pd.DataFrame, names: dict[str, str]) -> pd.Series:
    """Mean of the columns, with half weight for MNLI-m and MNLI-mm. NaN if a column is empty."""
    both = {"mnli", "mnli-mm"} <= names.keys()
    weights = pd.Series(
        {name: 0.5 if both and known in ("mnli", "mnli-mm") else 1.0 for known, name in names.items()}
    )
    weighted = numbers[list(names.values())].mul(weights)
    return weighted.sum(axis=1, skipna=False) / weights.sum()


def _published_rows(names: dict[str, str]) -> list[dict[str, object]]:
    """Rows of the paper's Table 1 in our columns, empty where the metrics differ."""
    rows = []
    for row in published_glue().to_dict("records"):
        scores = {}
        for known, name in names.items():
            same = name == task_heading(known, KNOWN_TASKS[known].table_metrics[0])
            scores[name] = row[known] / 100 if same else float("nan")
        shares = {"total_multiple": row["total_multiple"], "trained_percent": row["trained_percent"]}
        rows.append({"method": f"Houlsby et al.: {row['method']}", **shares, **scores})
    return rows


def _add_published_tasks(
    tasks: Sequence[tuple[str, str]], means: dict, sems: dict, totals: dict[str, dict[str, float]]
) -> bool:
    """Add the paper's Table 2 for tasks of the same name scored by accuracy; False if there are none."""
    table = published_tasks()
    table.index = pd.Index([_plain(name) for name in table["task"]])
    table = table.reindex([_plain(task) if metric == "accuracy" else "" for task, metric in tasks])
    if table["task"].isna().all():
        return False
    columns = {wording.METHOD_LABELS["full"]: ("fine_tuning", "fine_tuning_sem"),
               "variable": ("variable_fine_tuning", "variable_sem"),
               "adapters": ("adapters", "adapters_sem")}  # fmt: skip
    for label, (column, sem) in columns.items():
        name = f"Houlsby et al.: {label}"
        means[name], sems[name] = table[column].to_numpy() / 100, table[sem].to_numpy() / 100
        totals[name] = {"total_multiple": float("nan"), "trained_percent": float("nan")}
    return True


def _plain(name: str) -> str:
    """Only the letters and digits of a name: ``crowdflower_airline`` equals ``Crowdflower airline``."""
    return "".join(character for character in name.lower() if character.isalnum())
