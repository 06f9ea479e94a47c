"""Captions that a paper can print: what is drawn, n, what bars and marks mean, what is undefined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import drop_points
from adapter_probe.analysis.studies import AblationOverview, AblationRecord
from adapter_probe.analysis.sweeps import BASELINE
from adapter_probe.metrics import METRICS

from .curves import ScoreSeries, far_below
from .wording import (
    bare_score,
    common_metric,
    count_text,
    drop_label,
    drop_name,
    metric_name,
    points_text,
    range_text,
    study_label,
    task_label,
    test_name,
    unit_name,
    why_spans_mean_nothing,
)

if TYPE_CHECKING:
    from .curves import ScoreSeries
    from .heatmap import Grid

_BOOTSTRAP = "a two-sided paired bootstrap test over"
_MCNEMAR = "an exact two-sided McNemar test of its predictions against the intact model's"
_STUDIES = {
    "ablated": "the adapters in a contiguous span of layers are switched off, without retraining",
    "kept": "only the adapters in a contiguous span of layers are kept on, without retraining",
}
_ARROWS = "Hollow marks with an arrow at the foot lie below the axis; their value stands beside them."
SOURCE = "Houlsby et al. (2019)"


def heatmap_caption(grids: Sequence[Grid], tolerance: float) -> str:
    """For one or several grids of spans."""
    own = [grid for grid in grids if grid.overview is not None]
    overviews = [grid.overview for grid in own]
    frame = pd.concat([grid.frame for grid in grids], ignore_index=True)
    study = overviews[0].study
    metrics = {overview.metric for overview in overviews}
    metric = metrics.pop() if len(metrics) == 1 else None
    parts = [
        *_warnings(overviews),
        f"{drop_name(metric).capitalize()} in {overviews[0].split} {metric_name(metric)}"
        f" ({unit_name(metric)}) when {_STUDIES[study]}.",
        f"Rows are the first, columns the last {study} layer; green frames mark single layers.",
        f"The black line parts spans that cost at most {points_text(tolerance)} from those that cost more.",
        *(_whose(overview) for overview in overviews),
    ]
    if (drop_points(frame["delta_points"]) < 0).any():
        parts.append("Blue, with a minus: the drop is negative, the score improves.")
    if "significant" in frame:
        parts.append(_test_sentence(own))
    if "non_monotone" in frame and frame["non_monotone"].eq(True).any():
        parts.append(
            "A triangle marks a span that costs less than a shorter one inside it (simultaneous 95% paired"
            " bootstrap bound over the spans inside it; not corrected over spans)."
        )
    if len(own) < len(grids):
        parts.append(
            f"Grids marked as of {SOURCE} are the published ones, BERT-base, in points of validation"
            " accuracy."
        )
    return " ".join([*parts, _undefined(int(frame["delta_points"].isna().sum()), "Crossed-out spans")])


def joint_caption(record: AverageRecord | ComparisonRecord, tolerance: float) -> str:
    """For a grid of means over studies, or of differences of two."""
    names, unit = ", ".join(record.names), unit_name(record.metric)
    drop = f"{drop_name(record.metric)} in {metric_name(record.metric)} ({unit})"
    scores = ", ".join(bare_score(score, record.metric) for score in record.intact_scores)
    about = f"{count_text(record.n_examples, 'example')}, intact {scores}"
    tested = f"Holm-corrected over {int(record.spans['p_holm'].notna().sum())} spans."
    if isinstance(record, ComparisonRecord):
        return (
            f"Difference of the {drop} when {_STUDIES['ablated']}: {record.names[1]} less {record.names[0]}"
            f" ({about}). Red: {record.names[1]} loses more; blue, with a minus: less. A ring marks a span"
            " whose difference is not significant at 0.05 by a two-sided paired bootstrap test over examples,"
            f" {tested}"
        )
    return (
        f"Mean {drop} over {len(record.names)} studies ({names};"
        f" {about}) when {_STUDIES['ablated']}. The standard deviation over the studies stands below each"
        " mean, or where cells are too small in a grid of its own, on the same scale. The black line parts"
        f" spans whose mean is at most {points_text(tolerance)} from those that cost more. A ring marks a"
        " span whose mean does not differ"
        f" from 0 at 0.05 by a two-sided bootstrap test over studies and examples, {tested}"
    )


def _warnings(overviews: Iterable[AblationOverview]) -> list[str]:
    """A sentence for each study that measured nothing."""
    return [
        f"{study_label(one)}: the intact model is {reason}, so its spans mean nothing."
        for one in overviews
        if (reason := why_spans_mean_nothing(one))
    ]


def _whose(overview: AblationOverview) -> str:
    """One checkpoint in a sentence."""
    intact = "undefined" if overview.intact is None else bare_score(overview.intact, overview.metric)
    said = [count_text(overview.n_examples, "example"), f"intact {metric_name(overview.metric)} {intact}"]
    if overview.majority is not None:
        said.append(f"{overview.baseline} {bare_score(overview.majority, overview.metric)}")
    return f"{study_label(overview)}: one trained checkpoint, {', '.join(said)}."


def _test_sentence(own: Sequence[Grid]) -> str:
    tests = _tests(grid.overview for grid in own)
    spans = {int(grid.frame["p_holm"].notna().sum()) for grid in own if "p_holm" in grid.frame}
    over = f" over {' or '.join(map(str, sorted(spans)))} spans" if spans else ""
    ring = "A ring marks a span that does not differ from the intact model at 0.05 by"
    return f"{ring} {tests}, Holm-corrected{over}."


def _tests(overviews: Iterable[AblationOverview]) -> str:
    """The tests behind the p-values, in words."""
    found = dict.fromkeys(
        _MCNEMAR
        if test_name(one.metric) == "McNemar"
        else f"a two-sided paired bootstrap test over {_units(one)}"
        for one in overviews
        if one.metric is not None
    )
    return " or ".join(found) or "a two-sided test"


def _units(overview: AblationOverview) -> str:
    """What the bootstrap draws: questions on one paragraph are not independent."""
    return "paragraphs" if overview.metric in METRICS["extractive"] else "examples"


def _undefined(n: int, what: str) -> str:
    return f"{what} are undefined ({n})." if n else "No value is undefined."


def attribution_caption(records: Sequence[AblationRecord]) -> str:
    """For the layer shares and the interactions of one or several ablations."""
    overviews = [record.overview for record in records]
    layers = pd.concat([record.shares for record in records], ignore_index=True)
    spans = pd.concat([record.spans for record in records], ignore_index=True)
    metric = common_metric(records)
    parts = [
        *_warnings(overviews),
        f"How the {drop_label(metric, overviews[0].split)} with every layer's"
        " adapters off is shared out between the layers.",
        "Grid: interaction of each span of layers, what switching it off costs beyond its parts, m(a,b) ="
        " d(a,b) − d(a+1,b) − d(a,b−1) + d(a+1,b−1) with d(a,b) the drop of span a to b; red is extra loss,"
        " blue less loss.",
        "Bars: each layer's share, the sum of m(a,b)/(b−a+1) over the spans that contain it (the Myerson"
        " value on the chain of layers); the shares sum to the whole drop.",
        "Diamonds: the drop of the layer alone.",
        *(_whose(one) for one in overviews),
    ]
    if "share_low_points" in layers:
        units = " or ".join(dict.fromkeys(_units(one) for one in overviews))
        parts.append(
            f"Lines are 95% paired bootstrap intervals over {units}; in the grid, squares whose interval"
            " includes 0 are small, the others have their number where it fits."
        )
    if "p_holm" in layers:
        parts.append(
            f"Filled diamonds: significant at 0.05 by {_tests(overviews)}, Holm-corrected over all spans."
        )
    missing = int(layers["share_points"].isna().sum() + spans["interaction_points"].isna().sum())
    return " ".join([*parts, _undefined(missing, "Values left out")])


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
    return " ".join([*parts, _undefined(missing, "Means left out")])


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
    return " ".join([*parts, _undefined(int(points["mean"].isna().sum()), "Means left out")])


def _counted(points: pd.DataFrame) -> str:
    return range_text((points["n"] + points["diverged"]).astype(int).tolist(), "seed")


def aggregate_caption(frame: pd.DataFrame, tasks: Sequence[str], published: str | None) -> str:
    """For the trade-off over all tasks."""
    counts = range_text(frame["n_tasks"].astype(int).tolist(), "task")
    parts = [
        "Score less the same task's full fine-tuning, in points, against the parameters trained for a task"
        f" without the head (mean over tasks), over {counts}:"
        f" {', '.join(task_label(task) for task in tasks)}.",
        "Left or above: median and 20th to 80th percentile over tasks of the mean over seeds. Right or"
        " below: interquartile mean over all tasks' trials with its 95% bootstrap interval over seeds, trials"
        " resampled within each task.",
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
    return " ".join([*parts, _undefined(missing, "Points left out")])


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
    return " ".join([*parts, _undefined(missing, "Values left out")])
