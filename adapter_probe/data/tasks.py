"""What a task is (files, columns, classes, metric), how its files tell, and its labelled texts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from adapter_probe.data.labels import (
    HIDDEN,
    class_indices,
    class_names,
    guess_kind,
    label_texts,
    paths_of,
    target_numbers,
)
from adapter_probe.data.readers import SPLITS, Rows, find_files, is_raw_cola, listed, read_rows, shown
from adapter_probe.errors import DataError
from adapter_probe.metrics import Kind, check_kind, check_metric, default_metric

# Usual column names in order of preference, compared in lower case.
_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text_a", "text_b"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text", "text_b"),
    ("#1 string", "#2 string"),
)
_TEXTS = ("text", "sentence", "review", "content", "comment", "tweet", "question")
_LABELS = ("label", "labels", "gold_label", "class", "category", "target", "sentiment", "is_duplicate")
_LABELS += ("score", "stars", "rating", "quality", "relatedness_score")

Files = str | Path | Iterable[str | Path]


@dataclass(frozen=True)
class Columns:
    """Which columns hold the text, the second text of a pair (or None) and the label."""

    text: str
    text_b: str | None
    label: str

    @property
    def names(self) -> tuple[str, ...]:
        """The columns in use."""
        return tuple(name for name in (self.text, self.text_b, self.label) if name is not None)


@dataclass(frozen=True)
class TaskSpec:
    """A task: everything that determines its rows and how they are scored.

    Attributes:
        name: for people; nothing depends on it.
        kind: classification or regression.
        metric: the task's score, see `adapter_probe.metrics`.
        label_names: the classes, in the order of the head's outputs; empty for regression.
        columns: where texts and labels stand in the files.
        files: split to absolute paths, read in this order.
        fingerprints: split to the SHA-256 of its texts and labels in order, wherever the files lie.
    """

    name: str
    kind: Kind
    metric: str
    label_names: tuple[str, ...]
    columns: Columns
    files: dict[str, tuple[str, ...]]
    fingerprints: dict[str, str]

    def to_json(self) -> dict[str, object]:
        """The task as plain JSON values; `from_json` reads them back."""
        return {
            **asdict(self),
            "label_names": list(self.label_names),
            "files": {split: list(paths) for split, paths in self.files.items()},
        }

    @classmethod
    def from_json(cls, record: object, source: str = "task") -> TaskSpec:
        """Read back what `to_json` wrote.

        Args:
            record: the parsed JSON.
            source: the file it came from, for error messages.

        Raises:
            DataError: something is missing, of the wrong type, or contradicts itself.
        """
        _expect(isinstance(record, Mapping), source, "task", record, "an object")
        columns, files, prints = (
            _entry(record, key, dict, source) for key in ("columns", "files", "fingerprints")
        )
        text_b = columns.get("text_b")
        _expect(
            text_b is None or isinstance(text_b, str), source, "columns.text_b", text_b, "a string or null"
        )
        spec = cls(
            name=_entry(record, "name", str, source),
            kind=_entry(record, "kind", str, source),
            metric=_entry(record, "metric", str, source),
            label_names=tuple(_strings(record, "label_names", source)),
            columns=Columns(
                _entry(columns, "text", str, f"{source}: columns"),
                text_b,
                _entry(columns, "label", str, f"{source}: columns"),
            ),
            files={split: tuple(_strings(files, split, f"{source}: files")) for split in files},
            fingerprints={split: _entry(prints, split, str, f"{source}: fingerprints") for split in prints},
        )
        _check_spec(spec, source)
        return spec


@dataclass(frozen=True, eq=False)
class Split:
    """Labelled texts.

    Attributes:
        texts: the first or only text of every example.
        texts_b: the second text of every example, or None for single sentences.
        labels: ``[examples]``, int64 indices into the task's `label_names`, or float64 for regression.
        name: the split: train, validation or test.
        fingerprint: SHA-256 of texts and labels in order.
    """

    texts: tuple[str, ...]
    texts_b: tuple[str, ...] | None
    labels: np.ndarray
    name: str
    fingerprint: str

    def __len__(self) -> int:
        return len(self.texts)


def find_task(
    folder: str | Path | None = None,
    train: Files = (),
    validation: Files = (),
    test: Files = (),
    text: str | None = None,
    text_b: str | None = None,
    label: str | None = None,
    kind: str | None = None,
    metric: str | None = None,
    name: str | None = None,
) -> TaskSpec:
    """Find out what a folder or some files hold; whatever is given overrides the guess.

    Every row of every split is read and checked. A test split that was found in the folder, not named, is
    left out where it has no labels (as GLUE's have none).

    Args:
        folder: a folder with train, validation or dev, and test files.
        train: files of the training split, read one after the other; they replace the folder's.
        validation: likewise.
        test: likewise.
        text: column of the text: a name, or a number from 0 in a file without a header.
        text_b: column of the second text of a pair.
        label: column of the label.
        kind: classification or regression.
        metric: the score to use.
        name: the task's name; by default that of the folder.

    Raises:
        DataError: no data are found, or they cannot be read as one task; the message says where and why.
    """
    files = _task_files(folder, {"train": train, "validation": validation, "test": test})
    asked = tuple(column for column in (text, text_b, label) if column is not None)
    tables = {split: [read_rows(path, asked) for path in paths] for split, paths in files.items()}
    lead = next(iter(files))  # the train split, or the first there is
    columns = _choose_columns(tables[lead][0], text, text_b, label)
    if lead != "test" and not test and "test" in tables and _lacks_labels(tables["test"], columns):
        del files["test"], tables["test"]
    values = label_texts(tables[lead], columns.label)
    kind = guess_kind(tables[lead], values) if kind is None else check_kind(kind)
    classes = () if kind == "regression" else class_names(tables[lead], columns.label, values)
    spec = TaskSpec(
        name=name or Path(files[lead][0]).parent.name,
        kind=kind,
        metric=metric or default_metric(kind),
        label_names=classes,
        columns=columns,
        files=files,
        fingerprints={},
    )
    splits = {split: _assemble(spec, split, tables[split]) for split in files}
    check_metric(spec.metric, kind, len(classes) or None)
    return replace(spec, fingerprints={split: rows.fingerprint for split, rows in splits.items()})


def load_split(
    spec: TaskSpec, split: str, max_examples: int | None = None, expect_fingerprint: bool = False
) -> Split:
    """Read one split of a task.

    Args:
        spec: the task.
        split: train, validation or test.
        max_examples: keep at most this many rows: always the same ones, drawn at random (files may be
            sorted) and left in the files' order; a smaller number keeps a subset of a larger one's.
        expect_fingerprint: refuse rows that differ from those the task was made from.

    Raises:
        DataError: the task has no such split, its files cannot be read as the task says, or they changed.
    """
    if split not in spec.files:
        raise DataError(
            f"task {spec.name!r} has no labelled split {split!r}; it has: {', '.join(spec.files)}"
        )
    if max_examples is not None and max_examples < 1:
        raise DataError(f"the number of examples must be at least 1, got {max_examples}")
    tables = [read_rows(path, spec.columns.names) for path in spec.files[split]]
    loaded = _assemble(spec, split, tables)
    expected = spec.fingerprints.get(split)
    if expect_fingerprint and loaded.fingerprint != expected:
        before = expected[:8] if expected else "none"
        raise DataError(
            f"{paths_of(tables)}: the {split} rows of task {spec.name!r} have changed "
            f"(fingerprint {before} -> {loaded.fingerprint[:8]})"
        )
    if max_examples is None or max_examples >= len(loaded):
        return loaded
    # Raw generator output is the part of NumPy's random streams that never changes between versions.
    keep = np.sort(np.argsort(np.random.PCG64(0).random_raw(len(loaded)), kind="stable")[:max_examples])
    texts = tuple(loaded.texts[i] for i in keep)
    texts_b = None if loaded.texts_b is None else tuple(loaded.texts_b[i] for i in keep)
    return _split(spec, split, texts, texts_b, loaded.labels[keep])


def _task_files(folder: str | Path | None, named: dict[str, Files]) -> dict[str, tuple[str, ...]]:
    """Absolute paths of every split, in the order of `SPLITS`."""
    given = {split: (f,) if isinstance(f, str | Path) else tuple(f) for split, f in named.items()}
    missing = [split for split in SPLITS if not given[split]]
    found = find_files(folder, missing) if folder is not None else {}
    files = {split: given[split] or found.get(split, ()) for split in SPLITS}
    if not any(files.values()):
        raise DataError("no data: name a folder, or files for train, validation or test")
    # Not resolved: a link's own name says what type the file is, its target's may not.
    return {split: tuple(map(os.path.abspath, paths)) for split, paths in files.items() if paths}


def _choose_columns(rows: Rows, text: str | None, text_b: str | None, label: str | None) -> Columns:
    """The columns asked for, and for the others those with usual names.

    A text that is named alone is taken for the only one.
    """
    asked = (text, text_b, label)
    free = {name.lower(): name for name in reversed(rows.names) if name not in asked}
    if is_raw_cola(rows):
        pair, single, usual_label = None, "3", "1"
    else:
        pair = next(((free[a], free[b]) for a, b in _PAIRS if a in free and b in free), None)
        single = next((free[name] for name in _TEXTS if name in free), None)
        usual_label = next((free[name] for name in _LABELS if name in free), None)
    if text is None and text_b is None and pair is not None:
        text, text_b = pair
    if text is None:
        text = next((free[a] for a, b in _PAIRS if text_b and b == text_b.lower() and a in free), single)
    label = usual_label if label is None else label
    for role, column in (("text", text), ("second text", text_b), ("label", label)):
        if column not in (*rows.names, None) or (column is None and role != "second text"):
            missing = "no column with a usual name" if column is None else f"no column {column!r}"
            raise DataError(
                f"{rows.path}: {missing} for the {role}; name one (or its number from 0, if the file has no "
                f"header); columns found: {listed(rows.names)}"
            )
    columns = Columns(text, text_b, label)
    if len(set(columns.names)) < len(columns.names):
        raise DataError(f"{rows.path}: texts and label need different columns, got {listed(columns.names)}")
    return columns


def _lacks_labels(tables: Sequence[Rows], columns: Columns) -> bool:
    hidden = ("", None, -1, *HIDDEN)
    return any(
        not set(columns.names) <= set(rows.names) or all(v in hidden for v in rows.column(columns.label))
        for rows in tables
    )


def _assemble(spec: TaskSpec, split: str, tables: Sequence[Rows]) -> Split:
    """Join a split's files into one `Split`."""
    texts, texts_b = (
        None if column is None else tuple(chain.from_iterable(rows.texts(column) for rows in tables))
        for column in (spec.columns.text, spec.columns.text_b)
    )
    values = label_texts(tables, spec.columns.label)
    if spec.kind == "regression":
        labels = target_numbers(tables, values)
    else:
        labels = class_indices(spec.label_names, tables, values)
    if split != "test" and (labels == labels[0]).all():
        raise DataError(
            f"{paths_of(tables)}: every {split} label is {values[0]!r}; expected at least two different ones"
        )
    return _split(spec, split, texts, texts_b, labels)


def _split(
    spec: TaskSpec, split: str, texts: tuple[str, ...], texts_b: tuple[str, ...] | None, labels: np.ndarray
) -> Split:
    """Seal rows with their fingerprint, which tells classes by name and not by index."""
    names = spec.label_names
    readable = labels.tolist() if spec.kind == "regression" else [names[i] for i in labels.tolist()]
    content = json.dumps([texts, texts_b, readable]).encode()
    return Split(texts, texts_b, labels, split, hashlib.sha256(content).hexdigest())


def _expect(holds: bool, source: str, key: str, value: object, expected: str) -> None:
    if not holds:
        raise DataError(f"{source}: {key} is {shown(value)}, expected {expected}")


def _entry(record: Mapping[str, object], key: str, kind: type, source: str) -> object:
    value = record.get(key)
    _expect(
        isinstance(value, kind), source, key, value, {str: "a string", dict: "an object"}.get(kind, "a list")
    )
    return value


def _strings(record: Mapping[str, object], key: str, source: str) -> list[str]:
    values = _entry(record, key, list, source)
    _expect(all(isinstance(value, str) for value in values), source, key, values, "a list of strings")
    return values


def _check_spec(spec: TaskSpec, source: str) -> None:
    """What types alone do not say of a task."""
    try:
        check_metric(spec.metric, spec.kind, len(spec.label_names) or None)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    names = spec.label_names
    fits = not names if spec.kind == "regression" else len(names) >= 2 and len(set(names)) == len(names)
    _expect(fits, source, "label_names", list(names), "two or more different names, or none for regression")
    splits = bool(spec.files) and set(spec.files) <= set(SPLITS)
    _expect(splits, source, "files", list(spec.files), f"splits out of {', '.join(SPLITS)}")
    same = set(spec.fingerprints) == set(spec.files)
    _expect(same, source, "fingerprints", list(spec.fingerprints), "the same splits as in files")
