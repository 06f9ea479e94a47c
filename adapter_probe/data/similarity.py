"""Rows for embeddings and rerankers: pairs with a similarity, triplets, and queries with documents."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from adapter_probe.data.combining import Combine, Ranking, Similarities
from adapter_probe.data.forms import DataForm, Role, prompt_role, refuse_disagreeing, refuse_unread
from adapter_probe.data.labels import Split
from adapter_probe.data.naming import COMPARED
from adapter_probe.data.question import Question, question_of
from adapter_probe.data.request_rows import are_preferences
from adapter_probe.data.rows import RowOf, Rows, fingerprint_of, is_text
from adapter_probe.data.sources import subset
from adapter_probe.data.task_spec import Columns
from adapter_probe.errors import DataError, listed, shown
from adapter_probe.metrics import Kind

CORPUS, QUERIES, QRELS = "corpus", "queries", "qrels"
"""The files of a collection in BEIR's layout, the last one a folder with a table for each split."""
_QUERY, _GAIN = ("query", "anchor"), ("relevance", "label", "score")
_JUDGED = ("query-id", "corpus-id", "score")
_NEGATIVE = re.compile(r"negatives?(_\d+)?")
_OTHERS: tuple[Role, ...] = (
    Role("a text that is not similar", "negative negatives neg negs", "name it negative, or of several "
         "negative_1, negative_2, ..."),
    Role("another similar text", "positive positives pos", "give each its own row"),
    Role("the query", "query anchor question", "keep one of them"),
    Role("a prompt of the query", "instruction instructions prompt", "write it before each query"),
    Role("a label", "label labels score similarity relevance", "name the texts sentence1 and sentence2 and "
         "their similarity score"),
)  # fmt: skip
TRIPLETS = DataForm("triplets", "is `positive` nearer than the negatives", _OTHERS, also=(
    ("query", " to `query`"), ("anchor", " to `anchor`")
), layouts=COMPARED)  # fmt: skip
RETRIEVED = DataForm("queries with a similar text", "each query's `positive` among all rows'", _OTHERS,
    also=(("query", ", for `query`"), ("anchor", ", for `anchor`")), layouts=COMPARED)  # fmt: skip
COLLECTION = DataForm("a collection", "documents of the corpus (`title` and `text`) by the query's `text`")
RERANKED = DataForm(
    "queries with documents", "each `document` scored with its `query`",
    (prompt_role("write it into the column query").but("query", "document"), *_OTHERS[:2]),
    also=tuple((name, f", beside `{name}`") for name in _GAIN),
)  # fmt: skip
Texts = list[tuple[str, str]]
"""Each with its role, ``query`` or ``document``, or "" where it has none; a prompt may belong to it."""


def is_collection(path: Path) -> bool:
    """Whether a folder has BEIR's layout."""
    try:
        return (path / f"{CORPUS}.jsonl").is_file()
    except (OSError, ValueError):  # a name that no file can have, which is refused where it is read
        return False


def files_of_collection(folder: Path, split: str) -> tuple[str, ...]:
    """The corpus, the queries and the judgements of a split: its own, or else the only ones."""
    found = sorted((folder / QRELS).glob("*.tsv"))
    names = ("validation", "dev") if split == "validation" else (split,)
    own = [path for path in found if path.stem in names] or found
    if len(own) != 1:
        raise DataError(
            f"{folder}: expected {QRELS}/{split}.tsv beside {CORPUS}.jsonl and {QUERIES}.jsonl; found "
            f"{listed(path.name for path in found) or 'none'}"
        )
    return str(folder / f"{CORPUS}.jsonl"), str(folder / f"{QUERIES}.jsonl"), str(own[0])


def are_contrasts(names: Sequence[str]) -> bool:
    """Whether rows are queries with similar texts."""
    return _named(names, _QUERY) is not None and "positive" in names


def contrast_columns(names: Sequence[str]) -> Columns | None:
    """The columns of queries and similar texts; None of other rows."""
    return Columns(str(_named(names, _QUERY)), "positive", "") if are_contrasts(names) else None


def kind_of_rows(names: Sequence[str]) -> Kind | None:
    """The kind of task of rows for embeddings, by their columns; None for labelled pairs."""
    if are_contrasts(names):
        return "pairwise" if _negatives(names) else "ranking"
    return "ranking" if "_id" in names else None


def kind_for_number(names: Sequence[str]) -> Kind | None:
    """The kind of task of rows for a head with one output, by their columns; None for labelled texts."""
    if are_preferences(names):
        return "pairwise"
    return "ranking" if {"query", "document"} <= set(names) else None


def _named(names: Iterable[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in set(names)), None)


def _negatives(names: Iterable[str]) -> list[str]:
    """The columns of texts that are not similar: negative, negatives, negative_1, ..."""
    return [name for name in names if _NEGATIVE.fullmatch(name)]


