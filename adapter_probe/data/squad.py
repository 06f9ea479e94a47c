"""Questions on contexts, each answered by a passage, as in SQuAD v1.1, and their windows as token ids.

A context that is too long for the model is cut into overlapping windows, so that an answer cut by the edge
of one window is complete in the next. Conventions follow the question-answering example of transformers.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adapter_probe.data.encoding import Encoded, encoded_with_fingerprint
from adapter_probe.data.forms import DataForm, ExampleRows, answer_role, prompt_role
from adapter_probe.data.rows import Rows, fingerprint_of
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.errors import DataError, listed, shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_LOSING = ("0.23.1", "0.23.2")  # versions of tokenizers that drop windows of long texts
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
class Questions(ExampleRows):
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

    @property
    def labels(self) -> np.ndarray:
        """Int64 ``[questions]``: their paragraphs."""
        return self.paragraph

    def right(self, task: TaskSpec) -> str:
        """See `ExampleRows.right`."""
        return listed(dict.fromkeys(answer.text for answer in self.answers[0]))


def form_of_questions(spec: TaskSpec) -> DataForm:
    """What is asked of questions."""
    own = spec.columns
    asks = f"`{own.label}` to `{own.text}`, a passage of `{own.text_b}`"
    roles = answer_role("name it answers").but("answers"), prompt_role("write it into the column context")
    return DataForm("questions on contexts", asks, roles)


def assemble_questions(spec: TaskSpec, split: str, rows: Rows) -> Questions:
    """The questions of some rows of a split."""
    questions, contexts = rows.texts(spec.columns.text), rows.texts(spec.columns.text_b)
    answers = [
        _answers(place, value, context)
        for place, value, context in zip(rows.places, rows.column(spec.columns.label), contexts)
    ]
    numbers = {context: i for i, context in enumerate(dict.fromkeys(contexts))}
    paragraph = np.array([numbers[context] for context in contexts], dtype=np.int64)
    plain = [[(answer.text, answer.start) for answer in own] for own in answers]
    fingerprint = fingerprint_of([questions, list(numbers), paragraph.tolist(), plain])
    return Questions(tuple(questions), tuple(numbers), paragraph, tuple(answers), split, fingerprint)


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


_AT_ONCE = 256  # questions per call: the tokenizer's offsets are Python objects, much larger than arrays


@dataclass(frozen=True)
class WindowSettings:
    """Settings for cutting contexts into windows.

    Attributes:
        max_length: maximum number of tokens per window, including special tokens and question.
        stride: number of context tokens that a window shares with the previous one.
        max_question: maximum number of tokens of a question; longer questions are truncated.
    """

    max_length: int = 384
    stride: int = 128
    max_question: int = 64

    @classmethod
    def within(cls, limit: int) -> WindowSettings:
        """The usual settings, scaled down in proportion if fewer tokens are allowed."""
        length = min(cls.max_length, limit)
        share = length / cls.max_length
        return cls(length, int(share * cls.stride), max(1, int(share * cls.max_question)))


@dataclass(frozen=True, eq=False)
class Windows:
    """All windows of a set of questions, grouped by question, in the order of the context.

    Attributes:
        encoded: token ids, one example per window, so that windows can be packed like examples.
        question: int64 ``[windows]``, index of each window's question.
        context: int64 ``[windows, 2]``, the context's first token in the window and one past its last.
        offsets: per window int32 ``[context tokens, 2]``, the range of characters in the question's context
            to which each token corresponds, end exclusive.
        labels: int64 ``[windows, 2]``, the first and last token of the answer in the window; both 0, the
            class token, if the window does not contain the whole answer.
    """

    encoded: Encoded
    question: np.ndarray
    context: np.ndarray
    offsets: tuple[np.ndarray, ...]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.question)


def encode_windows(
    tokenizer: PreTrainedTokenizerBase, questions: Questions, settings: WindowSettings = WindowSettings()
) -> Windows:
    """Cut and tokenise every question with its context.

    Args:
        tokenizer: a tokenizer that puts the first text before the second.
    """
    _refuse_windows(tokenizer, settings)
    texts = _cut_questions(tokenizer, questions.questions, settings.max_question)
    ids, types, which, spans, offsets = [], [], [], [], []
    for begin in range(0, len(questions), _AT_ONCE):
        stop = min(begin + _AT_ONCE, len(questions))
        batch = tokenizer(
            texts[begin:stop],
            [questions.contexts[i] for i in questions.paragraph[begin:stop]],
            truncation="only_second",
            max_length=settings.max_length,
            stride=settings.stride,
            padding=False,
            return_attention_mask=False,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        ids += [np.array(window, dtype=np.int64) for window in batch["input_ids"]]
        if "token_type_ids" in batch:
            types += [np.array(window, dtype=np.int64) for window in batch["token_type_ids"]]
        which += [begin + question for question in batch["overflow_to_sample_mapping"]]
        for window, mapping in enumerate(batch["offset_mapping"]):
            spans.append(_context(batch.sequence_ids(window)))
            offsets.append(np.array(mapping[slice(*spans[-1])], dtype=np.int32).reshape(-1, 2))
    encoded = encoded_with_fingerprint(tuple(ids), tuple(types) if types else None)
    question, context = np.array(which, dtype=np.int64), np.array(spans, dtype=np.int64)
    labels = _label(questions, question, context, offsets)
    return Windows(encoded, question, context, tuple(offsets), labels)


def _refuse_windows(tokenizer: PreTrainedTokenizerBase, settings: WindowSettings) -> None:
    """Refuse tokenizers that drop windows, and windows without room for a context."""
    if (version := importlib.metadata.version("tokenizers")) in _LOSING:
        raise DataError(f"tokenizers {version} drops windows of long contexts; install another version")
    room = settings.max_length - settings.max_question - tokenizer.num_special_tokens_to_add(pair=True)
    if room <= settings.stride:
        raise DataError(
            f"windows of {settings.max_length} tokens leave {room} for the context next to a question of "
            f"{settings.max_question}; the stride is {settings.stride}, expected less than that"
        )


def _context(of_text: Sequence[int | None]) -> tuple[int, int]:
    """The first token of a window's context and one past its last, by the number of each token's text."""
    places = np.flatnonzero([number == 1 for number in of_text])  # nothing but context is in between
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (len(of_text), len(of_text))


def _cut_questions(tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], most: int) -> list[str]:
    """Questions without surrounding white space, truncated to their first `most` tokens."""
    texts = [question.strip() for question in questions]
    long = list(range(len(texts)))
    while long:
        batch = tokenizer([texts[i] for i in long], add_special_tokens=False, return_offsets_mapping=True)
        found = list(zip(long, batch["offset_mapping"]))
        long = [i for i, offsets in found if len(offsets) > most]
        for i, offsets in found:
            if len(offsets) > most:
                # Repeated until it fits: cutting inside a word may change the tokens of the remaining text.
                texts[i] = texts[i][: min(offsets[most - 1][1], len(texts[i]) - 1)]
    return texts


def _label(
    questions: Questions, question: np.ndarray, context: np.ndarray, offsets: Sequence[np.ndarray]
) -> np.ndarray:
    """The answer's first and last token in every window; see `Windows.labels`."""
    labels = np.zeros((len(question), 2), dtype=np.int64)
    for window, number in enumerate(question.tolist()):
        answer = questions.answers[number][0]
        begin = answer.start + len(answer.text) - len(answer.text.lstrip())
        stop = answer.start + len(answer.text.rstrip())
        places = offsets[window]
        # The outermost windows extend to the context's ends, even if its first characters yield no token.
        is_first = window == 0 or question[window - 1] != number
        is_last = window == len(question) - 1 or question[window + 1] != number
        if len(places) and (is_first or places[0, 0] <= begin) and (is_last or places[-1, 1] >= stop):
            inside = np.flatnonzero((places[:, 0] < stop) & (places[:, 1] > begin))
            if len(inside):
                labels[window] = context[window, 0] + inside[[0, -1]]
    return labels
