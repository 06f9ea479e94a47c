"""Rows of a table, of any source, with checked access and the place of each for error messages."""

from __future__ import annotations

import hashlib
import json
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from adapter_probe.errors import DataError, listed, shown

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
    def numbered(cls, path: Path | str, what: str, records: list[dict[str, object]]) -> Rows:
        """Rows that are counted from 1, each placed by what it is and its number, such as ``row 3``."""
        if not records:
            raise DataError(f"{path} contains no rows")
        places = [f"{path} {what} {number}" for number in range(1, len(records) + 1)]
        return cls(path, tuple(records[0]), records, places)

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
