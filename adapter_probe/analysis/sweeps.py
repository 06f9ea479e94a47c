"""Tables of sweeps from trials: scores per point over seeds, and trade-offs with trained parameters.

A *point* is a row of a table; its trials differ in the seed and in settings that the table does not tell
apart, such as the learning rate. Of those settings the ones with the best mean over seeds count, as in
Houlsby et al. 2019, among those with the most seeds and the largest share of them that did not diverge;
trials of different settings are never averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.analysis.deltas import without_noise
from adapter_probe.errors import ResultsError
from adapter_probe.metrics import sign_of, to_points
from adapter_probe.results.schema import SWEEP_COLUMNS
from adapter_probe.settings import KAIMING
from adapter_probe.wording import method_label

from .resampling import N_RESAMPLES

_SETTINGS = [
    "method", "size", "init_std", "activation", "sites", "k", "learning_rate", "epochs", "batch_size",
]  # fmt: skip
_CHOICE = ["learning_rate", "epochs"]
_SCORES = ["n", "mean", "sem", "min", "max", "diverged"]
SWEEP_POINT = ["task", "metric", "method", "size", "init_std", "init"]
TRADEOFF_POINT = ["task", "metric", "method", "size", "k"]
_PARAMETERS = ["trained_parameters", "trained_parameters_without_head", "percent_of_base"]
_INIT = r"(?<=[:,])init_lora_weights=([^,]*),?"
_DECIMALS = 12  # of a mean score; in the rest equal means can differ by rounding
PERCENTILES = (20, 50, 80)


def chosen_trials(trials: pd.DataFrame, point: Sequence[str] = TRADEOFF_POINT) -> pd.DataFrame:
    """The trials with the best settings of each point.

    Only the settings with the most seeds are candidates, so that after a search with one seed the settings
    trained with more seeds are chosen. The best candidates have the largest share of seeds with a score, so
    that one lucky seed of three does not beat three good ones. Ties are broken by the highest mean score,
    then by the lowest learning rate, then by the fewest epochs. If all trials of a point diverged, the lowest
    learning rate is chosen.

    Args:
        trials: columns of ``trials.csv``.
        point: the columns that identify points.
    """
    others = [name for name in _SETTINGS if name not in point and name not in _CHOICE]
    keys = [*point, *_CHOICE, *others]
    grouped = trials.groupby(keys, dropna=False, sort=False)
    runs = grouped["score"].agg(mean="mean", known="count", all="size").reset_index()
    runs["mean"] = runs["mean"].round(_DECIMALS)
    runs["share"] = runs["known"] / runs["all"]
    runs["rank"] = runs["mean"] * (runs["metric"].map(sign_of) if "metric" in runs else 1)
    order = ["all", "share", "rank", *_CHOICE, *others]
    upwards = [False] * 3 + [True] * (len(order) - 3)
    ranked = runs.sort_values(order, ascending=upwards, na_position="last")
    best = ranked.drop_duplicates(point).index  # runs and groups have the same numbering
    return trials[grouped.ngroup().isin(best)]


def _over_seeds(trials: pd.DataFrame, point: list[str], told: list[str]) -> pd.DataFrame:
    """n, mean, s.e.m., min, max and diverged of each point's chosen trials, and their common settings."""
    grouped = chosen_trials(trials, point).groupby(point, dropna=False, sort=True)
    frame = grouped["score"].agg(n="count", mean="mean", sem="sem", min="min", max="max")
    frame["diverged"] = grouped["diverged"].sum().astype(int)
    for name in (*_CHOICE, "majority_score", *told):
        frame[name] = grouped[name].first()
    return frame.reset_index()


def init_sweep_table(trials: pd.DataFrame) -> pd.DataFrame:
    """The table of `adapter_probe.InitSweep`, ``sweep.csv``; `sem` is NaN for one trial."""
    return _over_seeds(with_inits(trials), SWEEP_POINT, [])[[*SWEEP_COLUMNS]]


