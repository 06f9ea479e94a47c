"""Read labelled rows from local files, every row with the place that an error must name.

Text is UTF-8, with or without a byte order mark. A ``.tsv`` file has no quoting, as in GLUE, where quotes are
part of the text; a ``.csv`` file quotes as RFC 4180 does; a ``.json`` file is a list of objects (or, as some
tools write it, one object a line).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapter_probe.errors import DataError

SPLITS = ("train", "validation", "test")
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_LONGEST_SHOWN = 60
_MOST_SHOWN = 12
_QUESTION_ANSWERING = "holds question answering, which is no task here; allowed: one or two texts and a label"

Located = tuple[int, object]  # a row with its line (or item), counted from 1


@dataclass(frozen=True, eq=False)
class Rows:
    """One file's rows.

    Attributes:
        path: the file.
        names: the first row's columns; ``"0", "1", ...`` where the file has no header.
        records: one dict a row, column to value: strings, or whatever JSON held.
        numbers: each row's line in the file, or its place in a JSON list, counted from 1.
        place: what `numbers` counts, ``line`` or ``item``.
    """

    path: Path
    names: tuple[str, ...]
    records: list[dict[str, object]]
    numbers: list[int]
    place: str

    def where(self, row: int) -> str:
        """The place of a row (from 0) for an error message: file and line."""
        return f"{self.path} {self.place} {self.numbers[row]}"

    def column(self, name: str) -> list[object]:
        """One column's values.

        Raises:
            DataError: a row lacks the column; the message lists the columns that it has.
        """
        try:
            return [record[name] for record in self.records]
        except KeyError:
            row = next(i for i, record in enumerate(self.records) if name not in record)
            found = listed(self.records[row])
            raise DataError(f"{self.where(row)}: no column {name!r}; columns found: {found}") from None

    def texts(self, name: str) -> list[str]:
        """One column's values, each a string that UTF-8 can hold.

        Raises:
            DataError: a row lacks the column, or its value is no string or has a lone surrogate.
        """
        values = self.column(name)
        try:
            "".join(values).encode()
        except (TypeError, UnicodeEncodeError):  # rare, so only then look for the row
            row = next(i for i, value in enumerate(values) if not _is_text(value))
            raise DataError(
                f"{self.where(row)}: column {name!r} holds {shown(values[row])}, expected a string of "
                f"whole Unicode characters"
            ) from None
        return values


def read_rows(path: str | Path, columns: Sequence[str] = ()) -> Rows:
    """Read a ``.csv``, ``.tsv``, ``.jsonl`` or ``.json`` file.

    A delimited file's first line is its header, unless it is CoLA's raw layout or `columns` holds numbers
    that the first line does not: then the file has none and its columns are named by number.

    Args:
        path: the file.
        columns: columns that the caller means to use, names or numbers from 0.

    Raises:
        DataError: the file cannot be read, is of another type, is not UTF-8, is malformed or has no rows.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: unknown file type {path.suffix!r}; allowed: {', '.join(_READERS)}")
    text = _read_text(path)
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    rows = reader(path, text, columns)
    if not rows.records:
        raise DataError(f"{path}: no rows; columns found: {listed(rows.names) or 'none'}")
    if {"context", "question", "answers"} <= set(rows.names):
        raise DataError(f"{path}: {_QUESTION_ANSWERING}")
    return rows


def is_raw_cola(rows: Rows) -> bool:
    """Whether the rows are CoLA's raw layout: source, 0 or 1, empty or star, sentence; no header."""
    first = rows.records[0]
    return rows.names == ("0", "1", "2", "3") and _looks_like_cola([str(first[name]) for name in rows.names])


def find_files(folder: str | Path, splits: Sequence[str] = SPLITS) -> dict[str, tuple[Path, ...]]:
    """Sort a folder's data files into splits by their names.

    A name belongs to a split if it begins or ends with the split's word (train, training; validation, valid,
    val, dev, development; test, testing). Where matched and mismatched files lie side by side, as in MNLI,
    the matched one is used; CoLA's in-domain and out-of-domain files together make one split.

    Args:
        folder: where to look; folders inside it are not searched.
        splits: the splits wanted.

    Returns:
        split to files, for those of the wanted splits that were found.

    Raises:
        DataError: the folder cannot be read, holds no such file, or several that contend for one split.
    """
    folder = Path(folder)
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read as a folder of data files ({error.strerror})") from None
    claims: dict[str, list[str]] = {}
    for name in names:
        split = _split_of(name)
        if split is not None and (folder / name).is_file():
            claims.setdefault(split, []).append(name)
    if not claims:
        raise DataError(
            f"{folder}: no data files; expected train.*, validation.* or dev.*, test.* "
            f"({', '.join(_READERS)}); found: {listed(names) or 'nothing'}"
        )
    chosen = {split: _settle(folder, split, claims[split]) for split in splits if split in claims}
    return {split: tuple(folder / name for name in names) for split, names in chosen.items()}


