"""Changes of every span on two data sets, under the same variants of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.deltas import StudyKind, intact_score, strength_of, study_kind
from adapter_probe.analysis.sweeps import pareto_frontier
from adapter_probe.errors import ResultsError
from adapter_probe.results.fingerprints import refuse_changes
from adapter_probe.results.schema import span_columns

_CARRIED = {
    "delta_points": "points", "ci_low_points": "low_points", "ci_high_points": "high_points",
    "significant": "significant",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class DataComparisonRecord:
    """Every span as a point: its change on the task against its change on another data set.

    Attributes:
        names: names of the task and of the other data.
        metrics: metrics on both.
        spans: one row per span: `first`, `last`, `n_layers`; `task_points` and `other_points`, the change of
            the score in points when the span is off, or in a study of spans kept on, when everything else
            is (negative = worse, also of losses), each with its 95%
            paired bootstrap interval `..._low_points`, `..._high_points` and `..._significant` (after Holm's
            correction); `on_frontier`: no other span, nor the intact model, is at least as good on both and
            better on one.
        intact_scores: intact scores on both.
        n_examples: numbers of examples of both.
        identity: identity of each study, by name.
        study: whether the spans were ablated or kept on.
        warning: why the spans of the task are not informative; None where they are.
    """

    names: tuple[str, str]
    metrics: tuple[str, str]
    spans: pd.DataFrame
    intact_scores: tuple[float, float]
    n_examples: tuple[int, int]
    identity: Mapping[str, object]
    study: StudyKind = "ablated"
    warning: str | None = None

    @property
    def strength(self) -> float | str:
        """What the adapters of all studies were multiplied by where they were off."""
        return next((strength_of(one) for one in self.identity.values() if isinstance(one, Mapping)), 0.0)


def compare_data_sets(
    task: AblationResults, other: AblationResults, names: tuple[str, str] = ("task", "other")
) -> DataComparisonRecord:
    """Join an ablation on a task with one of the same checkpoint and spans on other data.

    Args:
        task: ablation on the task that the adapters were trained for.
        other: ablation on data that measures another ability.

    Raises:
        ResultsError: they differ in checkpoint, spans or settings.
    """
    pair = f"{names[0]} and {names[1]} are not ablations of the same model"
    apart = ("data", "tokens")
    ours, theirs = ({k: v for k, v in one.identity.items() if k not in apart} for one in (task, other))
    refuse_changes(ours, theirs, pair, "; ablate one checkpoint with equal settings on both")
    if study_kind(task) != study_kind(other) or not np.array_equal(task.masks, other.masks):
        raise ResultsError(f"{pair}: their variants differ; ablate the same --spans on both")
    sides = []
    for side, results in (("task", task), ("other", other)):
        frame = ablation_tables(results).spans
        renamed = {old: f"{side}_{new}" for old, new in _CARRIED.items()}
        sides.append(frame[[*span_columns(frame), *renamed]].rename(columns=renamed))
    spans = sides[0].merge(sides[1], on=span_columns(sides[0]), validate="one_to_one")
    # The intact model is the point (0, 0).
    cost = -np.append(spans["task_points"], 0.0)
    frontier = pareto_frontier(cost, np.append(spans["other_points"], 0.0))[:-1]
    return DataComparisonRecord(
        names, (task.metric, other.metric), spans.assign(on_frontier=frontier),
        (intact_score(task), intact_score(other)),
        (task.n_examples, other.n_examples), dict(zip(names, (task.identity, other.identity))),
        study_kind(task),
    )  # fmt: skip
