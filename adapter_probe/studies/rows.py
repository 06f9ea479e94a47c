"""Examples in memory: saved next to the results, under a name derived from their content."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from adapter_probe.checkpoints.files import CONFIG, DESCRIPTION, read_json_file
from adapter_probe.checkpoints.mlx import is_mlx
from adapter_probe.data.columns import LABEL_COLUMNS
from adapter_probe.data.formats import PARQUET, READERS
from adapter_probe.data.given import records_no_data
from adapter_probe.data.lm_eval_tasks import is_task
from adapter_probe.data.readers import refuse_unreadable
from adapter_probe.errors import DataError, shown
from adapter_probe.results.atomic import make_folder, read_json, write_bytes

from .checked import refuse_no_path

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "data"
_DEEPEST = 20

ExampleSource: TypeAlias = "str | Path | Sequence[Any] | pd.DataFrame"
"""A file, several files, a DataFrame, a list of mappings from column to value, or a pair (texts, labels).

For metrics without labels also a list of texts.
"""


def as_tuple(value: Any) -> tuple[Any, ...]:
    """One name, path or number, or a sequence of them, as a tuple."""
    return (value,) if isinstance(value, (str, Path)) or not hasattr(value, "__iter__") else tuple(value)


def as_files(data: ExampleSource, folder: Path, checkpoint: Path, texts: bool = False) -> tuple[str, ...]:
    """The paths of the examples; examples in memory are written to a file first.

    With a file, everything that a study does with data works as usual: fingerprints, cluster jobs, resuming.
    The name of the file is a hash of the rows, so equal rows are one file and one study.

    Args:
        data: see `ExampleSource`.
        folder: where ``data/rows-<hash>.jsonl`` is written.
        checkpoint: the checkpoint whose column names a pair (texts, labels) receives.
        texts: whether labels are not needed, so that strings that name no files are texts.

    Raises:
        DataError: strings are both files and texts, or the rows are empty, of unequal length, or contain a
            value that is no text, number or list.
        ResultsError: the file cannot be written.
    """
    if isinstance(data, (str, Path)):
        return (str(data),)
    if isinstance(data, tuple) and not data:
        return ()
    if is_column(data) and len(data) and all(isinstance(one, (str, Path)) for one in data):
        if not (texts and _are_texts(data)):
            for one in data:
                refuse_no_path("data", one)
            return tuple(map(str, data))
        column = "text" if _is_language_model(checkpoint) else _columns(checkpoint, False)[0]
        data = [{column: str(one)} for one in data]
    if not checkpoint.is_dir():  # opening reports it; nothing may be written into it
        return ()
    lines = [json.dumps(row) + "\n" for row in _rows(_in_memory(data), checkpoint)]
    if not lines:
        raise DataError("data has no rows; give at least two examples with different labels")
    content = "".join(lines).encode("ascii")  # readable in every text encoding
    path = folder / FOLDER / f"rows-{hashlib.sha256(content).hexdigest()[:12]}.jsonl"
    if not (path.is_file() and path.read_bytes() == content):
        make_folder(path.parent)
        write_bytes(path, content)
    return (str(path),)


def _are_texts(strings: Sequence[str | Path]) -> bool:
    """Whether strings are texts and not files.

    Raises:
        DataError: some are.
    """
    files = [one for one in strings if _names_file(one)]
    if files and len(files) < len(strings):
        raise DataError(f"data has the file {shown(str(files[0]))} among texts; give either files or texts")
    return not files


def _names_file(value: str | Path) -> bool:
    """Whether a string names a file: there is one, or it ends like one."""
    if isinstance(value, Path):
        return True
    with suppress(OSError, ValueError):
        if Path(value).is_file():
            return True
    return not re.search(r"\s", value) and Path(value).suffix.lower() in (*READERS, PARQUET, ".txt")


def categories_of(data: ExampleSource) -> tuple[str, ...]:
    """The names of the labels in their order, if the labels of a frame or pair are a pandas categorical.

    Empty for anything else, and for categories that are numbers, which say no more than the labels do.
    """
    if isinstance(data, (str, Path)):
        return ()
    data = _in_memory(data)
    if hasattr(data, "itertuples"):
        columns = [data[name] for name in data.columns if str(name).lower() in LABEL_COLUMNS]
    else:
        columns = [data[1]] if is_column(data) and len(data) == 2 and all(map(is_column, data)) else []
    of = (getattr(getattr(column, "dtype", None), "categories", ()) for column in columns)
    names = next((tuple(one) for one in of if len(one)), ())
    return names if all(isinstance(name, str) and not name.isdecimal() for name in names) else ()


def _in_memory(data: Any) -> Any:
    """A DataFrame or rows, from the table of another library: polars, pyarrow, datasets, ...

    Raises:
        DataError: the library lacks what it needs for that.
    """
    if hasattr(data, "itertuples") or not (hasattr(data, "to_dicts") or hasattr(data, "to_pandas")):
        return data
    try:
        return data.to_dicts() if hasattr(data, "to_dicts") else data.to_pandas()
    except ImportError as error:
        kind = type(data).__name__
        raise DataError(f"data is a {kind}, which cannot be read without another package: {error}") from None


def _rows(data: Any, checkpoint: Path) -> Iterator[dict[str, Any]]:
    if hasattr(data, "itertuples"):
        names = [str(name) for name in data.columns]
        if len(set(names)) < len(names):
            raise DataError(f"data has the columns {', '.join(names)}; column names must be unique")
        rows: Any = (dict(zip(names, values)) for values in data.itertuples(index=False, name=None))
    elif is_column(data) and len(data) == 2 and all(map(is_column, data)):
        rows = _paired(data[0], data[1], checkpoint)
    elif is_column(data):
        rows = data
    else:
        raise DataError(
            f"data is a {type(data).__name__}; give a file, several files, a DataFrame, a list of rows "
            "(mappings from column to value), or a pair (texts, labels)"
        )
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(
                f"data row {number} is a {type(row).__name__}; give mappings from column to value, or a pair "
                "(texts, labels)"
            )
        yield {str(name): _plain(value, number, str(name)) for name, value in row.items()}


def is_column(value: Any) -> bool:
    """Whether a value is a list, a tuple, an array or a Series."""
    listed = hasattr(value, "__len__") and hasattr(value, "__iter__") and not hasattr(value, "columns")
    listed = listed and getattr(value, "ndim", 1) > 0
    return listed and not isinstance(value, (str, bytes, Mapping, Set))


def _paired(texts: Any, labels: Any, checkpoint: Path) -> list[dict[str, Any]]:
    """Rows from texts, or pairs of texts, and their labels."""
    texts = list(texts)
    if len(texts) != len(labels):
        raise DataError(f"data has {len(texts)} texts and {len(labels)} labels; give one label per text")
    pairs = [not isinstance(text, str) for text in texts]
    if any(pairs) and not (all(pairs) and all(is_column(text) and len(text) == 2 for text in texts)):
        raise DataError("the texts in data are neither all strings nor all pairs of strings")
    text, text_b, label = _columns(checkpoint, any(pairs))
    first = [pair[0] for pair in texts] if any(pairs) else texts
    rows = [{text: one, label: value} for one, value in zip(first, labels)]
    if any(pairs):
        rows = [{**row, text_b: pair[1]} for row, pair in zip(rows, texts)]
    return rows


def _columns(checkpoint: Path, pairs: bool) -> tuple[str, str, str]:
    """The column names of texts and label in the checkpoint's task, or the usual ones.

    Raises:
        DataError: the task has other columns, or is a language model's, which would read the texts alone.
    """
    if _is_language_model(checkpoint):
        raise DataError(
            f"checkpoint {checkpoint} is of a language model, which has no labels, but data is a pair "
            "(texts, labels); give rows, such as mappings with prompt and completion"
        )
    usual = ("text_a", "text_b", "label") if pairs else ("text", "", "label")
    path = checkpoint / DESCRIPTION
    task = read_json(path).get("task") if path.is_file() else None
    columns = task.get("columns") if isinstance(task, Mapping) else None
    if not isinstance(columns, Mapping):
        return usual
    if pairs != (columns.get("text_b") is not None):
        given, wanted = ("pairs", "single texts") if pairs else ("single texts", "pairs")
        raise DataError(f"the texts in data are {given}; the task expects {wanted}")
    names = (columns.get(role) or name for role, name in zip(("text", "text_b", "label"), usual))
    return tuple(map(str, names))  # type: ignore[return-value]


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


def _is_language_model(checkpoint: Path) -> bool:
    """Whether PEFT's configuration names a language model's task, or MLX-LM wrote it."""
    path = checkpoint / CONFIG
    if not path.is_file():
        return False
    document = read_json_file(path)
    return is_mlx(document) or document.get("task_type") == "CAUSAL_LM"


def check_files(checkpoint: str | Path, encoding: str, *files: str | Path) -> None:
    """Check the files given as data before a model is opened, which can take minutes.

    Args:
        checkpoint: the checkpoint to be evaluated on them.
        encoding: their text encoding.
        files: files, or tasks of lm-evaluation-harness; none for those that the checkpoint records.

    Raises:
        CheckpointError: no files, for a checkpoint of another library.
        DataError: one is not a regular file, or there is an encoding without files: recorded files are read
            in the encoding of their training.
    """
    if encoding != "utf-8" and not files:
        raise DataError(
            f"--encoding {encoding} applies only to files given with --data; the checkpoint's own files are "
            "read in the encoding of their training"
        )
    folder = Path(checkpoint)
    if not files and (folder / CONFIG).is_file() and not (folder / DESCRIPTION).is_file():
        raise records_no_data(checkpoint, _is_language_model(folder))
    for file in files:
        if not is_task(str(file)):
            refuse_unreadable(Path(file))
