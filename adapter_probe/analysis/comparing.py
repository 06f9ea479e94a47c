"""Several ablations, span by span: differences and means on the same examples, and changes on two data sets.

Differences and means are paired: all studies are scored with the same random weights on the examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.ablation_tables import ablation_tables, draws_for
from adapter_probe.analysis.removable import bounds_of_chosen
from adapter_probe.analysis.resampling import Draws, draw_scores
from adapter_probe.analysis.score_changes import (
    StudyKind,
    intact_row,
    intact_score,
    model_of,
    of_stack,
    removed_row,
    row_scores,
    rows_of,
    section_of,
    span_keys,
    span_scores,
    strength_of,
    study_kind,
    unit_of,
    without_noise,
)
from adapter_probe.analysis.significance import ALPHA, holm, interval, over_seeds, p_values
from adapter_probe.analysis.sweeps import pareto_frontier
from adapter_probe.errors import ResultsError
from adapter_probe.results.fingerprints import refuse_changes
from adapter_probe.results.schema import span_columns
from adapter_probe.wording import done_text

_SEED = 0
_CARRIED = {
    "delta_points": "points", "ci_low_points": "low_points", "ci_high_points": "high_points",
    "significant": "significant",
}  # fmt: skip


JointT = TypeVar("JointT", bound="JointRecord")


class _SeveralStudies:
    """What records of several studies have in common."""

    identity: Mapping[str, object]

    @property
    def _first(self) -> Mapping[str, object]:
        """The identity of the first study; empty if it is unknown."""
        return next((one for one in self.identity.values() if isinstance(one, Mapping)), {})

    @property
    def strength(self) -> float | str:
        """What the adapters of all studies were multiplied by where they were off."""
        return strength_of(self._first)

    @property
    def rank(self) -> int:
        """The rank that they were cut to there; 0 if they were not."""
        return int(section_of(self._first, "settings").get("rank") or 0)

    @property
    def unit(self) -> str:
        """The unit of maps of layers and modules, see `adapter_probe.units`."""
        return unit_of(self._first)


@dataclass(frozen=True, eq=False)
class JointRecord(_SeveralStudies):
    """Several ablations of the same spans on the same examples.

    Attributes:
        spans: one row per span: `first`, `last`, `n_layers`; the 95% interval of the drawn
            quantity `ci_low_points`, `ci_high_points`; `p_value`, `p_holm` over all spans, and `significant`
            (below 0.05), except for the mean of a distance from the intact model; further columns by kind of
            record.
        study: whether the spans were ablated or kept on.
        stack: name of the stack of layers that it is about, if it is a part of a record of several.
        warnings: by name, why the spans of a study are not informative; of those of which they are not.
        model, data: what was trained on which base, and the data, where the studies agree; else empty.
    """

    names: tuple[str, ...]
    spans: pd.DataFrame
    metric: str
    n_examples: int
    intact_scores: tuple[float, ...]
    identity: Mapping[str, object]
    study: StudyKind = "ablated"
    stack: str = ""
    warnings: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    data: str = ""

    @property
    def warning(self) -> str | None:
        """Why no span may be recommended by the record; None where every study is informative."""
        names: dict[str, list[str]] = {}
        for name, warning in self.warnings.items():
            names.setdefault(warning, []).append(name)
        return " ".join(f"{' and '.join(own)}: {warning}" for warning, own in names.items()) or None

    @property
    def in_stacks(self: JointT) -> list[JointT]:
        """The record of each stack of layers; of a model with one stack, this record itself."""
        if self.stack or "stack" not in self.spans:
            return [self]
        return [self._of(name) for name in dict.fromkeys(self.spans["stack"])]

    @property
    def by_module(self) -> bool:
        """Whether they are maps of layers and modules, and not studies of spans."""
        return "module" in self.spans

    def _of(self: JointT, stack: str) -> JointT:
        return replace(self, spans=of_stack(self.spans, stack), stack=stack)


@dataclass(frozen=True, eq=False)
class ComparisonRecord(JointRecord):
    """The difference of two ablations.

    In `spans` also `drop_a_points` and `drop_b_points`, what the span costs in each (positive = loss), and
    `difference_points` = drop in b - drop in a: a positive number says that b loses more.
    """


@dataclass(frozen=True, eq=False)
class AverageRecord(JointRecord):
    """The mean of several ablations that differ in the seed; its interval is over seeds and examples.

    In `spans` also `score` and `delta_points`, means over the studies; `sd_points`, the standard deviation of
    `delta_points` over studies (n - 1 in the denominator), `min_points`, `max_points`; `n_studies`,
    `n_examples`; but in maps of layers and modules `bound_low_points`, a lower bound of the mean for a span
    that is chosen by it.

    Attributes:
        task: the task of the studies, by which published drops are found; empty if unknown.
        removed_points: change of the score in each study with everything off that it switches, points.
        deltas: `delta_points` of each study, ``[studies, spans]``; None if unknown.
    """

    task: str = ""
    removed_points: tuple[float, ...] = ()
    deltas: np.ndarray | None = None

    def _of(self, stack: str) -> AverageRecord:
        own = None if self.deltas is None else self.deltas[:, (self.spans["stack"] == stack).to_numpy()]
        return replace(super()._of(stack), deltas=own)


def compare_ablations(
    a: AblationResults, b: AblationResults, names: tuple[str, str] = ("a", "b")
) -> ComparisonRecord:
    """The difference between the drops of every span in `b` and in `a`.

    Raises:
        ResultsError: they differ in examples, metric, spans or kind of study.
    """
    check_comparable((a, b), names)
    frames, scores, rows = _scores((a, b), draws_for(b, tested=True))
    deltas = [frame["delta_points"].to_numpy() for frame in frames]
    (of_a, intact_a), (of_b, intact_b) = rows  # a drop is a negative change
    changes = scores.map(
        lambda own: own[..., of_a] - own[..., intact_a] - (own[..., of_b] - own[..., intact_b]), most=2.0
    )
    point = without_noise(deltas[0] - deltas[1])
    low, high = interval(changes)
    spans = frames[0][span_columns(frames[0])].assign(
        drop_a_points=without_noise(-deltas[0]), drop_b_points=without_noise(-deltas[1]),
        difference_points=point, ci_low_points=low, ci_high_points=high,
    )  # fmt: skip
    spans = _with_tests(spans, point, p_values(changes))
    return ComparisonRecord(names, spans, *_common_fields((a, b), names))


def average_ablations(
    studies: Sequence[AblationResults], names: Sequence[str] | None = None, task: str = ""
) -> AverageRecord:
    """The mean drop of every span over studies that differ in the seed.

    The interval is that of the mean over other seeds and examples, see `over_seeds`: with two seeds it is as
    wide as two seeds are, and only with more of them it can tell small drops from none.

    Args:
        studies: at least two, of the same spans, scored on the same examples by the same metric.

    Raises:
        ResultsError: there are fewer than two, or they differ in examples, metric, spans or kind of study.
    """
    names = tuple(names or map(str, range(1, len(studies) + 1)))
    if len(studies) < 2:
        raise ResultsError(f"an average needs at least 2 studies, got {len(studies)}")
    check_comparable(studies, names, "averaged")
    frames, scores, rows = _scores(studies, draws_for(studies[0], tested=False))
    deltas = np.stack([frame["delta_points"].to_numpy() for frame in frames])  # [studies, spans]
    changes = scores.map(
        lambda own: np.mean([own[..., of] - own[..., intact] for of, intact in rows], axis=0)
    )
    low, high, p = over_seeds(changes, deltas)
    same = (studies[0].masks[rows[0][0]] == studies[0].masks[rows[0][1]]).all(axis=1)
    low, high = np.where(same, 0.0, low), np.where(same, 0.0, high)
    spans = frames[0][span_columns(frames[0])].assign(
        score=np.mean([frame["score"] for frame in frames], axis=0),
        delta_points=without_noise(deltas.mean(axis=0)),
        sd_points=deltas.std(axis=0, ddof=1), min_points=deltas.min(axis=0), max_points=deltas.max(axis=0),
        ci_low_points=low, ci_high_points=high,
    )  # fmt: skip
    if not metrics.about(studies[0].metric).distance:  # which differ from the intact model in any case
        spans = _with_tests(spans, spans["delta_points"].to_numpy(), np.where(same, np.nan, p))
    spans = spans.assign(n_studies=len(studies), n_examples=studies[0].n_examples)
    if "module" not in spans:
        spans["bound_low_points"] = _bounds(spans, changes, deltas, same, study_kind(studies[0]))
    scored = [(row_scores(one), one) for one in studies]
    removed = tuple(
        float(metrics.to_points(one.metric, own[removed_row(one)] - own[intact_row(one)]))
        for own, one in scored
    )
    return AverageRecord(
        names, spans, *_common_fields(studies, names), task=task, removed_points=removed, deltas=deltas
    )


def _bounds(
    spans: pd.DataFrame, changes: Draws, deltas: np.ndarray, same: np.ndarray, study: StudyKind
) -> np.ndarray:
    """The bounds of mean changes for spans that are chosen by them; `same` ones, bool, switch nothing."""
    stacks = spans.get("stack", pd.Series("", spans.index))
    bounds, names = np.full(len(spans), np.nan), stacks.unique()
    for name in names:
        own = (stacks == name).to_numpy()

        def low_at(tails: np.ndarray, own: np.ndarray = own) -> np.ndarray:
            return np.where(same[own], 0.0, over_seeds(changes.columns(own), deltas[:, own], tails)[0])

        bounds[own] = bounds_of_chosen(spans[own], low_at, study, len(names))
    return bounds


def _scores(
    studies: Sequence[AblationResults], n_draws: int
) -> tuple[list[pd.DataFrame], Draws, list[tuple[np.ndarray, np.ndarray]]]:
    """Every study's spans; all scores under the same weights; the columns of its spans, and of its intact."""
    frames, rows, begin = [span_scores(results) for results in studies], [], 0
    for results, frame in zip(studies, frames):
        rows.append((begin + np.array(rows_of(results, frame)), np.array([begin + intact_row(results)])))
        begin += len(results.masks)
    return frames, draw_scores(studies, n_draws, _SEED), rows


