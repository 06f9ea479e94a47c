"""SQuAD's JSON layout: articles of paragraphs of questions, read as one row per question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adapter_probe.data.quoting import shown
from adapter_probe.errors import DataError

QUESTION_COLUMNS = ("id", "question", "context", "answers")


def is_squad(value: object) -> bool:
    """Whether a JSON value has the layout of SQuAD's files."""
    articles = value.get("data") if isinstance(value, dict) else None
    return isinstance(articles, list) and any(
        isinstance(article, dict) and "paragraphs" in article for article in articles
    )


def flatten(path: Path, value: dict) -> Iterator[tuple[str, dict[str, object]]]:
    """Every question with its place, such as ``2, paragraph 1, question 7`` (of article 2), counted from 1.

    Raises:
        DataError: a level of the layout is missing or of the wrong type; the message says where.
    """
    for i, article in enumerate(value["data"], start=1):
        at = f"{path} article {i}"
        for j, paragraph in enumerate(_list(article, "paragraphs", at), start=1):
            here = f"{at}, paragraph {j}"
            questions = _list(paragraph, "qas", here)
            if "context" not in paragraph:
                raise DataError(f"{here}: no 'context'")
            for k, question in enumerate(questions, start=1):
                place = f"{i}, paragraph {j}, question {k}"
                if not isinstance(question, dict):
                    raise DataError(f"{here}, question {k}: contains {shown(question)}, expected an object")
                yield place, {**question, "context": paragraph["context"]}


def _list(holder: object, key: str, where: str) -> list:
    if not isinstance(holder, dict):
        raise DataError(f"{where}: contains {shown(holder)}, expected an object")
    if not isinstance(holder.get(key), list):
        found = shown(holder[key]) if key in holder else "nothing"
        raise DataError(f"{where}: {key!r} contains {found}, expected a list")
    return holder[key]
