"""Curves from trials, against formulas written out, SciPy and enumeration."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from scipy import stats
from scipy.stats import sem, trim_mean

from adapter_probe.analysis.sweeps import (
    aggregate_table,
    chosen_trials,
    init_sweep_table,
    interquartile_interval,
    interquartile_mean,
    pareto_frontier,
    size_table,
    tradeoff_table,
    with_inits,
)
from adapter_probe.errors import ResultsError

PARAMETERS = {"adapters": 1000, "top_layers": 20_000, "full": 100_000, "layernorm_only": 100}


def trial(task="a", method="adapters", score=0.5, seed=0, rate=1e-3, size=None, std=None, k=None) -> dict:
    adapters = method == "adapters"
    parameters = PARAMETERS[method] * (size or 1) * (k if k is not None else 1)
    return {
        "task": task,
        "metric": "accuracy",
        "method": method,
        "size": (size or 1) if adapters else None,
        "init_std": (std or 0.01) if adapters else None,
        "activation": "gelu" if adapters else None,
        "sites": "both" if adapters else None,
        "k": k,
        "learning_rate": rate,
        "epochs": 3,
        "batch_size": 32,
        "seed": seed,
        "score": score,
        "diverged": math.isnan(score),
        "majority_score": 0.4,
        "trained_parameters": parameters + 10,
        "trained_parameters_without_head": parameters,
        "percent_of_base": parameters / 1000,
    }


def frame(*trials: dict) -> pd.DataFrame:
    return pd.DataFrame(trials).astype({"size": "Int64", "k": "Int64"})


def test_the_init_sweep():
    scores = {1e-2: [0.8, 0.9, 0.7], 1.0: [0.4, math.nan, 0.5]}
    trials = frame(
        *(trial(std=std, score=s, seed=i) for std, row in scores.items() for i, s in enumerate(row))
    )
    table = init_sweep_table(trials).set_index("init_std")
    good, bad = table.loc[1e-2], table.loc[1.0]
    assert (good["n"], good["diverged"]) == (3, 0)
    assert good["mean"] == pytest.approx(0.8)
    assert good["sem"] == pytest.approx(sem(scores[1e-2]))
    assert (good["min"], good["max"], good["majority_score"]) == (0.7, 0.9, 0.4)
    assert (bad["n"], bad["diverged"]) == (2, 1)
    assert bad["mean"] == pytest.approx(0.45)


def test_an_initialisation_is_told_from_the_rest_of_a_method():
    methods = {
        "adapters": ("adapters", ""),
        "lora": ("lora", "kaiming"),
        "lora:init_lora_weights=pissa": ("lora", "pissa"),
        "lora:init_lora_weights=olora,target_modules=q": ("lora:target_modules=q", "olora"),
        "lora:target_modules=q,init_lora_weights=eva": ("lora:target_modules=q", "eva"),
    }
    found = with_inits(pd.DataFrame({"method": list(methods), "init_std": [0.01, *[np.nan] * 4]}))
    assert list(found[["method", "init"]].itertuples(index=False, name=None)) == list(methods.values())
    drawn = with_inits(pd.DataFrame({"method": ["lora"], "init_std": [0.01]}))
    assert drawn["init"].tolist() == [""]


@pytest.mark.parametrize(
    ("scores", "rate", "mean"),
    [
        # Of means: one seed's best says nothing, and fewer diverged.
        ({1e-3: [0.95, 0.15], 3e-4: [0.60, 0.62], 3e-3: [math.nan, 0.61]}, 3e-4, 0.61),
        # One lucky seed does not beat three good ones, nor two.
        ({1e-3: [0.80, 0.81, 0.79], 3e-3: [0.99, *[math.nan] * 2], 1e-2: [0.95, 0.97, math.nan]}, 1e-3, 0.8),
        ({3e-3: [0.99, *[math.nan] * 2], 1e-2: [0.95, 0.97, math.nan]}, 1e-2, 0.96),
        # Settings with more seeds stand before a search with one.
        ({1e-3: [0.8, 0.8, 0.8], 3e-3: [0.9]}, 1e-3, 0.8),
        # A point that diverged everywhere stays.
        ({1e-3: [math.nan], 1e-4: [math.nan]}, 1e-4, math.nan),
    ],
)
def test_which_rate_counts(scores, rate, mean):
    trials = [trial(rate=own, score=s, seed=i) for own, row in scores.items() for i, s in enumerate(row)]
    known = [s for s in scores[rate] if not math.isnan(s)]
    assert set(chosen_trials(frame(*trials))["learning_rate"]) == {rate}
    for table in (init_sweep_table(frame(*trials)), tradeoff_table(frame(*trials))):
        found = (table["learning_rate"].item(), table["n"].item(), table["diverged"].item())
        assert found == (rate, len(known), len(scores[rate]) - len(known))
        assert table["mean"].item() == pytest.approx(mean, nan_ok=True)


def test_an_undefined_score_counts_as_none():
    """As a correlation's on constant predictions: the run did not diverge, yet it has no score."""
    undefined = {**trial(rate=1e-2, seed=1), "score": math.nan}
    trials = frame(trial(rate=1e-2, score=0.9), undefined, *(trial(seed=i, score=0.5) for i in (0, 1)))
    assert init_sweep_table(trials)["mean"].item() == pytest.approx(0.5)


