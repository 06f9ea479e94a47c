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

from adapter_probe.analysis.score_changes import without_noise
from adapter_probe.errors import ResultsError
from adapter_probe.metrics import sign_of, to_points
from adapter_probe.results.schema import SWEEP_COLUMNS
from adapter_probe.settings import KAIMING
from adapter_probe.startup import import_needed
from adapter_probe.wording import method_label

_SETTINGS = [
    "method", "size", "init_std", "activation", "sites", "k", "learning_rate", "epochs", "batch_size",
]  # fmt: skip
_CHOICE = ["learning_rate", "epochs"]
_SCORES = ["n", "mean", "sem", "min", "max", "diverged"]
SWEEP_POINT = ["task", "metric", "method", "size", "init_std", "init"]
TRADEOFF_POINT = ["task", "metric", "method", "size", "k"]
_PARAMETERS = ["trained_parameters", "trained_parameters_without_head", "percent_of_base"]
_INIT = r"(?<=[:,])init_lora_weights=([^,]*),?"
DECIMALS = 12  # of a mean score; in the rest equal means can differ by rounding
PERCENTILES = (20, 50, 80)
_DRAWS, _NEW = 10_000, 4  # of the means and deviations of tasks, and of scores by each


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
    runs["mean"] = runs["mean"].round(DECIMALS)
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


def aggregate_table(trials: pd.DataFrame) -> pd.DataFrame:
    """Over tasks: each method's score minus the same task's full fine-tuning, in points: ``aggregate.csv``.

    The interval is that of the interquartile mean over all tasks' trials, see `interquartile_interval`. It
    covers other seeds on these tasks, not other tasks.

    Returns:
        Columns `method`, `size`, `k`, `label`, `n_tasks`, `trained_parameters_without_head` and
        `percent_of_base` (means over tasks), `p20_points`, `p50_points`, `p80_points` (percentiles over tasks
        of the mean difference), `iqm_points`, `iqm_low_points`, `iqm_high_points` (NaN where a task has one
        trial alone), `on_frontier`: no method that has all of its tasks has a better median on them with as
        few parameters. Only tasks with full fine-tuning count.

    Raises:
        ResultsError: no task has full fine-tuning.
    """
    chosen = chosen_trials(trials)
    full = _by_task(chosen[chosen["method"] == "full"])
    if not full:
        raise ResultsError("no task has full fine-tuning, so there is no reference for the other methods")
    table, rows, means = tradeoff_table(trials[trials["task"].isin(full)]), [], []
    keys, metrics = ["method", "size", "k"], dict(zip(trials["task"], trials["metric"]))
    for (method, size, k, label), group in table.groupby([*keys, "label"], dropna=False):
        own = _by_task(chosen.merge(group[["task", *keys]].drop_duplicates()))
        signs = {task: to_points(metrics[task], np.ones(())) for task in own}
        points = [[signs[task] * scores[task] for task in own] for scores in (own, full)]
        apart = {task: scores.mean() - reference.mean() for task, scores, reference in zip(own, *points)}
        percentiles = np.percentile([*apart.values()], PERCENTILES) if apart else [np.nan] * len(PERCENTILES)
        iqm = interquartile_interval(*points) if apart else [np.nan] * 3
        names = [*(f"p{q}_points" for q in PERCENTILES), "iqm_points", "iqm_low_points", "iqm_high_points"]
        means.append(apart)
        rows.append({
            "method": method, "size": size, "k": k, "label": label, "n_tasks": len(apart),
            "trained_parameters_without_head": group["trained_parameters_without_head"].mean(),
            "percent_of_base": group["percent_of_base"].mean(),
            **dict(zip(names, without_noise(np.array([*percentiles, *iqm])).tolist())),
        })  # fmt: skip
    frame = pd.DataFrame(rows).astype({"size": "Int64", "k": "Int64"})
    frame["on_frontier"] = frontier_over_tasks(
        frame["trained_parameters_without_head"], pd.DataFrame(means, columns=list(full)).to_numpy(float)
    )
    return frame.sort_values(["method", "trained_parameters_without_head"], ignore_index=True)


def _by_task(trials: pd.DataFrame) -> dict[str, np.ndarray]:
    """Each task's scores of the trials that did not diverge."""
    return {
        task: scores.to_numpy(float)
        for task, scores in trials.dropna(subset="score").groupby("task")["score"]
    }


