"""The interactive report of studies, with their checkpoints and texts. Never imports torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapter_probe.analysis.studies import section_of
from adapter_probe.checkpoints.files import CONFIG, DESCRIPTION
from adapter_probe.checkpoints.identity import checkpoint_identity
from adapter_probe.data.given import given_task
from adapter_probe.data.tasks import Columns, Split, TaskSpec, load_split
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.figures.report.ablation_section import ReportedAblation
from adapter_probe.figures.report.changed_examples import ExampleTexts
from adapter_probe.figures.report.page import write_report
from adapter_probe.metrics import default_metric
from adapter_probe.results.ablation_files import AblationResults
from adapter_probe.results.atomic import read_json
from adapter_probe.results.fingerprints import refuse_changes
from adapter_probe.results.schema import PREDICTIONS
from adapter_probe.results.sealing import MADE_FROM, read_note

from .ablation import Ablation
from .checked import checked
from .gallery import DrawnStudy
from .loading import studies_of
from .rows import as_tuple
from .sweeps import Sweep

_WITH_TEXTS = ("classification", "extractive")
"""Kinds of task for which the page shows examples."""


@dataclass(frozen=True)
class ReportPage:
    """A report that has been written.

    Attributes:
        path: path of the HTML file.
        n_texts: number of examples that the included texts were taken from; 0 without texts.
    """

    path: Path
    n_texts: int


@checked
def report(
    folders: DrawnStudy | str | Path | Sequence[DrawnStudy | str | Path],
    out: str | Path = "report.html",
    *,
    examples: bool = False,
    checkpoints: str | Path | Sequence[str | Path] = (),
    data: str | Path | Sequence[str | Path] = (),
    encoding: str = "utf-8",
    tolerance: float = 1.0,
) -> ReportPage:
    """Write a self-contained interactive HTML report of one or more studies.

    Args:
        folders: ablations and sweeps: one or several, as studies or results folders, or checkpoints that
            contain ablations.
        out: output file.
        examples: whether to include the texts of examples whose prediction changes.
        checkpoints: checkpoints of ablations that are neither inside nor next to them.
        data: files of the evaluated examples, if an ablation was run with `data`.
        encoding: text encoding of these files.
        tolerance: initial position of the tolerance slider, in percentage points.

    Raises:
        ResultsError: results, checkpoints or predictions are missing or damaged, or the page cannot be
            written.
        DataError: the texts cannot be read, or are not those that were evaluated.
    """
    if not 0 <= tolerance <= 100:
        raise ResultsError(f"tolerance {tolerance} is not allowed; give 0 to 100 points")
    given, files = [Path(c) for c in as_tuple(checkpoints)], [Path(f) for f in as_tuple(data)]
    studies = studies_of(as_tuple(folders))
    ablations = [study for study in studies if isinstance(study, Ablation)]
    sweeps = [study.record for study in studies if isinstance(study, Sweep)]
    if len(ablations) + len(sweeps) < len(studies):
        raise ResultsError("a report describes ablations and sweeps, not comparisons and averages of them")
    _refuse_strangers(given, ablations)
    parts = [_completed(study, given, files, encoding, examples) for study in ablations]
    path = write_report(out, parts, sweeps, tolerance=tolerance)
    return ReportPage(path, sum(len(part.texts.texts) for part in parts if part.texts))


def _delta_of(study: Ablation) -> str | None:
    """The hash of the ablated weights, if the results record it."""
    value = section_of(study.identity, "checkpoint").get("delta_sha256")
    return value if isinstance(value, str) else None


def _refuse_strangers(checkpoints: Sequence[Path], ablations: Sequence[Ablation]) -> None:
    """Refuse checkpoints that do not belong to any of the ablations.

    Raises:
        ResultsError: a checkpoint belongs to none.
    """
    deltas = {_delta_of(study) for study in ablations}
    for folder in checkpoints:
        described = _description(folder)
        if described is None and (folder / CONFIG).is_file():
            raise ResultsError(
                f"--checkpoint {folder} is of another library, which records no texts; give the evaluated "
                "files with --data"
            )
        if described is None:
            raise ResultsError(f"--checkpoint {folder} is not a checkpoint: it contains no {DESCRIPTION}")
        if None not in deltas and described.get("delta_sha256") not in deltas:
            raise ResultsError(f"--checkpoint {folder} was not ablated in any of the given results folders")


def _description(folder: Path) -> dict[str, Any] | None:
    path = folder / DESCRIPTION
    return read_json(path) if path.is_file() else None


def _completed(
    study: Ablation,
    checkpoints: Sequence[Path],
    data: Sequence[Path],
    encoding: str,
    with_texts: bool,
) -> ReportedAblation:
    """The ablation with its predictions, its checkpoint's description and, if requested, its texts."""
    results = study.results if study.has_predictions else None
    folder = _checkpoint_of(study, checkpoints)
    described = None if folder is None else _description(folder)
    if folder is not None and described is not None:
        _refuse_changed(study, folder, described)
    if not with_texts:
        return ReportedAblation(study.record, results, described)
    if results is None:
        raise ResultsError(
            f"--examples: {study.folder} has no {PREDICTIONS}, so changed predictions are unknown"
        )
    if results.kind not in _WITH_TEXTS:
        return ReportedAblation(study.record, results, described)
    specs = _given_tasks(study, results, described, data, encoding)
    if described is not None:
        specs.append(TaskSpec.from_json(described.get("task"), f"{folder}/{DESCRIPTION}"))
    if not specs:
        raise ResultsError(
            f"--examples: no checkpoint of {study.folder} in the folders around or next to it records its "
            "data; name it with --checkpoint, or the evaluated files with --data"
        )
    return ReportedAblation(study.record, results, described, _texts(study.folder, results, specs))


