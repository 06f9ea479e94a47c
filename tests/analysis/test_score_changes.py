from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from ablation_facts import changed
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from scipy import stats
from sklearn.metrics import matthews_corrcoef

from adapter_probe.analysis import score_changes
from adapter_probe.errors import ResultsError
from adapter_probe.results.schema import SPANS_COLUMNS


def accuracy_by_loop(logits, labels) -> float:
    hits = 0
    for row, label in zip(logits.tolist(), labels.tolist()):
        hits += row.index(max(row)) == label
    return hits / len(labels)


def reference_score(results, variant: int) -> float:
    logits = results.outputs[variant]
    if results.metric == "accuracy":
        return accuracy_by_loop(logits, results.scored_with)
    if results.metric == "mcc":
        return matthews_corrcoef(results.scored_with, logits.argmax(axis=1))
    return stats.spearmanr(logits[:, 0], results.scored_with).statistic


@pytest.mark.parametrize(("metric", "n_labels"), [("accuracy", 3), ("mcc", 2), ("spearman", 1)])
@pytest.mark.parametrize("complement", [False, True])
def test_every_span_is_scored_against_the_intact_row(make_results, metric, n_labels, complement):
    results = make_results(5, metric=metric, n_labels=n_labels, complement=complement)
    frame = score_changes.span_scores(results)

    intact = reference_score(results, results.row_names.index("intact"))
    expected = []
    for first in range(5):
        for last in range(first, 5):
            score = reference_score(results, results.row_names.index(f"{first}-{last}"))
            expected.append((first, last, last - first + 1, score, 100 * (score - intact), 40))
    assert tuple(frame.columns) == tuple(SPANS_COLUMNS)
    np.testing.assert_allclose(frame.to_numpy(float), np.array(expected), rtol=0, atol=1e-9)
    assert frame.dtypes[["first", "last", "n_layers", "n_examples"]].eq("int64").all()


def test_the_order_of_the_rows_does_not_matter(make_results):
    results = make_results(4)
    order = np.random.default_rng(1).permutation(len(results.row_names))
    shuffled = changed(
        results,
        masks=results.masks[order],
        spans=results.spans[order],
        outputs=results.outputs[order],
        row_names=tuple(results.row_names[i] for i in order),
    )
    pd.testing.assert_frame_equal(score_changes.span_scores(shuffled), score_changes.span_scores(results))


@pytest.mark.parametrize("sites", ["both", "attention", "ffn"])
@pytest.mark.parametrize("complement", [False, True])
def test_the_rows_that_others_are_read_against(make_results, sites, complement):
    results = make_results(3, sites=sites, complement=complement)
    assert results.row_names[score_changes.intact_row(results)] == "intact"
    assert results.row_names[score_changes.removed_row(results)] == ("none" if complement else "0-2")


def test_without_an_intact_row_there_is_nothing_to_compare_with(make_results):
    results = make_results(3)
    masks = results.masks.copy()
    masks[:, 0] = False
    refuses(ResultsError, ("no row", "adapter"), score_changes.span_scores, changed(results, masks=masks))


def test_a_span_in_two_rows_is_refused(make_results):
    results = make_results(3)
    spans = results.spans.copy()
    spans[2] = spans[1]
    refuses(ResultsError, ("0-0",), score_changes.span_scores, changed(results, spans=spans))


@given(st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(0, n))))
def test_a_drop_of_exactly_the_tolerance_is_within(counts):
    n, intact, ablated = counts
    delta = np.array([100 * (ablated / n - intact / n)])
    for tolerance, hundredths in ((0.0, 0), (0.5, 50), (1.0, 100), (2.0, 200)):
        exact = 10_000 * (intact - ablated) <= hundredths * n  # whole numbers: no rounding
        assert score_changes.within_tolerance(delta, tolerance)[0] == exact


def test_drops_have_no_minus_zero_and_keep_what_is_undefined():
    drops = score_changes.drop_points(np.array([0.0, -0.0, 1e-13, np.nan, -2.5]))
    assert not np.signbit(drops[:3]).any()
    np.testing.assert_array_equal(drops, [0, 0, 0, np.nan, 2.5])
    assert not score_changes.within_tolerance(np.array([np.nan]), 100.0)[0]
