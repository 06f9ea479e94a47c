"""The study of strengths: the function `strength` and its result, `Strengths`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.ablation_settings import check_strength
from adapter_probe.analysis.strengths import StrengthSummary, joined, strength_summary, strength_table
from adapter_probe.analysis.study_records import StrengthRecord
from adapter_probe.errors import ResultsError, must_be
from adapter_probe.progress import activity
from adapter_probe.reads import recorded
from adapter_probe.records import to_record
from adapter_probe.results import schema
from adapter_probe.results.atomic import claim_folder, write_csv, write_json
from adapter_probe.results.fingerprints import refuse_changes, to_plain
from adapter_probe.results.sealing import read_study, sealed, write_study
from adapter_probe.settings import Style
from adapter_probe.wording import is_distance

from .arguments import RunStrength
from .checked import checked, taking
from .gallery import StoredStudy, axes_for
from .reopening import record_reads, reopen_ablation
from .span_ablation import asked_of, opened_for, run_ablation
from .summaries import plain_text, score_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adapter_probe.probe.arguments import AblationArguments

    from .ablation import Ablation
    from .in_memory import Given

_ANY = 0.5  # a strength for which a checkpoint is opened: all run on the same engine, 0 included
_Part = tuple["AblationArguments", Path]


@dataclass(frozen=True, eq=False, repr=False)
class Strengths(StoredStudy):
    """Scores against the strength of the adapters; what `adapter_probe.strength` returns.

    Attributes:
        record: table, summary and identity of the study as plain data.
    """

    record: StrengthRecord
    _temporary: TemporaryDirectory[str] | None = None  # which is removed with the last reference

    @property
    def table(self) -> pd.DataFrame:
        """One row per strength and span, ``strengths.csv``.

        `strength`; `first`, `last`, `n_layers`, the span whose adapters are scaled; `whole`, whether it is of
        all that the study scales; `score` (a fraction, in the metric's own units); `delta_points`, score
        minus that at strength 1, in points, so that a loss is negative, with its 95% paired bootstrap
        interval `ci_low_points`, `ci_high_points`; `n_examples`.
        """
        return self.record.strengths

    @property
    def summary(self) -> StrengthSummary:
        """Which strength is best, and by how much, ``summary.json``."""
        return self.record.summary

    @checked
    def plot(self, ax: Axes | None = None, *, style: Style | None = None) -> Axes:
        """Draw the score against the strength.

        Args:
            ax: see `adapter_probe.Ablation.heatmap`.
            style: see `adapter_probe.Ablation.heatmap`.
        """
        from adapter_probe.figures.strengths import strengths

        with axes_for(ax, style) as place:
            return strengths(self.record, place)

    def rows(self) -> list[tuple[str, str]]:
        """The answer, and the score of the whole adapter at every strength, as pairs of text."""
        said = self.summary
        whole = self.table[self.table["whole"]]
        points = [
            (f"strength {row.strength:g}", score_text(row.score, said.metric))
            for row in whole.itertuples(index=False)
        ]
        about = f"{said.task}, {said.data}, {said.n_examples:,} examples, {said.metric}"
        asked = "too strong or too weak" if not is_distance(said.metric) else "too strong"
        return [(f"{asked}?", plain_text(said.verdict)), ("task", about), *points]


@taking(RunStrength)
def strength(call: RunStrength) -> Strengths:
    """Score a model against the strength of its adapters, without retraining: are they too strong?

    The change of the adapters of all layers, and of every chosen span alone, is multiplied by each strength.
    The best strength of the whole is chosen on one half of the examples and judged on the other.

    Every strength has a subfolder with its ablation, so that the same call resumes an interrupted study and
    computes only the strengths that are added.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened, or its adapters cannot be
            scaled.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: a strength is not allowed, or the folder belongs to another study, is in use, or cannot
            be written.
    """
    strengths = _strengths(call.strengths)
    with opened_for(call) as (call, opened, temporary):
        (arguments, folder), *_ = asked_of(call, "strengths", opened)
        parts = {s: _part(arguments, folder, s) for s in strengths}
        with claim_folder(folder):
            studies = None if opened is not None else _finished(parts, call)
            studies = studies or _computed(parts, call, opened)
            results = {s: study.results for s, study in studies.items()}
            with activity("strength: computing intervals", call.progress):
                record = _write(folder, results)
    return Strengths(record, temporary)


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


def _part(arguments: AblationArguments, folder: Path, strength: float) -> _Part:
    settings = replace(arguments.settings, strength=strength)
    return replace(arguments, settings=settings), folder / f"strength-{strength:g}"


def _finished(parts: Mapping[float, _Part], call: RunStrength) -> dict[float, Ablation] | None:
    """The ablations, if all are there already and nothing that they were made from has changed."""
    if call.device not in ("auto", "cpu"):
        return None
    with activity("strength: checking for changes since the last run", call.progress):
        found = {s: reopen_ablation(*part) for s, part in parts.items()}
    return None if None in found.values() else found  # type: ignore[return-value]


def _computed(parts: Mapping[float, _Part], call: RunStrength, opened: Given | None) -> dict[float, Ablation]:
    """The ablations of every strength, of a model that is opened once."""
    from adapter_probe.device import choose_device, use_threads
    from adapter_probe.probe.request import prepare_ablation

    given, _ = next(iter(parts.values()))
    asked = replace(given, settings=replace(given.settings, strength=_ANY))
    with activity(f"strength: opening {given.checkpoint}", call.progress), recorded() as reads:
        use_threads(call.threads)
        request = prepare_ablation(asked, choose_device(call.device), *(opened or ()))
    studies: dict[float, Ablation] = {}
    for number, (arguments, folder) in parts.items():
        own = replace(request, settings=arguments.settings)
        name, first = f"strength {number:g}", not studies
        studies[number] = run_ablation(own, folder, progress=call.progress, name=name, remarks=first)
        if opened is None:
            record_reads(arguments, reads, folder)
    return studies


def _write(folder: Path, results: Mapping[float, AblationResults]) -> StrengthRecord:
    """Write the study into its folder.

    Raises:
        ResultsError: the folder holds another study.
    """
    identity: dict[str, Any] = {**next(iter(results.values())).identity}
    identity["settings"] = {k: v for k, v in identity["settings"].items() if k != "strength"}
    path = folder / schema.STUDY
    study: dict[str, Any] = {"schema": 1, "study": "strengths", "identity": to_plain(identity)}
    if path.exists():
        refuse_changes(
            read_study(path), study, f"{folder} contains another study",
            ". Choose another --out or remove the folder",
        )  # fmt: skip
    else:
        write_study(path, study)
    whole, variants = joined(results)
    table, summary = strength_table(whole, variants), strength_summary(whole, variants)
    with sealed(folder, schema.STRENGTH_FILES):
        write_csv(folder / schema.STRENGTHS_CSV, table)
        write_json(folder / schema.SUMMARY, to_record(summary))
    return StrengthRecord(folder, table, summary, study)
