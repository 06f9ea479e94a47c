"""The texts of an ablation's examples for its report, found again and verified by their fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapter_probe.ablation_results import AblationResults
from adapter_probe.checkpoints.files import DESCRIPTION
from adapter_probe.data.given import given_task
from adapter_probe.data.lm_eval_tasks import is_task
from adapter_probe.data.requests import load_requests
from adapter_probe.data.sources import read_split, subset
from adapter_probe.data.tagged import Tagged
from adapter_probe.data.tasks import Columns, Split, TaskSpec, load_split
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.figures.report.examples import ExampleTexts
from adapter_probe.metrics import OF_CHOICES, check_kind, default_metric
from adapter_probe.results.sealing import MADE_FROM, read_note

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
    # Rows of choices are read without a tokenizer.
    choices = results.kind == "causal" and results.metric in OF_CHOICES
    if results.are_right is None or (results.kind == "causal" and not choices):
        return None
    asked = read_note(folder, MADE_FROM).get("asked") or {}
    noted = [Path(str(entry)) for entry in asked.get("data") or () if not is_task(str(entry))]
    files = list(data) or [path for path in noted if path.is_file()]
    given = encoding if data else str(asked.get("encoding", "utf-8"))
    task = None if described is None else described.get("task")
    wanted = results.identity.get("data", {}).get("fingerprint")
    tried = False
    for found in _candidates(results, files, given, task, str((checkpoint or folder) / DESCRIPTION), choices):
        tried = True
        if found[0] == wanted:
            return found[1]
    if tried:
        name = results.settings.get("task", "")
        raise DataError(
            f"--examples: the {_split(results)} rows of task {name!r} are not those of {folder}: they have "
            "changed, or the ablation was run with --data; give the same files with --data"
        )
    raise ResultsError(
        f"--examples: {folder} does not say where its examples are; give their file with --data"
    )


def _split(results: AblationResults) -> str:
    return str(results.settings.get("split", "validation"))


def _candidates(
    results: AblationResults, files: Sequence[Path], encoding: str, task: object, source: str, choices: bool
) -> Iterator[tuple[str, ExampleTexts]]:
    """Fingerprint and texts of the given or recorded files, then of the checkpoint's own task."""
    split, n_examples = _split(results), results.n_examples
    paths = tuple(str(path.resolve()) for path in files)
    if choices:
        if paths:
            yield _load_choices(paths, split, n_examples, encoding)
        return
    spec = None if task is None else TaskSpec.from_json(task, source)
    if paths and spec is not None:
        given = replace(spec, files={split: paths}, encoding=encoding, validation_share=0.0)
        yield _load(given, split, n_examples)
    elif paths:  # of another library's checkpoint, which records no task
        name, kind = str(results.settings.get("task")), check_kind(results.kind)
        nothing = TaskSpec(
            name, kind, default_metric(kind), results.label_names, Columns("", None, ""), {}, {}
        )
        found = given_task(nothing, paths, split, source, encoding)
        yield _load(replace(found, files={split: paths}), split, n_examples)
        return
    if spec is not None and split in spec.files:
        yield _load(spec, split, n_examples)


def _load(spec: TaskSpec, split: str, n_examples: int) -> tuple[str, ExampleTexts]:
    """Fingerprint and texts of a split, or of its fixed subset of this size."""
    rows = load_split(spec, split, n_examples)
    if isinstance(rows, Split):
        return rows.fingerprint, ExampleTexts(
            rows.texts, rows.texts_b, metadata=_metadata(spec, split, n_examples)
        )
    if isinstance(rows, Tagged):
        return rows.fingerprint, ExampleTexts(
            tuple(map(" ".join, rows.words)), words=rows.words, metadata=_metadata(spec, split, n_examples)
        )
    truths = tuple(" / ".join(dict.fromkeys(a.text for a in answers)) for answers in rows.answers)
    contexts = tuple(rows.contexts[paragraph] for paragraph in rows.paragraph.tolist())
    return rows.fingerprint, ExampleTexts(rows.questions, contexts, truths)


def _load_choices(
    paths: tuple[str, ...], split: str, n_examples: int, encoding: str
) -> tuple[str, ExampleTexts]:
    requests = load_requests(None, paths, split, n_examples, encoding)
    texts = tuple(row.context.strip() or " | ".join(row.choices) for row in requests.rows)
    return requests.fingerprint, ExampleTexts(texts, choices=tuple(row.choices for row in requests.rows))


def _metadata(spec: TaskSpec, split: str, n_examples: int) -> dict[str, tuple[str, ...]]:
    """The columns besides texts and label with several values, but not too many, to filter by."""
    rows = read_split(spec, split)
    keep = subset(len(rows.records), n_examples)
    rows = rows if keep is None else rows.kept(keep)
    found = {}
    for name in rows.names:
        values = [record.get(name) for record in rows.records]
        if name in spec.columns.names or not all(isinstance(value, (str, int)) for value in values):
            continue
        texts = tuple(map(str, values))
        if 1 < len(set(texts)) <= _MOST_VALUES and max(map(len, texts)) <= 80:
            found[name] = texts
    return found