def _places() -> dict[tuple[str, str], int]:
    """The places of distinct texts, to be filled by looking them up: in the order in which they are met."""
    return defaultdict(count().__next__)


def pairs_of(split: Split, dot: bool) -> tuple[Texts, Combine]:
    """The distinct texts of labelled pairs, and what makes their similarities."""
    places = _places()
    rows = [[places[text, ""] for text in both] for both in zip(split.texts, split.texts_b or ())]
    return list(places), Similarities(np.array(rows, dtype=np.int64), dot)


def triplets_of(
    tables: Sequence[Rows], name: str, max_examples: int | None, dot: bool
) -> tuple[Split, Texts, Combine]:
    """Queries with a similar text, and texts that are not similar."""
    found: list[Texts] = []
    negatives = [name for table in tables for name in _negatives(table.every_name)]
    rows = [row for table in tables for row in table]
    for row in (rows[i] for i in subset(len(rows), max_examples)):
        if (query := _named(row.record, _QUERY)) is None:
            raise _lacks(row, listed(_QUERY))
        texts = [_text(row, query), _text(row, "positive")]
        for one in _negatives(row.record):
            value = row.record[one]
            given = value if isinstance(value, list) else [value]
            texts += [_text(RowOf(row.place, {one: text}), one) for text in given if text is not None]
        if len(texts) < 3 and negatives:
            raise DataError(
                f"{row.place}: has no negative text; leave the row out, or the column in all rows"
            )
        found.append([(text, "document" if number else "query") for number, text in enumerate(texts)])
    _refuse_others(TRIPLETS if negatives else RETRIEVED, tables)
    content, places = [[text for text, _ in row] for row in found], _places()
    most = max(map(len, found))
    padded = [[places[text] for text in row] + [-1] * (most - len(row)) for row in found]
    split = _split(tuple(texts[0] for texts in content), name, content)
    return split, list(places), Similarities(np.array(padded, dtype=np.int64), dot)


def _refuse_others(form: DataForm, tables: Sequence[Rows]) -> None:
    """Refuse other texts and labels beside queries with similar texts; 1 in all rows says no more."""
    for table in tables:
        values = {name: {str(row.get(name)) for row in table.records} for name in table.first_values}
        ones = {name for name, own in values.items() if own <= {"1", "1.0", "True"}}
        refuse_unread(form, [table], table.asked | ones)


def _lacks(row: RowOf, columns: str) -> DataError:
    return DataError(f"{row.place}: no column {columns}; columns found: {listed(row.record)}")


def retrieval_of(
    tables: Sequence[Rows], name: str, max_examples: int | None, dot: bool
) -> tuple[Split, Texts, Combine, tuple[str, ...]]:
    """Queries and the documents that they are compared with: a collection, or rows of query and positive.

    As in BEIR's evaluation, a document with the query's own identifier is no document for that query.

    Returns:
        the queries, the distinct texts, what scores the rankings, and what is left out, one phrase each.
    """
    collected = "_id" in tables[0].names
    corpus, queries, judged = _collection(tables) if collected else _of_positives(tables)
    if not collected:
        _refuse_others(RETRIEVED, tables)
    if not corpus:
        raise DataError(f"{tables[0].path}: the corpus has no documents")
    kept, notes = _asked(tables, judged, max_examples)
    places = _places()
    numbers = {document: number for number, document in enumerate(corpus)}
    documents = np.array([places[text, "document"] for text in corpus.values()], dtype=np.int64)
    gains, ranked = [], []
    for query in kept:
        gain = np.zeros(len(corpus), np.float32)
        for document, value in judged[query].items():
            gain[numbers[document]] = max(value, 0.0)
        others = np.arange(len(corpus)) != numbers[query] if collected and query in numbers else slice(None)
        gains.append(gain[others])
        ranked.append(documents[others])
    if own := sum(query in numbers for query in kept) if collected else 0:
        notes += (f"documents with their query's own identifier, which are left out: {own:,}",)
    asked = np.array([places[queries[query], "query"] for query in kept], dtype=np.int64)
    content = [list(corpus.items()), [[query, queries[query], judged[query]] for query in kept]]
    split = _split(tuple(queries[query] for query in kept), name, content)
    return split, list(places), Ranking(tuple(ranked), tuple(gains), asked, dot), notes


def of_retrieval(tables: Sequence[Rows], n_queries: int) -> Question:
    """What is asked of queries; of a collection the rows are its queries."""
    if "_id" not in tables[0].names:
        return replace(question_of(RETRIEVED, tables, n_queries), what="queries")
    judged = {record["query-id"] for record in tables[2].records}
    return replace(question_of(COLLECTION, tables, n_queries, len(judged)), what="queries")


