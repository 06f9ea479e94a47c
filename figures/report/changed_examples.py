"""Examples whose prediction a span turns right or wrong: their numbers and texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.analysis.deltas import intact_row
from adapter_probe.errors import ResultsError
from adapter_probe.results.ablation_files import QUESTION_SCORES, AblationResults

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ExampleTexts:
    """The texts of the examples, in the order of the predictions.

    Attributes:
        texts: the first or only text of every example, or the question.
        texts_b: the second one, or the context; None for single sentences.
        truths: the correct answers of every question, as text; None if the examples have labels.
    """

    texts: tuple[str, ...]
    texts_b: tuple[str, ...] | None = None
    truths: tuple[str, ...] | None = None


def is_correct(results: AblationResults) -> np.ndarray | None:
    """Whether each example is right under each variant, bool `[variants, examples]`.

    An answer is right if it matches a correct answer exactly. None for regression.
    """
    if results.kind == "classification":
        return results.predictions == results.labels
    if results.kind == "extractive":
        return results.logits[..., QUESTION_SCORES.index("exact_match")] > 0.5
    return None


def flip_counts(results: AblationResults) -> pd.DataFrame:
    """How many examples each span turns from right to wrong and from wrong to right.

    Returns:
        Columns `first`, `last`, `to_wrong`, `to_right`, one row per span; no rows for regression.
    """
    columns = ["first", "last", "to_wrong", "to_right"]
    outcomes = is_correct(results)
    if outcomes is None:
        return pd.DataFrame({name: pd.Series(dtype="int64") for name in columns})
    intact = outcomes[intact_row(results)]
    rows = np.flatnonzero(results.spans[:, 0] >= 0)
    to_wrong = (intact & ~outcomes[rows]).sum(axis=1)
    to_right = (~intact & outcomes[rows]).sum(axis=1)
    return pd.DataFrame(dict(zip(columns, (*results.spans[rows].T, to_wrong, to_right))))


def examples_content(
    results: AblationResults, spans: pd.DataFrame, texts: ExampleTexts
) -> dict[str, Any] | None:
    """The texts of examples that some span turns right or wrong, with their predictions, as plain JSON.

    Returns:
        `numbers` (of the examples in their split, from 1), `texts`, `textsB` (or None), `intact`, and
        `predictions`, one entry per row of `spans`: a string with one base-36 digit per example, or a list
        if there are more than 36 options. Predictions are classes, with the true classes in `labels`; for
        questions, they are indices into the question's list of `options` (each an answer and whether it is
        right), with the correct answers in `truths`. None for regression.

    Raises:
        ResultsError: the numbers of texts and predictions differ.
    """
    outcomes = is_correct(results)
    if outcomes is None or (results.kind == "extractive" and results.answers is None):
        return None
    if len(texts.texts) != len(results.labels):
        raise ResultsError(
            f"{len(texts.texts)} texts do not fit predictions of {len(results.labels)} examples"
        )
    intact = intact_row(results)
    kept = np.flatnonzero((outcomes != outcomes[intact])[results.nonfinite == 0].any(axis=0))
    if results.kind == "classification":
        said, truth = results.predictions[:, kept], {"labels": results.labels[kept].tolist()}
    else:
        said, options = _answers(results, texts, outcomes, kept)
        truth = {"options": options, "truths": [(texts.truths or texts.texts)[i] for i in kept]}
    row_of = {tuple(span): row for row, span in enumerate(results.spans.tolist())}
    rows = [row_of.get(span) for span in zip(spans["first"].tolist(), spans["last"].tolist())]
    rows = [None if row is None or results.nonfinite[row] else row for row in rows]
    most = int(said.max(initial=0))
    return {
        "numbers": (kept + 1).tolist(),
        "texts": [texts.texts[i] for i in kept],
        "textsB": None if texts.texts_b is None else [texts.texts_b[i] for i in kept],
        **truth,
        "intact": said[intact].tolist(),
        "predictions": [None if row is None else _packed(said[row], most) for row in rows],
    }


def _answers(
    results: AblationResults, texts: ExampleTexts, outcomes: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, list[list[list[object]]]]:
    """Answers under all variants: index of the option `[variants, kept]`, and the options per question."""
    assert results.answers is not None, "checked by the caller"
    said = np.zeros((len(results.masks), len(kept)), dtype=np.int64)
    options = []
    for place, example in enumerate(kept):
        context = texts.texts_b[example] if texts.texts_b else ""
        found: dict[tuple[str, bool], int] = {}
        for variant, (start, end) in enumerate(results.answers[:, example].tolist()):
            answer = (context[start:end] if start >= 0 else "", bool(outcomes[variant, example]))
            said[variant, place] = found.setdefault(answer, len(found))
        options.append([list(answer) for answer in found])
    return said, options


def _packed(said: np.ndarray, most: int) -> str | list[int]:
    plain = said.tolist()
    return "".join(_DIGITS[s] for s in plain) if most < len(_DIGITS) else plain
