"""The captions of sweeps and trade-offs: what is drawn, of how many runs, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from adapter_probe.analysis.method_labels import BASELINE

from .captions import SOURCE, undefined_text
from .curves import ScoreSeries, far_below
from .wording import bare_score, count_text, metric_name, range_text, task_label

_ARROWS = "Hollow marks with an arrow at the foot lie below the axis; their value stands beside them."


def init_sweep_caption(series: Sequence[ScoreSeries]) -> str:
    """For the score against the initialisation's std."""
    metrics = {one.metric for one in series}
    metric = metrics.pop() if len(metrics) == 1 else None
    parts = [
        f"Validation {metric_name(metric)} against the standard deviation σ of the normal, truncated at two"
        " σ, from which the adapters' weights are drawn.",
        "Marks are means over seeds, bars their standard error (none where one run is left).",
    ]
    for one in series:
        runs = range_text((one.points["n"] + one.points["diverged"]).astype(int).tolist(), "seed")
        seeds = _seeds([one.trials])
        about = f"{_settings(one.points)}{_majority(one.majority, one.metric)}"
        parts.append(f"{one.name}: {runs} a point{seeds}{about}.")
    if any(one.trials is not None and len(one.trials) for one in series):
        parts.append("Small dots are single trials, each at its best epoch.")
    lost = int(sum(one.points["diverged"].sum() for one in series))
    if lost:
        parts.append(
            "Crosses at the foot: how many of a point's trials diverged; they are not in its mean"
            f" ({count_text(lost, 'trial')} in all)."
        )
    if any(np.isfinite(one.majority) for one in series):
        parts.append("Dotted: the majority class.")
    if any(one.published is not None for one in series):
        parts.append(f"Thin with hollow marks: {SOURCE}, Fig. 6, BERT-base.")
    missing = int(sum(one.points["mean"].isna().sum() for one in series))
    return " ".join([*parts, undefined_text(missing, "Means left out")])


def _seeds(tables: Iterable[pd.DataFrame | None]) -> str:
    """Which seeds, where the trials tell."""
    known = sorted({int(seed) for trials in tables if trials is not None for seed in trials["seed"].dropna()})
    return f" ({', '.join(map(str, known))})" if known else ""


def _settings(points: pd.DataFrame) -> str:
    """The chosen learning rate and epochs, where the table has them."""
    if not {"learning_rate", "epochs"} <= set(points.columns):
        return ""
    rates = points["learning_rate"].dropna().unique()
    epochs = points["epochs"].dropna().unique()
    if len(rates) == 1 and len(epochs) == 1:
        return f", learning rate {rates[0]:g}, {count_text(int(epochs[0]), 'epoch')}"
    return (
        ", at each point the learning rate and epochs with the best mean of those with the largest share of"
        " surviving seeds"
    )


def _majority(majority: float, metric: str) -> str:
    return f", majority class {bare_score(majority, metric)}" if np.isfinite(majority) else ""


BASELINE_WORDS = (
    "TF-IDF: a linear model of TF-IDF features, tuned by cross-validation on the training data, which no"
    " pretraining went into; at the line's height, or where the notes say."
)


