"""From trials to curves: what each point scored over its seeds, and what a budget of parameters buys.

A *point* is a method with its settings on one task; its trials differ in learning rate, epochs and seed. Of
the learning rates and numbers of epochs the one with the best mean over seeds counts, as in Houlsby et al.
2019.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from adapter_probe.errors import ResultsError

_CHOICE = ["learning_rate", "epochs"]
_SCORES = ["n", "mean", "sem", "min", "max", "diverged"]
_POINT = ["task", "metric", "method", "size", "init_std", "k"]
PERCENTILES = (20, 50, 80)
N_RESAMPLES = 10_000


def chosen_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials of each point's best learning rate and number of epochs.

    Best is the highest mean score of the trials that did not diverge; of equals the choice with fewer
    divergences, then the lower rate, then fewer epochs. Where all diverged, the lowest rate stands for it.

    Args:
        trials: columns of ``trials.csv``.
    """
    kept = []
    for _, point in trials.groupby(_POINT, dropna=False, sort=False):
        runs = point.groupby(_CHOICE)["score"].agg(["mean", "count", "size"]).reset_index()
        runs["diverged"] = runs["size"] - runs["count"]
        best = runs.sort_values(
            ["mean", "diverged", *_CHOICE], ascending=[False, True, True, True], na_position="last"
        ).iloc[0]
        kept.append(
            point[(point["learning_rate"] == best["learning_rate"]) & (point["epochs"] == best["epochs"])]
        )
    return pd.concat(kept) if kept else trials


