"""Scores against scikit-learn and SciPy, one variant at a time there, all at once here."""

from __future__ import annotations

import copy
import sys
import time
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import names, naming, refuses
from scipy import stats
from sklearn import metrics as sklearn_metrics

from adapter_probe.custom_metric import CustomMetric
from adapter_probe.errors import DataError
from adapter_probe.formulas import average_ranks, class_counts
from adapter_probe.kinds.labels import largest_of
from adapter_probe.kinds.table import scored_of
from adapter_probe.metrics import (
    METRICS,
    check_metric,
    default_metric,
    majority_score,
    metric_label,
    score,
    score_counts,
)

SKLEARN = {
    "accuracy": sklearn_metrics.accuracy_score,
    "mcc": sklearn_metrics.matthews_corrcoef,
    "macro_f1": lambda y, p: sklearn_metrics.f1_score(y, p, average="macro", zero_division=0.0),
    "f1": lambda y, p: sklearn_metrics.f1_score(y, p, labels=[0, 1], pos_label=1, zero_division=0.0),
}
SCIPY = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}


def predicted_of(logits, kind, labels):
    """What a kind predicts by logits ``[variants, examples, outputs]``."""
    metric, names = (
        default_metric(kind) if kind in METRICS else "",
        ("a", "b") if logits.shape[-1] == 2 else (),
    )
    arrays = {"outputs": logits.astype(np.float32), "scored_with": labels}
    return scored_of(kind, metric, names, arrays).predicted(0)


@st.composite
def classified(draw, most_labels=5):
    """Labels and the predictions of a few variants; constant ones and absent classes are frequent."""
    n_labels = draw(st.integers(2, most_labels))
    n_examples, n_variants = draw(st.integers(1, 25)), draw(st.integers(1, 4))
    values = st.integers(0, n_labels - 1)
    labels = draw(arrays(np.int64, n_examples, elements=values))
    return draw(arrays(np.int64, (n_variants, n_examples), elements=values)), labels


@st.composite
def measured(draw):
    """Numbers with many ties, and constant rows now and then."""
    n_examples, n_variants = draw(st.integers(2, 25)), draw(st.integers(1, 4))
    values = st.integers(-6, 6).map(lambda quarters: quarters / 4)
    labels = draw(arrays(np.float64, n_examples, elements=values))
    return draw(arrays(np.float64, (n_variants, n_examples), elements=values)), labels


