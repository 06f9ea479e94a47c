"""What a task's words tell without any pretraining: TF-IDF features and a linear model, by scikit-learn.

It replaces the "no BERT" column of Houlsby et al. 2019, Table 2, which was the best of many
models that an automatic search had tried. Everything is tuned by cross-validation on the training rows; the
validation rows are scored once. Nothing is left to chance: the same rows give the same model.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from adapter_probe import metrics
from adapter_probe.data.labels import Split
from adapter_probe.errors import TrainingError, install_extra
from adapter_probe.startup import import_needed

from .request import TrainingInputs, TrainingRequest

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

FOLDS = 5
NGRAMS = ((1, 1), (1, 2))
STRENGTHS = tuple(float(f"{10 ** (power / 2):.3g}") for power in range(-1, 4))
"""Of the loss against the penalty: C of the classifier, 1 / alpha of the ridge regression."""
_STEPS = 100  # of the classifier's solver, at most
_BY_CLASS_COUNTS = ("accuracy",)  # other scores of classes also try weights that make up for rare classes


@dataclass(frozen=True)
class Setting:
    """One point of the grid.

    Attributes:
        ngrams: fewest and most words of a feature.
        strength: see `STRENGTHS`.
        balanced: whether every class weighs the same in the loss, however rare.
    """

    ngrams: tuple[int, int]
    strength: float
    balanced: bool = False


@dataclass(frozen=True)
class Outcome:
    """A tuned baseline.

    Attributes:
        setting: the best setting of the grid by mean score over folds; the first one in case of a tie.
        predictions: predictions for the validation rows ``[examples]``.
        parameters: coefficients and intercepts.
    """

    setting: Setting
    predictions: np.ndarray
    parameters: int


class TextFeatures:
    """TF-IDF of words; of a pair both texts', then what they share and where they differ.

    For a and b, the vectors of a pair, the features are ``[a, b, a * b, |a - b|]``: a linear model of a and b
    alone could not detect whether a word is in both.

    Args:
        ngrams: fewest and most words of a feature.
    """

    def __init__(self, ngrams: tuple[int, int]):
        text = _sklearn("feature_extraction.text")
        # Single letters count too ("I", "a"); a task's punctuation may tell as much as its words.
        self._vectors = text.TfidfVectorizer(
            ngram_range=ngrams, sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]"
        )

    def fit(self, rows: Sequence[tuple[str, ...]]) -> csr_matrix:
        """Learn the vocabulary of some rows, and their features ``[rows, features]``."""
        self._vectors.fit([text for row in rows for text in row])
        return self.of(rows)

    def of(self, rows: Sequence[tuple[str, ...]]) -> csr_matrix:
        """Features ``[rows, features]`` by the vocabulary that was learnt."""
        from scipy.sparse import hstack

        parts = [self._vectors.transform(texts) for texts in zip(*rows)]
        if len(parts) == 2:
            a, b = parts
            parts += [a.multiply(b), abs(a - b)]
        return hstack(parts, format="csr")


def fit_baseline(
    train: Split, validation: Split, kind: str, metric: str, report: Callable[[int], None] = lambda fits: None
) -> Outcome:
    """Tune on the training rows, fit on all of them, and predict the validation rows.

    Args:
        kind: ``classification`` (logistic regression) or ``regression``
            (ridge regression).
        metric: the score that chooses, see `adapter_probe.metrics`.
        report: called with the number of models fitted so far, of `n_fits`.

    Raises:
        TrainingError: scikit-learn is not installed, the task is of another kind, or there are too few rows.
    """
    _refuse_others(kind)
    rows, labels = _rows(train), train.labels
    scores: dict[Setting, list[float]] = {setting: [] for setting in grid(kind, metric)}
    fits = 0
    for ngrams in NGRAMS:
        for inside, outside in _folds(labels, kind):
            features = TextFeatures(ngrams)
            known, held_out = features.fit([rows[i] for i in inside]), features.of([rows[i] for i in outside])
            for setting in (one for one in scores if one.ngrams == ngrams):
                model = _fitted(setting, kind, known, labels[inside])
                found = metrics.score(metric, model.predict(held_out), labels[outside])
                scores[setting].append(float(np.nan_to_num(found, nan=-np.inf)))
                report(fits := fits + 1)
    best = max(scores, key=lambda setting: round(float(np.mean(scores[setting])), 12))
    features = TextFeatures(best.ngrams)
    model = _fitted(best, kind, features.fit(rows), labels)
    report(fits + 1)
    parameters = np.size(model.coef_) + np.size(model.intercept_)
    return Outcome(best, model.predict(features.of(_rows(validation))), int(parameters))


def seconds_of_baseline(request: TrainingRequest, inputs: TrainingInputs, device: object) -> float:
    """Estimated seconds of `fit_baseline`: one fit, measured, times the number of fits."""
    kind = request.task.kind
    _refuse_others(kind)
    train = splits_of(inputs)[0]
    setting = grid(kind, request.task.metric)[-1]
    start = time.monotonic()
    for module in ("feature_extraction.text", "linear_model", "exceptions"):
        _sklearn(module)  # takes seconds, once
    imported = time.monotonic()
    features = TextFeatures(setting.ngrams).fit(_rows(train))
    between = time.monotonic()
    _fitted(setting, kind, features, train.labels)
    fits = n_fits(kind, request.task.metric) * (time.monotonic() - between)
    return imported - start + FOLDS * len(NGRAMS) * (between - imported) + fits


def splits_of(inputs: TrainingInputs) -> tuple[Split, Split]:
    """The rows to fit on and those to predict, texts with labels."""
    train, validation = (inputs.splits[name].rows for name in ("train", "validation"))
    assert isinstance(train, Split), "other kinds are refused"
    assert isinstance(validation, Split)
    return train, validation


def grid(kind: str, metric: str) -> list[Setting]:
    """All settings that are tried, simplest first, because ties go to the first one."""
    weights = (False, True) if kind == "classification" and metric not in _BY_CLASS_COUNTS else (False,)
    return [Setting(*one) for one in product(NGRAMS, STRENGTHS, weights)]


def n_fits(kind: str, metric: str) -> int:
    """Models that `fit_baseline` fits."""
    _refuse_others(kind)
    return FOLDS * len(grid(kind, metric)) + 1


def _refuse_others(kind: str) -> None:
    if kind not in ("classification", "regression"):
        raise TrainingError(
            f"the TF-IDF baseline is for classification and regression, not for {kind} tasks; leave it "
            "out, and train adapters, a method of PEFT, or full fine-tuning"
        )


def _rows(split: Split) -> list[tuple[str, ...]]:
    return list(zip(split.texts) if split.texts_b is None else zip(split.texts, split.texts_b))


def _folds(labels: np.ndarray, kind: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit on and rows held out, `FOLDS` times; classes in shares as equal as their rows allow.

    A class with fewer rows than folds is held out in as many folds as it has rows, never in all of them.
    """
    selection = _sklearn("model_selection")
    folds = selection.StratifiedKFold if kind == "classification" else selection.KFold
    counts = sorted(np.unique(labels, return_counts=True)[1]) if kind == "classification" else [len(labels)]
    if counts[-1] < FOLDS:
        where = "in the largest class" if kind == "classification" else "in all"
        raise TrainingError(
            f"the TF-IDF baseline needs at least {FOLDS} training rows {where}; there are {counts[-1]}"
        )
    if kind == "classification" and (len(counts) < 2 or counts[-2] < 2):  # else a fold has one class to fit
        raise TrainingError("the TF-IDF baseline needs at least 2 training rows in each of two classes")
    with warnings.catch_warnings():  # of a class with fewer rows than folds
        warnings.simplefilter("ignore", UserWarning)
        split = list(folds(FOLDS, shuffle=True, random_state=0).split(labels, labels))
    yield from split


def _fitted(setting: Setting, kind: str, features: csr_matrix, labels: np.ndarray) -> Any:
    linear = _sklearn("linear_model")
    if kind == "regression":
        return linear.Ridge(alpha=1 / setting.strength).fit(features, labels)
    weights = "balanced" if setting.balanced else None
    # The default solver draws nothing at random.
    model = linear.LogisticRegression(C=setting.strength, class_weight=weights, max_iter=_STEPS)
    with warnings.catch_warnings():  # only the last digits still move after `_STEPS`
        warnings.simplefilter("ignore", _sklearn("exceptions").ConvergenceWarning)
        return model.fit(features, labels)


def _sklearn(module: str) -> Any:
    try:
        return import_needed(f"sklearn.{module}")
    except ImportError as error:
        raise TrainingError(
            f"the TF-IDF baseline needs scikit-learn; {install_extra('baselines')}"
        ) from error