def test_trade_off_rows_and_labels():
    trials = frame(
        trial(size=4),
        trial(method="top_layers", k=0),
        trial(method="top_layers", k=1),
        trial(method="top_layers", k=3),
        trial(method="layernorm_only"),
        trial(method="full"),
    )
    table = tradeoff_table(trials)
    assert table["label"].tolist() == [
        "adapters 4", "full fine-tuning", "LayerNorm only", "pooler and head", "top layer", "top 3 layers",
    ]  # fmt: skip
    assert table["trained_parameters_without_head"].tolist() == [4000, 100_000, 100, 0, 20_000, 60_000]
    assert table["sem"].isna().all()


def test_the_aggregate_over_tasks():
    differences = {"a": -1.0, "b": 0.0, "c": 2.0, "d": 0.5}  # points
    trials = [trial(task=t, method="full", score=0.8) for t in differences]
    trials += [trial(task=t, size=8, score=0.8 + d / 100) for t, d in differences.items()]
    trials += [trial(task="no full", size=8, score=0.1)]
    row = aggregate_table(frame(*trials)).set_index("label").loc["adapters 8"]
    expected = np.percentile(list(differences.values()), [20, 50, 80])
    assert [row["p20_points"], row["p50_points"], row["p80_points"]] == pytest.approx(expected.tolist())
    assert row["n_tasks"] == 4
    assert row["iqm_points"] == pytest.approx(trim_mean(list(differences.values()), 0.25))
    # One trial a task says nothing about the spread of seeds, and is no interval of width 0.
    assert math.isnan(row["iqm_low_points"])
    assert math.isnan(row["iqm_high_points"])
    assert row["on_frontier"]


def test_the_interval_of_the_aggregate_is_students_where_nothing_is_cut_off():
    scores = [70.0, 71.0, 74.0]
    trials = [trial(task="a", method="full", score=0.8, seed=i) for i in range(3)]
    trials += [trial(task="a", size=8, score=s / 100, seed=i) for i, s in enumerate(scores)]
    row = aggregate_table(frame(*trials)).set_index("label").loc["adapters 8"]
    reach = stats.t.ppf(0.975, 2) * stats.sem(scores)
    assert row["iqm_points"] == pytest.approx(np.mean(scores) - 80)
    ends = [row["iqm_low_points"], row["iqm_high_points"]]
    assert ends == pytest.approx(row["iqm_points"] + np.array([-reach, reach]), abs=0.1 * reach)


@pytest.mark.parametrize("spreads", [(1, 1, 1), (25, 1, 1), (1, 0.04, 0.04)])
def test_interquartile_means_are_covered_however_the_seeds_of_tasks_spread(spreads):
    generator, spreads = np.random.default_rng(0), np.array(spreads)[:, None]
    centres = np.array([-3, -1, 1])[:, None]
    many = centres + spreads * generator.normal(size=(20_000, 3, 3))
    many -= spreads * generator.normal(size=(20_000, 3, 1)) / 3**0.5
    truth = trim_mean(many.reshape(20_000, 9), 0.25, axis=1).mean()
    covered = []
    for _ in range(100):
        scores, full = (at + spreads * generator.normal(size=(3, 3)) for at in (centres, 0))
        _, low, high = interquartile_interval(scores, full)
        covered.append(low <= truth <= high)
    assert np.mean(covered) >= 0.94  # by winsorised scores down to 0.4


