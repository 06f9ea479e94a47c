"""The interactive report of finished studies: the function `report`, and the texts of their examples.

The texts are found again and verified by their fingerprint. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.score_changes import section_of
from adapter_probe.argument_checks import as_tuple, taking
from adapter_probe.checkpoints.files import CONFIG, DESCRIPTION
from adapter_probe.checkpoints.identity import checkpoint_identity
from adapter_probe.data.generating import Generation
from adapter_probe.data.lm_eval_tasks import is_task
from adapter_probe.data.prompts import prompts_of
from adapter_probe.data.requests import requests_of
from adapter_probe.data.rows import Rows
from adapter_probe.data.sources import read_source, read_split, subset
from adapter_probe.data.tagged import Tagged
from adapter_probe.data.task_of_files import given_task
from adapter_probe.data.tasks import Columns, Split, TaskSpec, load_split
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.figures.report.ablation_section import ReportedAblation
from adapter_probe.figures.report.examples import ExampleTexts
from adapter_probe.figures.report.page import Reported, write_report
from adapter_probe.kinds.likelihoods import Choices
from adapter_probe.kinds.written import Written
from adapter_probe.metrics import check_kind, default_metric
from adapter_probe.results.ablation_files import read_generations
from adapter_probe.results.atomic import read_json
from adapter_probe.results.fingerprints import refuse_changes
from adapter_probe.results.manifests import MADE_FROM, read_note
from adapter_probe.results.schema import GENERATIONS, PREDICTIONS
from adapter_probe.settings import as_points

from .ablation_study import Ablation
from .comparison import Average, Comparison, average, compare
from .figure_arguments import Report
from .load import ablations_in, ablations_of, studies_of
from .study_base import DrawnStudy, StoredStudy


@dataclass(frozen=True)
class ReportPage:
    """A report that has been written.

    Attributes:
        path: path of the HTML file.
        n_texts: number of examples that the included texts were taken from; 0 without texts.
    """

    path: Path
    n_texts: int


@taking(Report)
def report(call: Report) -> ReportPage:
    """Write a self-contained interactive HTML report of one or more studies.

    Studies of the same spans stand side by side: what is selected in one is selected in all.

    Raises:
        ResultsError: results, checkpoints or predictions are missing or damaged, the ablations cannot be
            averaged or compared, or the page cannot be written.
        DataError: the texts cannot be read, or are not those that were evaluated.
    """
    tolerance = as_points("--tolerance", call.tolerance, most=100)
    given, files = [Path(c) for c in as_tuple(call.checkpoints)], [Path(f) for f in as_tuple(call.data)]
    studies: list[DrawnStudy] = studies_of(as_tuple(call.folders))
    for study in studies:
        if not isinstance(study, (StoredStudy, Average, Comparison)):
            raise ResultsError(
                "a report describes ablations, their averages and comparisons, studies of strengths "
                f"and ranks, and sweeps, not {type(study).__name__}"
            )
    ablations = [study for study in studies if isinstance(study, Ablation)]
    _refuse_strangers(given, ablations)
    held = [one for one in as_tuple(call.folders) if isinstance(one, Ablation) or ablations_in(one)]
    # One folder may hold all; of several, each has one, as in `compare` and `average`.
    chosen = ablations_of(held) if (call.average or call.compare) and len(held) > 1 else ablations
    if call.compare and len(chosen) != 2:
        raise ResultsError(f"--compare needs two ablations, got {len(chosen)}")
    joined: list[Any] = [study for study in studies if isinstance(study, (Average, Comparison))]
    joined += chosen if call.average or call.compare else []
    if any(study.record.by_module for study in joined):
        raise ResultsError(
            "a report neither averages nor compares maps of layers and modules; use adapter-probe compare "
            "or figures --average"
        )
    parts: list[Reported] = [average(chosen).record] if call.average else []
    parts += [compare(*chosen).record] if call.compare else []
    n_texts = 0
    maps = [study.record for study in ablations if study.record.by_module]
    for study in studies:
        if isinstance(study, Ablation) and not study.record.by_module:
            part = _completed(study, given, files, call.encoding, call.examples)
            parts.append(part)
            n_texts += len(part.texts.texts) if part.texts else 0
        elif isinstance(study, (Average, Comparison)):
            parts.append(study.record)
    of_checkpoints = [study for study in studies if isinstance(study, StoredStudy)]
    curves = [*maps, *(study.record for study in of_checkpoints if not isinstance(study, Ablation))]
    out = Path(call.out or "report.html")
    return ReportPage(write_report(out, parts, curves, tolerance=tolerance), n_texts)


def _delta_of(study: Ablation) -> str | None:
    """The hash of the ablated weights, if the results record it."""
    value = section_of(study.identity, "checkpoint").get("delta_sha256")
    return value if isinstance(value, str) else None


def _refuse_strangers(checkpoints: Sequence[Path], ablations: Sequence[Ablation]) -> None:
    """Refuse checkpoints that do not belong to any of the ablations."""
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
    if described is not None:
        old, new = {}, {}
        for section, facts in checkpoint_identity(described).items():
            then = section_of(study.identity, section)
            shared = [name for name, value in facts.items() if value and then.get(name)]  # others are unknown
            old[section] = {name: then[name] for name in shared}
            new[section] = {name: facts[name] for name in shared}
        refuse_changes(old, new, f"{folder} has changed since {study.folder} was made")
    if not with_texts:
        return ReportedAblation(study.record, results, described)
    if results is None:
        raise ResultsError(
            f"--examples: {study.folder} has no {PREDICTIONS}, so changed predictions are unknown"
        )
    texts = texts_of(study.folder, results, described, folder, data, encoding)
    return ReportedAblation(study.record, results, described, texts)


def _checkpoint_of(study: Ablation, checkpoints: Sequence[Path]) -> Path | None:
    """The ablated checkpoint: a given one, the folder around the results, or a folder next to them."""
    parent, wanted = study.folder.resolve().parent, _delta_of(study)
    beside = sorted(path for path in parent.iterdir() if path.is_dir())
    for folder in (*checkpoints, parent, *(beside if wanted else ())):
        described = _description(folder)
        if described is not None and wanted in (None, described.get("delta_sha256")):
            return folder
    return None


_MOST_VALUES = 60  # of a column that is worth filtering by


def texts_of(
    folder: Path,
    results: AblationResults,
    described: Mapping[str, Any] | None,
    checkpoint: Path | None,
    data: Sequence[Path],
    encoding: str,
) -> ExampleTexts | None:
    """The texts of an ablation's examples; None for what has no list, such as regressions and losses.

    Args:
        folder: results folder, which may record the files that were evaluated.
        results: predictions.
        described: description of the checkpoint, if it was found and is this project's.
        checkpoint: its folder.
        data: files of the examples, if they are given.
        encoding: text encoding of these files.

    Raises:
        ResultsError: it is not known which files were evaluated.
        DataError: the texts cannot be read, or are not those that were evaluated.
    """
    if results.are_right is None or not results.scored.has_texts:
        return None
    asked = read_note(folder, MADE_FROM).get("asked") or {}
    noted = [Path(str(entry)) for entry in asked.get("data") or () if not is_task(str(entry))]
    files = list(data) or [path for path in noted if path.is_file()]
    paths = tuple(str(path.resolve()) for path in files)
    given = encoding if data else str(asked.get("encoding", "utf-8"))
    split, source = str(results.settings.get("split", "validation")), (checkpoint or folder) / DESCRIPTION
    task = None if described is None else described.get("task")
    wanted, tried = results.identity.get("data", {}).get("fingerprint"), False
    writes = isinstance(results.scored, Written)
    for fingerprint, found in _candidates(results, writes, paths, given, split, task, str(source)):
        tried = True
        if fingerprint == wanted:
            return replace(found, written=_written(folder, results)) if writes else found
    if tried:
        name = results.settings.get("task", "")
        raise DataError(
            f"--examples: the {split} rows of task {name!r} are not those of {folder}: they have "
            "changed, or the ablation was run with --data; give the same files with --data"
        )
    raise ResultsError(
        f"--examples: {folder} does not say where its examples are; give their file with --data"
    )


def _candidates(
    results: AblationResults, writes: bool, paths: tuple[str, ...], encoding: str, split: str, task: object,
    source: str,
) -> Iterator[tuple[str, ExampleTexts]]:  # fmt: skip
    """Fingerprint and texts of all rows that may be the examples of an ablation."""
    n_examples = results.n_examples
    if not (writes or isinstance(results.scored, Choices)):
        specs = _tasks(results, paths, encoding, task, source, split)
        yield from (_load(spec, split, n_examples) for spec in specs)
    elif tables := [read_source(path, encoding=encoding, texts=True) for path in paths]:
        if writes:
            rows = prompts_of(None, tables, split, Generation(generate=True), n_examples)
            truths = tuple(" / ".join(row.choices) for row in rows.rows)
            yield rows.fingerprint, ExampleTexts(tuple(row.context for row in rows.rows), truths=truths)
        else:  # which are read without a tokenizer
            rows = requests_of(None, tables, split, n_examples)
            contexts = tuple(row.context.strip() or " | ".join(row.choices) for row in rows.rows)
            yield rows.fingerprint, ExampleTexts(contexts, choices=tuple(row.choices for row in rows.rows))


def _written(folder: Path, results: AblationResults) -> tuple[tuple[str, ...], ...]:
    """What every variant writes, in the order of the results."""
    table = read_generations(folder)
    groups = () if table is None else table.groupby("variant")
    by_name = {name: tuple(own["text"].fillna("")) for name, own in groups}
    if any(len(by_name.get(name, ())) != results.n_examples for name in results.row_names):
        raise ResultsError(f"--examples: {folder / GENERATIONS} does not have the texts of every variant")
    return tuple(by_name[name] for name in results.row_names)


def _tasks(
    results: AblationResults, paths: tuple[str, ...], encoding: str, task: object, source: str, split: str
) -> list[TaskSpec]:
    """The tasks that may have been evaluated: of the files, and then the checkpoint's own."""
    if task is None and paths:  # of another library's checkpoint, which records no task
        name, kind = str(results.settings.get("task")), check_kind(results.kind)
        nothing = TaskSpec(
            name, kind, default_metric(kind), results.label_names, Columns("", None, ""), {}, {}
        )
        return [replace(given_task(nothing, paths, split, source, encoding), files={split: paths})]
    spec = None if task is None else TaskSpec.from_json(task, source)
    if spec is None:
        return []
    given = replace(spec, files={split: paths}, encoding=encoding, validation_share=0.0, reads=())
    return [given] * bool(paths) + [spec] * (split in spec.files)


