"""Tables, numbers and settings prepared for the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pandas as pd

TableData = dict[str, list]
"""`columns`, the names, and `rows`, lists in the same order: half the size of one object per row."""

_DIGITS = 6  # decimals of scores and points: more than a figure shows, and shorter than all seventeen digits
_P_DIGITS = 3  # significant ones


def json_cell(value: object) -> float | int | bool | str | None:
    """A cell as plain JSON; missing values and values that are not finite become None."""
    if value is None or value is pd.NA:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return round(value, _DIGITS) + 0.0 if math.isfinite(value) else None
    return value  # type: ignore[return-value]


def round_significant(value: object) -> float | None:
    """A possibly tiny number, rounded to significant digits; None if it is not finite."""
    plain = float("nan") if value is None or value is pd.NA else float(value)  # type: ignore[arg-type]
    return float(f"{plain:.{_P_DIGITS - 1}e}") if math.isfinite(plain) else None


def json_table(frame: pd.DataFrame, columns: Sequence[str]) -> TableData:
    """The existing ones of `columns`, in this order; p-values rounded to significant digits."""
    present = [name for name in columns if name in frame]
    cells = [
        [
            round_significant(value) if name.startswith("p_") else json_cell(value)
            for value in frame[name].tolist()
        ]
        for name in present
    ]
    return {"columns": present, "rows": [list(row) for row in zip(*cells)] if cells else []}


def settings_rows(record: Mapping[str, object]) -> list[list[str]]:
    """A nested record as pairs of dotted name and text, in the original order, without null or empty values.

    Absolute paths are shortened to their last part.
    """
    return [[".".join(path), _text(value)] for path, value in _leaves(record) if value not in (None, "", [])]


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    else:
        yield path, value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else _without_folders(str(value))


def _without_folders(text: str) -> str:
    """The last part of an absolute path, because local folder names are private."""
    for kind in (PurePosixPath, PureWindowsPath):
        if (path := kind(text)).is_absolute():
            return path.name or text
    return text


def short_name(folder: Path) -> str:
    """The last two parts of a folder's path: enough to identify it without private folder names."""
    return "/".join(folder.resolve().parts[-2:]).lstrip("/") or "/"