def _with_tests(spans: pd.DataFrame, point: np.ndarray, p: np.ndarray) -> pd.DataFrame:
    p = np.where(np.isnan(point), np.nan, p)
    adjusted = holm(p)
    return spans.assign(p_value=p, p_holm=adjusted, significant=adjusted < ALPHA)


def check_comparable(
    studies: Sequence[AblationResults], names: Sequence[str], what: str = "compared"
) -> None:
    """Refuse studies that cannot be compared, or whatever else is to be done with them."""
    done = [done_text("ablated", strength_of(s.identity), s.settings.get("rank") or 0) for s in studies]
    for other, name, off in zip(studies[1:], names[1:], done[1:]):
        one = studies[0]
        pair, kinds = f"{names[0]} and {name} cannot be {what}", (study_kind(one), study_kind(other))
        same_data = one.identity.get("data") == other.identity.get("data")
        for differ, why in (
            (one.metric != other.metric, f"they have different metrics, {one.metric} and {other.metric}"),
            (kinds[0] != kinds[1], f"spans were {kinds[0]} in one and {kinds[1]} in the other"),
            (done[0] != off, f"spans were {done[0]} in one and {off} in the other"),
            (
                sorted(span_keys(one)) != sorted(span_keys(other)),
                f"one has {len(one.spans)} variants up to layer {one.spans.max()}, the other "
                f"{len(other.spans)} up to layer {other.spans.max()}; give ablations of the same spans",
            ),
            (
                not (same_data and np.array_equal(one.scored_with, other.scored_with)),
                f"they were scored on different examples ({one.n_examples:,} and {other.n_examples:,}); run "
                "`adapter-probe ablate` on the same --data for both",
            ),
        ):
            if differ:
                raise ResultsError(f"{pair}: {why}")