def test_a_method_that_ran_on_the_easy_task_alone_beats_none_that_ran_on_more():
    trials = [trial(task=t, method="full", score=0.9) for t in ("easy", "hard")]
    trials += [trial(task="easy", size=8, score=0.89)]
    trials += [trial(task=t, size=64, score=s) for t, s in (("easy", 0.88), ("hard", 0.6))]
    trials += [trial(task="easy", size=256, score=0.87)]
    table = aggregate_table(frame(*trials)).set_index("label")
    assert table.loc["adapters 8", "p50_points"] > table.loc["adapters 64", "p50_points"]
    assert table.loc["adapters 64", "on_frontier"]
    assert table.loc["adapters 8", "on_frontier"]
    assert not table.loc["adapters 256", "on_frontier"]  # 64 is better on its task


def test_full_fine_tuning_does_not_differ_from_itself():
    trials = [
        trial(task=t, method="full", score=s, seed=i) for t in "ab" for i, s in enumerate([0.8, 0.83, 0.9])
    ]
    row = aggregate_table(frame(*trials)).iloc[0]
    assert [row["p20_points"], row["p50_points"], row["p80_points"]] == [0.0, 0.0, 0.0]


def test_trials_of_different_settings_are_never_averaged():
    trials = frame(
        *(trial(size=64, std=d, score=s, seed=i) for d, s in ((1e-2, 0.8), (1.0, 0.3)) for i in (0, 1)),
        *(trial(size=8, std=1e-2, score=0.6, seed=i) for i in (0, 1)),
    )
    sweep = init_sweep_table(trials).set_index(["init_std", "size"])
    assert sweep["mean"].to_dict() == {
        (1e-2, 8): pytest.approx(0.6), (1e-2, 64): pytest.approx(0.8), (1.0, 64): pytest.approx(0.3)
    }  # fmt: skip
    assert (sweep["n"] == 2).all()
    table = tradeoff_table(trials).set_index("label")
    assert table["mean"].to_dict() == {"adapters 8": pytest.approx(0.6), "adapters 64": pytest.approx(0.8)}
    assert table["init_std"].tolist() == [1e-2, 1e-2]
    assert size_table(trials)["mean_score"].tolist() == pytest.approx([0.6, 0.8])


def test_no_full_fine_tuning():
    refuses(ResultsError, ("no task", "full fine-tuning"), aggregate_table, frame(trial()))


def test_sizes():
    trials = [
        trial(task=t, size=s, score=v + 0.01 * i, seed=i)
        for t, s, v in [("a", 8, 0.5), ("a", 64, 0.6), ("b", 8, 0.7), ("b", 64, 0.8)]
        for i in (0, 1)
    ]
    table = size_table(frame(*trials)).set_index("size")
    assert table["mean_score"].tolist() == pytest.approx([0.605, 0.705])
    assert table["a"].tolist() == pytest.approx([0.505, 0.605])
    assert table["sem"].tolist() == pytest.approx([math.sqrt(2 * 0.005**2) / 2] * 2)
    assert table["n_tasks"].tolist() == [2, 2]


def test_a_size_that_a_task_lacks_has_no_mean_over_tasks():
    """Otherwise the curve would rise or fall with the tasks that happen to have a size."""
    scores = [("a", 8, 0.5), ("a", 64, 0.6), ("a", 256, 0.7), ("b", 8, 0.9), ("b", 256, 0.9)]
    table = size_table(frame(*(trial(task=t, size=s, score=v) for t, s, v in scores))).set_index("size")
    assert table["n_tasks"].tolist() == [2, 1, 2]
    np.testing.assert_allclose(table["mean_score"], [0.7, np.nan, 0.8])
    np.testing.assert_allclose(table["b"], [0.9, np.nan, 0.9])


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_the_interquartile_mean_is_the_trimmed_mean(values):
    assert interquartile_mean(np.array(values)) == pytest.approx(trim_mean(values, 0.25), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_frontier_by_its_definition(points):
    cost, value = np.array(points, float).T
    expected = [not any((c <= a and v >= b) and (c < a or v > b) for c, v in points) for a, b in points]
    assert pareto_frontier(cost, value).tolist() == expected
