"""Rows from examples in memory: frames and tables of any library, mappings, texts with labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from adapter_probe.data.columns import LABEL_COLUMNS
from adapter_probe.errors import DataError

_DEEPEST = 20


def rows_of(data: Any, columns: Callable[[bool], tuple[str, str, str]]) -> Iterator[dict[str, Any]]:
    """Rows of plain JSON, from a DataFrame, a list of mappings, or a pair (texts, labels).

    Args:
        columns: from whether they are pairs of texts to the names of first text, second text and label.
    """
    data = _as_frame_or_rows(data)
    if hasattr(data, "itertuples"):
        names = [str(name) for name in data.columns]
        if len(set(names)) < len(names):
            raise DataError(f"data has the columns {', '.join(names)}; column names must be unique")
        rows: Any = (dict(zip(names, values)) for values in data.itertuples(index=False, name=None))
    elif _is_pair(data):
        rows = _paired(data[0], data[1], columns)
    elif is_column(data):
        rows = data
    else:
        raise DataError(
            f"data is a {type(data).__name__}; give a file, several files, a DataFrame, a list of rows "
            "(mappings from column to value; of an iterable dataset list(...)), or a pair (texts, labels); "
            "tokens are given as batches= with a model in memory"
        )
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(
                f"data row {number} is a {type(row).__name__}; give mappings from column to value, or a pair "
                "(texts, labels)"
            )
        yield {str(name): _plain(value, number, str(name)) for name, value in row.items()}


def one_table(data: Any, split: str) -> Any:
    """One split of several, as of a `DatasetDict`; a mapping of columns as rows; anything else as given."""
    if not isinstance(data, Mapping) or hasattr(data, "itertuples"):
        return data
    if data and all(hasattr(one, "column_names") or hasattr(one, "columns") for one in data.values()):
        if split not in data:
            raise DataError(
                f"data has the splits {', '.join(map(str, data))}, and no {split}; give one of them, such as "
                f"data=DATA[{next(iter(data))!r}]"
            )
        return data[split]
    sizes = {len(column) if is_column(column) else -1 for column in data.values()}
    if -1 in sizes:
        return data
    if len(sizes) > 1:
        raise DataError(
            "data is a mapping; give one from a column's name to its values, which are equally many, or a "
            "list of rows"
        )
    return [dict(zip(data, values)) for values in zip(*data.values())]


def token_rows(data: Any) -> list[dict[str, Any]] | None:
    """The rows of a table or list that hold tokens and no texts; None of anything else."""
    names = getattr(data, "column_names", None)
    names = getattr(data, "columns", None) if names is None else names
    if names is None and is_column(data):
        first = next(iter(data), None)
        names = first if isinstance(first, Mapping) else ()
    if names is None or "input_ids" not in list(names):
        return None
    rows = list(rows_of(data, lambda _: ("", "", "")))
    texts = (isinstance(x, str) for row in rows[:1] for name, x in row.items() if name not in LABEL_COLUMNS)
    return None if any(texts) or not rows else rows


def _as_frame_or_rows(data: Any) -> Any:
    """A DataFrame or rows, from the table of another library: polars, pyarrow, datasets, ..."""
    if hasattr(data, "itertuples") or not (hasattr(data, "to_dicts") or hasattr(data, "to_pandas")):
        return data
    try:
        return data.to_dicts() if hasattr(data, "to_dicts") else data.to_pandas()
    except ImportError as error:
        kind = type(data).__name__
        raise DataError(f"data is a {kind}, which cannot be read without another package: {error}") from None


def categories_of(data: Any) -> tuple[str, ...]:
    """The names of the labels in their order, if the labels of a frame or pair are a pandas categorical.

    Empty for anything else, and for categories that are numbers, which say no more than the labels do.
    """
    if isinstance(data, (str, Path)):
        return ()
    data = _as_frame_or_rows(data)
    if hasattr(data, "itertuples"):
        columns = [data[name] for name in data.columns if str(name).lower() in LABEL_COLUMNS]
    else:
        columns = [data[1]] if _is_pair(data) else []
    of = (getattr(getattr(column, "dtype", None), "categories", ()) for column in columns)
    names = next((tuple(one) for one in of if len(one)), ())
    return names if all(isinstance(name, str) and not name.isdecimal() for name in names) else ()


def is_column(value: Any) -> bool:
    """Whether a value is a list, a tuple, an array or a Series."""
    listed = hasattr(value, "__len__") and hasattr(value, "__iter__") and not hasattr(value, "columns")
    listed = listed and getattr(value, "ndim", 1) > 0
    return listed and not isinstance(value, (str, bytes, Mapping, Set))


def _is_pair(data: Any) -> bool:
    """Whether data are texts with labels, and not rows."""
    return is_column(data) and len(data) == 2 and all(map(is_column, data))


def _paired(texts: Any, labels: Any, columns: Callable[[bool], tuple[str, str, str]]) -> list[dict[str, Any]]:
    texts = list(texts)
    if len(texts) != len(labels):
        raise DataError(f"data has {len(texts)} texts and {len(labels)} labels; give one label per text")
    pairs = [not isinstance(text, str) for text in texts]
    if any(pairs) and not (all(pairs) and all(is_column(text) and len(text) == 2 for text in texts)):
        raise DataError("the texts in data are neither all strings nor all pairs of strings")
    text, text_b, label = columns(any(pairs))
    if any(pairs):
        return [{text: one[0], label: value, text_b: one[1]} for one, value in zip(texts, labels)]
    return [{text: one, label: value} for one, value in zip(texts, labels)]


def _plain(value: Any, row: int, column: str, depth: int = 0) -> Any:
    """A value as plain JSON, converted from NumPy if necessary; missing values become null."""
    if depth > _DEEPEST:
        raise DataError(
            f"data row {row}: column {column!r} contains itself, or is nested more than {_DEEPEST} levels"
        )
    value = value.tolist() if hasattr(value, "tolist") else value
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {str(name): _plain(one, row, column, depth + 1) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, row, column, depth + 1) for one in value]
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    raise DataError(
        f"data row {row}: column {column!r} contains a {type(value).__name__}; allowed are texts, numbers, "
        "booleans, and lists or mappings of these"
    )