def tradeoff_caption(curves: Sequence[ScoreSeries]) -> str:
    """For the score against the trained parameters, task by task."""
    points = pd.concat([curve.points for curve in curves], ignore_index=True)
    metrics = {curve.metric for curve in curves}
    metric = metrics.pop() if len(metrics) == 1 else None
    parts = [
        f"Validation {metric_name(metric)} against the number of parameters trained for a task, the head"
        " included; above, their share of the base.",
        "Marks are means over seeds, bars their standard error (none where one run is left); numbers beside"
        " marks are adapter sizes and the number k of layers trained from the top.",
        f"{_counted(points)} a point{_seeds([curve.trials for curve in curves])}{_settings(points)}.",
    ]
    if metric is None:
        named = "; ".join(f"{curve.name}: {metric_name(curve.metric)}" for curve in curves)
        parts.append(f"Scores: {named}.")
    if any(curve.trials is not None and len(curve.trials) for curve in curves):
        parts.append("Small dots are single trials, each at its best epoch.")
    if (points["method"] == "full").any():
        parts.append("Dotted line and band: mean and standard error of full fine-tuning.")
    parts.append("Grey staircase: the best mean with at most so many parameters.")
    if any(np.isfinite(curve.baseline) for curve in curves):
        parts.append(BASELINE_WORDS)
    known = [curve for curve in curves if np.isfinite(curve.majority)]
    if known:
        scores = ", ".join(f"{one.name} {bare_score(one.majority, one.metric)}" for one in known)
        parts.append(
            f"Thin dashes: the majority class ({scores}); where it lies below the axis, it stands in"
            " the notes alone."
        )
    if lost := int(points["diverged"].sum()):
        parts.append(
            "Crosses at the foot: some of the point's trials diverged; they are not in its mean"
            f" ({count_text(lost, 'trial')} in all)."
        )
    if any(far_below(curve.points, "mean").any() for curve in curves):
        parts.append(_ARROWS)
    if any(curve.published is not None for curve in curves):
        parts.append(
            f"Thin with hollow marks: {SOURCE}, Figs. 4 and 5 (BERT-base; SQuAD: BERT-large), at the"
            " parameters plotted there."
        )
    return " ".join([*parts, undefined_text(int(points["mean"].isna().sum()), "Means left out")])


def _counted(points: pd.DataFrame) -> str:
    return range_text((points["n"] + points["diverged"]).astype(int).tolist(), "seed")


def aggregate_caption(frame: pd.DataFrame, tasks: Sequence[str], published: str | None) -> str:
    """For the trade-off over all tasks."""
    counts = range_text(frame["n_tasks"].astype(int).tolist(), "task")
    interval = " with its 95% bootstrap interval over seeds, trials resampled within each task"
    if frame["iqm_low_points"].isna().all():
        interval = " (one seed per task, so no interval)"
    parts = [
        "Score less the same task's full fine-tuning, in points, against the parameters trained for a task"
        f" without the head (mean over tasks), over {counts}:"
        f" {', '.join(task_label(task) for task in tasks)}.",
        "Left or above: median and 20th to 80th percentile over tasks of the mean over seeds. Right or"
        f" below: interquartile mean over all tasks' trials{interval}.",
    ]
    if (frame["method"] == BASELINE).any():
        parts.append(BASELINE_WORDS)
    if frame["on_frontier"].any():
        parts.append("A black rim marks the Pareto frontier of the medians.")
    if far_below(frame, "p50_points").any():
        parts.append(_ARROWS)
    if (frame["trained_parameters_without_head"] == 0).any():
        parts.append("At 0: nothing but the head is trained.")
    if published:
        name = "nine GLUE tasks, BERT-large" if published == "glue" else "17 additional tasks, BERT-base"
        parts.append(f"Thin with hollow marks: the medians of {SOURCE}, Fig. 3, {name}, the head counted.")
    missing = int(frame[["p50_points", "iqm_points"]].isna().any(axis=1).sum())
    return " ".join([*parts, undefined_text(missing, "Points left out")])


def size_robustness_caption(frame: pd.DataFrame, tasks: Sequence[str], published: bool) -> str:
    """For the score against the adapter size."""
    counts = range_text(frame["n_tasks"].astype(int).tolist(), "task")
    parts = [
        f"Validation score against adapter size, one line a task and their mean over {counts}; bars are the"
        " mean's standard error over seeds, propagated from the tasks'.",
    ]
    if published:
        parts.append(
            f"Thin with hollow marks: {SOURCE}, section 3.6, mean over eight GLUE tasks, BERT-large."
        )
    missing = int(frame[[*tasks, "mean_score"]].isna().to_numpy().sum())
    return " ".join([*parts, undefined_text(missing, "Values left out")])
