"""Scores under weights by matrix products against scoring written-out examples, and scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from ablation_facts import ablation_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.resampling import draw_scores, draw_weights
from adapter_probe.analysis.weighted_scores import weighted_scorer


def results_of(metric: str, n_examples: int = 90, n_labels: int = 2, kind: str = "") -> AblationResults:
    """Random outputs of an intact model and five spans; the later ones are worse."""
    generator = np.random.default_rng(1)
    kind = kind or next(kind for kind, names in metrics.METRICS.items() if metric in names)
    if kind == "classification":
        labels = generator.integers(0, n_labels, n_examples)
        logits = generator.normal(size=(6, n_examples, n_labels))
        logits[:, np.arange(n_examples), labels] += np.linspace(2, 0, 6)[:, None]
    elif kind == "regression":
        labels = np.round(generator.normal(size=n_examples), 1)  # with ties
        logits = np.round(labels + generator.normal(size=(6, n_examples)), 1)[..., None]
    elif kind == "multilabel":
        labels = generator.integers(0, 2, (n_examples, n_labels))
        logits = generator.normal(size=(6, *labels.shape))
    elif kind == "tokens":  # numbers of entities of each type, found ones that are right, and found ones
        labels = generator.integers(0, 4, (n_examples, n_labels))
        hits = generator.integers(0, labels + 1, (6, *labels.shape))
        logits = np.stack([hits, hits + generator.integers(0, 3, hits.shape)], axis=-1).reshape(
            6, n_examples, -1
        )
    else:
        labels = np.sort(generator.integers(0, 20, n_examples))
        logits = generator.random((6, n_examples, 2))
    spans = np.array([(-1, -1), (0, 0), (0, 1), (0, 2), (1, 1), (1, 2)])
    masks = np.ones((6, 6), dtype=bool)
    for row, (first, last) in enumerate(spans.tolist()):
        masks[row, 2 * first : 2 * last + 2] = first < 0
    names = tuple(map(str, range(n_labels))) if kind in ("classification", "multilabel") else ()
    return ablation_of(masks, spans, tuple("abcdef"), logits.astype(np.float32), labels, metric, kind,
                           names, {}, {})  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "n_labels", "kind"),
    [("accuracy", 2, ""), ("accuracy", 4, ""), ("mcc", 2, ""), ("mcc", 3, ""), ("f1", 2, ""),
     ("macro_f1", 2, ""), ("macro_f1", 4, ""), ("pearson", 2, ""), ("spearman", 2, ""), ("squad_f1", 2, ""),
     ("exact_match", 2, ""), ("micro_f1", 4, "multilabel"), ("macro_f1", 3, "multilabel"),
     ("entity_f1", 3, "tokens"), ("tag_accuracy", 2, "tokens")],
)  # fmt: skip
def test_each_resample_is_scored_as_if_written_out(metric, n_labels, kind):
    results = results_of(metric, n_labels=n_labels, kind=kind)
    ((counts, _),) = draw_weights(90, 40, 3, 40, whole=True)
    scores = weighted_scorer(metric, results.predictions, results.scored_with)(counts)
    assert scores.shape == (40, 6)
    for count, row in zip(counts, scores):
        drawn = np.repeat(np.arange(90), count.astype(int))
        expected = metrics.score(metric, results.predictions[:, drawn], results.scored_with[drawn])
        np.testing.assert_allclose(row, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("metric", "reference"), [("accuracy", accuracy_score), ("f1", f1_score), ("mcc", matthews_corrcoef)]
)
def test_samples_are_scores_of_weighted_examples(metric, reference):
    """Of examples that are alike in every variant only the sum of weights is drawn."""
    results = results_of(metric)
    doubled = results.of_examples(np.tile(np.arange(90), 2))
    drawn = draw_scores([doubled], 30, seed=4)
    assert len(drawn.values) == len(drawn.counts) < 90
    assert drawn.counts.sum() == 180
    assert (drawn.counts % 2 == 0).all()
    ((weights, _),) = draw_weights(180, 30, 4, 30)
    for weight, row in zip(weights, drawn.samples):
        expected = [reference(doubled.scored_with, own, sample_weight=weight) for own in doubled.predictions]
        np.testing.assert_allclose(row, 100 * np.array(expected), atol=1e-9)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "macro_f1", "mcc", "pearson", "squad_f1"])
def test_values_are_what_examples_contribute(metric):
    """Their mean is the score; those of scores that are no mean come from leaving each example out."""
    results = results_of(metric, n_labels=2)
    drawn = draw_scores([results], 10)
    scores = 100 * metrics.score(metric, results.predictions, results.scored_with)
    mean = np.average(drawn.values, axis=0, weights=drawn.counts)
    np.testing.assert_allclose(mean, scores, atol=1e-9 if drawn.is_mean else 3.0)
    if not drawn.is_mean and len(drawn.values) == 90:
        left = 100 * metrics.score(metric, results.predictions[:, 1:], results.scored_with[1:])
        np.testing.assert_allclose(drawn.values[0], 90 * scores - 89 * left, atol=1e-9)
    if metric == "squad_f1":  # a paragraph contributes the sum over its questions
        first = results.scored_with == results.scored_with[0]
        per = len(np.unique(results.scored_with)) / 90
        expected = 100 * per * results.predictions[:, first].sum(axis=1)
        np.testing.assert_allclose(drawn.values[0], expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning")
@given(
    st.integers(2, 12).flatmap(
        lambda n: st.tuples(
            hnp.arrays(np.int64, (2, n), elements=st.integers(-3, 3)),
            hnp.arrays(np.int64, (3, n), elements=st.integers(0, 3)).filter(
                lambda c: (c.sum(axis=1) > 1).all()
            ),
        )
    ),
    st.booleans(),
)
def test_correlations_of_tied_values_are_scipys(drawn, tied):
    (values, labels), counts = drawn
    values = values if tied else values + np.arange(len(values)) / 100  # without ties but for the draws
    for metric, correlation in (("spearman", spearmanr), ("pearson", pearsonr)):
        scores = weighted_scorer(metric, values[None], labels)(counts.astype(np.float64))
        for count, score in zip(counts, scores[:, 0]):
            x, y = np.repeat(values, count), np.repeat(labels, count)
            np.testing.assert_allclose(score, correlation(x, y).statistic, atol=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_a_variant_with_a_nan_has_no_correlation_and_leaves_the_others_alone(metric):
    generator = np.random.default_rng(0)
    values, labels = generator.normal(size=(3, 30)), generator.normal(size=30)
    ((counts, _),) = draw_weights(30, 20, 0, 20)
    expected = weighted_scorer(metric, values, labels)(counts)
    values[1, 4] = np.nan
    scores = weighted_scorer(metric, values, labels)(counts)
    assert np.isnan(scores[:, 1]).all()
    np.testing.assert_allclose(scores[:, [0, 2]], expected[:, [0, 2]], atol=1e-12)


def test_a_resample_draws_as_many_examples_with_replacement():
    counts = np.concatenate([one for one, _ in draw_weights(50, 2000, 0, 300, whole=True)])
    assert counts.shape == (2000, 50)
    assert (counts.sum(axis=1) == 50).all()
    # Each count is binomial with mean 1 and variance 1 - 1/50.
    assert counts.mean() == pytest.approx(1.0)
    assert counts.var() == pytest.approx(1 - 1 / 50, rel=0.05)


def test_weights_are_exponential():
    weights, more = map(np.concatenate, zip(*draw_weights(4, 20_000, 0, 999)))
    np.testing.assert_allclose(weights.mean(axis=0), 1, rtol=0.05)
    np.testing.assert_allclose(weights.var(axis=0), 1, rtol=0.1)
    assert [more.mean(), more.var()] == pytest.approx([1, 1], rel=0.05)


def test_questions_on_a_paragraph_have_one_weight():
    results = results_of("squad_f1")
    drawn = draw_scores([results], 25, seed=2)
    unit = np.unique(results.scored_with, return_inverse=True)[1]
    ((weights, _),) = draw_weights(unit.max() + 1, 25, 2, 25)
    for weight, row in zip(weights, drawn.samples):
        expected = np.average(results.predictions.astype(float), axis=1, weights=weight[unit])
        np.testing.assert_allclose(row, 100 * expected, rtol=1e-9)


@pytest.mark.parametrize("metric", ["accuracy", "mcc", "spearman", "squad_f1"])
def test_the_seed_and_nothing_else_decides(monkeypatch, metric):
    from adapter_probe.analysis import resampling, weighted_scores

    results = results_of(metric)
    first = draw_scores([results], 100, seed=5)
    monkeypatch.setattr(resampling, "_CHUNK_VALUES", 7 * 90)  # chunks of seven resamples
    monkeypatch.setattr(weighted_scores, "_RANKED_VALUES", 3 * 90)
    again = draw_scores([results], 100, seed=5)
    for name in ("samples", "added", "values"):
        np.testing.assert_allclose(getattr(again, name), getattr(first, name), rtol=0, atol=1e-9)
    assert not np.array_equal(draw_scores([results], 100, seed=6).samples, first.samples)


def test_a_constant_variant_has_no_correlation():
    results = results_of("spearman")
    results.outputs[2] = 1.5
    for metric in ("spearman", "pearson"):
        object.__setattr__(results.scored, "metric", metric)
        scores = draw_scores([results], 30, seed=0).samples
        assert np.isnan(scores[:, 2]).all()
        assert not np.isnan(scores[:, [0, 1, 3, 4, 5]]).any()
