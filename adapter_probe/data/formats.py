"""The parsers of the file formats.

A ``.tsv`` file has no quoting, as in GLUE, where quotes are part of the text; a ``.csv`` file quotes as
RFC 4180 does; a ``.json`` file is a list of objects (or, as some tools write it, one object a line), or has
SQuAD's layout. A ``.conll`` file has a line per word, its columns separated by blanks or tabs, and an empty
line after each sentence.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from adapter_probe.data.rows import Rows
from adapter_probe.errors import DataError, install_extra, one_line, other_delimiter, quote, shown

QUESTION_COLUMNS = ("id", "question", "context", "answers")
TAG_COLUMNS = ("tokens", "tags")
_NEW_DOCUMENT = "-DOCSTART-"  # in CoNLL 2003, between documents


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
    return Rows.numbered(path, "row", records)


PARQUET = ".parquet"
READERS: dict[str, Callable[[Path, str, Sequence[str]], Rows]] = {
    ".csv": lambda path, text, columns: _with_header(path, _csv_lines(path, text), columns),
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".conll": _read_conll,
}