def one_by_one(reference, predictions, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the references warn where a score is undefined
        return np.array([reference(labels, row) for row in predictions])


@pytest.mark.parametrize("metric", ["accuracy", "mcc", "macro_f1"])
@given(data=classified())
def test_classification_scores_equal_scikit_learn(metric, data):
    predictions, labels = data
    expected = one_by_one(SKLEARN[metric], predictions, labels)
    np.testing.assert_allclose(score(metric, predictions, labels), expected, rtol=0, atol=1e-12)


@given(data=classified(most_labels=2))
def test_f1_equals_scikit_learn_with_the_last_label_positive(data):
    predictions, labels = data
    expected = one_by_one(SKLEARN["f1"], predictions, labels)
    np.testing.assert_allclose(score("f1", predictions, labels), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
@given(data=measured())
def test_correlations_equal_scipy(metric, data):
    predictions, labels = data
    expected = one_by_one(lambda y, p: SCIPY[metric](p, y).statistic, predictions, labels)
    np.testing.assert_allclose(score(metric, predictions, labels), expected, rtol=0, atol=1e-12)


@given(values=arrays(np.float64, (3, 12), elements=st.sampled_from([0.0, -0.0, 1.5, 1e-300, -1e300, 7.0])))
def test_ranks_equal_scipy(values):
    np.testing.assert_array_equal(average_ranks(values), stats.rankdata(values, axis=-1) - 1)


@pytest.mark.parametrize("kind", METRICS)
def test_any_leading_axes(kind):
    rng = np.random.default_rng(1)
    labels, predictions = rng.integers(0, 2, 30), rng.integers(0, 2, (2, 3, 30))
    labels += kind == "causal"  # a loss is divided by them
    if kind in ("tokens", "multilabel"):
        labels, predictions = labels.reshape(10, 3), predictions.reshape(2, 3, 10, 3)
    if kind == "tokens":
        predictions = np.stack([predictions * labels, predictions], axis=-1)
    for metric in METRICS[kind]:
        grid = score(metric, predictions, labels)
        assert grid.shape == (2, 3)
        assert grid.dtype == np.float64
        single = np.array(
            [[float(score(metric, predictions[i, j], labels)) for j in range(3)] for i in range(2)]
        )
        np.testing.assert_array_equal(grid, single)  # to the last bit: results must not depend on the company


def test_labels_of_other_axes_are_no_score():
    """Else a metric of single labels would count rows of them, and the other way round."""
    one, several = np.array([0, 1, 1]), np.array([[0, 1], [1, 1], [1, 0]])
    for metric, labels in [
        ("accuracy", several),
        ("spearman", several),
        ("micro_f1", one),
        ("entity_f1", one),
    ]:
        given = np.stack([labels, labels], -1) if metric == "entity_f1" else labels
        refuses(ValueError, (f"'{metric}'", str(labels.ndim)), score, metric, given, labels)


def test_perfect_and_inverted_predictions_are_exactly_one_and_minus_one():
    labels = np.array([0, 1, 1, 0, 1, 0, 0])
    for metric in METRICS["classification"]:
        assert score(metric, labels, labels) == 1.0
    assert score("mcc", 1 - labels, labels) == -1.0
    ranks = np.array([3.0, 0.1, 7.5, 2.0])
    assert score("spearman", np.exp(ranks), ranks) == pytest.approx(1.0, abs=1e-15)
    assert score("spearman", -ranks, ranks) == pytest.approx(-1.0, abs=1e-15)


def test_constant_predictions():
    labels = np.array([0, 1, 1, 2])
    assert score("mcc", np.ones(4, dtype=int), labels) == 0.0
    # 0.1 has no exact mean over ten examples: constancy must not be read off the centred values.
    numbers, constant = np.linspace(0, 1, 10), np.full(10, 0.1)
    assert np.isnan(score("pearson", constant, numbers))
    assert np.isnan(score("spearman", constant, numbers))
    assert np.isnan(score("pearson", numbers, constant))


def test_a_variant_with_nan_spoils_only_its_own_correlation():
    labels = np.array([1.0, 2.0, 4.0])
    predictions = np.array([[1.0, np.nan, 2.0], [0.5, 1.0, 2.0], [np.inf, 1.0, 2.0]])
    for metric in ("pearson", "spearman"):
        first, second, third = score(metric, predictions, labels)
        assert np.isnan(first)
        assert np.isnan(third)
        assert second == pytest.approx(1.0)
        assert np.isnan(score(metric, predictions[2], labels))


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("metric", ["accuracy", "mcc", "f1", "macro_f1", "pearson", "spearman"])
def test_a_logit_that_is_not_finite_is_never_scored(metric, spoilt):
    kind = "regression" if metric in ("pearson", "spearman") else "classification"
    logits = np.random.default_rng(0).normal(size=(3, 8, 1 if kind == "regression" else 2))
    labels = np.arange(8) % 2
    labels = labels.astype(np.float64) if kind == "regression" else labels
    sound = score(metric, predicted_of(logits, kind, labels), labels)
    logits[1, 5, 0] = spoilt
    found = score(metric, predicted_of(logits, kind, labels), labels)
    assert np.isnan(found).tolist() == [False, True, False]
    assert found[[0, 2]].tolist() == sound[[0, 2]].tolist()


def test_a_question_without_a_score_leaves_its_variant_without_one():
    scores = np.array([[0.5, 1.0], [0.5, np.nan]])
    assert np.array_equal(score("squad_f1", scores, np.zeros(2)), [0.75, np.nan], equal_nan=True)


def test_correlation_of_tiny_and_huge_values_does_not_over_or_underflow():
    labels = np.array([1.0, 2.0, 4.0, 3.0])
    for scale in (1e-200, 1.0, 1e200):
        assert score("pearson", labels * scale, labels) == pytest.approx(1.0, abs=1e-12)


@given(data=classified(), factor=st.integers(1, 5))
def test_classification_scores_are_functions_of_counts(data, factor):
    """Counting every example `factor` times, as a bootstrap does, equals repeating the examples."""
    predictions, labels = data
    repeated = class_counts(predictions.repeat(factor, axis=-1), labels.repeat(factor))
    counted = class_counts(predictions, labels)
    for name in ("hits", "predicted", "actual"):
        np.testing.assert_array_equal(getattr(repeated, name), factor * getattr(counted, name))
    for metric in ("accuracy", "mcc", "macro_f1"):
        np.testing.assert_allclose(score_counts(metric, repeated), score_counts(metric, counted), rtol=1e-12)


@given(logits=arrays(np.float32, (2, 4, 3), elements=st.integers(-2, 2).map(float)))
def test_predictions_are_the_first_largest_logit(logits):
    found = largest_of(logits)
    assert found.dtype == np.int64
    expected = [[row.tolist().index(max(row.tolist())) for row in variant] for variant in logits]
    assert found.tolist() == expected


def test_predictions_of_a_regression_head_are_its_output():
    logits = np.array([[[0.1], [-2.0]]], dtype=np.float32)
    found = predicted_of(logits, "regression", np.zeros(2))
    assert found.dtype == np.float64
    assert found[0].tolist() == logits[0, :, 0].tolist()
    refuses(ValueError, ("outputs", "1", "3"), predicted_of, np.zeros((2, 4, 3)), "regression", np.zeros(4))


@given(values=arrays(np.float64, (3, 7), elements=st.sampled_from([0.0, 0.25, 2 / 3, 1.0])))
def test_question_answering_scores_are_exact_means(values):
    clusters = np.array([0, 0, 1, 1, 1, 2, 2])
    expected = [float(sum(map(Fraction, row)) / 7) for row in values.tolist()]
    for metric in METRICS["extractive"]:
        np.testing.assert_allclose(score(metric, values, clusters), expected, rtol=1e-15)
        np.testing.assert_array_equal(
            score(metric, np.asfortranarray(values), clusters), score(metric, values, clusters)
        )
    assert score("exact_match", values[0] == 1, clusters) == np.mean(values[0] == 1)


def test_majority_scores():
    labels = np.array([2, 0, 2, 1, 2, 0])
    assert majority_score("accuracy", labels) == 0.5
    assert majority_score("mcc", labels) == 0.0
    assert majority_score("macro_f1", labels) == pytest.approx(float(Fraction(2 * 3, 6 + 3) / 3))
    assert majority_score("f1", np.array([0, 0, 1])) == 0.0
    assert majority_score("f1", np.array([0, 1, 1])) == pytest.approx(0.8)
    assert majority_score("accuracy", np.array([1, 0])) == 0.5
    assert np.isnan(majority_score("spearman", np.array([0.5, 0.5, 1.0])))
    assert np.isnan(majority_score("exact_match", np.array([0, 0, 1])))


def test_names():
    assert default_metric("classification") == "accuracy"
    assert default_metric("regression") == "spearman"
    labels = {metric: metric_label(metric) for metrics in METRICS.values() for metric in metrics}
    assert default_metric("extractive") == "squad_f1"
    assert labels["mcc"] == "Matthews correlation"
    assert (labels["squad_f1"], labels["exact_match"]) == ("answer F1", "exact match")
    same = {"exact_match", "text_match"}  # of spans of a text, and of written texts
    assert {metric for metric, label in labels.items() if label == "exact match"} == same
    assert len(set(labels.values())) == len(labels) - 1
    assert labels.keys() >= SKLEARN.keys() | SCIPY.keys()


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda: metric_label("auc"), ("'auc'", "accuracy, mcc, f1, micro_f1, macro_f1, entity_f1")),
        (lambda: score("auc", np.zeros(2, int), np.zeros(2, int)), ("'auc'", "accuracy")),
        (lambda: majority_score("auc", np.zeros(2, int)), ("'auc'", "accuracy")),
        (lambda: default_metric("sorting"), ("'sorting'", "classification, regression")),
        (
            lambda: check_metric("pearson", "classification"),
            ("'pearson'", "classification", "accuracy, mcc, f1, macro_f1"),
        ),
        (lambda: check_metric("mcc", "regression"), ("'mcc'", "regression", "spearman, pearson")),
        (
            lambda: check_metric("accuracy", "extractive"),
            ("'accuracy'", "extractive", "squad_f1, exact_match"),
        ),
        (lambda: check_metric("f1", "classification", 3), ("'f1'", "3 labels", "accuracy, mcc, macro_f1")),
        (
            lambda: score("f1", np.array([0, 1, 2]), np.array([0, 1, 1])),
            ("'f1'", "3 labels", "accuracy, mcc, macro_f1"),
        ),
    ],
)
def test_user_errors_are_one_line_and_name_what_is_allowed(call, facts):
    refuses(DataError, facts, call)


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (np.zeros((2, 3), int), np.zeros(4, int), naming("(4,)", "(2, 3)")),
        (np.zeros((2, 0), int), np.zeros(0, int), naming("one", "(0,)", "(2, 0)")),
        (np.zeros(2), np.zeros(2, int), naming("float64", "int64")),
        (np.array([0, 1]), np.array([0, -1]), naming("0", "-1")),
    ],
)
def test_misuse_is_a_value_error(predictions, labels, message):
    with pytest.raises(ValueError, match=message):
        score("accuracy", predictions, labels)