def _common_fields(
    studies: Sequence[AblationResults], names: Sequence[str]
) -> tuple[str, int, tuple[float, ...], Mapping[str, object], StudyKind]:
    """Metric, number of examples, intact scores, identities and kind of study."""
    scores = tuple(map(intact_score, studies))
    identities = {name: results.identity for name, results in zip(names, studies)}
    return studies[0].metric, studies[0].n_examples, scores, identities, study_kind(studies[0])


@dataclass(frozen=True, eq=False)
class DataComparisonRecord(_SeveralStudies):
    """Every span as a point: its change on the task against its change on another data set.

    Attributes:
        spans: one row per span: `first`, `last`, `n_layers`; `task_points` and `other_points`, the change of
            the score in points when the span is off, or in a study of spans kept on, when everything else
            is (negative = worse, also of losses), each with its 95%
            interval `..._low_points`, `..._high_points` and `..._significant` (after Holm's
            correction); `on_frontier`: no other span, nor the intact model, is at least as good on both and
            better on one.
        warning: why the spans of the task are not informative; None where they are.
        model: what was trained on which base; empty where it is not known.
    """

    names: tuple[str, str]
    metrics: tuple[str, str]
    spans: pd.DataFrame
    intact_scores: tuple[float, float]
    n_examples: tuple[int, int]
    identity: Mapping[str, object]
    study: StudyKind = "ablated"
    warning: str | None = None
    model: str = ""


def compare_data_sets(
    task: AblationResults, other: AblationResults, names: tuple[str, str] = ("task", "other")
) -> DataComparisonRecord:
    """Join an ablation on a task with one of the same checkpoint and spans on other data.

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
        study_kind(task), model=model_of(task) or "",
    )  # fmt: skip
