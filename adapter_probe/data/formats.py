"""Rows of a table, and the parsers of the file formats.

A ``.tsv`` file has no quoting, as in GLUE, where quotes are part of the text; a ``.csv`` file quotes as
RFC 4180 does; a ``.json`` file is a list of objects (or, as some tools write it, one object a line), or has
SQuAD's layout. A ``.conll`` file has a line per word, its columns separated by blanks or tabs, and an empty
line after each sentence.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any

from adapter_probe.errors import DataError, install_extra, listed, one_line, other_delimiter, quote, shown

QUESTION_COLUMNS = ("id", "question", "context", "answers")
TAG_COLUMNS = ("tokens", "tags")
_NEW_DOCUMENT = "-DOCSTART-"  # in CoNLL 2003, between documents
EMPTY = (None, "", [], {})
"""What a row holds where it holds nothing."""


class Asked(ChainMap[str, object]):
    """A record that notes which of its columns were asked for; only to look whether one is there is no use.

    Args:
        names: where the names are noted, for all records of a table.
    """

    def __init__(self, record: dict[str, object], names: set[str]):
        super().__init__(record)
        self._names = names

    def __getitem__(self, name: str) -> object:
        self._names.add(name)
        return super().__getitem__(name)


@dataclass(frozen=True)
class RowOf:
    """One row with checked access to its fields."""

    place: str
    record: Mapping[str, object]

    def error(self, column: str, expected: str) -> DataError:
        """An error of a column's value."""
        value = shown(self.record.get(column))
        return DataError(f"{self.place}: column {column!r} contains {value}, expected {expected}")

    def text(self, column: str) -> str:
        """A text."""
        value = self.record[column]
        if not is_text(value):
            raise self.error(column, "a string of complete Unicode characters")
        return value

    def filled(self, column: str) -> str:
        """A text that must not be empty."""
        if not (value := self.text(column)):
            raise self.error(column, "some text")
        return value

    def label(self, column: str) -> str:
        """The name of a part of the data; nothing where it is missing."""
        value = self.record[column]
        if value is None:
            return ""
        if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).isprintable():
            raise self.error(column, "a name in printable characters")
        return str(value)

    def number(self, column: str, expected: str = "a number") -> float:
        """A finite number, or the text of one."""
        value: Any = self.record[column]
        with suppress(TypeError, ValueError):
            if not isinstance(value, bool) and isfinite(float(value)):
                return float(value)
        raise self.error(column, expected)

    def choices(self, column: str) -> tuple[str, ...]:
        """Two texts or more."""
        value = self.record[column]
        good = isinstance(value, list) and len(value) > 1
        if not good or not all(choice and is_text(choice) for choice in value):
            raise self.error(column, "a list of two or more texts")
        return tuple(value)

    def index(self, column: str, n: int) -> int:
        """The number of one of `n` choices."""
        value = self.record[column]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n:
            raise self.error(column, f"the number of the right choice, 0 to {n - 1}")
        return value


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a file, or of several.

    Attributes:
        path: the file, or a split on the hub, for error messages.
        names: the first row's columns; ``"0", "1", ...`` where the file has no header.
        records: one dict per row, column to value: strings, or any JSON values.
        places: where each row stands, for error messages: its file, and in it the line, the item of a JSON
            list, or in SQuAD's layout article, paragraph and question, counted from 1.
        asked: the columns that were asked for; `adapter_probe.data.forms` says what becomes of the others.
    """

    path: Path | str
    names: tuple[str, ...]
    records: list[dict[str, object]]
    places: list[str]
    asked: set[str] = field(default_factory=set, compare=False)

    @classmethod
    def joined(cls, tables: Sequence[Rows]) -> Rows:
        """The rows of several files, in order."""
        records = [record for rows in tables for record in rows.records]
        places = [place for rows in tables for place in rows.places]
        asked = set().union(*(rows.asked for rows in tables))
        return cls(", ".join(str(rows.path) for rows in tables), tables[0].names, records, places, asked)

    def kept(self, keep: Iterable[int]) -> Rows:
        """The rows ``keep`` (indices)."""
        kept = [(self.records[row], self.places[row]) for row in keep]
        records, places = map(list, zip(*kept)) if kept else ([], [])
        return replace(self, records=records, places=places)

    @property
    def every_name(self) -> tuple[str, ...]:
        """The columns of all rows; `names` has those of the first."""
        return tuple(dict.fromkeys(name for record in self.records for name in record))

    @cached_property
    def first_values(self) -> dict[str, object]:
        """The first value of every column that holds something in some row."""
        found = (
            (name, next((x for x in (record.get(name) for record in self.records) if x not in EMPTY), None))
            for name in self.every_name
        )
        return {name: value for name, value in found if value is not None}

    def __iter__(self) -> Iterator[RowOf]:
        return (RowOf(place, Asked(record, self.asked)) for place, record in zip(self.places, self.records))

    def column(self, name: str) -> list[object]:
        """One column's values."""
        self.asked.add(name)
        try:
            return [record[name] for record in self.records]
        except KeyError:
            row = next(i for i, record in enumerate(self.records) if name not in record)
            found = listed(self.records[row])
            raise DataError(f"{self.places[row]}: no column {name!r}; columns found: {found}") from None

    def texts(self, name: str) -> list[str]:
        """One column's values, each a string that UTF-8 can hold."""
        values = self.column(name)
        try:
            "".join(values).encode()
        except (TypeError, UnicodeEncodeError):  # rare, so only then look for the row
            return [row.text(name) for row in self]
        return values