def shown(value: object) -> str:
    """A value on one line, shortened: for error messages."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def listed(values: object) -> str:
    """Several values on one line, the first dozen: for error messages."""
    values = list(values)
    more = f", … ({len(values)} in all)" if len(values) > _MOST_SHOWN else ""
    return ", ".join(map(shown, values[:_MOST_SHOWN])) + more


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", Path(name).stem.lower())


def _split_of(name: str) -> str | None:
    if Path(name).suffix.lower() not in _READERS:
        return None
    words = [word for word in _words(name) if word not in ("matched", "mismatched")] or [""]
    return _SPLIT_WORDS.get(words[0], _SPLIT_WORDS.get(words[-1]))


def _settle(folder: Path, split: str, names: list[str]) -> list[str]:
    """Choose among the files that claim one split."""
    if any("matched" in _words(name) for name in names):
        names = [name for name in names if "mismatched" not in _words(name)]
    both_domains = [_words(name)[:2] for name in names] == [["in", "domain"], ["out", "of"]]
    if len(names) > 1 and not both_domains:
        raise DataError(
            f"{folder}: {len(names)} files look like the {split} split ({listed(names)}); "
            f"name the files of the {split} split yourself"
        )
    return names


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        hint = " (it looks like UTF-16)" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise DataError(
            f"{path} line {line}: not UTF-8, byte 0x{content[error.start]:02x}{hint}; save the file as UTF-8"
        ) from None


def _read_csv(path: Path, text: str, columns: Sequence[str]) -> Rows:
    return _with_header(path, _csv_lines(path, text), columns)


def _read_tsv(path: Path, text: str, columns: Sequence[str]) -> Rows:
    numbered = enumerate(text.split("\n"), start=1)
    lines = ((number, line.rstrip("\r").split("\t")) for number, line in numbered if line.strip(" \r"))
    return _with_header(path, lines, columns)


def _csv_lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Records with the line each begins on: a quoted field may run over several."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{path} line {line}: malformed CSV ({error})") from None
        if fields:
            yield line, fields


def _with_header(path: Path, lines: Iterator[tuple[int, list[str]]], columns: Sequence[str]) -> Rows:
    """Name the fields of a delimited file, by its header or by number."""
    first_line, first = next(lines)
    numbered = [column for column in columns if column.isdecimal()]
    headless = _looks_like_cola(first) or (bool(numbered) and not set(numbered) <= set(first))
    names = tuple(map(str, range(len(first)))) if headless else tuple(name.strip() for name in first)
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} line {first_line}: the header names the column {twice!r} twice")
    records, numbers = ([dict(zip(names, first))], [first_line]) if headless else ([], [])
    for line, fields in lines:
        if len(fields) != len(names):
            against = f"line {first_line}" if headless else "the header"
            raise DataError(
                f"{path} line {line}: expected {len(names)} fields as in {against}, got {len(fields)}"
            )
        records.append(dict(zip(names, fields)))
        numbers.append(line)
    return Rows(path, names, records, numbers, "line")


def _looks_like_cola(fields: list[str]) -> bool:
    return len(fields) == 4 and fields[1] in ("0", "1") and fields[2] in ("", "*")


def _read_jsonl(path: Path, text: str, columns: Sequence[str]) -> Rows:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return _objects(path, [(number, _parse(path, line, number)) for number, line in lines], "line")


def _read_json(path: Path, text: str, columns: Sequence[str]) -> Rows:
    first, _, more = text.strip().partition("\n")
    if more and first.startswith("{") and first.rstrip().endswith("}"):
        return _read_jsonl(path, text, columns)
    value = _parse(path, text)
    if isinstance(value, dict) and _is_squad(value):
        raise DataError(f"{path}: {_QUESTION_ANSWERING}")
    if not isinstance(value, list):
        raise DataError(f"{path}: holds {_json_type(value)}, expected a list of objects")
    return _objects(path, list(enumerate(value, start=1)), "item")


def _parse(path: Path, text: str, line: int | None = None) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {line or error.lineno}"
        raise DataError(f"{path} {at}: malformed JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        at = f" line {line}" if line else ""
        raise DataError(f"{path}{at}: malformed JSON ({error})") from None


def _objects(path: Path, values: list[Located], place: str) -> Rows:
    for number, value in values:
        if not isinstance(value, dict):
            raise DataError(f"{path} {place} {number}: holds {_json_type(value)}, expected an object")
    names = tuple(values[0][1]) if values else ()
    return Rows(path, names, [value for _, value in values], [number for number, _ in values], place)


def _is_squad(value: dict) -> bool:
    articles = value.get("data")
    return (
        isinstance(articles, list)
        and bool(articles)
        and isinstance(articles[0], dict)
        and "paragraphs" in articles[0]
    )


def _json_type(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


_READERS: dict[str, Callable[[Path, str, Sequence[str]], Rows]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
}
