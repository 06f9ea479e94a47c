"""Tables, numbers and settings on their way into the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pandas as pd

Table = dict[str, list]
"""`columns`, the names, and `rows`, lists in their order: half the size of one object a row."""

_DIGITS = 6  # of scores and points: far below what a figure shows, and shorter than all seventeen
_P_DIGITS = 3  # significant ones


def number(value: object) -> float | int | bool | str | None:
    """A cell as JSON knows it; what is not finite or missing becomes None."""
    if value is None or value is pd.NA:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return round(value, _DIGITS) + 0.0 if math.isfinite(value) else None
    return value  # type: ignore[return-value]


def significant(value: object, digits: int = _P_DIGITS) -> float | None:
    """A number that may be tiny, by its first digits; None if it is not finite."""
    plain = float("nan") if value is None or value is pd.NA else float(value)  # type: ignore[arg-type]
    return float(f"{plain:.{digits - 1}e}") if math.isfinite(plain) else None


def table(frame: pd.DataFrame, columns: Sequence[str]) -> Table:
    """Those of `columns` that the frame has, in this order; p-values by significant digits."""
    present = [name for name in columns if name in frame]
    cells = [
        [significant(value) if name.startswith("p_") else number(value) for value in frame[name].tolist()]
        for name in present
    ]
    return {"columns": present, "rows": [list(row) for row in zip(*cells)] if cells else []}


def settings_rows(record: Mapping[str, object]) -> list[list[str]]:
    """A nested record as pairs of dotted name and text, in its own order; without what is null or empty.

    An absolute path is told by its last part.
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
    """An absolute path by its last part, for where things lie on somebody's machine is nobody's business."""
    for kind in (PurePosixPath, PureWindowsPath):
        if (path := kind(text)).is_absolute():
            return path.name or text
    return text


def short_name(folder: Path) -> str:
    """The last two parts of a folder's path: they tell it apart, and not whose machine it is on."""
    return "/".join(folder.resolve().parts[-2:]).lstrip("/") or "/"
