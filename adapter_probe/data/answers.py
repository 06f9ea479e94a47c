"""Answers that are decoded from the logits of windows, and their scores.

Decoding is that of transformers' own question-answering example; exact match and F1 are those of SQuAD v1.1's
official evaluation (Rajpurkar et al. 2016, section 6.1).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from adapter_probe.data.squad import Questions, Windows

NO_ANSWER = -1
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, eq=False)
class Answers:
    """The best answer of every variant to every question, or in every window.

    Attributes:
        score: float32 ``[variants, items]``, start logit plus end logit; -inf where there is no answer, NaN
            where a logit is NaN or infinite.
        start: int32 ``[variants, items]``, the answer's first character in its context; -1 for no answer.
        end: int32 ``[variants, items]``, one past its last; -1 for no answer.
    """

    score: np.ndarray
    start: np.ndarray
    end: np.ndarray


def decode_windows(
    windows: Windows,
    index: np.ndarray,
    rows: Sequence[slice],
    logits: np.ndarray,
    n_best: int = 20,
    max_tokens: int = 30,
) -> Answers:
    """The best answer of every variant in some windows.

    In each window every pair of a start and an end token is considered that lies in the context, has the end
    not before the start, and keeps to both limits. Of pairs with equal scores the shorter wins, then the
    earlier. A window in which any logit is NaN or infinite has no answer, and the score NaN.

    Args:
        index: int64 ``[items]``, indices of the windows.
        rows: position of each window in the logits, as `PackedBatch.rows` says.
        logits: ``[variants, tokens, 2]``, start and end.
        n_best: an answer begins at one of this many highest start logits of its window, and ends at one of as
            many highest end logits (more only where the last of them are equal).
    """
    shape = (len(logits), len(index))
    scores = np.empty(shape, dtype=np.float32)
    starts, ends = (np.full(shape, NO_ANSWER, dtype=np.int32) for _ in range(2))
    for item, (window, place) in enumerate(zip(index.tolist(), rows)):
        begin, stop = windows.context[window].tolist()
        with np.errstate(invalid="ignore"):
            score, first, last = _best_pairs(logits[:, place], begin, stop, n_best, max_tokens)
        finite = np.isfinite(logits[:, place]).all(axis=(1, 2))
        found = np.flatnonzero(finite & (score > -np.inf))
        scores[:, item] = np.where(finite, score, np.nan)
        starts[found, item] = windows.offsets[window][first[found], 0]
        ends[found, item] = windows.offsets[window][last[found], 1]
    return Answers(scores, starts, ends)


def choose_windows(windows: Windows, decoded: Answers) -> Answers:
    """The best answer to every question, over all of its windows; the earliest one in case of a tie.

    Scores are compared directly, not as probabilities within a window. A question has the score NaN if one of
    its windows has.
    """
    firsts = np.flatnonzero(np.diff(windows.question, prepend=-1))
    # [variants, questions]; argmax takes the earliest of equals, and NaN for the largest.
    best = [part.argmax(axis=1) for part in np.split(decoded.score, firsts[1:], axis=1)]
    chosen = np.stack(best, axis=1) + firsts
    fields = (decoded.score, decoded.start, decoded.end)
    return Answers(*(np.take_along_axis(values, chosen, axis=1) for values in fields))


def answer_text(questions: Questions, question: int, start: int, end: int) -> str:
    """The words of an answer; empty for no answer."""
    return "" if start == NO_ANSWER else questions.contexts[questions.paragraph[question]][start:end]


def score_answers(questions: Questions, answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Exact match and F1 of every variant on every question, the maximum over the correct answers.

    Args:
        answers: one item per question. No answer scores 0; an answer whose score is NaN scores NaN.

    Returns:
        exact match (0 or 1) and F1, float64 ``[variants, questions]`` each. Their means over questions are
        the metrics `exact_match` and `squad_f1`.
    """
    exact, f1 = np.zeros((2, *answers.start.shape))
    for question in range(len(questions)):
        true = [answer.text for answer in questions.answers[question]]
        # Variants mostly agree, so only the few distinct answers are scored.
        places = np.stack([answers.start[:, question], answers.end[:, question]], axis=1)  # [variants, 2]
        different, variant_of = np.unique(places, axis=0, return_inverse=True)
        scores = np.zeros((len(different), 2))
        for i, (start, end) in enumerate(different.tolist()):
            if start != NO_ANSWER:
                scores[i] = match_scores(answer_text(questions, question, start, end), true)
        exact[:, question], f1[:, question] = scores[variant_of.reshape(-1)].T
    exact[np.isnan(answers.score)] = f1[np.isnan(answers.score)] = np.nan
    return exact, f1


def normalise(text: str) -> str:
    """Text normalised for comparison: lower case, no ASCII punctuation or articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def match_scores(given: str, true: Iterable[str]) -> tuple[bool, float]:
    """Whether an answer equals a correct one, and the maximum F1 of its words against those of a correct one.

    All are normalised first. Without a common word the F1 is 0, also where both are empty.
    """
    given, true = normalise(given), [normalise(text) for text in true]
    return given in true, max(_f1(given, text) for text in true)


def _f1(given: str, true: str) -> float:
    words, true_words = given.split(), true.split()
    common = sum((Counter(words) & Counter(true_words)).values())
    return 2 * common / (len(words) + len(true_words)) if common else 0.0


def _best_pairs(
    logits: np.ndarray, begin: int, stop: int, n_best: int, max_tokens: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Score, start and end of every variant's best pair in a window.

    Args:
        logits: logits of the window, ``[variants, tokens, 2]``.

    Returns:
        float32 and twice int64 ``[variants]``; tokens counted from `begin`, and -inf where there is no pair.
    """
    starts, ends = (_highest(logits[..., i], n_best)[:, begin:stop] for i in range(2))
    everyone, width = np.arange(len(logits)), stop - begin
    best = np.full(len(logits), -np.inf, dtype=np.float32)
    first, last = np.zeros((2, len(logits)), dtype=np.int64)
    for more in range(min(max_tokens, width)):
        sums = starts[:, : width - more] + ends[:, more:]
        place = sums.argmax(axis=1)
        found = sums[everyone, place]
        better = found > best
        best[better], first[better], last[better] = found[better], place[better], place[better] + more
    return best, first, last


def _highest(logits: np.ndarray, n_best: int) -> np.ndarray:
    """Float32 ``[variants, tokens]``: -inf but at each row's `n_best` highest and what ties with the last."""
    values = logits.astype(np.float32)
    if n_best >= values.shape[1]:
        return values
    least = np.partition(values, -n_best, axis=1)[:, -n_best, None]
    return np.where(values >= least, values, np.float32(-np.inf))
