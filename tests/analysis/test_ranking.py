"""Rank correlations against SciPy, regret and sums against loops."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from adapter_probe.analysis.ranking import (
    SCORE_LABELS,
    agreement_table,
    kendall_tau,
    rank_correlation,
    regret_table,
    span_table,
    with_drops,
)

N_LAYERS, N_EXAMPLES = 5, 30


@pytest.fixture
def frame() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    layers = pd.DataFrame(draw.random((N_LAYERS, 3)), columns=["change", "weight_norm", "turn"])
    spans = span_table(layers, draw.normal(0, 1, (N_EXAMPLES, N_LAYERS)), draw.normal(1, 1, N_EXAMPLES))
    exact = spans[["first", "last"]].assign(delta_points=-np.round(draw.random(len(spans)) * 6))
    return with_drops(spans, exact.sample(frac=1, random_state=0))


def test_correlations_are_scipys():
    draw = np.random.default_rng(1)
    for _ in range(20):
        a, b = draw.integers(0, 6, (2, 12)).astype(float)  # with ties
        assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
        assert kendall_tau(a, b) == pytest.approx(stats.kendalltau(a, b).statistic)
    assert np.isnan(rank_correlation(np.ones(4), np.arange(4.0)))
    assert np.isnan(kendall_tau(np.ones(4), np.arange(4.0)))


def test_a_spans_scores_are_sums_over_its_layers():
    draw = np.random.default_rng(2)
    layers = pd.DataFrame(draw.random((N_LAYERS, 3)), columns=["change", "weight_norm", "turn"])
    effects, margins = draw.normal(0, 1, (N_EXAMPLES, N_LAYERS)), draw.normal(0.5, 1, N_EXAMPLES)
    for span in span_table(layers, effects, margins).itertuples():
        inside = range(span.first, span.last + 1)
        for name in layers:
            assert getattr(span, name) == pytest.approx(sum(layers[name][i] for i in inside))
        left = [margins[e] - sum(effects[e, i] for i in inside) for e in range(N_EXAMPLES)]
        assert span.effect == pytest.approx(np.mean(margins) - np.mean(left))
        lost = sum(m > 0 for m in margins) - sum(m > 0 for m in left)
        assert span.flips == pytest.approx(100 * lost / N_EXAMPLES)


def test_regret_is_what_the_choice_costs_beyond_the_best(frame):
    table = regret_table(frame)
    assert set(table["n_layers"]) == {1, 2, 3, 4}
    for row in table.itertuples():
        same = [s for s in frame.to_dict("records") if s["n_layers"] == row.n_layers]
        chosen = min(same, key=lambda s: (s[row.score], s["first"]))
        assert row.first == chosen["first"]
        least = min(s["drop_points"] for s in same)
        assert row.regret_points == pytest.approx(chosen["drop_points"] - least)


def test_the_exact_drop_as_a_score_is_perfect(frame):
    perfect = agreement_table(frame.assign(effect=frame["drop_points"])).set_index("score").loc["effect"]
    assert perfect["spearman"] == pytest.approx(1)
    assert perfect["kendall"] == pytest.approx(1)
    assert perfect["regret_most_points"] == 0
    assert agreement_table(frame)["score"].tolist() == list(SCORE_LABELS)


def test_spans_without_a_drop_are_left_out(frame):
    partial = with_drops(
        frame.drop(columns=["drop_points", "singles"]),
        pd.DataFrame({"first": [0, 1, 0], "last": [0, 1, 1], "delta_points": [-1.0, -2.0, np.nan]}),
    )
    assert partial[["first", "last"]].to_numpy().tolist() == [[0, 0], [1, 1]]
    assert partial["singles"].tolist() == [1.0, 2.0]
