"""Scores of texts that a model has written, and what of a text is scored."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import regex

from adapter_probe.data.answers import match_scores
from adapter_probe.errors import DataError, install_extra, one_line, quote, shown

_MATCH_SECONDS = 0.5  # a pattern may take exponential time
Scorer = Callable[[str, Sequence[str]], float]
"""From a text and the accepted answers to a score in [0, 1]."""
_NUMBER = re.compile(
    r"(?P<sign>(?<![\d)])[-\u2212][$\u20ac\u00a3]?)?"  # after a digit it is a hyphen
    r"(?:(?<![\d/.,])(?P<over>\d+)/(?P<under>0*[1-9]\d*)(?![\d/.,]*[\d/])"  # and no part of a date
    r"|(?P<plain>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+\u2212]?\d+(?!\w))?|\.\d+))"
)


def last_number(text: str) -> float | None:
    """The last number in a text; None if there is none.

    It may have commas between thousands, an exponent (1e5), a hyphen or U+2212 as its sign, or be a fraction
    (1/2). A hyphen after a digit is none: 10-5 ends in 5, as does 2024-01-05.
    """
    found = [*_NUMBER.finditer(text)]
    if not found:
        return None
    last = found[-1]
    if last["plain"] is None:
        value = int(last["over"]) / int(last["under"])
    else:
        value = float(last["plain"].replace(",", "").replace("\u2212", "-"))
    return -value if last["sign"] else value


def refuse_without_number(answers: Sequence[Sequence[str]], name: str) -> None:
    """Refuse rows none of whose accepted answers has a number, which no text could give."""
    for row, accepted in enumerate(answers):
        if not any(last_number(answer) is not None for answer in accepted):
            raise DataError(
                f"{name} row {row + 1}: --metric number, and no answer has a number: {shown(accepted[0])}"
            )


def _number(text: str, answers: Sequence[str]) -> float:
    found = last_number(text)
    return float(found is not None and found in [last_number(answer) for answer in answers])


def _rouge_l() -> Scorer:
    """ROUGE-L's F of the package rouge-score, the best over the answers."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError as error:
        raise DataError(
            f"--metric rouge_l: {error.name} is not installed; {install_extra('rouge')}"
        ) from None
    scorer = RougeScorer(["rougeL"])
    return lambda text, answers: max(scorer.score(answer, text)["rougeL"].fmeasure for answer in answers)


_SCORERS: dict[str, Scorer] = {
    "text_match": lambda text, answers: float(text.strip() in [answer.strip() for answer in answers]),
    "contains": lambda text, answers: float(any(answer.strip() in text for answer in answers)),
    "number": _number,
    "token_f1": lambda text, answers: match_scores(text, answers)[1],
}


def text_scorer(metric: str) -> Scorer:
    """The function that scores a text by a metric of `adapter_probe.metrics`."""
    return _rouge_l() if metric == "rouge_l" else _SCORERS[metric]


def scores_of(
    metric: str, texts: Sequence[Sequence[str | None]], answers: Sequence[Sequence[str]]
) -> np.ndarray:
    """The score of every variant's text to every row, float32 ``[variants, rows]``; 0 where it is None."""
    score, found = text_scorer(metric), np.zeros((len(texts), len(answers)), np.float32)
    for row, accepted in enumerate(answers):
        known: dict[str | None, float] = {None: 0.0}  # variants mostly agree
        for variant, own in enumerate(texts):
            text = own[row]
            if text not in known:
                known[text] = score(str(text), accepted)
            found[variant, row] = known[text]
    return found


def scores_by(
    function: Callable[[Any, Any], Any],
    name: str,
    texts: Sequence[Sequence[str | None]],
    answers: Sequence[Sequence[str]],
) -> np.ndarray:
    """Scores by a function of the user's, from all answers and one variant's texts to a number per text.

    It is given a list of the accepted answers of every row, and a list of the texts, empty where nothing was
    extracted.
    """
    found = []
    for own in texts:
        returned = function([list(accepted) for accepted in answers], [text or "" for text in own])
        try:
            values = np.asarray(returned, dtype=np.float64)
        except (TypeError, ValueError):
            values = np.empty(0)
        if values.shape != (len(answers),) or not np.isfinite(values).all():
            raise DataError(
                f"the metric {name} returned {shown(returned)} for {len(answers)} texts; with generate=True "
                "it has to return a finite number for each text"
            )
        found.append(values)
    return np.array(found, dtype=np.float32)


class Extractor:
    """What a pattern finds in texts: its first group, or all that matches where it has none.

    Args:
        flag: the option that gives it.
    """

    def __init__(self, pattern: str, flag: str):
        self._said = f"{flag} {quote(pattern)}"
        try:
            self._pattern = regex.compile(pattern)
        except (regex.error, OverflowError, RecursionError) as error:
            raise DataError(f"{self._said} is not a regular expression: {one_line(error)}") from None

    def found_in(self, text: str) -> str | None:
        """What is found first; None if nothing is."""
        try:
            match = self._pattern.search(text, timeout=_MATCH_SECONDS)
        except TimeoutError:
            raise DataError(
                f"{self._said} takes more than {_MATCH_SECONDS} s on the text {shown(text)}; simplify it"
            ) from None
        if match is None:
            return None
        return match.group(1) if self._pattern.groups else match.group(0)
