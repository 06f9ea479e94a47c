"""What points of a trade-off cost besides parameters, and the Pareto frontier with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from adapter_probe.errors import ResultsError
from adapter_probe.metrics import sign_of
from adapter_probe.settings import Axis
from adapter_probe.wording import BASELINE

from .study_records import TradeoffRecord
from .sweeps import TRADEOFF_POINT, chosen_trials, pareto_frontier, tradeoff_table

COLUMNS: dict[Axis, str] = {
    "parameters": "trained_parameters",
    "memory": "peak_memory_bytes",
    "seconds": "seconds_per_step",
    "bytes": "checkpoint_bytes",
}
N_RESAMPLES = 2_000
_METHOD = ["method", "size", "k"]
_DECIMALS = 12  # of a mean score; in the rest equal means can differ by rounding


def chosen_costs(record: TradeoffRecord, x: Axis) -> pd.DataFrame:
    """The trials that count, see `chosen_trials`, with what each cost.

    Args:
        x: which cost.

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
    """The table and the chosen trials of a trade-off, with a cost in place of the number of parameters.

    Args:
        x: the cost, see `chosen_costs`.
    """
    trials, table = chosen_costs(record, x), record.tradeoff
    mean = trials.groupby(TRADEOFF_POINT, dropna=False)["cost"].mean().reset_index()
    table = table.merge(mean, how="left", on=TRADEOFF_POINT)
    found = [one.assign(trained_parameters=one["cost"] / unit) for one in (table, trials)]
    return found[0].drop(columns="cost"), found[1].drop(columns="cost")


def pareto_table(record: TradeoffRecord, x: Axis, n_resamples: int = N_RESAMPLES) -> pd.DataFrame:
    """Mean score over tasks against a cost, with intervals by the bootstrap over seeds and tasks.

    A resample draws tasks, and within each of them trials of every method. The interval of one task alone is
    over its seeds only; that of one seed a task over tasks only. With three seeds it is about a fifth too
    narrow, see `aggregate_table`.

    Args:
        record: the trade-off; only methods that every task has are compared.
        x: the cost, see `chosen_costs`.

    Returns:
        one row per method, by cost: `method`, `size`, `k`, `label`; `cost`, the mean over tasks; `mean`, the
        mean of the tasks' mean scores, a fraction; `ci_low` and `ci_high`, its 95% interval, NaN where
        nothing can be drawn; `on_frontier`, whether no method is at least as good at no more cost;
        `frontier_share`, the share of resamples in which that is so; `n_tasks`, `n_trials`.

    Raises:
        ResultsError: see `chosen_costs`; or no method has a score on every task.
    """
    trials = chosen_costs(record, x)
    trials = trials[(trials["method"] != BASELINE) & trials["score"].notna() & trials["cost"].notna()]
    tasks = list(dict.fromkeys(record.tradeoff["task"]))
    groups = [
        (key, [own[own["task"] == task] for task in tasks])
        for key, own in trials.groupby(_METHOD, dropna=False)
        if own["task"].nunique() == len(tasks)
    ]
    if not groups:
        raise ResultsError(f"{record.folder}: no method has a score on each of {', '.join(tasks)}")
    costs = np.array([np.mean([one["cost"].mean() for one in parts]) for _, parts in groups])
    means = np.array([np.mean([one["score"].mean() for one in parts]) for _, parts in groups])
    means = means.round(_DECIMALS)
    drawn = _resampled([[one["score"].to_numpy(float) for one in parts] for _, parts in groups], n_resamples)
    signs = {sign_of(metric) for metric in record.tradeoff["metric"]}
    if len(signs) > 1:
        raise ResultsError(
            f"{record.folder}: the tasks' scores are losses and others of which more is better, so they have "
            "no common mean"
        )
    (sign,) = signs
    shares = np.mean([pareto_frontier(costs, sign * row) for row in drawn], axis=0)
    counts = [sum(map(len, parts)) for _, parts in groups]
    known = np.array([len(tasks) > 1 or n > 1 for n in counts])
    low, high = np.where(known, np.quantile(drawn, [0.025, 0.975], axis=0), np.nan)
    frame = pd.DataFrame([key for key, _ in groups], columns=_METHOD)
    frame = frame.assign(
        cost=costs, mean=means, ci_low=low, ci_high=high, on_frontier=pareto_frontier(costs, sign * means),
        frontier_share=shares, n_tasks=len(tasks), n_trials=counts,
    )  # fmt: skip
    labels = tradeoff_table(trials)[[*_METHOD, "label"]].drop_duplicates()
    frame = frame.astype({"size": "Int64", "k": "Int64"}).merge(labels, how="left", on=_METHOD)
    first = [*_METHOD, "label"]
    return frame[[*first, *(name for name in frame if name not in first)]].sort_values(
        ["cost", "method"], ignore_index=True
    )


def _resampled(scores: Sequence[Sequence[np.ndarray]], n_resamples: int) -> np.ndarray:
    """Means over drawn tasks and trials, ``[resamples, methods]``; scores by method and task.

    The drawn tasks are the same for every method, whose trials are drawn by themselves.
    """
    generator = np.random.default_rng(0)
    n_tasks = len(scores[0])
    tasks = generator.integers(0, n_tasks, (n_resamples, n_tasks))
    out = np.empty((n_resamples, len(scores)))
    for column, own in enumerate(scores):
        # [resamples, places, tasks]: the mean of drawn trials, were the task drawn at this place
        means = np.stack(
            [one[generator.integers(0, len(one), (n_resamples, n_tasks, len(one)))].mean(-1) for one in own],
            axis=-1,
        )
        out[:, column] = np.take_along_axis(means, tasks[..., None], axis=-1)[..., 0].mean(axis=1)
    return out.round(_DECIMALS)
