"""Scores of written texts against the accepted answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adapter_probe.data.answers import match_scores
from adapter_probe.errors import DataError, install_extra, shown

Scorer = Callable[[str, Sequence[str]], float]
"""From a text and the accepted answers to a score in [0, 1]."""
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|-?\.\d+")


def last_number(text: str) -> float | None:
    """The last number in a text, with or without commas between thousands; None if there is none."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


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
    """The function that scores a text by a metric of `adapter_probe.metrics`.

    Raises:
        DataError: it needs a package that is not installed.
    """
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

    Raises:
        DataError: it returns something else.
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