def _over_seeds(trials: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """n, mean, s.e.m., min, max and diverged of each group's chosen trials, with its choice at the end."""
    chosen = chosen_trials(trials)
    grouped = chosen.groupby(keys, dropna=False, sort=True)
    frame = grouped["score"].agg(n="count", mean="mean", sem="sem", min="min", max="max")
    frame["diverged"] = grouped["diverged"].sum().astype(int)
    for name in (*_CHOICE, "majority_score"):
        frame[name] = grouped[name].first()
    return frame.reset_index()


def init_sweep_table(trials: pd.DataFrame) -> pd.DataFrame:
    """One row a task and initialisation std: ``sweep.csv``.

    Returns:
        Columns `task`, `metric`, `init_std`, `n`, `mean`, `sem` (NaN for one trial), `min`, `max`,
        `diverged`, `majority_score`, `learning_rate`, `epochs`. `n` counts the trials that did not diverge.
    """
    adapters = trials[trials["method"] == "adapters"]
    frame = _over_seeds(adapters, ["task", "metric", "init_std"])
    return frame[["task", "metric", "init_std", *_SCORES, "majority_score", *_CHOICE]]


def tradeoff_table(trials: pd.DataFrame) -> pd.DataFrame:
    """One row a task and method: ``tradeoff.csv``, by task, method and parameters.

    Returns:
        Columns `task`, `metric`, `method`, `size`, `k`, `label`, `n`, `mean`, `sem`, `min`, `max`,
        `diverged`, `learning_rate`, `epochs`, `trained_parameters`, `trained_parameters_without_head`,
        `percent_of_base`, `majority_score`.
    """
    keys = ["task", "metric", "method", "size", "k", "trained_parameters", "trained_parameters_without_head",
            "percent_of_base"]  # fmt: skip
    frame = _over_seeds(trials, keys)
    frame["label"] = [
        _label(row.method, row.size, row.k) for row in frame[["method", "size", "k"]].itertuples(index=False)
    ]
    return frame.sort_values(["task", "method", "trained_parameters"], ignore_index=True)[
        ["task", "metric", "method", "size", "k", "label", *_SCORES, *_CHOICE,
         "trained_parameters", "trained_parameters_without_head", "percent_of_base", "majority_score"]
    ]  # fmt: skip


def _label(method: str, size: object, k: object) -> str:
    if method == "adapters":
        return f"adapters {int(size)}"
    if method == "top_layers":
        return "pooler and head" if not k else "top layer" if int(k) == 1 else f"top {int(k)} layers"
    return {"layernorm_only": "LayerNorm only", "head_only": "head only", "full": "full fine-tuning"}[method]


def aggregate_table(trials: pd.DataFrame, seed: int = 0, n_resamples: int = N_RESAMPLES) -> pd.DataFrame:
    """Over tasks: each method's score minus the same task's full fine-tuning, in points: ``aggregate.csv``.

    The interval is of the interquartile mean over all tasks' trials, by resampling trials within each task.
    Source: Agarwal et al. 2021 (arXiv 2108.13264), section 4.

    Returns:
        Columns `method`, `size`, `k`, `label`, `n_tasks`, `trained_parameters_without_head` and
        `percent_of_base` (means over tasks), `p20_points`, `p50_points`, `p80_points` (percentiles over tasks
        of the mean difference), `iqm_points`, `iqm_low_points`, `iqm_high_points`, `on_frontier`: no method
        has a better median with as few parameters. Only tasks with full fine-tuning count.

    Raises:
        ResultsError: no task has full fine-tuning.
    """
    table, chosen = tradeoff_table(trials), chosen_trials(trials)
    reference = table[table["method"] == "full"].set_index("task")["mean"].dropna()
    table, chosen = (frame[frame["task"].isin(reference.index)] for frame in (table, chosen))
    generator, rows = np.random.default_rng(seed), []
    for (method, size, k, label), group in table.groupby(["method", "size", "k", "label"], dropna=False):
        same = (chosen["method"] == method) & _equal(chosen["size"], size) & _equal(chosen["k"], k)
        strata = [
            100 * (scores.to_numpy(float) - reference[task])
            for task, scores in chosen[same & chosen["score"].notna()].groupby("task")["score"]
        ]
        means = np.array([stratum.mean() for stratum in strata])
        p = np.percentile(means, PERCENTILES) if len(means) else np.full(3, np.nan)
        rows.append({
            "method": method, "size": size, "k": k, "label": label, "n_tasks": len(strata),
            "trained_parameters_without_head": group["trained_parameters_without_head"].mean(),
            "percent_of_base": group["percent_of_base"].mean(),
            **{f"p{q}_points": value for q, value in zip(PERCENTILES, p)},
            **dict(zip(("iqm_points", "iqm_low_points", "iqm_high_points"),
                       _iqm_interval(strata, generator, n_resamples))),
        })  # fmt: skip
    frame = pd.DataFrame(rows)
    if frame.empty:
        raise ResultsError("no task has full fine-tuning, so there is nothing to compare the methods with")
    frame["on_frontier"] = pareto_frontier(frame["trained_parameters_without_head"], frame["p50_points"])
    return frame.sort_values(["method", "trained_parameters_without_head"], ignore_index=True)


def _equal(column: pd.Series, value: object) -> pd.Series:
    return column.isna() if pd.isna(value) else (column == value).fillna(False).astype(bool)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the middle half along the last axis: a fourth, rounded down, is cut off at either end."""
    ordered = np.sort(values, axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)


def _iqm_interval(
    strata: list[np.ndarray], generator: np.random.Generator, n_resamples: int
) -> tuple[float, float, float]:
    """Interquartile mean of all values, and its 95 % interval by resampling within each stratum."""
    if not strata:
        return np.nan, np.nan, np.nan
    drawn = [s[generator.integers(0, len(s), (n_resamples, len(s)))] for s in strata]
    low, high = np.quantile(interquartile_mean(np.concatenate(drawn, axis=1)), [0.025, 0.975])
    return float(interquartile_mean(np.concatenate(strata))), float(low), float(high)


def pareto_frontier(cost: pd.Series | np.ndarray, value: pd.Series | np.ndarray) -> np.ndarray:
    """Which points no other beats: none is at least as good at no more cost, and better in one of both.

    A point whose value is NaN is never on it.
    """
    cost, value = np.asarray(cost, float), np.asarray(value, float)
    no_worse = (cost[None] <= cost[:, None]) & (value[None] >= value[:, None])
    better = (cost[None] < cost[:, None]) | (value[None] > value[:, None])
    return ~(no_worse & better).any(axis=1) & ~np.isnan(value)


def size_table(trials: pd.DataFrame) -> pd.DataFrame:
    """Adapter sizes over tasks: ``sizes.csv``.

    Returns:
        Columns `size`, `n_tasks`, `mean_score` (mean of the tasks' means), `sem` (of that mean, from the
        tasks' s.e.m. over seeds; NaN where a task has one trial), and one column a task.
    """
    adapters = tradeoff_table(trials)
    adapters = adapters[adapters["method"] == "adapters"]
    means = adapters.pivot_table(index="size", columns="task", values="mean", dropna=False)
    sems = adapters.pivot_table(index="size", columns="task", values="sem", dropna=False).reindex_like(means)
    n_tasks = means.notna().sum(axis=1)
    spread = np.sqrt((sems**2).sum(axis=1, skipna=False)) / n_tasks
    frame = pd.DataFrame({"n_tasks": n_tasks, "mean_score": means.mean(axis=1), "sem": spread})
    return frame.join(means).reset_index().rename_axis(columns=None)


def expected_maximum(scores: np.ndarray, n: np.ndarray | int) -> np.ndarray:
    """Expected best score of `n` trials drawn with replacement from those that were run.

    Source: Dodge et al. 2019 (arXiv 1909.03004), equation 1: sum of v (P(V <= v)^n - P(V < v)^n).

    Args:
        scores: ``[trials]``; NaN (diverged) never is the best while a trial is defined.
        n: how many trials, one number or several.
    """
    ordered = np.sort(np.asarray(scores, float)[~np.isnan(scores)])
    upto = np.arange(len(ordered) + 1) / max(1, len(ordered))
    powers = upto[None] ** np.atleast_1d(n)[:, None]  # [n, trials + 1]
    return np.squeeze(np.diff(powers, axis=1) @ ordered) if len(ordered) else np.full(np.shape(n), np.nan)


def total_parameters(base: int, per_task: int, n_tasks: int) -> float:
    """Parameters to serve `n_tasks` tasks, in multiples of the base's.

    Args:
        base: of the pretrained model.
        per_task: that each task adds (adapters) or changes (fine-tuning).
        n_tasks: tasks. Where a task changes all of the base, nothing is shared.
    """
    shared = 0 if per_task >= base else base
    return (shared + n_tasks * per_task) / base
