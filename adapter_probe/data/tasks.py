"""Determine a task from its files, its name, or both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapter_probe.data.columns import LABEL_COLUMNS, choose_columns, lacks_labels
from adapter_probe.data.forms import DataForm, refuse_unread
from adapter_probe.data.hub import HubSplit
from adapter_probe.data.labels import (
    Split,
    assemble_split,
    class_names,
    form_of_texts,
    guess_kind,
    holds_lists,
    label_texts,
    names_in_lists,
    without_first,
)
from adapter_probe.data.presets import find_preset, hub_files, preset_columns, preset_files
from adapter_probe.data.question import Question, question_of
from adapter_probe.data.readers import SPLITS, find_files, name_of_file, uncompressed
from adapter_probe.data.requests import form_of, is_of_language_model
from adapter_probe.data.rows import Rows
from adapter_probe.data.similarity import are_contrasts
from adapter_probe.data.sources import fingerprint_of_tables, read_split, refuse_changed, subset
from adapter_probe.data.squad import Questions, assemble_questions, form_of_questions
from adapter_probe.data.tagged import (
    Tagged,
    assemble_tagged,
    form_of_words,
    has_tags,
    refuse_unscorable,
    tag_columns,
    tag_metric,
)
from adapter_probe.data.task_spec import Columns, TaskSpec, check_name
from adapter_probe.errors import DataError, must_be
from adapter_probe.kinds.table import about_kind
from adapter_probe.kinds.tags import TOKENS
from adapter_probe.kinds.task import TaskKind
from adapter_probe.known_tasks import KNOWN_TASKS, KnownTask, known_task
from adapter_probe.metrics import about, check_metric, default_metric

__all__ = ["Columns", "Questions", "Split", "TaskSpec", "find_task", "load_split", "locate_task"]

PathOrPaths = str | Path | Iterable[str | Path]


def locate_task(task: str | Path | None, data: str | Path | None = None) -> tuple[str | None, Path | None]:
    """Resolve a task's name, a folder, or both into the arguments `preset` and `folder` of `find_task`.

    A name with a folder is read from that folder; a name alone, from a folder of that name if there is one,
    and otherwise from the hub. For any other folder, the task is determined from its files.

    Args:
        task: a preset's name (``cola``, ``glue/cola``) or a folder; None if `data` is sufficient.
    """
    if task is None:
        return None, None if data is None else Path(data)
    if data is not None:
        return find_preset(str(task)).name, Path(data)
    preset, folder = known_task(str(task)), Path(task).expanduser()
    if folder.exists():
        return None if preset is None else preset.name, folder
    if preset is None:
        known = ", ".join(KNOWN_TASKS)
        raise DataError(
            f"task {str(task)!r} is neither a folder nor a known name; the names of known tasks are {known}"
        )
    return preset.name, None


def find_task(
    folder: str | Path | None = None,
    train: PathOrPaths = (),
    validation: PathOrPaths = (),
    test: PathOrPaths = (),
    kind: str | None = None,
    metric: str | None = None,
    name: str | None = None,
    preset: str | None = None,
    encoding: str = "utf-8",
    validation_share: float = 0.0,
    reads: Sequence[str] = (),
) -> TaskSpec:
    """Determine the task in a folder or some files; given arguments override what is inferred.

    Every row of every split is read and checked. A test split that was found in the folder, not given, is
    skipped if it has no labels (as in GLUE).

    Args:
        folder: a folder with train, validation or dev, and test files.
        train: files of the training split, concatenated; they replace those of the folder.
        name: the task's name; by default the preset's, or that of the folder.
        preset: a known task, such as ``glue/cola``, which determines columns, classes and metric. Without
            folder and files it is read from the Hugging Face Hub.
        validation_share: fraction of the training rows to hold out as the validation split, which then has
            no files.
        reads: see `TaskSpec`.
    """
    if metric is not None and not metric:
        raise DataError("--metric is empty; name a metric, or omit it for the task's default metric")
    if folder is not None and Path(folder).is_file():
        train, folder = train or folder, None
    chosen = None if preset is None else find_preset(preset)
    if chosen is not None and kind not in (None, chosen.kind):
        raise DataError(f"task {chosen.name!r} is of kind {chosen.kind}; --kind {kind} is not allowed")
    files = _task_files(chosen, folder, {"train": train, "validation": validation, "test": test})
    if validation_share:
        files = _split_off(files, validation_share)
    entry = next(iter(files.values()))[0]  # of the train split, or else of the first
    called = name or (_name_of(entry, folder is None) if chosen is None else chosen.name)
    check_name(called)
    known = about_kind(kind or ("classification" if chosen is None else chosen.kind))
    spec = TaskSpec(
        called, known.name, metric or "", (), Columns("", None, ""), files, {}, chosen and chosen.name,
        encoding, validation_share, tuple(reads),
    )  # fmt: skip
    tables = {split: read_split(spec, split) for split in files}
    inferred = kind is None and chosen is None
    if known.is_language_model or (inferred and _are_for_language_model(tables)):
        return _task_of_language_model(replace(spec, kind="causal"), tables)
    return _labelled_task(spec, tables, None if inferred else known, bool(test))


def _labelled_task(
    spec: TaskSpec, tables: dict[str, list[Rows]], known: TaskKind | None, with_test: bool
) -> TaskSpec:
    """The task of rows with labels, tags or answers.

    Args:
        tables: all rows of every split, those that are trained on first.
        known: the kind of task; None to infer it.
        with_test: whether a test split without labels is refused rather than left out.
    """
    preset = None if spec.preset is None else find_preset(spec.preset)
    first = next(iter(tables.values()))[0]
    if known is None and are_contrasts(first.every_name):
        raise DataError(
            f"{first.path}: queries with positive texts are for embeddings, which sentence-transformers "
            "trains; `adapter-probe ablate` scores what it has trained"
        )
    if known is None and has_tags(first):
        known = TOKENS
    columns = _columns(first, known, preset)
    if not with_test and len(tables) > 1 and lacks_labels(tables.get("test", ()), columns):
        tables = {split: own for split, own in tables.items() if split != "test"}
    rows = {split: Rows.joined(own) for split, own in tables.items()}
    if preset is None:
        known, classes = _kind_and_classes(known, list(rows.values()), columns)
        usual = tag_metric(classes) if known.of_words else default_metric(known.name)
    else:
        known, classes, usual = about_kind(spec.kind), preset.label_names, preset.metric
    spec = replace(
        spec, kind=known.name, metric=spec.metric or usual, label_names=classes, columns=columns,
        files={split: spec.files[split] for split in rows},
    )  # fmt: skip
    check_metric(spec.metric, spec.kind, len(classes) or None)
    refuse_unscorable(spec.metric, classes)
    prints = {split: _all_rows(spec, split, own).fingerprint for split, own in rows.items()}
    return replace(spec, fingerprints=prints)


def _columns(table: Rows, known: TaskKind | None, preset: KnownTask | None) -> Columns:
    """The columns of texts and labels, of words and tags, or those of a task with a name."""
    if known is not None and known.of_words:
        return tag_columns(table)
    return choose_columns(table, known) if preset is None else preset_columns(preset, table)


def load_split(
    spec: TaskSpec, split: str, max_examples: int | None = None, expect_fingerprint: bool = False
) -> Split | Questions | Tagged:
    """Read one split of a task; see `load_with_question`."""
    return load_with_question(spec, split, max_examples, expect_fingerprint)[0]


def load_with_question(
    spec: TaskSpec, split: str, max_examples: int | None = None, expect_fingerprint: bool = False
) -> tuple[Split | Questions | Tagged, Question]:
    """Read one split of a task; questions if the task is extractive, tagged words, or labelled texts.

    Args:
        max_examples: keep at most this many rows, see `subset`; files may be sorted.
        expect_fingerprint: whether to refuse rows that differ from those recorded in the task.
    """
    rows = Rows.joined(read_split(spec, split))
    loaded = _all_rows(spec, split, rows)
    if expect_fingerprint:
        refuse_changed(spec, split, loaded.fingerprint)
    keep = subset(len(loaded), max_examples)
    kept = loaded if len(keep) == len(loaded) else _assembled(spec, split, rows.kept(keep))
    form = _ROWS.get(spec.kind, _TEXTS)[0](spec)
    refuse_unread(form, [rows])
    question = question_of(form, [rows], len(kept))
    if isinstance(loaded, Split):
        question = replace(question, changes=without_first(spec, rows, loaded.labels))
    return kept, question


_TEXTS = (form_of_texts, assemble_split)
_ROWS: dict[str, tuple[Callable[..., DataForm], Callable[..., Any]]] = {
    "tokens": (form_of_words, assemble_tagged), "extractive": (form_of_questions, assemble_questions),
}  # fmt: skip
"""What the rows of a kind ask, and what makes them; labelled texts if it is not listed."""


def _assembled(spec: TaskSpec, split: str, rows: Rows) -> Split | Questions | Tagged:
    return _ROWS.get(spec.kind, _TEXTS)[1](spec, split, rows)


def _all_rows(spec: TaskSpec, split: str, rows: Rows) -> Split | Questions | Tagged:
    """All rows of a split; refused if their labels are all equal, which is possible only in a test split."""
    loaded = _assembled(spec, split, rows)
    labelled = split != "test" and spec.columns.label and isinstance(loaded, Split)
    if labelled and loaded.labels.ndim == 1 and (loaded.labels == loaded.labels[0]).all():
        value = label_texts(rows, spec.columns.label)[0]
        raise DataError(f"{rows.path}: every {split} label is {value!r}; expected two or more labels")
    return loaded


def _task_files(
    preset: KnownTask | None, folder: str | Path | None, named: dict[str, PathOrPaths]
) -> dict[str, tuple[str, ...]]:
    """The sources of every split, in the order of `SPLITS`: absolute paths, or splits on the hub."""
    given = {split: (f,) if isinstance(f, str | Path) else tuple(f) for split, f in named.items()}
    missing = [split for split in SPLITS if not given[split]]
    if folder is not None:
        found = find_files(folder, missing) if preset is None else preset_files(preset, folder, missing)
    else:
        found = hub_files(preset) if preset is not None and len(missing) == len(SPLITS) else {}
    files = {split: given[split] or found.get(split, ()) for split in SPLITS}
    if not any(files.values()):
        raise DataError("no data given; give a folder, or files for train and validation")
    # Not resolved: the suffix of a link gives the file type, which its target's name may lack.
    return {
        split: tuple(str(e) if HubSplit.parse(str(e)) else os.path.abspath(e) for e in entries)
        for split, entries in files.items()
        if entries
    }


def _split_off(files: dict[str, tuple[str, ...]], share: float) -> dict[str, tuple[str, ...]]:
    """The sources, with those of the training split also used for validation."""
    if not 0 < share < 1:
        raise DataError(must_be("--validation-share", "a fraction between 0 and 1", share))
    if "train" not in files or "validation" in files:
        there = ", ".join(files)
        raise DataError(
            f"a validation share needs training files and no validation files; the splits are {there}"
        )
    shared = {"train": files["train"], "validation": files["train"]}
    return {**shared, **files}


def _name_of(entry: str, named: bool) -> str:
    """The name of a folder, or of a dataset on the hub.

    A given file is named by its file name unless that is only the name of a split, because a folder may
    contain several data sets.
    """
    on_hub = HubSplit.parse(entry)
    if on_hub is not None:
        return on_hub.dataset.rpartition("/")[2]
    return (named and name_of_file(entry)) or Path(entry).parent.name


def _kind_and_classes(
    known: TaskKind | None, rows: Sequence[Rows], columns: Columns
) -> tuple[TaskKind, tuple[str, ...]]:
    """The kind of task, inferred if it is not known, and the names of its classes.

    Args:
        rows: those of every split. Of tags and of several labels, a rare one may be in one split only.
    """
    first, label = rows[0], columns.label
    if known is None and isinstance(first.column(label)[0], list | dict):
        several = columns.text_b is None and holds_lists(first, label)
        known = about_kind("multilabel" if several else "extractive")  # an answer has a second text
    values = [] if known and known.lists else label_texts(first, label)
    known = known or about_kind(guess_kind(first, values))
    if known.lists and known.has_classes:
        return known, names_in_lists(Rows.joined(rows), label, known.lists)
    return known, class_names(first, label, values) if known.one_class else ()


def _are_for_language_model(tables: Mapping[str, Sequence[Rows]]) -> bool:
    """Whether the first file's columns are those of a language model's rows, without a label."""
    table = next(iter(tables.values()))[0]
    of_rows = uncompressed(table.path).suffix.lower() in (".jsonl", ".json", ".parquet")
    named = {name.lower() for name in table.names}
    return of_rows and is_of_language_model(table) and named.isdisjoint(LABEL_COLUMNS)


def _task_of_language_model(spec: TaskSpec, tables: Mapping[str, Sequence[Rows]]) -> TaskSpec:
    """The task of a language model's rows, whose columns say what is scored."""
    forms = {split: form_of(own[0]) for split, own in tables.items()}
    (lead, (columns, form)), *others = forms.items()
    for split, (found, _) in others:
        if found != columns:
            raise DataError(
                f"the {split} rows of {spec.name} have {found}, but the {lead} rows have {columns}; give "
                "rows of one kind"
            )
    if form.are_preferences:
        raise DataError(
            f"{tables[lead][0].path}: language models are trained on preferences by TRL's DPOTrainer; "
            "`adapter-probe ablate` scores what it has trained"
        )
    allowed = [one for one in form.metrics if not about(one).distance]
    if spec.metric and spec.metric not in allowed:
        raise DataError(
            f"metric {spec.metric!r} does not fit rows of form {form.name!r}; allowed: {', '.join(allowed)}"
        )
    prints = {split: fingerprint_of_tables(own) for split, own in tables.items()}
    return replace(spec, metric=spec.metric or allowed[0], fingerprints=prints)
