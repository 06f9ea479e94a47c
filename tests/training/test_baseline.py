"""The baseline without pretraining against scikit-learn's own search over a pipeline."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import naming
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import make_scorer, matthews_corrcoef
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.pipeline import Pipeline

from adapter_probe import metrics
from adapter_probe.data.labels import Split
from adapter_probe.errors import TrainingError
from adapter_probe.training import baseline
from adapter_probe.training.baseline import (
    FOLDS,
    NGRAMS,
    STRENGTHS,
    TextFeatures,
    _folds,
    fit_baseline,
    n_fits,
)

WORDS = ("good", "bad", "fine", "foul", "cat", "dog", "saw", "the", "a", "not")
VALENCE = {"good": 1, "fine": 1, "bad": -1, "foul": -1}


def a_split(n_rows: int, seed: int, kind: str = "classification") -> Split:
    """Texts of random words, whose label is a noisy sum of what the words are worth."""
    draw = np.random.default_rng(seed)
    texts = [" ".join(draw.choice(WORDS, draw.integers(3, 9))) for _ in range(n_rows)]
    worth = np.array([sum(VALENCE.get(word, 0) for word in text.split()) for text in texts])
    noisy = worth + draw.normal(0, 0.7, n_rows)
    return Split(tuple(texts), None, noisy if kind == "regression" else (noisy > 0.8).astype(int), "", "")


def reference(train: Split, kind: str, scoring: object) -> GridSearchCV:
    """The same search by scikit-learn alone."""
    words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]")
    if kind == "regression":
        model, strengths = Ridge(), {"model__alpha": [1 / strength for strength in STRENGTHS]}
        folds = KFold(FOLDS, shuffle=True, random_state=0)
    else:
        model, strengths = LogisticRegression(max_iter=100), {"model__C": STRENGTHS}
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
        if scoring != "accuracy":
            strengths["model__class_weight"] = [None, "balanced"]
    pipeline = Pipeline([("words", words), ("model", model)])
    search = GridSearchCV(
        pipeline, {"words__ngram_range": NGRAMS, **strengths}, cv=folds, scoring=scoring, error_score="raise"
    )
    return search.fit(train.texts, train.labels)


@pytest.mark.parametrize(
    ("kind", "metric", "scoring"),
    [
        ("classification", "accuracy", "accuracy"),
        pytest.param("classification", "mcc", make_scorer(matthews_corrcoef), marks=pytest.mark.slow),
    ],
)
def test_the_search_is_scikit_learns(kind, metric, scoring):
    train, validation = a_split(120, 0), a_split(60, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = reference(train, kind, scoring)
    told: list[int] = []
    found = fit_baseline(train, validation, kind, metric, told.append)
    best = expected.best_params_
    assert found.setting.ngrams == best["words__ngram_range"]
    assert found.setting.strength == best["model__C"]
    assert found.setting.balanced == (best.get("model__class_weight") == "balanced")
    np.testing.assert_array_equal(found.predictions, expected.predict(validation.texts))
    model = expected.best_estimator_["model"]
    assert found.parameters == model.coef_.size + model.intercept_.size
    assert told == list(range(1, n_fits(kind, metric) + 1))
    assert metrics.score("accuracy", found.predictions, validation.labels) > 0.7
    again = fit_baseline(train, validation, kind, metric)
    np.testing.assert_array_equal(again.predictions, found.predictions)


def test_a_regression_is_ridge_by_rank_correlation():
    train, validation = a_split(120, 0, "regression"), a_split(60, 1, "regression")

    def spearman(model, texts, labels) -> float:
        from scipy.stats import spearmanr

        return float(spearmanr(model.predict(texts), labels).statistic)

    expected = reference(train, "regression", spearman)
    found = fit_baseline(train, validation, "regression", "spearman")
    assert 1 / found.setting.strength == expected.best_params_["model__alpha"]
    np.testing.assert_allclose(found.predictions, expected.predict(validation.texts), rtol=1e-9)


def test_features_of_a_pair_tell_what_both_texts_share():
    rows = [("the cat saw", "the dog saw"), ("a cat", "a cat")]
    features, words = TextFeatures((1, 1)), TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+")
    words.fit([text for row in rows for text in row])
    a, b = (words.transform(texts).toarray() for texts in zip(*rows))
    expected = np.hstack([a, b, a * b, np.abs(a - b)])
    np.testing.assert_allclose(features.fit(rows).toarray(), expected)
    np.testing.assert_allclose(features.of(rows[1:]).toarray(), expected[1:])


def test_pairs_are_told_apart_by_what_they_share():
    """No text alone tells the label: it is whether both texts have a word in common."""
    draw = np.random.default_rng(0)
    first = [str(draw.choice(WORDS)) for _ in range(300)]
    same = draw.random(300) < 0.5
    second = [
        word if equal else str(draw.choice([w for w in WORDS if w != word]))
        for word, equal in zip(first, same)
    ]
    splits = [
        Split(tuple(first[part]), tuple(second[part]), same[part].astype(int), "", "")
        for part in (slice(200), slice(200, None))
    ]
    found = fit_baseline(*splits, "classification", "accuracy")
    assert metrics.score("accuracy", found.predictions, splits[1].labels) == 1.0


def test_what_it_cannot_do_is_one_line():
    train = a_split(40, 0)
    for labels, words in (
        ([1] + [0] * 39, ("2",)),
        (range(40), ("5", "1")),
    ):
        rare = Split(train.texts, None, np.array(labels), "", "")
        with pytest.raises(TrainingError, match=naming(*words)):
            fit_baseline(rare, rare, "classification", "accuracy")
    with pytest.raises(TrainingError, match=naming("extractive")):
        fit_baseline(train, train, "extractive", "squad_f1")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rows", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_class_with_fewer_rows_than_folds(rows):
    train = a_split(40, 0)
    labels = np.array([2] * rows + [0, 1] * ((40 - rows) // 2 + 1))[:40]
    split = Split(train.texts, None, labels, "", "")
    for inside, outside in _folds(labels, "classification"):
        assert np.bincount(labels[outside], minlength=3)[2] <= 1
        assert set(labels[inside]) >= {0, 1}
    assert len(fit_baseline(split, split, "classification", "accuracy").predictions) == 40


@pytest.mark.slow
def test_it_finds_scikit_learn_in_a_program_that_hides_it():
    program = (
        "from adapter_probe.startup import unneeded_libraries_hidden as hidden\n"
        "from adapter_probe.training.baseline import _sklearn\n"
        "with hidden():\n"
        "    print(_sklearn('linear_model').Ridge.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "Ridge\n", done.stderr


def test_importing_scikit_learn_is_estimated_once(monkeypatch):
    """Not with every fold: all imports are over before the measurement of the features begins."""
    said = []
    imported, clock = baseline._sklearn, time.monotonic
    monkeypatch.setattr(baseline, "_sklearn", lambda name: (said.append(name), imported(name))[1])
    ticking = SimpleNamespace(monotonic=lambda: (said.append("clock"), clock())[1])
    monkeypatch.setattr(baseline, "time", ticking)
    monkeypatch.setattr(baseline, "splits_of", lambda inputs: (a_split(20, 0), a_split(20, 1)))
    task = SimpleNamespace(kind="classification", metric="accuracy")
    baseline.seconds_of_baseline(SimpleNamespace(task=task), None, None)
    first, second, *_ = (i for i, name in enumerate(said) if name == "clock")
    assert said[:first] == []
    assert set(said[second:]) - {"clock"} <= set(said[first:second])
