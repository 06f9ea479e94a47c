"""Scores against the strength of adapters: the function `strength` and its result, `Strengths`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapter_probe.ablation_settings import check_strength
from adapter_probe.argument_checks import planned_by, taking
from adapter_probe.errors import DataError, ResultsError, must_be
from adapter_probe.settings import fixed, setting
from adapter_probe.units import Unit
from adapter_probe.wording import is_distance, metric_name

from .checkpoint_arguments import OnOneMachine, spans_of_degrees
from .degrees import Degrees, DegreeStudy

if TYPE_CHECKING:
    import pandas as pd

    from adapter_probe.ablation_results import AblationResults
    from adapter_probe.analysis.strengths import StrengthSummary
    from adapter_probe.analysis.study_records import StrengthRecord

    from .cost_plan import AblationPlan
    from .example_files import ExampleSource
    from .opened import Opened

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunStrength(OnOneMachine):
    """Score the model with its adapters scaled: are they too strong, or too weak?

    The change of all adapters, and with --spans that of spans of layers alone, is multiplied by each
    strength, without retraining. The best strength is chosen on one half of the examples and judged on the
    other.

    Writes strengths.csv and strength.pdf, .svg and .png into the results folder. Run the same command again
    to resume an interrupted run, or with more strengths to add them.

    Example: adapter-probe strength my-lora --data reviews.csv
    """

    strengths: Sequence[float] = setting(
        STRENGTHS, "strengths to score: what the change of the adapters is multiplied by. 1, the adapter as "
        "it was trained, is always among them.", panel="Spans",
    )  # fmt: skip
    spans: str = spans_of_degrees("scaled")
    strength: float = fixed(0.0)
    by: Unit = fixed("span")
    reference: Literal["rows", "off", "none"] = fixed("rows")
    against: ExampleSource = setting(
        (), "file of examples that measure another ability, such as one of the base model, scored at the "
        "same strengths. In Python in any form that data accepts; see `Strengths.against`.",
        panel="Data", shell=list[Path],
    )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Strengths(DegreeStudy):
    """Scores against the strength of the adapters; what `adapter_probe.strength` returns.

    Attributes:
        against: the same strengths scored on the examples that `strength` received as `against`, if any.
    """

    record: StrengthRecord
    against: Strengths | None = None

    @property
    def table(self) -> pd.DataFrame:
        """One row per strength and span, ``strengths.csv``.

        `strength`; of several stacks of layers `stack`, ``all`` of all together; `first`, `last`, in their
        stack, `n_layers`, the span whose adapters are scaled; `whole`, whether it is of all; `score` (a
        fraction, in the metric's own units); `delta_points`, score minus that at strength 1, in points, so
        that a loss is negative, with its 95% interval `ci_low_points`, `ci_high_points`;
        `n_examples`.
        """
        return self.record.strengths

    @property
    def summary(self) -> StrengthSummary:
        """Which strength is best, and by how much, ``summary.json``."""
        return self.record.summary

    def _asked(self) -> str:
        return "too strong?" if is_distance(self.summary.metric) else super()._asked()

    def _scores(self) -> dict[str, str]:
        points = super()._scores()
        if self.against is None:
            return points
        there, others = self.against.summary, self.against._scores()
        beside = f"{metric_name(there.metric)} on {there.data}"
        return {name: f"{score}; {others[name]} {beside}" for name, score in points.items()}


def _strengths(call: RunStrength, opened: Opened | None = None) -> list[float]:
    """The strengths to compute, ascending, without 1."""
    if opened is not None and getattr(opened.subject.batches, "less_off", False):
        raise DataError(
            "the trainer's reference is the model with all adapters off, which this study does not have; "
            "precompute the reference's log-likelihoods (precompute_ref_log_probs=True)"
        )
    for one in call.strengths:
        check_strength(one, "--strengths")
    found = sorted({float(one) for one in call.strengths} - {1.0})
    if not found:
        raise ResultsError(must_be("--strengths", "at least one number besides 1", list(call.strengths)))
    return found


def _record(
    folder: Path, study: dict[str, Any], results: Mapping[float, AblationResults], *_: object
) -> StrengthRecord:
    from adapter_probe.analysis.strengths import joined, strength_summary, strength_table
    from adapter_probe.analysis.study_records import StrengthRecord

    whole, variants = joined(results)
    summary = strength_summary(whole, variants)
    return StrengthRecord(folder, strength_table(whole, variants), summary, study)


# All strengths run on the same engine, 0 included, which is found out at one of them.
_DEGREES = Degrees("strength", "strengths", "strength", _strengths, lambda _: 0.5, _record)


@taking(RunStrength)
def plan(call: RunStrength) -> AblationPlan:
    """Estimate the time and memory of `strength`, on a small batch and without `against`; nothing is written.

    Raises:
        AdapterProbeError: see `strength`.
    """
    return _DEGREES.plan(call)


@planned_by(plan)
@taking(RunStrength)
def strength(call: RunStrength) -> Strengths:
    """Score a model against the strength of its adapters, without retraining: are they too strong?

    The change of the adapters of all layers, and of every chosen span alone, is multiplied by each strength.
    The best strength of the whole is chosen on one half of the examples and judged on the other.

    Every strength has a subfolder with its ablation, so that the same call resumes an interrupted study and
    computes only the strengths that are added. ``ap.strength.plan(...)`` with the same arguments estimates
    time and memory.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened, or its adapters cannot be
            scaled.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: a strength is not allowed, or the folder belongs to another study, is in use, or cannot
            be written.
    """
    _strengths(call)  # refused before anything is opened
    (record, *others), temporary = _DEGREES.run(call)
    against = Strengths(others[0]) if others else None
    return Strengths(record, against, _temporary=temporary)