def frontier_over_tasks(cost: pd.Series | np.ndarray, values: np.ndarray) -> np.ndarray:
    """The points that no other beats on their own tasks: with at least as good a median at no more cost.

    Args:
        cost: ``[points]``.
        values: ``[points, tasks]``, NaN where a point lacks a task. Only points that have all tasks of
            another can beat it, so that a method which was run on the easy tasks alone beats none that was
            run on more.
    """
    found = np.zeros(len(values), dtype=bool)
    for row, own in enumerate(~np.isnan(values)):
        rivals = np.flatnonzero(~np.isnan(values[:, own]).any(axis=1))
        if own.any():
            medians = np.median(values[np.ix_(rivals, own)], axis=1)
            best = pareto_frontier(np.asarray(cost, float)[rivals], medians)
            found[row] = best[rivals == row][0]
    return found


def interquartile_interval(
    scores: Sequence[np.ndarray], reference: Sequence[np.ndarray]
) -> tuple[float, float, float]:
    """The interquartile mean over tasks and seeds of scores minus a reference, with its 95% interval.

    Which scores are cut off depends on the seeds, so that no variance of the scores that are left says how
    far other seeds would move it. So the true mean and standard deviation of every task, and the mean of its
    reference, are drawn from what normal scores say of them, by Student's t and chi-squared, and the
    interquartile mean of new scores is averaged for each draw: a generalised interval. Where nothing is cut
    off, it is Student's; by simulation it is else rather too wide than too short, however much the spreads
    of tasks differ. NaN where a task has one score or one reference; of the reference itself it has no width.
    Sources: Agarwal et al. 2021 (arXiv 2108.13264), section 4; Weerahandi 1993, Journal of the American
    Statistical Association 88.

    Args:
        scores: scores of every seed, a task each, in points.
        reference: the same of what they are compared with.
    """
    apart = [own - other.mean() for own, other in zip(scores, reference)]
    mean = float(interquartile_mean(np.concatenate(apart)))
    if all(map(np.array_equal, scores, reference)):
        return mean, mean, mean
    if any(len(own) < 2 for own in (*scores, *reference)):
        return mean, np.nan, np.nan
    generator, shape = np.random.default_rng(0), (_DRAWS, 1, 1)
    drawn = []
    for own, other, differences in zip(scores, reference, apart):
        n, m, half = len(own), len(other), generator.normal(size=(_DRAWS, _NEW // 2, len(own)))
        new = np.concatenate([half, -half], axis=1)
        if np.array_equal(own, other):
            drawn.append(np.broadcast_to(differences, new.shape))
            continue
        spread = own.std(ddof=1) * np.sqrt((n - 1) / generator.chisquare(n - 1, shape))
        centre = differences.mean() + spread * generator.normal(size=shape) / np.sqrt(n)
        centre -= other.std(ddof=1) / np.sqrt(m) * generator.standard_t(m - 1, shape)
        drawn.append(centre + spread * new)
    low, high = np.quantile(interquartile_mean(np.concatenate(drawn, axis=-1)).mean(axis=1), (0.025, 0.975))
    return mean, min(float(low), mean), max(float(high), mean)


def half_width(parts: Sequence[tuple[float, np.ndarray]]) -> float:
    """Half of the 95% interval of a weighted sum of means, by Student's t.

    Where one mean has nearly all of the variance, Satterthwaite's degrees of freedom are too many whenever
    its few values happen to lie close together, and such intervals cover as little as 90%. So of the degrees
    beyond those of the mean with the fewest a third is counted. In simulations of two to nine means at least
    94% are covered then, and 93% of means of two values.
    Source: Satterthwaite 1946, Biometrics Bulletin 2.

    Args:
        parts: weight and values of each mean.

    Returns:
        NaN where a mean is of one value.
    """
    special = import_needed("scipy.special")
    if any(len(values) < 2 for _, values in parts):
        return np.nan
    squares = np.array([weight**2 * values.var(ddof=1) / len(values) for weight, values in parts])
    degrees = np.array([len(values) - 1 for _, values in parts])
    total = squares.sum()
    if total == 0:
        return 0.0
    fewest, satterthwaite = degrees[squares > 0].min(), total**2 / (squares**2 / degrees).sum()
    return float(special.stdtrit(fewest + (satterthwaite - fewest) / 3, 0.975) * total**0.5)


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