def test_misuse_of_question_answering_is_a_value_error():
    refuses(ValueError, ("[0, 1]", "0.5 to 1.5"), score, "squad_f1", np.array([0.5, 1.5]), np.zeros(2, int))
    with pytest.raises(ValueError, match=naming("'extractive'", "answers")):
        predicted_of(np.zeros((2, 4, 2)), "extractive", np.zeros(4))
    with pytest.raises(ValueError, match=naming("'sorting'", "classification, regression")):
        predicted_of(np.zeros((2, 4, 2)), "sorting", np.zeros(4))


def test_f1_fits_two_labels_only_where_their_number_is_known():
    check_metric("f1", "classification")
    check_metric("f1", "classification", 2)


@pytest.mark.parametrize("metric", ["accuracy", "mcc", "macro_f1", "pearson", "spearman"])
def test_300_variants_of_10_000_examples_take_no_loop(metric):
    rng = np.random.default_rng(2)
    if metric in METRICS["classification"]:
        labels, predictions = rng.integers(0, 3, 10_000), rng.integers(0, 3, (300, 10_000))
    else:
        labels, predictions = rng.normal(size=10_000).round(1), rng.normal(size=(300, 10_000))
    begin = time.perf_counter()
    score(metric, predictions, labels)
    assert time.perf_counter() - begin < 5  # about 0.5 s for Spearman and 0.1 s for the others, on one core