def fingerprint_of(content: object, sort_keys: bool = False) -> str:
    """SHA-256 of rows as plain JSON."""
    plain = json.dumps(content, sort_keys=sort_keys, default=str)  # Parquet has dates and bytes
    return hashlib.sha256(plain.encode()).hexdigest()


def is_text(value: object) -> bool:
    """Whether it is a string that UTF-8 can hold."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_tsv(path: Path, text: str, columns: Sequence[str]) -> Rows:
    numbered = enumerate(text.split("\n"), start=1)
    lines = ((number, line.rstrip("\r").split("\t")) for number, line in numbered if line.strip(" \r"))
    return _with_header(path, lines, columns)


def _csv_lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Records with the line that each begins on; a quoted field may span several lines."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # else 131,072 characters, a long document
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
    headless = looks_like_cola(first) or (bool(numbered) and not set(numbered) <= set(first))
    names = tuple(map(str, range(len(first)))) if headless else tuple(name.strip() for name in first)
    if not headless and (other := other_delimiter(first)):
        raise DataError(f"{path} line {first_line}: the header {shown(first[0])} is one column{other}")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} line {first_line}: the header names the column {twice!r} twice")
    records, places = ([dict(zip(names, first))], [f"{path} line {first_line}"]) if headless else ([], [])
    for line, fields in lines:
        if len(fields) != len(names):
            against = f"line {first_line}" if headless else "the header"
            raise DataError(
                f"{path} line {line}: expected {len(names)} fields as in {against}, got {len(fields)}"
            )
        records.append(dict(zip(names, fields)))
        places.append(f"{path} line {line}")
    return Rows(path, names, records, places)


def looks_like_cola(fields: list[str]) -> bool:
    """Whether the fields are a line of raw CoLA: source, 0 or 1, empty or star, sentence."""
    return len(fields) == 4 and fields[1] in ("0", "1") and fields[2] in ("", "*")


def _read_jsonl(path: Path, text: str, columns: Sequence[str]) -> Rows:
    lines = ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
    return _objects(path, [(f"{path} line {number}", _parse(path, line, number)) for number, line in lines])


def _read_json(path: Path, text: str, columns: Sequence[str]) -> Rows:
    first, _, more = text.strip().partition("\n")
    if more and first.startswith("{") and first.rstrip().endswith("}"):
        return _read_jsonl(path, text, columns)
    value = _parse(path, text)
    if _is_squad(value):
        questions = list(_questions(path, value))
        records, places = [record for _, record in questions], [place for place, _ in questions]
        return Rows(path, QUESTION_COLUMNS, records, places)
    if not isinstance(value, list):
        raise DataError(f"{path}: contains {quote(value)}, expected a list of objects")
    return _objects(path, [(f"{path} item {number}", one) for number, one in enumerate(value, start=1)])


def _is_squad(value: object) -> bool:
    articles = value.get("data") if isinstance(value, dict) else None
    return isinstance(articles, list) and any(
        isinstance(article, dict) and "paragraphs" in article for article in articles
    )


def _questions(path: Path, value: dict) -> Iterator[tuple[str, dict[str, object]]]:
    """Every question with its place, such as ``dev.json article 2, paragraph 1, question 7``."""
    for i, article in enumerate(value["data"], start=1):
        at = f"{path} article {i}"
        for j, paragraph in enumerate(_held_list(article, "paragraphs", at), start=1):
            here = f"{at}, paragraph {j}"
            questions = _held_list(paragraph, "qas", here)
            if "context" not in paragraph:
                raise DataError(f"{here}: the field 'context' is missing")
            for k, question in enumerate(questions, start=1):
                place = f"{here}, question {k}"
                if not isinstance(question, dict):
                    raise DataError(f"{place}: contains {shown(question)}, expected an object")
                yield place, {**question, "context": paragraph["context"]}


def _held_list(holder: object, key: str, where: str) -> list:
    if not isinstance(holder, dict):
        raise DataError(f"{where}: contains {shown(holder)}, expected an object")
    if not isinstance(holder.get(key), list):
        found = shown(holder[key]) if key in holder else "nothing"
        raise DataError(f"{where}: {key!r} contains {found}, expected a list")
    return holder[key]


def _read_conll(path: Path, text: str, columns: Sequence[str]) -> Rows:
    """Sentences: the first column has the words, the last one the tags; others are kept by their number."""
    lines = text.splitlines()
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    separator = "\t" if "\t" in first else None
    if (width := len(first.split(separator))) < 2:
        raise DataError(f"{path} line 1: expected a word and its tag in each line, got {shown(first)}")
    words: list[tuple[int, list[str]]] = []  # each with its line; without fields between two sentences
    for number, line in enumerate(lines, start=1):
        fields = [field.strip() for field in line.split(separator)] if line.strip() else []
        if len(fields) in (0, width):
            words.append((number, [] if fields[:1] == [_NEW_DOCUMENT] else fields))
        elif not line.startswith("#"):  # else a comment
            raise DataError(f"{path} line {number}: expected {width} columns, got {len(fields)}")
    names = (TAG_COLUMNS[0], *(f"column {number}" for number in range(2, width)), TAG_COLUMNS[1])
    sentences = [list(own) for filled, own in groupby(words, lambda word: bool(word[1])) if filled]
    records = [dict(zip(names, map(list, zip(*(fields for _, fields in own))))) for own in sentences]
    return Rows(path, names, records, [f"{path} line {own[0][0]}" for own in sentences])


def _parse(path: Path, text: str, line: int | None = None) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {line or error.lineno}"
        raise DataError(f"{path} {at}: malformed JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        at = f" line {line}" if line else ""
        raise DataError(f"{path}{at}: malformed JSON ({error})") from None


def _objects(path: Path, values: Sequence[tuple[str, Any]]) -> Rows:
    """Rows of objects, each with its place."""
    for place, value in values:
        if not isinstance(value, dict):
            raise DataError(f"{place}: contains {quote(value)}, expected an object")
    records = [record for _, record in values]
    return Rows(path, tuple(records[0]) if records else (), records, [place for place, _ in values])


def read_parquet(path: Path) -> Rows:
    """Read a Parquet file's rows; its place counts rows from 1."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow; {install_extra('parquet')}") from None
    try:
        records = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({one_line(error)})") from None
    if not records:
        raise DataError(f"{path} contains no rows")
    return Rows(path, tuple(records[0]), records, [f"{path} row {i + 1}" for i in range(len(records))])


PARQUET = ".parquet"
READERS: dict[str, Callable[[Path, str, Sequence[str]], Rows]] = {
    ".csv": lambda path, text, columns: _with_header(path, _csv_lines(path, text), columns),
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".conll": _read_conll,
}
