"""Examples whose prediction a span changes: outcomes, confusion matrices, and a list to search and sort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.score_changes import intact_row
from adapter_probe.errors import ResultsError
from adapter_probe.formulas import NO_WORD
from adapter_probe.wording import signed

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_MOST_CLASSES = 12  # of a confusion matrix; the rarest of more are one class
_OTHERS = "others"


@dataclass(frozen=True)
class ExampleTexts:
    """The texts of the examples, in the order of the predictions.

    Attributes:
        texts: the first or only text of every example, the question, or the context of the choices.
        texts_b: the second one, or the context of a question; None for single texts.
        truths: the correct answers of every question, as text; None if the examples have labels.
        choices: the choices of every example; None if the examples have labels or answers.
        written: what every variant writes to every example ``[variants][examples]``; None if nothing is.
    """

    texts: tuple[str, ...]
    texts_b: tuple[str, ...] | None = None
    truths: tuple[str, ...] | None = None
    choices: tuple[tuple[str, ...], ...] | None = None
    words: tuple[tuple[str, ...], ...] | None = None
    written: tuple[tuple[str, ...], ...] | None = None
    metadata: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def variant_of(results: AblationResults, spans: pd.DataFrame) -> list[int | None]:
    """The variant of each span; None where an output is not finite."""
    row_of = {tuple(span): row for row, span in enumerate(results.spans.tolist())}
    rows = [row_of.get(span) for span in zip(spans["first"].tolist(), spans["last"].tolist())]
    return [None if row is None or results.nonfinite[row] else row for row in rows]


def flip_counts(results: AblationResults, spans: pd.DataFrame) -> list[tuple[int, int] | None]:
    """How many examples each span makes newly wrong and newly correct; None where that is unknown."""
    outcomes = results.are_right
    if outcomes is None:
        return [None] * len(spans)
    intact = outcomes[intact_row(results)]
    return [
        None if row is None else (int((intact & ~outcomes[row]).sum()), int((~intact & outcomes[row]).sum()))
        for row in variant_of(results, spans)
    ]


def confusion(results: AblationResults, spans: pd.DataFrame) -> dict[str, Any] | None:
    """The confusion matrices of a classification, as text, a row of each matrix after the other.

    Returns:
        `names` of the classes, in which the rarest of many are one; `intact`, and `rows`, one per span (None
        where an output is not finite): numbers of examples by true (slow) and predicted class (fast).
    """
    if not (options := results.scored.options()):
        return None
    names, places = list(options), np.arange(len(options))
    if len(names) > _MOST_CLASSES:
        counts = np.bincount(results.scored_with, minlength=len(names))
        kept = np.sort(np.argsort(-counts, kind="stable")[: _MOST_CLASSES - 1])
        places = np.full(len(names), len(kept))
        places[kept] = np.arange(len(kept))
        names = [*(names[i] for i in kept), _OTHERS]
    n, truth = len(names), places[results.scored_with]

    def matrix(row: int) -> list[str]:
        pairs = n * truth + places[results.predictions[row]]
        return [f"{count:,}" for count in np.bincount(pairs, minlength=n * n).tolist()]

    rows = [None if row is None else matrix(row) for row in variant_of(results, spans)]
    intact = intact_row(results)
    return {"names": names, "intact": None if results.nonfinite[intact] else matrix(intact), "rows": rows}


def examples_content(
    results: AblationResults, spans: pd.DataFrame, texts: ExampleTexts
) -> dict[str, Any] | None:
    """The examples whose outcome, tags or labels some span changes, with their predictions, as plain JSON.

    Returns:
        `numbers` of the examples in their split, from 1; `texts` and `second` (or None); `truth`, and by
        metadata column, the label included, its `values` and their `places` per example; `options` that were
        predicted, of all examples in common or (`own`) of each one; `intact` and `rows` (one per row of
        `spans`, None where an output is not finite): `said`, places in the options, and `right`, 0 or 1, a
        digit per example (lists if there are more than 36 options), and `margins`, two digits in base 36
        each, places in `words`; `changes` and, in words, `flips`: how many spans change the example. None for
        regressions and losses.

    Raises:
        ResultsError: the numbers of texts and predictions differ.
    """
    outcomes = results.are_right
    if outcomes is None:
        return None
    if len(texts.texts) != results.n_examples:
        raise ResultsError(
            f"{len(texts.texts)} texts do not fit predictions of {results.n_examples} examples"
        )
    intact, rows = intact_row(results), variant_of(results, spans)
    differ = outcomes != outcomes[intact]
    if parts := results.scored.parts():  # which may change and stay wrong
        differ = (parts[0] != parts[0][intact]).any(axis=-1)
    kept = np.flatnonzero(differ[results.nonfinite == 0].any(axis=0))
    said, options, truth = _predicted(results, texts, kept)
    margins, most = _margins(results, kept), int(said.max(initial=0))
    changed = differ[[row for row in rows if row is not None]][:, kept].sum(axis=0)

    def told(row: int | None) -> dict[str, Any] | None:
        if row is None:
            return None
        right = outcomes[row, kept].astype(int)
        found = {"said": _packed(said[row], most), "right": _packed(right, 1)}
        if margins is not None:
            digits = (margins[row] + 100).tolist()
            found["margins"] = "".join(_DIGITS[n // 36] + _DIGITS[n % 36] for n in digits)
        return found

    columns = {"label": tuple(truth)} if results.scored.options() else {}
    if results.groups is not None:
        columns["group"] = tuple(results.groups[kept].tolist())
    columns |= {name: tuple(column[i] for i in kept) for name, column in texts.metadata.items()}
    return {
        "numbers": (kept + 1).tolist(), "texts": [texts.texts[i] for i in kept],
        "second": None if texts.texts_b is None else [texts.texts_b[i] for i in kept],
        "truth": truth, "columns": {name: _places(column) for name, column in columns.items()},
        "own": not results.scored.options(), "options": options, "compares": texts.written is not None,
        "intact": told(intact), "rows": [told(row) for row in rows],
        "words": None if margins is None else [signed(n / 100, 2) for n in range(-100, 101)],
        "heads": ["true", "intact model", "this span", "changed by"], "changes": changed.tolist(),
        "flips": [f"{n} of {len(spans)} spans" for n in changed.tolist()],
    }  # fmt: skip


def _predicted(
    results: AblationResults, texts: ExampleTexts, kept: np.ndarray
) -> tuple[np.ndarray, list[Any], list[str]]:
    """What was predicted, places in the options ``[variants, kept]``; the options; and what is true."""
    contexts = texts.texts_b or ("",) * results.n_examples
    if (told := results.scored.told(contexts, kept)) is not None:
        return *_distinct(told, len(results.masks)), [(texts.truths or texts.texts)[i] for i in kept]
    if parts := results.scored.parts():
        return _several(*parts, results.label_names, texts, kept)
    if texts.written is not None:
        told = [[own[i] for own in texts.written] for i in kept]
        return *_distinct(told, len(results.masks)), [(texts.truths or ())[i] for i in kept]
    said = results.predictions[:, kept]
    if names := results.scored.options():
        return said, list(names), [names[i] for i in results.scored_with[kept]]
    choices = texts.choices or (("right", "wrong"),) * len(texts.texts)
    return said, [list(choices[i]) for i in kept], [choices[i][results.scored_with[i]] for i in kept]


def _distinct(found: Sequence[Sequence[str]], n_variants: int) -> tuple[np.ndarray, list[list[str]]]:
    """Texts ``[kept][variants]`` as places ``[variants, kept]`` in the options of each example."""
    options = [list(dict.fromkeys(own)) for own in found]
    said = [[known.index(text) for text in own] for known, own in zip(options, found)]
    return np.array(said, dtype=np.int64).reshape(len(found), n_variants).T, options


def _several(
    predicted: np.ndarray,
    true: np.ndarray,
    label_names: tuple[str, ...],
    texts: ExampleTexts,
    kept: np.ndarray,
) -> tuple[np.ndarray, list[list[str]], list[str]]:
    """Sets of labels, or words with tags; see `_predicted`."""
    names = np.array(label_names)

    def told(row: np.ndarray, example: int) -> str:
        if texts.words is None:
            return " · ".join(names[row == 1]) or "none"
        tagged = [
            f"{word} {names[tag] if tag >= 0 else '?'}"
            for word, tag in zip(texts.words[example], row)
            if tag != NO_WORD and (tag < 0 or names[tag] != "O")
        ]
        return " · ".join(tagged) or "none"

    said = np.zeros((len(predicted), len(kept)), dtype=np.int64)
    options = []
    for place, example in enumerate(kept):
        rows, which = np.unique(predicted[:, example], axis=0, return_inverse=True)
        said[:, place] = which.reshape(-1)
        options.append([told(row, example) for row in rows])
    return said, options, [told(true[example], example) for example in kept]


def _margins(results: AblationResults, kept: np.ndarray) -> np.ndarray | None:
    """Probability of the true option less that of the likeliest other one, int percent ``[variants, kept]``.

    None for answers, and for choices that are not compared by their probabilities.
    """
    if (logits := results.scored.option_logits()) is None:
        return None
    logits, labels = logits[:, kept].astype(np.float64), results.scored_with[kept]
    with np.errstate(invalid="ignore"):
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
    at = np.arange(len(kept))
    true = shares[:, at, labels].copy()
    shares[:, at, labels] = -np.inf
    found = np.nan_to_num(100 * (true - shares.max(axis=-1)))
    return found.round().astype(int)


def _places(values: tuple[str, ...]) -> dict[str, list]:
    """Distinct values in ascending order, and the place of each one."""
    known = sorted(set(values))
    place = {value: index for index, value in enumerate(known)}
    return {"values": known, "places": [place[value] for value in values]}


def _packed(said: np.ndarray, most: int) -> str | list[int]:
    digits = said.tolist()
    return "".join(_DIGITS[digit] for digit in digits) if most < len(_DIGITS) else digits