@pytest.mark.parametrize("value", ["x", "0.5", None, [0.5, 0.5], 10**400, 1 + 1j])
def test_a_function_that_gives_no_number_is_named(value):
    def mine(labels, predictions):
        return value

    refuses(DataError, ("mine",), CustomMetric(mine).scores, np.zeros((2, 3)), np.zeros(3))


@pytest.mark.parametrize(
    "function", [lambda labels: 0.0, lambda labels, predictions, weights: 0.0, lambda *, a, b: 0.0]
)
def test_a_function_that_does_not_take_labels_and_predictions_is_refused_at_once(function):
    refuses(DataError, ("labels", "predictions"), CustomMetric, function)
    assert CustomMetric(max).own_name == "max"  # which tells no signature


@pytest.mark.parametrize(
    ("seconds", "n_variants", "wanted", "n_draws"),
    [
        (0.0, 79, 10_000, 10_000),  # not known
        (1e-4, 79, 10_000, 10_000),
        (6e-4, 79, 10_000, 2_000),  # 120 s are 2,531 times 79 calls
        (6e-4, 7, 10_000, 10_000),
        (0.01, 300, 30_000, 1_000),
    ],
)
def test_resamples_take_two_minutes_or_are_the_fewest(seconds, n_variants, wanted, n_draws):
    metric = CustomMetric(max, seconds=seconds)
    assert metric.draws(wanted, n_variants) == n_draws
    assert copy.deepcopy(metric).seconds == seconds


def test_the_time_of_a_call_is_measured_with_the_scale():
    def slow(labels, predictions):
        time.sleep(0.01)
        return float((labels == predictions).mean())

    labels = np.array([0, 1, 0, 1])
    assert 0.01 <= CustomMetric(slow).with_scale(labels, labels).seconds < 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions take no notes")
def test_what_a_function_raises_is_its_own_with_what_was_scored():
    def mine(labels, predictions):
        return 1 / int((predictions == labels).sum())

    predictions, labels = np.array([[0, 1], [1, 0]]), np.array([0, 1])
    with pytest.raises(ZeroDivisionError) as caught:
        CustomMetric(mine).scores(predictions, labels, ("intact", "layers 0-1 off"))
    (note,) = caught.value.__notes__
    assert names(note, "adapter-probe:", "metric mine", "layers 0-1 off")
    with pytest.raises(ZeroDivisionError) as caught:
        score(CustomMetric(mine), predictions, labels)
    (note,) = caught.value.__notes__
    assert names(note, "adapter-probe:", "metric mine", "row 1")