def _load(spec: TaskSpec, split: str, n_examples: int) -> tuple[str, ExampleTexts]:
    """Fingerprint and texts of a split, or of its fixed subset of this size."""
    rows = load_split(spec, split, n_examples)
    if isinstance(rows, (Split, Tagged)):
        about = _metadata(spec, split, n_examples)
        if isinstance(rows, Split):
            return rows.fingerprint, ExampleTexts(rows.texts, rows.texts_b, metadata=about)
        texts = tuple(map(" ".join, rows.words))
        return rows.fingerprint, ExampleTexts(texts, words=rows.words, metadata=about)
    truths = tuple(" / ".join(dict.fromkeys(a.text for a in answers)) for answers in rows.answers)
    contexts = tuple(rows.contexts[paragraph] for paragraph in rows.paragraph.tolist())
    return rows.fingerprint, ExampleTexts(rows.questions, contexts, truths)


def _metadata(spec: TaskSpec, split: str, n_examples: int) -> dict[str, tuple[str, ...]]:
    """The columns besides texts and label with several values, but not too many, to filter by."""
    rows = Rows.joined(read_split(spec, split))
    rows = rows.kept(subset(len(rows.records), n_examples))
    found = {}
    for name in rows.names:
        values = [record.get(name) for record in rows.records]
        if name in spec.columns.names or not all(isinstance(value, (str, int)) for value in values):
            continue
        texts = tuple(map(str, values))
        if 1 < len(set(texts)) <= _MOST_VALUES and max(map(len, texts)) <= 80:
            found[name] = texts
    return found
