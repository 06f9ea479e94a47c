"""The function `strength`, from its arguments to the tables in the results folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.ablation_results import AblationResults
from adapter_probe.ablation_settings import check_strength
from adapter_probe.analysis.strengths import joined, strength_summary, strength_table
from adapter_probe.analysis.study_records import StrengthRecord
from adapter_probe.argument_checks import planned_by, taking
from adapter_probe.errors import ResultsError, must_be
from adapter_probe.progress import activity
from adapter_probe.records import to_record
from adapter_probe.results import schema
from adapter_probe.results.atomic import claim_folder, write_csv, write_json
from adapter_probe.results.fingerprints import to_plain
from adapter_probe.results.sealing import begin_study, sealed

from .ablate import Parts, computed, finished, planned
from .ablation_call import asked_of, opened_for
from .checkpoint_arguments import RunStrength
from .strength_study import Strengths

if TYPE_CHECKING:
    from adapter_probe.probe.arguments import AblationArguments

    from .cost_plan import AblationPlan

USUAL = "strengths"
"""The results folder of a study with defaults, inside the checkpoint."""
_ANY = 0.5  # a strength for which a checkpoint is opened: all run on the same engine, 0 included


@taking(RunStrength)
def plan(call: RunStrength) -> AblationPlan:
    """Estimate the time and memory of `strength`, on a small batch and without `against`; nothing is written.

    Raises:
        AdapterProbeError: see `strength`.
    """
    strengths = _strengths(call.strengths)
    return planned(
        call,
        USUAL,
        lambda given, folder: (_at(given, _ANY), _parts(given, folder, strengths)),
    )


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
    strengths = _strengths(call.strengths)
    with opened_for(call) as (call, opened, temporary):
        asked = asked_of(call, USUAL, opened)
        groups = [_parts(arguments, folder, strengths) for arguments, folder in asked]
        with claim_folder(asked[0][1]):
            found = None if opened is not None else finished("strength", call, groups)
            if found is None:
                _, found = computed("strength", call, opened, _at(asked[0][0], _ANY), groups)
            results = [{s: one.results for s, one in zip(strengths, own)} for own in found]
            with activity("strength: computing intervals", call.progress):
                records = [_write(folder, own) for (_, folder), own in zip(asked, results)]
    other = Strengths(records[1]) if len(records) > 1 else None
    return Strengths(records[0], other, temporary)


def _strengths(given: Sequence[float]) -> list[float]:
    """The strengths to compute, ascending, without 1.

    Raises:
        ResultsError: one is not allowed, or there is none.
    """
    for one in given:
        check_strength(one, "--strengths")
    found = sorted({float(one) for one in given} - {1.0})
    if not found:
        raise ResultsError(must_be("--strengths", "at least one number besides 1", list(given)))
    return found


def _at(arguments: AblationArguments, strength: float) -> AblationArguments:
    return replace(arguments, settings=replace(arguments.settings, strength=strength))


def _parts(arguments: AblationArguments, folder: Path, strengths: Sequence[float]) -> Parts:
    """The ablation of every strength, with its folder."""
    return [(_at(arguments, s), folder / f"strength-{s:g}") for s in strengths]


def _write(folder: Path, results: Mapping[float, AblationResults]) -> StrengthRecord:
    """Write the study into its folder.

    Raises:
        ResultsError: the folder holds another study.
    """
    identity: dict[str, Any] = {**next(iter(results.values())).identity}
    identity["settings"] = {k: v for k, v in identity["settings"].items() if k != "strength"}
    study: dict[str, Any] = {"schema": 1, "study": "strengths", "identity": to_plain(identity)}
    begin_study(folder, study)
    whole, variants = joined(results)
    table, summary = strength_table(whole, variants), strength_summary(whole, variants)
    with sealed(folder, schema.STRENGTH_FILES):
        write_csv(folder / schema.STRENGTHS_CSV, table)
        write_json(folder / schema.SUMMARY, to_record(summary))
    return StrengthRecord(folder, table, summary, study)
