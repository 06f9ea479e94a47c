"""The labelled texts of a task, and what labels in files imply: its kind, its classes, class indices."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapter_probe.data.forms import DataForm, ExampleRows
from adapter_probe.data.readers import is_raw_cola
from adapter_probe.data.rows import Rows, fingerprint_of
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.errors import DataError, listed, must_be, shown
from adapter_probe.metrics import Kind

_COLA_NAMES = ("unacceptable", "acceptable")
HIDDEN = ("-", "-1")  # MNLI's pairs without a majority label; GLUE's hidden test labels
_ON, _OFF = ("1", "1.0", "true"), ("0", "0.0", "false")
_MOST_GUESSED_CLASSES = 20
_WHOLE = re.compile(r"[+-]?\d+\.0*")


def label_texts(rows: Rows, column: str) -> list[str]:
    """Every row's label as a string; a whole number reads the same as 1, 1.0 or "1"."""
    return [_label_text(value, place) for value, place in zip(rows.column(column), rows.places)]


def _label_text(value: object, place: str) -> str:
    if isinstance(value, str):
        text = value.strip()
        if not text:
            raise DataError(f"{place}: the label is empty")
        return text.split(".")[0] if _WHOLE.fullmatch(text) else text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    raise DataError(f"{place}: the label is {shown(value)}, expected a string or a finite number")


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def guess_kind(rows: Rows, values: Sequence[str]) -> Kind:
    """Regression if any label is a number that is not whole, classification if the labels are few."""
    distinct = set(values)
    numbers = [number for number in map(_number, distinct) if number is not None]
    if not all(number.is_integer() for number in numbers):
        return "regression"
    repeated = len(numbers) < len(distinct) <= len(values) / 2
    if len(distinct) <= _MOST_GUESSED_CLASSES or repeated:
        return "classification"
    raise DataError(
        f"{rows.path}: {len(distinct)} different labels in {len(values)} rows, such as "
        f"{shown(values[0])}; give --kind classification or --kind regression"
    )


def class_names(rows: Rows, column: str, values: Sequence[str]) -> tuple[str, ...]:
    """The classes: numbers in numeric order, CoLA's as its 0 and 1, anything else sorted."""
    distinct = set(values)
    if distinct == set(_COLA_NAMES) or (column == "1" and is_raw_cola(rows)):
        return _COLA_NAMES
    for marker in HIDDEN:
        if marker in distinct and not _is_class(marker, distinct):
            raise DataError(
                f"{rows.places[values.index(marker)]}: label {marker!r} marks a row without a known "
                f"label; remove such rows (other labels: {listed(sorted(distinct - {marker})) or 'none'})"
            )
    return _in_order(distinct)


def _in_order(distinct: Collection[str]) -> tuple[str, ...]:
    if all(_number(value) is not None for value in distinct):
        return tuple(sorted(distinct, key=lambda value: (_number(value), value)))  # 1 and 01 are two classes
    return tuple(sorted(distinct))


def _is_class(marker: str, distinct: set[str]) -> bool:
    """Whether ``-`` or ``-1`` is a class: together with ``+``, or on a scale such as -1, 0, 1."""
    if marker == "-":
        return "+" in distinct
    numbers = [_number(value) for value in distinct]
    return None not in numbers and min(numbers) == -max(numbers)


