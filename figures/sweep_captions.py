"""The captions of sweeps and trade-offs: what is drawn, of how many runs, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from adapter_probe.analysis.method_labels import BASELINE

from .captions import SOURCE, undefined_text
from .curves import ScoreSeries, far_below, has_dots
from .wording import bare_score, common_value, count_text, metric_name, range_text, task_label

_MEANS = "Marks show means over seeds, bars their standard errors (no bar for a single run)"
_ARROWS = "Hollow marks with an arrow lie below the range of the axis; their values are printed next to them."


def init_sweep_caption(series: Sequence[ScoreSeries]) -> str:
    """Caption of the score against the standard deviation of the initialisation."""
    metric = common_value(one.metric for one in series)
    parts = [
        f"Validation {metric_name(metric)} against the standard deviation σ of the adapters' initialisation"
        " (normal distribution truncated at two σ).",
        f"{_MEANS}.",
    ]
    for one in series:
        known = np.isfinite(one.majority)
        majority = f", majority class {bare_score(one.majority, one.metric)}" if known else ""
        parts.append(f"{one.name}: {_runs(one.points, [one.trials])}{majority}.")
    parts += _dots(series)
    lost = int(sum(one.points["diverged"].sum() for one in series))
    if lost:
        parts.append(_diverged(lost))
    if any(np.isfinite(one.majority) for one in series):
        parts.append("Dotted line: the majority class.")
    if any(one.published is not None for one in series):
        parts.append(f"Thin line with hollow marks: {SOURCE}, Fig. 6, BERT-base.")
    missing = int(sum(one.points["mean"].isna().sum() for one in series))
    return " ".join([*parts, undefined_text(missing, "Means left out")])


def _runs(points: pd.DataFrame, tables: Iterable[pd.DataFrame | None]) -> str:
    """How many seeds a point has, which ones, and their settings."""
    counted = range_text((points["n"] + points["diverged"]).astype(int).tolist(), "seed")
    return f"{counted} per point{_seeds(tables)}{_settings(points)}"


def _seeds(tables: Iterable[pd.DataFrame | None]) -> str:
    """The seeds, if the trials record them."""
    known = sorted({int(seed) for trials in tables if trials is not None for seed in trials["seed"].dropna()})
    if len(known) == 1:
        return f" (seed {known[0]})"
    return f" ({', '.join(map(str, known))})" if known else ""


def _dots(series: Sequence[ScoreSeries]) -> list[str]:
    """What the small dots mean."""
    return ["Small dots are single trials, each at its best epoch."] if has_dots(series) else []


def _settings(points: pd.DataFrame) -> str:
    """The chosen learning rate and epochs, if the table has them."""
    if not {"learning_rate", "epochs"} <= set(points.columns):
        return ""
    rates = points["learning_rate"].dropna().unique()
    epochs = points["epochs"].dropna().unique()
    if len(rates) == 1 and len(epochs) == 1:
        return f", learning rate {rates[0]:g}, {count_text(int(epochs[0]), 'epoch')}"
    return (
        ", learning rate and number of epochs chosen per point (largest share of seeds that did not diverge,"
        " then best mean)"
    )


def _diverged(lost: int) -> str:
    """What the crosses mean, with the number of diverged trials."""
    return (
        "Crosses at the bottom: points with diverged trials, which are excluded from the mean"
        f" ({count_text(lost, 'trial')} in total)."
    )


BASELINE_WORDS = (
    "TF-IDF: a linear model of TF-IDF features, without pretraining, tuned by cross-validation on the"
    " training data; shown as a horizontal line, or in the notes if it lies below the range of the axis."
)


def tradeoff_caption(curves: Sequence[ScoreSeries]) -> str:
    """Caption of the score against the number of trained parameters, by task."""
    points = pd.concat([curve.points for curve in curves], ignore_index=True)
    metric = common_value(curve.metric for curve in curves)
    parts = [
        f"Validation {metric_name(metric)} against the number of parameters trained per task, including the"
        " head; upper axis: percentage of the base model.",
        f"{_MEANS}; labels give the adapter size or the number k of fine-tuned top layers.",
        f"{_runs(points, [curve.trials for curve in curves])}.",
    ]
    if metric is None:
        named = "; ".join(f"{curve.name}: {metric_name(curve.metric)}" for curve in curves)
        parts.append(f"Scores: {named}.")
    parts += _dots(curves)
    if (points["method"] == "full").any():
        parts.append("Dotted line and band: mean and standard error of full fine-tuning.")
    parts.append("Grey staircase: the best mean score with at most that many parameters.")
    if any(np.isfinite(curve.baseline) for curve in curves):
        parts.append(BASELINE_WORDS)
    known = [curve for curve in curves if np.isfinite(curve.majority)]
    if known:
        scores = ", ".join(f"{one.name} {bare_score(one.majority, one.metric)}" for one in known)
        parts.append(
            f"Thin dashes: the majority class ({scores}); where it lies below the axis, it is given in"
            " the notes alone."
        )
    if lost := int(points["diverged"].sum()):
        parts.append(_diverged(lost))
    if any(far_below(curve.points, "mean").any() for curve in curves):
        parts.append(_ARROWS)
    if any(curve.published is not None for curve in curves):
        parts.append(
            f"Thin lines with hollow marks: {SOURCE}, Figs. 4 and 5 (BERT-base; SQuAD: BERT-large), at the"
            " numbers of parameters plotted there."
        )
    return " ".join([*parts, undefined_text(int(points["mean"].isna().sum()), "Means left out")])


def aggregate_caption(frame: pd.DataFrame, tasks: Sequence[str], published: str | None) -> str:
    """Caption of the trade-off over all tasks."""
    counts = range_text(frame["n_tasks"].astype(int).tolist(), "task")
    interval = " with its 95 % bootstrap interval over seeds, trials resampled within each task"
    if frame["iqm_low_points"].isna().all():
        interval = " (one seed per task, so no interval)"
    parts = [
        "Difference to full fine-tuning on the same task, in points, against the number of parameters trained"
        f" per task, without the head (mean over tasks), for {counts}:"
        f" {', '.join(task_label(task) for task in tasks)}.",
        "Left or top: median and 20th to 80th percentile over tasks of the mean score over seeds. Right or"
        f" bottom: interquartile mean over all tasks' trials{interval}.",
    ]
    if (frame["method"] == BASELINE).any():
        parts.append(BASELINE_WORDS)
    if frame["on_frontier"].any():
        parts.append("A black rim marks the Pareto frontier of the medians.")
    if far_below(frame, "p50_points").any():
        parts.append(_ARROWS)
    if (frame["trained_parameters_without_head"] == 0).any():
        parts.append("At 0: only the head is trained.")
    if published:
        name = "nine GLUE tasks, BERT-large" if published == "glue" else "17 additional tasks, BERT-base"
        parts.append(f"Thin lines, hollow marks: medians of {SOURCE}, Fig. 3, {name}, including the head.")
    missing = int(frame[["p50_points", "iqm_points"]].isna().any(axis=1).sum())
    return " ".join([*parts, undefined_text(missing, "Points left out")])


def size_robustness_caption(frame: pd.DataFrame, tasks: Sequence[str], published: bool) -> str:
    """Caption of the score against the adapter size."""
    mean = f"their mean over {count_text(len(tasks), 'task')}"
    if frame["mean_score"].isna().any():
        mean += " at the sizes that all of them have"
    parts = [
        f"Validation score against adapter size, one line per task and {mean}; bars show the standard error"
        " of the mean over seeds, propagated from the tasks."
    ]
    if published:
        parts.append(
            f"Thin line with hollow marks: {SOURCE}, section 3.6, mean over eight GLUE tasks, BERT-large."
        )
    missing = int(frame[[*tasks]].isna().to_numpy().sum())
    return " ".join([*parts, undefined_text(missing, "Values left out")])
