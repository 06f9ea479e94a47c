"""Tables in the layouts of Houlsby et al. 2019: GLUE as in Table 1, any tasks as in Table 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.analysis.method_labels import BASELINE, METHOD_LABELS
from adapter_probe.analysis.published import published_glue, published_tasks
from adapter_probe.known_tasks import KNOWN_TASKS, known_task

from .table_layouts import CHOSEN, heading, or_dash, percent, seeds
from .tables import Table, greatest, score_cell

_USUAL_SIZE = 64
_TOTALS = (
    "Total parameters: for all these tasks together, as a multiple of the base model; trained per task:"
    " percentage of the base model; both without the head."
)

Choice = Callable[[pd.DataFrame], pd.DataFrame]
"""Selects the row of a method from a task's points; no row if the task lacks it."""


def glue_table(tradeoff: pd.DataFrame, paper: bool = False) -> Table | None:
    """Methods in rows, GLUE tasks in columns, as the paper's Table 1; None with fewer than two GLUE tasks.

    The average is the mean of the columns, with weights of one half for MNLI-m and MNLI-mm if both are
    present, and is left out if a column is empty. Total parameters are those of one base plus every task's
    trained parameters, as a multiple of the base; full fine-tuning needs one base per task.

    Args:
        tradeoff: columns of ``tradeoff.csv``.
        paper: whether to add the paper's rows below.
    """
    tasks = _glue_tasks(tradeoff)
    if len(tasks) < 2:
        return None
    names = {known: heading(known, str(points["metric"].iloc[0])) for known, points in tasks.items()}
    rows = _own_rows(tradeoff, tasks, names)
    own = len(rows)
    numbers = pd.DataFrame(rows + (_published_rows(names) if paper else []))
    numbers["average"] = _average(numbers, names)
    columns = [*names.values(), "average"]
    text = pd.DataFrame({"method": numbers["method"]})
    text["total params"] = [or_dash(total, "{:.1f}×") for total in numbers["total_multiple"]]
    text["trained/task"] = [percent(share) for share in numbers["trained_percent"]]
    for name in columns:
        text[name] = [score_cell(score) for score in numbers[name]]
    best = np.zeros(text.shape, bool)  # test-server scores are not compared with validation scores
    best[:own, 3:] = greatest(numbers.loc[: own - 1, columns])
    sizes = [f"{names[known]} {size}" for known, size in _best_sizes(tasks).items()]
    caption = _glue_caption({"mnli", "mnli-mm"} <= names.keys(), sizes, paper)
    return Table("table-glue", caption, text, numbers, best, rules=(own,) if paper else ())


def _own_rows(
    tradeoff: pd.DataFrame, tasks: Mapping[str, pd.DataFrame], names: Mapping[str, str]
) -> list[dict[str, object]]:
    rows = []
    for label, choose in _choices(tradeoff):
        picked = {known: choose(points) for known, points in tasks.items()}
        if any(len(row) for row in picked.values()):
            scores = {names[known]: _value(row, "mean") for known, row in picked.items()}
            rows.append({"method": label, **_totals(list(picked.values())), **scores})
    return rows


def _best_sizes(tasks: Mapping[Any, pd.DataFrame]) -> dict[Any, int]:
    """The adapter size with the best mean, by task; empty if the trade-off has only one size."""
    adapters = {task: points[points["method"] == "adapters"] for task, points in tasks.items()}
    if len({size for points in adapters.values() for size in points["size"]}) < 2:
        return {}
    best = {task: _best(points) for task, points in adapters.items()}
    return {task: int(row["size"].iloc[0]) for task, row in best.items() if len(row)}


def _glue_caption(both_halves: bool, sizes: Sequence[str], paper: bool) -> str:
    halves = ", with half weight for MNLI-m and MNLI-mm" if both_halves else ""
    theirs = " Rows of Houlsby et al. (2019): GLUE test server, BERT-large." if paper else ""
    best = f" Best adapter size: {', '.join(sizes)}." if sizes else ""
    return (
        f"GLUE, scores × 100, mean over seeds. Average: mean of the columns{halves}. {_TOTALS}"
        f"{best} {CHOSEN}{theirs}"
    )


def tasks_table(tradeoff: pd.DataFrame, paper: bool = False) -> Table:
    """Tasks in rows, methods in columns with their s.e.m., as in the paper's Table 2; best per row in bold.

    Args:
        tradeoff: columns of ``tradeoff.csv``.
        paper: whether to add the paper's columns, for tasks of the same name.
    """
    by_task = dict(iter(tradeoff.groupby(["task", "metric"], sort=False)))
    tasks, choices = list(by_task), _choices(tradeoff)
    means, sems, totals = {}, {}, {}
    for label, choose in choices:
        picked = [choose(by_task[task]) for task in tasks]
        means[label] = [_value(row, "mean") for row in picked]
        sems[label] = [_value(row, "sem") for row in picked]
        totals[label] = _totals(picked)
    beside = paper and _add_published_tasks(tasks, means, sems, totals)
    scores, spread = pd.DataFrame(means), pd.DataFrame(sems)
    text = pd.DataFrame({"task": [heading(task, metric) for task, metric in tasks]})
    numbers = pd.DataFrame(tasks, columns=["task", "metric"])
    for label in scores:
        text[label] = [score_cell(*pair) for pair in zip(scores[label], spread[label])]
        numbers[label], numbers[f"{label} sem"] = scores[label], spread[label]
    if sizes := _best_sizes(by_task):
        numbers["best size"] = [sizes.get(task) for task in tasks]
        text["best size"] = [str(sizes.get(task, "–")) for task in tasks]
    text = pd.concat([text, _foot(scores, totals)], ignore_index=True).fillna("")
    best = np.zeros(text.shape, bool)
    best[: len(tasks), 1 : 1 + len(choices)] = greatest(scores.iloc[:, : len(choices)], axis=1)
    theirs = " Columns of Houlsby et al. (2019): test accuracy, BERT-base." if beside else ""
    caption = (
        f"Scores × 100, mean ± s.e.m. over seeds ({seeds(tradeoff)}). Average: mean of the rows. {_TOTALS}"
        f"{' Best size: adapter size with the best mean score.' if sizes else ''}"
        f" {CHOSEN}{theirs}"
    )
    return Table("table-tasks", caption, text, numbers, best, rules=(len(tasks),))


