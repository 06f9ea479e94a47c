"""The examples of a study as files; those in memory are saved next to the results, named by their content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from adapter_probe.argument_checks import refuse_no_path
from adapter_probe.checkpoints.files import CONFIG, DESCRIPTION, read_json_file
from adapter_probe.checkpoints.mlx import is_mlx
from adapter_probe.data.forms import columns_named, columns_of_file, with_columns
from adapter_probe.data.in_memory import is_column, rows_of
from adapter_probe.data.lm_eval_tasks import is_task
from adapter_probe.data.readers import names_rows, read_rows, refuse_unreadable
from adapter_probe.data.similarity import CORPUS, files_of_collection, is_collection
from adapter_probe.data.task_of_files import records_no_data
from adapter_probe.errors import DataError, shown
from adapter_probe.results.atomic import make_folder, read_json, write_bytes

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "data"

ExampleSource: TypeAlias = "str | Path | Sequence[Any] | pd.DataFrame"
"""A file, several files, a DataFrame, a list of mappings from column to value, or a pair (texts, labels).

For metrics without labels also a list of texts.
"""


def as_files(
    data: ExampleSource, folder: Path, checkpoint: Path, texts: bool = False, causal: bool = False
) -> tuple[str, ...]:
    """The paths of the examples; examples in memory are written to a file first.

    With a file, everything that a study does with data works as usual: fingerprints, cluster jobs, resuming.
    The name of the file is a hash of the rows, so equal rows are one file and one study.

    Args:
        data: see `ExampleSource`.
        folder: where ``data/rows-<hash>.jsonl`` is written.
        checkpoint: the checkpoint whose column names a pair (texts, labels) receives.
        texts: whether labels are not needed, so that strings that name no files are texts.
        causal: whether the model in memory writes, so that texts need no labels either.

    Raises:
        DataError: strings are both files and texts, or texts without labels, or the rows are empty, of
            unequal length, or contain a value that is no text, number or list.
        ResultsError: the file cannot be written.
    """
    if isinstance(data, (str, Path)):
        return (str(data),)
    if isinstance(data, tuple) and not data:
        return ()
    if is_column(data) and len(data) and all(isinstance(one, (str, Path)) for one in data):
        causal = causal or _is_language_model(checkpoint)
        named = [one for one in data if _names_file(one)]
        if not named and not texts and not (causal and any(re.search(r"\s", str(one)) for one in data)):
            raise DataError(
                f"data has {len(data):,} strings that name no files, such as {shown(str(data[0]))}; give "
                "texts with labels, (texts, labels), or metric='kl' or 'agreement', which need none"
            )
        if named and len(named) < len(data):
            raise DataError(
                f"data has the file {shown(str(named[0]))} among texts; give either files or texts"
            )
        if named:
            for one in data:
                refuse_no_path("data", one)
            return tuple(map(str, data))
        column = "text" if causal else _columns(checkpoint, False)[0]
        data = [{column: str(one)} for one in data]
    if not checkpoint.is_dir():  # opening reports it; nothing may be written into it
        return ()
    lines = [json.dumps(row) + "\n" for row in rows_of(data, partial(_columns, checkpoint))]
    if not lines:
        raise DataError("data has no rows; give at least two examples with different labels")
    return (_saved(lines, folder),)


def _saved(lines: Sequence[str], folder: Path, before: str = "") -> str:
    """The path of a file with these lines, named by its content, after the name of the file they are from."""
    content = "".join(lines).encode("ascii")  # readable in every text encoding
    path = folder / FOLDER / f"{before}rows-{hashlib.sha256(content).hexdigest()[:12]}.jsonl"
    if not (path.is_file() and path.read_bytes() == content):
        make_folder(path.parent)
        write_bytes(path, content)
    return str(path)


def of_columns(
    files: Sequence[str], columns: str | Sequence[str], folder: Path, encoding: str, or_new: bool = False
) -> tuple[str, ...]:
    """Files with some columns of the given ones, under the names that they are to have.

    Args:
        files: files of rows.
        columns: see `columns_named`.
        folder: see `as_files`.
        encoding: of the files.
        or_new: see `with_columns`.

    Raises:
        DataError: there are no files with columns, a column is missing, or two get one name.
    """
    named = columns_named(columns)
    if not files or any(is_task(file) for file in files) or Path(files[0]).name == f"{CORPUS}.jsonl":
        raise DataError(f"--columns {','.join(named)} applies to files of rows that are given with --data")
    found = []
    for file in files:
        rows = with_columns(read_rows(file, columns_of_file(named), encoding), named, or_new)
        before = "" if Path(file).name.startswith("rows-") else f"{Path(file).name}-"
        found.append(_saved([json.dumps(row, default=str) + "\n" for row in rows.records], folder, before))
    return tuple(found)


def with_collections(files: Sequence[str], split: str) -> tuple[str, ...]:
    """The files, with those of a folder in BEIR's layout in its place.

    Raises:
        DataError: the folder has no judgements for the split.
    """
    found: list[str] = []
    for file in files:
        own = is_collection(Path(file))
        found += files_of_collection(Path(file), split) if own else (file,)
    return tuple(found)


def _names_file(value: str | Path) -> bool:
    """Whether a string names a file: there is one, or it ends like one."""
    if isinstance(value, Path):
        return True
    with suppress(OSError, ValueError):
        if Path(value).exists():
            return True
    return not re.search(r"\s", value) and names_rows(value)


def _columns(checkpoint: Path, pairs: bool) -> tuple[str, str, str]:
    """The column names of texts and label in the checkpoint's task, or the usual ones."""
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


def _is_language_model(checkpoint: Path) -> bool:
    """Whether PEFT's configuration names a language model's task, or MLX-LM wrote it."""
    path = checkpoint / CONFIG
    if not path.is_file():
        return False
    document = read_json_file(path)
    return is_mlx(document) or document.get("task_type") == "CAUSAL_LM"


def check_encoding(encoding: str, files: Sequence[str | Path]) -> None:
    """Refuse an encoding without files."""
    if encoding != "utf-8" and not files:
        raise DataError(
            f"--encoding {encoding} applies only to files given with --data; the checkpoint's own files are "
            "read in the encoding of their training"
        )


def check_files(checkpoint: str | Path, encoding: str, *files: str | Path) -> None:
    """Check the files given as data before a model is opened, which can take minutes.

    Args:
        checkpoint: the checkpoint to be evaluated on them.
        encoding: their text encoding.
        files: files, or tasks of lm-evaluation-harness; none for those that the checkpoint records.

    Raises:
        CheckpointError: no files, for a checkpoint of another library.
        DataError: one is not a regular file, or there is an encoding without files.
    """
    check_encoding(encoding, files)
    folder = Path(checkpoint)
    if not files and (folder / CONFIG).is_file() and not (folder / DESCRIPTION).is_file():
        raise records_no_data(checkpoint, _is_language_model(folder))
    for file in files:
        if not is_task(str(file)):
            refuse_unreadable(Path(file))