def with_inits(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials of an initialisation sweep with a column `init`, which `method` then leaves out.

    Returns:
        `method` without its initialisation; `init`, the name of PEFT's initialisation, empty where weights
        are drawn with an `init_std`.
    """
    named = trials["method"].str.extract(_INIT, expand=False)
    drawn = (trials["method"] == "adapters") | trials["init_std"].notna()
    plain = trials["method"].str.replace(_INIT, "", regex=True).str.rstrip(":,")
    return trials.assign(method=plain, init=named.fillna(KAIMING).mask(drawn, ""))


def tradeoff_table(trials: pd.DataFrame) -> pd.DataFrame:
    """The table of `adapter_probe.Tradeoff`, ``tradeoff.csv``, by task, method and parameters."""
    frame = _over_seeds(trials, TRADEOFF_POINT, [*_PARAMETERS, "init_std"])
    frame["label"] = [
        _label(row.method, row.size, row.k) for row in frame[["method", "size", "k"]].itertuples(index=False)
    ]
    return frame.sort_values(["task", "method", "trained_parameters"], ignore_index=True)[
        [*TRADEOFF_POINT, "label", *_SCORES, *_CHOICE, *_PARAMETERS, "majority_score", "init_std"]
    ]


def _label(method: str, size: Any, k: Any) -> str:
    if method == "top_layers":
        return "pooler and head" if not k else "top layer" if int(k) == 1 else f"top {int(k)} layers"
    return method_label(method) if pd.isna(size) else f"{method_label(method)} {int(size)}"


def aggregate_table(trials: pd.DataFrame, n_resamples: int = N_RESAMPLES) -> pd.DataFrame:
    """Over tasks: each method's score minus the same task's full fine-tuning, in points: ``aggregate.csv``.

    The interval is that of the interquartile mean over all tasks' trials. The trials within each task are
    resampled, including those of full fine-tuning. It covers other seeds on these tasks, not other tasks;
    with three seeds it is about a fifth too narrow, since resampling n values has (n - 1) / n of their
    variance.
    Source: Agarwal et al. 2021 (arXiv 2108.13264), section 4.

    Returns:
        Columns `method`, `size`, `k`, `label`, `n_tasks`, `trained_parameters_without_head` and
        `percent_of_base` (means over tasks), `p20_points`, `p50_points`, `p80_points` (percentiles over tasks
        of the mean difference), `iqm_points`, `iqm_low_points`, `iqm_high_points` (NaN where no task has two
        trials), `on_frontier`: no method has a better median with as few parameters. Only tasks with full
        fine-tuning count.

    Raises:
        ResultsError: no task has full fine-tuning.
    """
    chosen, generator = chosen_trials(trials), np.random.default_rng(0)
    full = _resampled(chosen[chosen["method"] == "full"], generator, n_resamples)
    if not full:
        raise ResultsError("no task has full fine-tuning, so there is no reference for the other methods")
    table, rows = tradeoff_table(trials[trials["task"].isin(full)]), []
    keys, metrics = ["method", "size", "k"], dict(zip(trials["task"], trials["metric"]))
    for (method, size, k, label), group in table.groupby([*keys, "label"], dropna=False):
        own = chosen.merge(group[["task", *keys]].drop_duplicates())
        scores = full if method == "full" else _resampled(own, generator, n_resamples)
        differences = [
            to_points(metrics[task], values - full[task].mean(axis=1, keepdims=True))
            for task, values in scores.items()
        ]
        rows.append({
            "method": method, "size": size, "k": k, "label": label, "n_tasks": len(differences),
            "trained_parameters_without_head": group["trained_parameters_without_head"].mean(),
            "percent_of_base": group["percent_of_base"].mean(), **_over_tasks(differences),
        })  # fmt: skip
    frame = pd.DataFrame(rows).astype({"size": "Int64", "k": "Int64"})
    frame["on_frontier"] = pareto_frontier(frame["trained_parameters_without_head"], frame["p50_points"])
    return frame.sort_values(["method", "trained_parameters_without_head"], ignore_index=True)


def _resampled(
    trials: pd.DataFrame, generator: np.random.Generator, n_resamples: int
) -> dict[str, np.ndarray]:
    """Each task's scores of the trials that did not diverge, ``[1 + resamples, trials]``.

    The first row are the trials themselves, the others draws from them.
    """
    drawn = {}
    for task, scores in trials.dropna(subset="score").groupby("task")["score"]:
        indices = generator.integers(0, len(scores), (1 + n_resamples, len(scores)))
        indices[0] = np.arange(len(scores))
        drawn[task] = scores.to_numpy(float)[indices]
    return drawn


def _over_tasks(differences: list[np.ndarray]) -> dict[str, float]:
    """Percentiles over tasks, and the interquartile mean over all trials with its interval, by column.

    Args:
        differences: differences of each task, ``[1 + resamples, trials]``, in points; see `_resampled`.
    """
    percentiles, iqm = np.full(len(PERCENTILES), np.nan), np.full(3, np.nan)
    if differences:
        percentiles = np.percentile([values[0].mean() for values in differences], PERCENTILES)
        means = interquartile_mean(np.concatenate(differences, axis=1))
        iqm[0] = means[0]
        if max(values.shape[1] for values in differences) > 1:
            iqm[1:] = np.quantile(means[1:], [0.025, 0.975])
    names = [*(f"p{q}_points" for q in PERCENTILES), "iqm_points", "iqm_low_points", "iqm_high_points"]
    return dict(zip(names, without_noise(np.concatenate([percentiles, iqm])).tolist()))


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Interquartile mean along the last axis: a quarter, rounded down, is cut off at either end."""
    ordered = np.sort(values, axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)


def pareto_frontier(cost: pd.Series | np.ndarray, value: pd.Series | np.ndarray) -> np.ndarray:
    """The Pareto frontier: points for which no other is at least as good at no more cost, and better in one.

    A point whose cost or value is NaN is never on it.
    """
    cost, value = np.asarray(cost, float), np.asarray(value, float)
    no_worse = (cost[None] <= cost[:, None]) & (value[None] >= value[:, None])
    better = (cost[None] < cost[:, None]) | (value[None] > value[:, None])
    return ~(no_worse & better).any(axis=1) & ~np.isnan(cost + value)


def size_table(trials: pd.DataFrame) -> pd.DataFrame:
    """Adapter sizes over tasks: ``sizes.csv``.

    Returns:
        Columns `size`, `n_tasks`, `mean_score` (mean of the tasks' means; NaN unless every task has the size,
        because means over different tasks cannot be compared), `sem` (of that mean, from the tasks' s.e.m.
        over seeds; NaN where a task has one trial), and one column a task.
    """
    adapters = tradeoff_table(trials)
    adapters = adapters[adapters["method"] == "adapters"]
    means = adapters.pivot_table(index="size", columns="task", values="mean", dropna=False)
    sems = adapters.pivot_table(index="size", columns="task", values="sem", dropna=False).reindex_like(means)
    n_tasks = means.notna().sum(axis=1)
    spread = np.sqrt((sems**2).sum(axis=1, skipna=False)) / n_tasks
    frame = pd.DataFrame({"n_tasks": n_tasks, "mean_score": means.mean(axis=1, skipna=False), "sem": spread})
    return frame.join(means).reset_index().rename_axis(columns=None)