def _foot(scores: pd.DataFrame, totals: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """The rows below the tasks: average and numbers of parameters."""
    rows = {
        "average": [score_cell(scores[label].mean(skipna=False)) for label in scores],
        "total parameters": [or_dash(totals[label]["total_multiple"], "{:.1f}×") for label in scores],
        "trained per task": [percent(totals[label]["trained_percent"]) for label in scores],
    }
    return pd.DataFrame([dict(zip(["task", *scores], [name, *cells])) for name, cells in rows.items()])


def _choices(tradeoff: pd.DataFrame) -> list[tuple[str, Choice]]:
    """The methods in the columns of Table 2 and rows of Table 1, as far as the trade-off has them."""
    sizes = sorted(tradeoff.loc[tradeoff["method"] == "adapters", "size"].dropna().astype(int).unique())
    usual = min(sizes, key=lambda size: abs(np.log2(size / _USUAL_SIZE)), default=None)
    found: list[tuple[str, str, Choice]] = [("full", METHOD_LABELS["full"], lambda p: p)]
    found.append(("top_layers", "best top layers", _best))
    if len(sizes) > 1:
        found.append(("adapters", f"adapters, best of {sizes[0]}–{sizes[-1]}", _best))
    if usual is not None:
        found.append(("adapters", f"adapters {usual}", lambda p: p[p["size"] == usual]))
    found += [(name, METHOD_LABELS[name], lambda p: p) for name in ("layernorm_only", "head_only", BASELINE)]

    def of_method(method: str, choose: Choice) -> Choice:
        return lambda points: choose(points[points["method"] == method])

    present = set(tradeoff["method"])
    return [(label, of_method(method, choose)) for method, label, choose in found if method in present]


def _best(points: pd.DataFrame) -> pd.DataFrame:
    """The row with the largest mean; among equals, the one with the fewest parameters."""
    known = points[points["mean"].notna()]
    return known.sort_values(["mean", "trained_parameters"], ascending=[False, True]).head(1)


def _value(row: pd.DataFrame, column: str) -> float:
    return float(row[column].iloc[0]) if len(row) else float("nan")


def _totals(picked: Sequence[pd.DataFrame]) -> dict[str, float]:
    """Parameters over tasks: total as a multiple of the base, and percentage of the base per task."""
    if not all(len(row) for row in picked):
        return {"total_multiple": float("nan"), "trained_percent": float("nan")}
    shares = np.array([_value(row, "percent_of_base") for row in picked])  # NaN without a base
    whole = all(row["method"].iloc[0] == "full" for row in picked)
    return {"total_multiple": shares.sum() / 100 + (not whole), "trained_percent": shares.mean()}


def _glue_tasks(tradeoff: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Points of each GLUE task in the paper's order, for the metric that GLUE reports."""
    found = {}
    for known, fixed in KNOWN_TASKS.items():
        points = tradeoff[[fixed.in_glue and known_task(task) is fixed for task in tradeoff["task"]]]
        if len(points):
            wanted = fixed.table_metrics[0]
            metric = wanted if (points["metric"] == wanted).any() else points["metric"].iloc[0]
            first = points["task"].iloc[0]
            found[known] = points[(points["metric"] == metric) & (points["task"] == first)]
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
            same = name == heading(known, KNOWN_TASKS[known].table_metrics[0])
            scores[name] = row[known] / 100 if same else float("nan")
        shares = {"total_multiple": row["total_multiple"], "trained_percent": row["trained_percent"]}
        rows.append({"method": f"Houlsby et al.: {row['method']}", **shares, **scores})
    return rows


def _add_published_tasks(
    tasks: Sequence[tuple[str, str]], means: dict, sems: dict, totals: dict[str, dict[str, float]]
) -> bool:
    """Add the paper's Table 2 for tasks of the same name scored by accuracy; False if there are none."""
    table = published_tasks()
    table.index = [_plain(name) for name in table["task"]]
    if not any(_plain(task) in table.index and metric == "accuracy" for task, metric in tasks):
        return False
    columns = {METHOD_LABELS["full"]: ("fine_tuning", "fine_tuning_sem"),
               "variable": ("variable_fine_tuning", "variable_sem"),
               "adapters": ("adapters", "adapters_sem")}  # fmt: skip
    for label, (column, sem) in columns.items():
        name = f"Houlsby et al.: {label}"
        rows = [
            table.loc[_plain(t)] if _plain(t) in table.index and m == "accuracy" else None for t, m in tasks
        ]
        means[name] = [float("nan") if row is None else row[column] / 100 for row in rows]
        sems[name] = [float("nan") if row is None else row[sem] / 100 for row in rows]
        totals[name] = {"total_multiple": float("nan"), "trained_percent": float("nan")}
    return True


def _plain(name: str) -> str:
    """Only the letters and digits of a name: ``crowdflower_airline`` equals ``Crowdflower airline``."""
    return "".join(character for character in name.lower() if character.isalnum())