Judged = dict[str, dict[str, float]]
"""By query, how relevant each document is."""


def _collection(tables: Sequence[Rows]) -> tuple[dict[str, str], dict[str, str], Judged]:
    """The documents and the queries by their ids, and what is judged."""
    if len(tables) != 3:
        raise DataError(
            f"{tables[0].path}: a collection has three files, {CORPUS}, {QUERIES} and {QRELS}; give them, or "
            "their folder"
        )
    corpus, queries = _by_id(tables[0], titled=True), _by_id(tables[1])
    judged: Judged = {}
    for row in tables[2]:
        if missing := [name for name in _JUDGED if name not in row.record]:
            raise _lacks(row, repr(missing[0]))
        query, document = (str(row.record[name]) for name in _JUDGED[:2])
        for one, known, column in ((query, queries, "query-id"), (document, corpus, "corpus-id")):
            if one not in known:
                what = "query" if known is queries else "document"
                said = f"{row.place}: column {column!r} contains {shown(one)}"
                raise DataError(f"{said}, which no {what} has as _id")
        gain = row.number("score")
        if query != document:
            judged.setdefault(query, {})[document] = gain
    # As in BEIR, the queries of other splits are in the same file.
    return corpus, {query: queries[query] for query in judged}, judged


def _by_id(table: Rows, titled: bool = False) -> dict[str, str]:
    """Texts by their ids, in a corpus after their titles."""
    found: dict[str, str] = {}
    for row in table:
        if "_id" not in row.record:
            raise _lacks(row, "'_id'")
        title, number = row.record.get("title") if titled else None, row.record["_id"]
        text = "" if title and row.record.get("text") == "" else _text(row, "text")
        if str(number) in found:
            raise DataError(f"{row.place}: the _id {shown(number)} is there twice")
        found[str(number)] = f"{title} {text}".strip() if title else text
    return found


def _of_positives(tables: Sequence[Rows]) -> tuple[dict[str, str], dict[str, str], Judged]:
    """Queries whose corpus is what is similar to any of them."""
    corpus: dict[str, str] = {}
    queries: dict[str, str] = {}
    judged: Judged = {}
    for row in (row for table in tables for row in table):
        query, document = _text(row, str(_named(row.record, _QUERY))), _text(row, "positive")
        corpus[document], queries[query] = document, query
        judged.setdefault(query, {})[document] = 1.0
    return corpus, queries, judged


def reranked_of(
    tables: Sequence[Rows], name: str, max_examples: int | None
) -> tuple[Split, list[tuple[str, str]], Combine, tuple[str, ...]]:
    """Queries with their documents, of which a reranker reads each with its query; see `retrieval_of`."""
    groups: Judged = {}
    for table in tables:
        if names := [name for name in _GAIN if name in table.first_values]:
            refuse_disagreeing(table, names[0], names[1:], ("query", "document", names[0]))
    for row in (row for table in tables for row in table):
        column = _named(row.record, _GAIN)
        if column is None:
            raise _lacks(row, listed(_GAIN))
        own = groups.setdefault(_text(row, "query"), {})
        own[_text(row, "document")] = row.number(column)
    refuse_unread(RERANKED, tables)
    kept, notes = _asked(tables, groups, max_examples)
    pairs = [(query, document) for query in kept for document in groups[query]]
    ends = np.cumsum([len(groups[query]) for query in kept])[:-1]
    gains = [np.maximum(np.array(list(groups[query].values()), np.float32), 0) for query in kept]
    split = _split(tuple(kept), name, [[query, groups[query]] for query in kept])
    documents = tuple(np.split(np.arange(len(pairs)), ends))
    return split, pairs, Ranking(documents, tuple(gains)), notes


def _asked(
    tables: Sequence[Rows], judged: Judged, max_examples: int | None
) -> tuple[list[str], tuple[str, ...]]:
    """The queries with a relevant document, or some of them, and what to say of those that have none."""
    kept = [query for query, own in judged.items() if any(gain > 0 for gain in own.values())]
    if not kept:
        raise DataError(f"{tables[0].path}: no query has a relevant document")
    n_bare = len(judged) - len(kept)
    said = f"queries without a relevant document, which are left out: {n_bare:,}"
    return [kept[i] for i in subset(len(kept), max_examples)], (said,) if n_bare else ()


def _split(texts: tuple[str, ...], name: str, content: Any) -> Split:
    """Examples without labels, whose fingerprint is that of all that is read."""
    return Split(texts, None, np.ones(len(texts), dtype=np.int64), name, fingerprint_of(content))


def _text(row: RowOf, column: str) -> str:
    value = row.record.get(column)
    if not is_text(value) or not value:
        raise row.error(column, "some text of whole Unicode characters")
    return str(value)
