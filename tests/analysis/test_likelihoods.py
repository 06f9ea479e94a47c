"""Scores and statistics of language models against sums written out example by example."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ablation_facts import ablation_of, changed

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.groups import group_scores
from adapter_probe.analysis.removable import span_costs
from adapter_probe.analysis.resampling import draw_weights
from adapter_probe.analysis.score_changes import row_scores, span_scores
from adapter_probe.analysis.summary import summarise
from adapter_probe.analysis.weighted_scores import weighted_scorer
from adapter_probe.formulas import NO_CLASS
from adapter_probe.metrics import (
    BY_NAME,
    COMPARISONS,
    COUNTED,
    METRICS,
    OF_PAIRS,
    check_metric,
    metric_label,
    to_points,
)
from adapter_probe.results.ablation_files import load_ablation, save_predictions
from adapter_probe.spans import span_variants

GENERATED, PROPORTIONS, LOSSES = (
    [name for name, one in BY_NAME.items() if getattr(one, what)]
    for what in ("is_written", "is_proportion", "less_is_better")
)
OF_LIKELIHOODS = [metric for metric in METRICS["causal"] if metric not in (*GENERATED, *OF_PAIRS)]
DIVIDED_BY = dict(zip(PROPORTIONS[1:], COUNTED[1:3]))
PER = {
    "perplexity": "tokens",
    "bits_per_byte": "bytes",
    "byte_perplexity": "bytes",
    "word_perplexity": "words",
}


def results_of(metric: str, n_examples: int = 40, n_layers: int = 3) -> AblationResults:
    generator = np.random.default_rng(3)
    variants = span_variants(n_layers)
    most = 4 if metric in PROPORTIONS and metric != "greedy_accuracy" else 1
    counts = np.zeros((n_examples, most, 4), np.int64)
    n_choices = generator.integers(2, 5, n_examples) if most > 1 else np.ones(n_examples, int)
    sums = np.zeros((len(variants.names), n_examples, most), np.float32)
    for example, n in enumerate(n_choices):
        counts[example, :n] = generator.integers(1, 30, (n, 4))
        sums[:, example, :n] = -generator.exponential(20, (len(sums), n))
    per = PER.get(metric, "tokens")
    labels = generator.integers(0, n_choices) if most > 1 else counts[:, 0, COUNTED.index(per)]
    if metric in ("continuation_perplexity", "greedy_accuracy"):
        labels = np.full(n_examples, int(metric == "continuation_perplexity"))
    greedy = generator.random(sums.shape[:2]) < 0.5 if metric == "greedy_accuracy" else None
    right = None
    if metric == "token_accuracy":
        right = (generator.random(sums.shape[:2]) * (labels + 1)).astype(np.int64)
    spans = [(-1, -1) if s is None else (s.first, s.last) for s in variants.spans]
    return ablation_of(
        variants.masks, np.array(spans, np.int64), variants.names, sums, labels, metric, "causal", (), {},
        {"task": "made up", "split": "validation"},
        counts=counts, groups=np.array([f"part {i % 2}" for i in range(n_examples)]), greedy=greedy,
        right=right,
    )  # fmt: skip


def by_hand(results: AblationResults, row: int, examples: list[int]) -> float:
    """One variant's score on some examples, repeats allowed, one after the other."""
    metric, hits, nats, units = results.metric, 0, [], []
    for e in examples:
        n = int((results.scored.counts[e, :, 0] > 0).sum())
        sums = [float(results.outputs[row, e, k]) for k in range(n)]
        if metric == "greedy_accuracy":
            hits += bool(results.scored.greedy[row, e])
        elif metric == "token_accuracy":
            hits += int(results.scored.right[row, e])
            units.append(int(results.scored.counts[e, 0, 0]))
        elif metric in PROPORTIONS:
            sizes = [1] * n
            if metric in DIVIDED_BY:
                sizes = [
                    int(results.scored.counts[e, k, COUNTED.index(DIVIDED_BY[metric])]) for k in range(n)
                ]
            hits += max(range(n), key=lambda k: sums[k] / sizes[k]) == results.scored_with[e]
        else:
            nats.append(-sums[0])
            per = COUNTED.index(PER.get(metric, "tokens"))
            units.append(1 if metric == "continuation_perplexity" else int(results.scored.counts[e, 0, per]))
    if metric in PROPORTIONS:
        return hits / len(examples)
    if metric == "token_accuracy":
        return hits / sum(units)
    if metric == "nll":
        return sum(n / u for n, u in zip(nats, units)) / len(examples)
    a_unit = sum(nats) / sum(units)
    return a_unit / math.log(2) if metric == "bits_per_byte" else math.exp(a_unit)


@pytest.mark.parametrize("metric", OF_LIKELIHOODS)
def test_scores_are_those_written_out(metric):
    results = results_of(metric)
    expected = [by_hand(results, row, list(range(40))) for row in range(len(results.masks))]
    np.testing.assert_allclose(row_scores(results), expected, rtol=1e-12)
    assert metric_label(metric)
    check_metric(metric, "causal")


