"""What points of a trade-off cost, the Pareto frontier with its uncertainty, and what others measured.

Results of other people that are drawn beside a trade-off are a table, or files of PEFT's method comparison:
https://github.com/huggingface/peft/tree/main/method_comparison writes one JSON file per experiment.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.errors import ResultsError, one_line, shown
from adapter_probe.metrics import about, sign_of
from adapter_probe.results.schema import read_columns
from adapter_probe.settings import Axis
from adapter_probe.wording import task_label

from .study_records import TradeoffRecord
from .sweeps import DECIMALS, TRADEOFF_POINT, chosen_trials, half_width, pareto_frontier, tradeoff_table

COLUMNS: dict[Axis, str] = {
    "parameters": "trained_parameters_without_head",
    "memory": "peak_memory_bytes",
    "seconds": "seconds_per_step",
    "bytes": "checkpoint_bytes",
}
_METHOD = ["method", "size", "k"]
_REQUIRED = {"method": "text", "parameters": "number", "score": "number", "task": "text"}
_MEASURED = ("peak_memory_bytes", "seconds_per_step", "checkpoint_bytes")
_OPTIONAL = {"size": "count", "seed": "count", **dict.fromkeys(_MEASURED, "number")}
_KEYS = ["source", "task", "method", "size"]
_SIZES = ("r", "rank", "num_virtual_tokens", "n_frequency")


def chosen_costs(record: TradeoffRecord, x: Axis) -> pd.DataFrame:
    """The trials that count, see `chosen_trials`, with what each cost.

    Returns:
        columns of ``trials.csv`` and `cost`: a number of parameters, bytes of memory, seconds per step, or
        bytes of the checkpoint; NaN where a trial did not record it.

    Raises:
        ResultsError: the folder has no trials, or its trials recorded no costs of this kind.
    """
    if record.trials is None:
        raise ResultsError(f"{record.folder} has no trials.csv, so what single trials cost is unknown")
    trials, column = chosen_trials(record.trials), COLUMNS[x]
    if x != "parameters":
        if record.costs is None or record.costs[column].isna().all():
            raise ResultsError(f"{record.folder}: no trial recorded {column}")
        trials = trials.merge(record.costs[["trial", column]], how="left", on="trial")
    return trials.assign(cost=trials[column].astype(float))


def with_costs(record: TradeoffRecord, x: Axis, unit: float = 1.0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table and the chosen trials of a trade-off, with a cost in place of the number of parameters."""
    trials, table = chosen_costs(record, x), record.tradeoff
    mean = trials.groupby(TRADEOFF_POINT, dropna=False)["cost"].mean().reset_index()
    table = table.merge(mean, how="left", on=TRADEOFF_POINT)
    found = [one.assign(trained_parameters=one["cost"] / unit) for one in (table, trials)]
    return found[0].drop(columns="cost"), found[1].drop(columns="cost")


def pareto_table(record: TradeoffRecord, x: Axis) -> pd.DataFrame:
    """Mean score over tasks against a cost, with intervals over seeds on these tasks, see `mean_over_tasks`.

    Arguments, columns and errors are those of `adapter_probe.Tradeoff.pareto`.
    """
    trials = chosen_costs(record, x)
    trials = trials[trials["score"].notna() & trials["cost"].notna()]
    tasks = list(dict.fromkeys(record.tradeoff["task"]))
    groups = [
        (key, [own[own["task"] == task] for task in tasks])
        for key, own in trials.groupby(_METHOD, dropna=False)
        if own["task"].nunique() == len(tasks)
    ]
    if not groups:
        raise ResultsError(f"{record.folder}: no method has a score on each of {', '.join(tasks)}")
    costs = np.array([np.mean([one["cost"].mean() for one in parts]) for _, parts in groups])
    scores = [[one["score"].to_numpy(float) for one in parts] for _, parts in groups]
    means, low, high = np.array([mean_over_tasks(own) for own in scores]).round(DECIMALS).T
    signs = {sign_of(metric) for metric in record.tradeoff["metric"]}
    if len(signs) > 1:
        raise ResultsError(
            f"{record.folder}: the tasks' scores are losses and others of which more is better, so they have "
            "no common mean"
        )
    (sign,) = signs
    counts = [sum(map(len, own)) for own in scores]
    frame = pd.DataFrame([key for key, _ in groups], columns=_METHOD)
    frame = frame.assign(
        cost=costs, mean=means, ci_low=low, ci_high=high, on_frontier=pareto_frontier(costs, sign * means),
        n_tasks=len(tasks), n_trials=counts,
    )  # fmt: skip
    labels = tradeoff_table(trials)[[*_METHOD, "label"]].drop_duplicates()
    frame = frame.astype({"size": "Int64", "k": "Int64"}).merge(labels, how="left", on=_METHOD)
    first = [*_METHOD, "label"]
    return frame[[*first, *(name for name in frame if name not in first)]].sort_values(
        ["cost", "method"], ignore_index=True
    )