def _given_tasks(
    study: Ablation,
    results: AblationResults,
    described: Mapping[str, Any] | None,
    data: Sequence[Path],
    encoding: str,
) -> list[TaskSpec]:
    """The task with the given files, or else with those that the ablation was run with, if they are there.

    A checkpoint of another library records no task: the kind and the classes are those of the results.

    Raises:
        DataError: the given files cannot be read, or do not fit the task.
    """
    asked = section_of(read_note(study.folder, MADE_FROM), "asked")
    files = tuple(map(os.path.abspath, data or map(str, asked.get("data") or ())))
    if not files or not (data or all(map(os.path.isfile, files))):
        return []
    encoding = encoding if data else str(asked.get("encoding", encoding))
    split = results.settings.get("split", "validation")
    if described is not None:
        spec = TaskSpec.from_json(described.get("task"), DESCRIPTION)
        return [replace(spec, files={split: files}, encoding=encoding, validation_share=0.0)]
    name, classes = str(study.record.overview.task), results.label_names
    task = TaskSpec(name, results.kind, default_metric(results.kind), classes, Columns("", None, ""), {}, {})
    return [given_task(task, files, split, study.folder, encoding)]


def _refuse_changed(study: Ablation, folder: Path, described: dict[str, Any]) -> None:
    """Refuse a checkpoint whose method or base differs from the ablation's; unknown fields are ignored.

    Raises:
        ResultsError: the checkpoint has changed.
    """
    old, new = {}, {}
    for section, facts in checkpoint_identity(described).items():
        then = section_of(study.identity, section)
        shared = {name for name, value in facts.items() if value and then.get(name)}
        old[section] = {name: then[name] for name in shared}
        new[section] = {name: facts[name] for name in shared}
    refuse_changes(old, new, f"{folder} has changed since {study.folder} was made")


def _checkpoint_of(study: Ablation, checkpoints: Sequence[Path]) -> Path | None:
    """The ablated checkpoint: a given one, the folder around the results, or a folder next to them."""
    parent, wanted = study.folder.resolve().parent, _delta_of(study)
    beside = sorted(path for path in parent.iterdir() if path.is_dir())
    for folder in (*checkpoints, parent, *(beside if wanted else ())):
        described = _description(folder)
        if described is not None and wanted in (None, described.get("delta_sha256")):
            return folder
    return None


def _texts(folder: Path, results: AblationResults, specs: Sequence[TaskSpec]) -> ExampleTexts:
    """The texts of an ablation's examples, verified by their fingerprint."""
    split, n_examples = results.settings.get("split", "validation"), len(results.labels)
    wanted = results.identity.get("data", {}).get("fingerprint")
    for choice in (spec for spec in specs if split in spec.files):
        fingerprint, texts = _load_texts(choice, split, n_examples)
        if fingerprint == wanted:
            return texts
    raise DataError(
        f"--examples: the {split} rows of task {specs[0].name!r} are not those of {folder}: they have "
        "changed, or the ablation was run with --data; give the same files with --data"
    )


def _load_texts(spec: TaskSpec, split: str, n_examples: int) -> tuple[str, ExampleTexts]:
    """The texts of a split, or of its fixed subset of this size, and the fingerprint of those rows."""
    rows = load_split(spec, split, n_examples)
    if isinstance(rows, Split):
        return rows.fingerprint, ExampleTexts(rows.texts, rows.texts_b)
    truths = tuple(" / ".join(dict.fromkeys(a.text for a in answers)) for answers in rows.answers)
    contexts = tuple(rows.contexts[paragraph] for paragraph in rows.paragraph.tolist())
    return rows.fingerprint, ExampleTexts(rows.questions, contexts, truths)
