"""Labels in files: the kind of task that they imply, its classes, and class indices."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from adapter_probe.data.formats import Rows
from adapter_probe.data.readers import is_raw_cola
from adapter_probe.errors import DataError, listed, shown
from adapter_probe.metrics import Kind

_COLA_NAMES = ("unacceptable", "acceptable")
HIDDEN = ("-", "-1")  # MNLI's pairs without a majority label; GLUE's hidden test labels
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
    if all(_number(value) is not None for value in distinct):
        return tuple(sorted(distinct, key=lambda value: (_number(value), value)))  # 1 and 01 are two classes
    return tuple(sorted(distinct))


def _is_class(marker: str, distinct: set[str]) -> bool:
    """Whether ``-`` or ``-1`` is a class: together with ``+``, or on a scale such as -1, 0, 1."""
    if marker == "-":
        return "+" in distinct
    numbers = [_number(value) for value in distinct]
    return None not in numbers and min(numbers) == -max(numbers)


def target_numbers(rows: Rows, values: Sequence[str]) -> np.ndarray:
    """Regression labels, float64 ``[examples]``."""
    numbers = [_number(value) for value in values]
    if None in numbers:
        row = numbers.index(None)
        raise DataError(
            f"{rows.places[row]}: label {shown(values[row])} is not a finite number, as regression needs; "
            f"for another task, give --kind or --label"
        )
    return np.array(numbers, dtype=np.float64)


def class_indices(
    names: tuple[str, ...], rows: Rows, values: Sequence[str], numbered: bool = False
) -> np.ndarray:
    """Class indices, int64 ``[examples]``.

    Args:
        names: the classes.
        rows: the rows, for the message.
        values: their labels.
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
