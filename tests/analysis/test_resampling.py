"""The bootstrap by matrix products against scoring each resample anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import pearsonr, spearmanr

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.resampling import bootstrap_scores, draw_counts, weighted_scorer


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
    return AblationResults(masks, spans, tuple("abcdef"), logits.astype(np.float32), labels, metric, kind,
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
    clusters = results.scored_with if results.kind == "extractive" else None
    scores = bootstrap_scores(results, 40, seed=3)
    [counts] = draw_counts(90, 40, seed=3, clusters=clusters)
    assert scores.shape == (40, 6)
    for count, row in zip(counts, scores):
        drawn = np.repeat(np.arange(90), count.astype(int))
        expected = metrics.score(metric, results.predictions[:, drawn], results.scored_with[drawn])
        np.testing.assert_allclose(row, expected, atol=1e-6)


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
        scores = weighted_scorer(metric, values[None], labels)(counts.astype(np.float32))
        for count, score in zip(counts, scores[:, 0]):
            x, y = np.repeat(values, count), np.repeat(labels, count)
            np.testing.assert_allclose(score, correlation(x, y).statistic, atol=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_a_variant_with_a_nan_has_no_correlation_and_leaves_the_others_alone(metric):
    generator = np.random.default_rng(0)
    values, labels = generator.normal(size=(3, 30)), generator.normal(size=30)
    [counts] = draw_counts(30, 20, seed=0)
    expected = weighted_scorer(metric, values, labels)(counts)
    values[1, 4] = np.nan
    scores = weighted_scorer(metric, values, labels)(counts)
    assert np.isnan(scores[:, 1]).all()
    np.testing.assert_allclose(scores[:, [0, 2]], expected[:, [0, 2]], atol=1e-12)


def test_a_resample_draws_as_many_examples_with_replacement():
    counts = np.concatenate(list(draw_counts(50, 2000, seed=0)))
    assert counts.shape == (2000, 50)
    assert (counts.sum(axis=1) == 50).all()
    # Each count is binomial with mean 1 and variance 1 - 1/50.
    assert counts.mean() == pytest.approx(1.0)
    assert counts.var() == pytest.approx(1 - 1 / 50, rel=0.05)


def test_clusters_are_drawn_whole():
    clusters = np.array([7, 7, 7, 2, 2, 9])
    counts = np.concatenate(list(draw_counts(6, 200, seed=0, clusters=clusters)))
    for same in ([0, 1, 2], [3, 4]):
        assert (counts[:, same] == counts[:, same[:1]]).all()
    assert (counts[:, [0, 3, 5]].sum(axis=1) == 3).all()


@pytest.mark.parametrize("metric", ["accuracy", "mcc", "spearman", "squad_f1"])
def test_the_seed_and_nothing_else_decides(monkeypatch, metric):
    import adapter_probe.analysis.resampling as resampling

    results = results_of(metric)
    first = bootstrap_scores(results, 100, seed=5)
    monkeypatch.setattr(resampling, "_CHUNK_VALUES", 7 * 90)  # chunks of seven resamples
    monkeypatch.setattr(resampling, "_RANKED_VALUES", 3 * 90)
    np.testing.assert_allclose(bootstrap_scores(results, 100, seed=5), first, rtol=0, atol=1e-12)
    assert not np.array_equal(bootstrap_scores(results, 100, seed=6), first)


def test_a_constant_variant_has_no_correlation():
    results = results_of("spearman")
    results.outputs[2] = 1.5
    for metric in ("spearman", "pearson"):
        object.__setattr__(results, "metric", metric)
        scores = bootstrap_scores(results, 30, seed=0)
        assert np.isnan(scores[:, 2]).all()
        assert not np.isnan(scores[:, [0, 1, 3, 4, 5]]).any()
