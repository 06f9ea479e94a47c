"""Tables and numbers on their way into the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pandas as pd

from adapter_probe.errors import ResultsError

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
    """Those of `columns` that the frame has, in this order; tiny numbers by significant digits."""
    present = [name for name in columns if name in frame]
    cells = [[_cell(name, value) for value in frame[name].tolist()] for name in present]
    return {"columns": present, "rows": [list(row) for row in zip(*cells)] if cells else []}


def _cell(name: str, value: object) -> object:
    tiny = name.startswith("p_") or name in ("init_std", "learning_rate")
    return significant(value) if tiny and not isinstance(value, str) else number(value)


def read_table(path: Path, needed: Sequence[str]) -> pd.DataFrame | None:
    """A CSV file, or None where there is none. An empty field is NaN; words such as ``none`` stay words.

    Raises:
        ResultsError: it cannot be read as a table, or lacks a column of `needed`.
    """
    try:
        frame = pd.read_csv(path, encoding="utf-8", keep_default_na=False, na_values=[""])
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if missing := [name for name in needed if name not in frame]:
        found = ", ".join(map(str, frame.columns)) or "none"
        raise ResultsError(f"{path}: no column {missing[0]!r} (found: {found})")
    return frame


def true_or_none(value: object) -> bool | None:
    """A field of a column of true and false, which pandas may have read as words or as numbers."""
    return {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}.get(
        str(value).lower()
    )


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