@pytest.mark.parametrize("metric", OF_LIKELIHOODS)
def test_each_resample_is_scored_as_if_written_out(metric):
    results = results_of(metric)
    ((drawn, _),) = draw_weights(40, 5, 2, 5, whole=True)
    scores = weighted_scorer(metric, results.predictions, results.scored_with)(drawn)
    for draw, counts in zip(scores, drawn):
        examples = np.repeat(np.arange(40), counts.astype(int)).tolist()
        expected = [by_hand(results, row, examples) for row in range(len(results.masks))]
        np.testing.assert_allclose(draw, expected, rtol=1e-6)


@pytest.mark.parametrize("metric", [metric for metric in LOSSES if metric not in COMPARISONS])
def test_a_loss_that_rises_is_a_drop(metric):
    results = results_of(metric)
    worse = results.outputs.copy()
    worse[1:] = worse[0] - 1.0  # every example a nat less likely under every span
    results = changed(results, outputs=worse)
    frame = span_scores(results)
    assert (frame["score"] > row_scores(results)[0]).all()
    assert (frame["delta_points"] < 0).all()
    rise = frame["score"] - row_scores(results)[0]
    np.testing.assert_allclose(frame["delta_points"], -100 * rise)
    tables = ablation_tables(results, n_draws=200)
    assert (tables.spans["ci_high_points"] < 0).all()
    assert to_points(metric, 0.02) == -2


def test_the_intact_row_has_the_choices_drawn_at_random_beside_it():
    results = results_of("acc_norm")
    n_choices = (results.scored.counts[..., 0] > 0).sum(axis=1)
    found = summarise(results, ablation_tables(results, n_draws=100))
    assert found.majority_score == pytest.approx(np.mean(1 / n_choices))
    assert summarise(results_of("nll")).majority_score is None


@pytest.mark.filterwarnings("error")
def test_a_single_text_has_no_interval_and_no_p():
    results = results_of("bits_per_byte", n_examples=1)
    tables = ablation_tables(results, n_draws=100)
    assert tables.spans["delta_points"].notna().all()
    for name in ("ci_low_points", "ci_high_points", "p_value", "p_holm"):
        assert tables.spans[name].isna().all()
    assert not tables.spans["significant"].any()
    assert not tables.spans["non_monotone"].any()
    told = summarise(results, tables)
    assert told.longest_removable_surely == dict.fromkeys(("0.5", "1", "2"))


def test_a_sum_that_is_not_finite_is_no_choice():
    results = results_of("accuracy")
    broken = results.outputs.copy()
    broken[2, 7, 1] = np.nan
    results = changed(results, outputs=broken)
    assert results.predictions[2, 7] == NO_CLASS
    assert np.isnan(row_scores(results)[2])
    assert np.isfinite(np.delete(row_scores(results), 2)).all()


@pytest.mark.parametrize("metric", ["acc_bytes", "nll"])
def test_what_is_stored_comes_back(metric, tmp_path):
    results = results_of(metric)
    save_predictions(tmp_path, results)
    again = load_ablation(tmp_path)
    for name, array in results.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)
    np.testing.assert_array_equal(row_scores(again), row_scores(results))


def test_lm_evals_own_aggregation_says_the_same():
    metrics = pytest.importorskip("lm_eval.api.metrics")
    own = {"bits_per_byte": metrics.bits_per_byte}
    own |= dict.fromkeys(("byte_perplexity", "word_perplexity"), metrics.weighted_perplexity)
    for metric, aggregate in own.items():
        results = results_of(metric)
        pairs = list(zip(results.outputs[0, :, 0].astype(float).tolist(), results.scored_with.tolist()))
        assert row_scores(results)[0] == pytest.approx(aggregate(pairs), rel=1e-12)


def test_a_whole_counts_those_of_its_examples_that_are_in_no_part():
    results = results_of("accuracy")
    names = np.array(["whole", "whole/a", "whole/a", "other"] * 60)[: results.n_examples]
    groups = group_scores(changed(results, groups=names))
    counted = groups.groupby("group")["n_examples"].first().to_dict()
    assert counted["whole"] == int(np.char.startswith(names, "whole").sum())
    assert counted["whole/a"] == int((names == "whole/a").sum())


@pytest.mark.parametrize("metric", ["acc_norm", "nll", "bits_per_byte"])
def test_the_interval_that_pruning_judges_by_is_that_of_the_tables(metric):
    """Of a loss as well, it is at the worse end."""
    results = results_of(metric)
    costs, spans = span_costs(results, "interval"), ablation_tables(results, 10_000).spans
    np.testing.assert_array_equal(costs["bound_low_points"], spans["bound_low_points"])
    assert (costs["bound_low_points"] <= costs["delta_points"]).all()


@pytest.mark.parametrize("metric", ["perplexity", "byte_perplexity"])
def test_a_perplexity_is_tested_as_its_logarithm_is(metric):
    """It is higher exactly if the mean of nats is."""
    results = results_of(metric)
    nats = changed(results, metric="bits_per_byte")  # the same sums over the same units
    (p, spans), expected = [
        (one["p_value"], one) for one in (ablation_tables(own, 2000).spans for own in (results, nats))
    ]
    np.testing.assert_allclose(p, expected[0], atol=1e-12)
    assert ((spans["ci_low_points"] > 0) == (expected[1]["ci_low_points"] > 0)).all()
    assert (spans["ci_low_points"] <= spans["delta_points"]).all()
    assert (spans["delta_points"] <= spans["ci_high_points"]).all()
