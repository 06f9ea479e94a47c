"""Windows of a question and a part of its context, as token ids, for extractive question answering.

A context that is too long for the model is cut into overlapping windows, so that an answer cut by the edge
of one window is complete in the next. Conventions follow the question-answering example of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adapter_probe.data.encoding import Encoded, encoded_with_fingerprint
from adapter_probe.data.questions import Questions
from adapter_probe.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
    def within(cls, limit: int | None) -> WindowSettings:
        """The usual settings, scaled down in proportion if fewer tokens are allowed.

        Args:
            limit: maximum number of tokens; None for the usual 384.
        """
        length = cls.max_length if limit is None else min(cls.max_length, limit)
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
        questions: questions to encode. White space around a question is removed.
        settings: settings of the windows into which contexts are cut.

    Raises:
        DataError: the settings leave no room for a context.
    """
    room = settings.max_length - settings.max_question - tokenizer.num_special_tokens_to_add(pair=True)
    if settings.max_question < 1:
        raise DataError(f"a question must keep at least 1 token, got {settings.max_question}")
    if settings.stride < 0 or room <= settings.stride:
        raise DataError(
            f"windows of {settings.max_length} tokens leave {room} for the context next to a question of "
            f"{settings.max_question}; the stride is {settings.stride}, expected 0 or more and less than that"
        )
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
            first, last = _context_of(batch.sequence_ids(window))
            spans.append((first, last))
            offsets.append(np.array(mapping[first:last], dtype=np.int32).reshape(-1, 2))
    encoded = encoded_with_fingerprint(tuple(ids), tuple(types) if types else None)
    question, context = np.array(which, dtype=np.int64), np.array(spans, dtype=np.int64)
    labels = _label(questions, question, context, offsets)
    return Windows(encoded, question, context, tuple(offsets), labels)


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


def _context_of(sequence_ids: Sequence[int | None]) -> tuple[int, int]:
    """The first token of the context and one past its last; only context is in between."""
    places = np.flatnonzero([number == 1 for number in sequence_ids])
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (len(sequence_ids), len(sequence_ids))


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
