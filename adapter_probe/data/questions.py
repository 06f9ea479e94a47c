"""Questions on contexts, each answered by a passage of its context, as in SQuAD v1.1."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from adapter_probe.data.formats import Rows
from adapter_probe.data.spec import TaskSpec
from adapter_probe.errors import DataError, shown

_MOST_SHIFTED = 2  # known offset errors of answers in distributed copies of the data, in characters


@dataclass(frozen=True)
class Answer:
    """A true answer.

    Attributes:
        text: text of the answer.
        start: position in the context, in characters from 0.
    """

    text: str
    start: int


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions, their contexts, and their true answers.

    Attributes:
        questions: the texts.
        contexts: the distinct contexts (paragraphs), in order of first occurrence.
        paragraph: int64 ``[questions]``, which context each question is on. Questions on one paragraph are
            not independent, so statistics resample paragraphs.
        answers: the true answers of every question, at least one; annotators may differ. The first one is
            trained on.
        name: the split: train, validation or test.
        fingerprint: SHA-256 of questions, contexts and answers in order.
    """

    questions: tuple[str, ...]
    contexts: tuple[str, ...]
    paragraph: np.ndarray
    answers: tuple[tuple[Answer, ...], ...]
    name: str
    fingerprint: str

    def __len__(self) -> int:
        return len(self.questions)


def assemble_questions(spec: TaskSpec, split: str, rows: Rows) -> Questions:
    """The questions of some rows of a split.

    Raises:
        DataError: a question, context or answer is missing or malformed, or an answer is not in its context;
            the message says in which file and where.
    """
    questions, contexts = rows.texts(spec.columns.text), rows.texts(spec.columns.text_b)
    answers = [
        _answers(place, value, context)
        for place, value, context in zip(rows.places, rows.column(spec.columns.label), contexts)
    ]
    numbers = {context: i for i, context in enumerate(dict.fromkeys(contexts))}
    paragraph = np.array([numbers[context] for context in contexts], dtype=np.int64)
    plain = [[(answer.text, answer.start) for answer in own] for own in answers]
    content = json.dumps([questions, list(numbers), paragraph.tolist(), plain]).encode()
    return Questions(
        tuple(questions),
        tuple(numbers),
        paragraph,
        tuple(answers),
        split,
        hashlib.sha256(content).hexdigest(),
    )


def _answers(place: str, value: object, context: str) -> tuple[Answer, ...]:
    """The answers of one question, in the layout of SQuAD's files or of the hub."""
    found = []
    for text, start in _pairs(place, value):
        if not isinstance(text, str) or not isinstance(start, int) or isinstance(start, bool):
            raise DataError(
                f"{place}: an answer is {shown(text)} at {shown(start)}, expected a string at a "
                f"whole number of characters"
            )
        found.append(Answer(text, _start(place, text, start, context)))
    if not found:
        raise DataError(
            f"{place}: there are no answers; unanswerable questions (SQuAD 2.0) are not supported"
        )
    return tuple(found)


def _pairs(place: str, value: object) -> Iterator[tuple[object, object]]:
    """Text and start of every answer: from a list of objects, or from an object of two lists."""
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return zip(texts, starts)
    elif isinstance(value, list) and all(isinstance(answer, dict) for answer in value):
        return ((answer.get("text"), answer.get("answer_start")) for answer in value)
    raise DataError(
        f"{place}: the answers are {shown(value)}, expected a list of objects with text and answer_start"
    )


def _start(place: str, text: str, start: int, context: str) -> int:
    """Position of an answer: as recorded, or off by one or two characters, as happens in SQuAD."""
    if text.strip():
        for shift in sorted(range(-_MOST_SHIFTED, _MOST_SHIFTED + 1), key=abs):
            if start + shift >= 0 and context.startswith(text, start + shift):
                return start + shift
    held = shown(context[max(start, 0) : max(start, 0) + max(len(text), 1)])
    raise DataError(
        f"{place}: the answer {shown(text)} is not in the context at character {start}, which has {held}"
    )