def mean_over_tasks(scores: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """The mean over tasks of means over seeds, with its 95% interval over other seeds on these tasks.

    See `half_width`; NaN where a task has one seed. `scores` are those of every seed, a task each.
    """
    mean = float(np.mean([own.mean() for own in scores]))
    reach = half_width([(1 / len(scores), own) for own in scores])
    return mean, mean - reach, mean + reach


def read_overlay(paths: Iterable[str | Path]) -> pd.DataFrame:
    """The results in some files.

    Args:
        paths: CSV files with the columns `method`, `parameters` (those that are trained, without the
            head, as on the axis), `score` (in the metric's own units: a share as a fraction) and `task`,
            perhaps also `size`, `seed`, `peak_memory_bytes`, `seconds_per_step` and `checkpoint_bytes`; JSON
            files of PEFT's method comparison; or folders of such JSON files.

    Returns:
        one row per source, task (empty where the file names none), method and size: `mean`, `sem` and `n`
        over seeds, and means of the costs.

    Raises:
        ResultsError: a file cannot be read, lacks a column, or is none of these.
    """
    tables: list[pd.DataFrame] = []
    given: dict[str, Path] = {}  # by what a figure calls it
    for path in map(Path, paths):
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not files:
            raise ResultsError(f"--overlay {path}: the folder contains no *.json of PEFT's method comparison")
        if path.is_file() and path.suffix.lower() != ".json":
            tables.append(read_columns(path, _REQUIRED, _OPTIONAL).assign(source=path.stem))
            given[path.stem] = path
            continue
        found = [row for file in files if (row := _experiment(file)) is not None]
        if not found:
            raise ResultsError(f"--overlay {path}: no experiment in it has ended with a test accuracy")
        tables.append(pd.DataFrame(found))
    if not tables:
        return pd.DataFrame()
    every = pd.concat(tables, ignore_index=True)
    every = every.reindex(columns=list(dict.fromkeys([*_KEYS, *_REQUIRED, *_OPTIONAL])))
    every["size"] = every["size"].astype("Float64").astype("Int64")
    if (bad := every["parameters"].isna() | (every["parameters"] <= 0) | every["score"].isna()).any():
        row = every[bad].iloc[0]
        raise ResultsError(
            f"--overlay {given.get(row['source'], row['source'])}: {row['method']} has {row['parameters']} "
            f"parameters and the score {row['score']}; both must be known, and parameters positive"
        )
    grouped = every.groupby(_KEYS, dropna=False, sort=False)
    frame = grouped["score"].agg(mean="mean", sem="sem", n="size")
    for name in ("parameters", *_MEASURED):
        frame[name] = grouped[name].mean()
    frame.attrs["given"] = given
    return frame.reset_index()


def _experiment(path: Path) -> dict[str, Any] | None:
    """One experiment of PEFT's method comparison; None if it failed.

    Raises:
        ResultsError: it is none.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        run, trained = document["run_info"], document["train_info"]
        config, settings = run["peft_config"] or {}, run["train_config"]
        data = ", ".join(document["meta_info"]["dataset_info"])
        scores = [one["test accuracy"] for one in trained["metrics"] if "test accuracy" in one]
        if trained["status"] != "success" or not scores:
            return None
        kind = str(config.get("peft_type") or "full").lower()
        name = "dora" if config.get("use_dora") else "rslora" if config.get("use_rslora") else kind
        memory = trained.get("accelerator_memory_max", trained.get("cuda_memory_max"))
        return {
            "source": f"PEFT's method comparison ({settings['model_id']}, {data})",
            "task": "",
            "method": name,
            "size": next((config[one] for one in _SIZES if config.get(one)), None),
            "score": _number(scores[-1]),
            "parameters": _number(trained["num_trainable_params"]),
            "peak_memory_bytes": _number(memory),
            "seconds_per_step": _number(trained["train_time"]) / _number(settings["max_steps"]),
            "checkpoint_bytes": _number(trained["file_size"]),
        }
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"--overlay {path}: cannot be read as JSON ({one_line(error)})") from error
    except (LookupError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ResultsError(
            f"--overlay {path}: is not a result of PEFT's method comparison ({one_line(error)})"
        ) from error


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{shown(value)} is not a number")
    return float(value)


def beside(overlay: pd.DataFrame | None, tasks: Mapping[str, str], x: Axis) -> dict[str, pd.DataFrame]:
    """The results of other people for each task of a study, with a cost as `trained_parameters`.

    Raises:
        ResultsError: there is none for these tasks with this cost, or a score is not in the metric's units.
    """
    if overlay is None or overlay.empty:
        return {}
    if len(tasks) > 1 and (overlay["task"] == "").any():
        source = overlay.loc[overlay["task"] == "", "source"].iloc[0]
        raise ResultsError(
            f"--overlay: {source} names no task of the study; give a CSV with the column task for "
            f"{', '.join(tasks)}"
        )
    column, found = "parameters" if x == "parameters" else COLUMNS[x], {}
    given = overlay.attrs.get("given", {})
    for task, metric in tasks.items():
        names = {task.casefold(), task_label(task).casefold(), ""}
        own = overlay[overlay["task"].str.casefold().isin(names) & overlay[column].notna()]
        if about(metric).unit is None and (bad := own["mean"].abs() > 1).any():
            row = own[bad].iloc[0]
            raise ResultsError(
                f"--overlay {given.get(row['source'], row['source'])}: the score of {row['method']} on "
                f"{task} must be a fraction, such as 0.83, not {row['mean']:g}"
            )
        if len(own):
            found[task] = own.assign(trained_parameters=own[column], metric=metric)
    if not found:
        names = ", ".join(dict.fromkeys(map(str, overlay["task"])))
        raise ResultsError(
            f"--overlay has no result with {column} for {', '.join(tasks)}; its tasks are "
            f"{names or 'not named'}"
        )
    return found