def class_number(value: object, names: Sequence[str], place: str, what: str) -> int:
    """The place of a label or tag among the head's outputs, from its name or number."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if text in names:
        return names.index(text)
    if isinstance(value, int) and text is not None and 0 <= value < len(names):
        return value
    numbers = tuple(names) == tuple(map(str, range(len(names))))
    hint = "; name the head's outputs in their order with --label-names" if numbers else ""
    raise DataError(f"{place}: unknown {what} {shown(value)}; allowed: {listed(names)}{hint}")


def holds_lists(rows: Rows, column: str) -> bool:
    """Whether a column has lists of labels."""
    return any(isinstance(value, list) for value in rows.column(column))


def names_in_lists(rows: Rows, column: str, what: str) -> tuple[str, ...]:
    """All labels or tags in lists: numbers in numeric order, anything else sorted; see `label_sets`.

    Args:
        what: what they are, for the message: ``label`` or ``tag``.
    """
    values = _lists(rows, column, what)
    found = {_label_text(one, place) for value, place in zip(values, rows.places) for one in value}
    if what == "label" and _are_flags(values, len(values[0])):
        return tuple(map(str, range(len(values[0]))))
    if len(found) < 2:
        only = listed(found) or "none"
        raise DataError(f"{rows.path}: the only {what} is {only}; expected two or more {what}s")
    return _in_order(found)


def _lists(rows: Rows, column: str, what: str) -> list[list]:
    values: list[Any] = rows.column(column)
    for value, place in zip(values, rows.places):
        if not isinstance(value, list):
            raise DataError(must_be(f"{place}: {column}", f"a list of {what}s", value))
    return values


def _are_flags(values: list[list], n_labels: int) -> bool | None:
    """Whether lists have 0 or 1 for each label, and not numbers or names; None where both are possible."""
    flat = [one for value in values for one in value]
    if {str(one).lower() for one in flat} - {*_ON, *_OFF} or {*map(len, values)} != {n_labels}:
        return False
    if any(len({*map(str, value)}) < len(value) for value in values):
        return True
    return None if all(type(one) is int for one in flat) else not any(isinstance(one, str) for one in flat)


def label_sets(rows: Rows, column: str, names: Sequence[str]) -> np.ndarray:
    """Which labels every row has, int64 ``[examples, labels]``, 0 or 1.

    A row has a list of names or numbers of labels, or 0 or 1 for each label: such lists are told by floating-
    point numbers or truth values, or by all having an entry per label and some a repeated one.
    """
    values = _lists(rows, column, "label")
    flags = _are_flags(values, len(names))
    if flags is None:
        raise DataError(
            f"{rows.path}: the labels {shown(values[0])} may be numbers of labels or 0 and 1 for each label; "
            "give the names of the labels, or 0.0 and 1.0 for each"
        )
    if flags:
        return np.array([[str(one).lower() in _ON for one in value] for value in values], dtype=np.int64)
    found = np.zeros((len(values), len(names)), dtype=np.int64)
    for row, value, place in zip(found, values, rows.places):
        row[[class_number(one, names, place, "label") for one in value]] = 1
    return found


def target_numbers(rows: Rows, values: Sequence[str]) -> np.ndarray:
    """Regression labels, float64 ``[examples]``."""
    numbers = [_number(value) for value in values]
    if None in numbers:
        row = numbers.index(None)
        raise DataError(
            f"{rows.places[row]}: label {shown(values[row])} is not a finite number, as regression needs; "
            "for another task, give --kind or --columns text,label=COLUMN"
        )
    return np.array(numbers, dtype=np.float64)


def class_indices(
    names: tuple[str, ...], rows: Rows, values: Sequence[str], numbered: bool = False
) -> np.ndarray:
    """Class indices, int64 ``[examples]``.

    Args:
        numbered: whether 0, 1, ... also denote the classes in order; for CoLA they always do.
    """
    index = {name: i for i, name in enumerate(names)}
    if numbered or names == _COLA_NAMES:
        index |= {str(i): i for i in range(len(names))}
    try:
        return np.array([index[value] for value in values], dtype=np.int64)
    except KeyError:
        row = next(i for i, value in enumerate(values) if value not in index)
    hint = " (it usually marks a hidden label)" if values[row] in HIDDEN else ""
    raise DataError(f"{rows.places[row]}: unknown label {shown(values[row])}{hint}; allowed: {listed(index)}")


@dataclass(frozen=True, eq=False)
class Split(ExampleRows):
    """Labelled texts.

    Attributes:
        texts: the first or only text of every example.
        texts_b: the second text of every example, or None for single sentences.
        labels: ``[examples]``, int64 indices into the task's `label_names`, or float64 for regression; of
            several labels int64 ``[examples, labels]``, 0 or 1.
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

    def right(self, task: TaskSpec) -> str:
        """See `ExampleRows.right`."""
        if self.labels.ndim > 1:
            return ""
        if task.about.has_classes:
            return task.label_names[int(self.labels[0])] if task.columns.label else ""
        return f"{self.labels[0]:g}" if task.about.n_outputs == 1 else ""


def without_first(spec: TaskSpec, rows: Rows, labels: np.ndarray) -> tuple[str, ...]:
    """What to say of numbers of classes that may count from 1, while the head counts from 0."""
    if not spec.about.one_class or not spec.columns.label or (labels == 0).any():
        return ()
    values = label_texts(rows, spec.columns.label)
    if not all(value.isdecimal() for value in values):
        return ()
    low, high = (function(map(int, values)) for function in (min, max))
    first = spec.label_names[0]
    return (f"no row has the head's first label, {first}: the labels are {low} to {high}, counted from 0",)


def form_of_texts(spec: TaskSpec) -> DataForm:
    """What is asked of labelled texts; which columns are meant is decided in `adapter_probe.data.columns`."""
    own, several = spec.columns, spec.columns.text_b is not None
    texts = f"`{own.text}` and `{own.text_b}`" if several else f"`{own.text}`"
    asked = f"{spec.about.label} `{own.label}` of {texts}" if own.label else f"outputs on {texts}"
    return DataForm("labelled texts", asked)


def assemble_split(spec: TaskSpec, split: str, rows: Rows) -> Split:
    """The texts and labels of some rows of a split; the fingerprint has classes by name.

    Without a column of labels, every label is 0.
    """
    texts, texts_b = (
        None if column is None else tuple(rows.texts(column))
        for column in (spec.columns.text, spec.columns.text_b)
    )
    names, content = spec.label_names, [texts, texts_b]
    if not spec.columns.label:
        labels = np.zeros(len(rows.records), dtype=np.int64)
    elif not spec.about.has_classes:
        labels = target_numbers(rows, label_texts(rows, spec.columns.label))
        content.append(labels.tolist())
    elif not spec.about.one_class:
        labels = label_sets(rows, spec.columns.label, names)
        content.append([[name for name, on in zip(names, row) if on] for row in labels.tolist()])
    else:
        values = label_texts(rows, spec.columns.label)
        labels = class_indices(names, rows, values, numbered=spec.preset is not None)
        content.append([names[i] for i in labels.tolist()])
    return Split(texts, texts_b, labels, split, fingerprint_of(content))
