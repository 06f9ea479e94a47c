"""The bounds of a race against brute force and simulation, and its verdicts against the complete map."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from docs_scripts import module
from refusals import names

from adapter_probe.ablation_settings import RaceSettings
from adapter_probe.analysis.confidence_sequences import FRACTIONS, Evidence, mean_bounds
from adapter_probe.analysis.race_tables import race_summary, race_table
from adapter_probe.analysis.racing import (
    ASSUMED,
    BEYOND,
    CHOSEN,
    NEEDLESS,
    UNDEFINED,
    WITHIN,
    RaceState,
    order_of,
    refuse_unraced,
    round_ends,
)
from adapter_probe.errors import ResultsError

POPULATION = (1.0, 0.0, 0.0, -1.0, 0.5, 1.0, 0.0)
ORDERS = np.array(list(itertools.permutations(POPULATION)))


def capital(differences: np.ndarray, n: int, total: float) -> list[float]:
    """The gambler's capital after every example, one example and one bet at a time."""
    parts, found = [1.0] * len(FRACTIONS), []
    for i, d in enumerate(differences):
        expected = (total - sum(differences[:i])) / (n - i)
        if expected < -1 - 1e-9:
            return [*found, math.inf]
        share = 1.0 if expected < -1 + 1e-9 else (1 + d) / (1 + min(1.0, expected))
        parts = [part * (1 - c + c * share) for part, c in zip(parts, FRACTIONS)]
        impossible = sum(differences[: i + 1]) - (n - i - 1) > total + 1e-9
        found.append(math.inf if impossible else sum(parts) / len(parts))
    return found


@pytest.mark.parametrize("total", [-7.0, -1.0, 0.3, 1.5, 4.0])
def test_the_evidence_is_the_largest_capital_of_bets_one_at_a_time(total):
    evidence = Evidence(7, np.full(40, total))
    chosen = np.arange(40)
    for begin, end in ((0, 3), (3, 4), (4, 7)):
        evidence.add(chosen, ORDERS[::126][:, begin:end])
        expected = [max(1.0, *capital(order[:end], 7, total)) for order in ORDERS[::126]]
        assert np.exp(evidence.largest) == pytest.approx(expected, rel=1e-9)


def test_over_all_orders_a_true_hypothesis_is_refuted_as_rarely_as_stated():
    total = sum(POPULATION)
    capitals = np.array([capital(order, 7, total)[:-1] for order in ORDERS[::7]])
    evidence = Evidence(7, np.full(len(ORDERS), total))
    evidence.add(np.arange(len(ORDERS)), ORDERS)
    for alpha in (0.05, 0.2, 0.5):
        assert (evidence.largest >= math.log(1 / alpha)).mean() <= alpha
    assert (evidence.largest >= math.log(2)).mean() > 0.05  # the bound is not idle
    assert capitals.mean(axis=0) == pytest.approx(1.0, abs=0.05)  # fair bets; every seventh order


def test_bounds_hold_at_every_look_together_and_meet_in_the_mean():
    draw = np.random.default_rng(0)
    population = draw.choice([0.0, 0.0, 0.0, 1.0, -1.0, 0.4], 60)
    orders = np.stack([draw.permutation(population) for _ in range(200)])
    ever = np.zeros((2, 200), dtype=bool)
    for read in (12, 25, 40, 59, 60):
        low, high = mean_bounds(orders[:, :read], 60, 0.1)
        ever |= np.array([low > population.mean() + 1e-9, high < population.mean() - 1e-9])
    assert low == pytest.approx(population.mean()), "after all examples"
    assert high == pytest.approx(population.mean())
    assert (ever.mean(axis=1) <= 0.1).all()
    assert ever.any()
    narrow, wide = (np.subtract(*mean_bounds(orders[:20, :40], 60, alpha)) for alpha in (0.2, 0.01))
    assert (narrow > wide).all()  # both negative


def raced(costs: np.ndarray, spans: np.ndarray, seed: int = 0, **settings: object) -> RaceState:
    n = costs.shape[1]
    asked = RaceSettings(race_seed=seed, **settings)
    state, order = RaceState(spans, n, asked, round_ends(n), whole=True), order_of(n, seed)
    for one in state.rounds():
        state.take(one, costs[one.spans][:, order[one.start : one.stop]])
    return state


def test_at_the_edge_of_the_tolerance_verdicts_are_wrong_as_rarely_as_stated():
    costs = np.zeros((8, 300))
    for row, (lost, won) in enumerate(
        [(3, 0), (4, 0), (13, 10), (14, 10), (33, 30), (34, 30), (63, 60), (64, 60)]
    ):
        costs[row, :lost], costs[row, lost : lost + won] = 1, -1
    right = np.array([WITHIN, BEYOND] * 4)
    spans = np.stack([np.arange(8), np.arange(8)], axis=1)
    wrong = [
        (raced(costs, spans, seed, goal="spans", risk=0.3).decisions != right).any() for seed in range(150)
    ]
    assert 0.03 < np.mean(wrong) <= 0.3, "0.3 is stated; far less would mean that the bounds are loose"


@pytest.fixture(scope="module")
def simulation():
    return module("studies/racing")


@pytest.fixture(scope="module")
def cola(simulation):
    return simulation.cola(simulation.STUDIES / "racing" / "cola.csv")


@pytest.mark.parametrize("goal", ["spans", "longest"])
def test_verdicts_are_those_of_the_complete_map(goal, cola):
    truth, n = cola.drops, cola.costs.shape[1]
    for seed in range(3):
        state = raced(cola.costs, cola.spans, seed, goal=goal)
        decided = np.isin(state.decisions, [WITHIN, BEYOND])
        assert ((truth <= 0.01 * n) == (state.decisions == WITHIN))[decided].all()
        assert (state.n_read[state.decisions == BEYOND] < n).sum() > 40
        length = cola.spans[:, 1] - cola.spans[:, 0]
        if goal == "spans":
            assert decided.all()
        elif state.longest is not None:
            assert length[state.longest] == length[truth <= 0.01 * n].max()
            assert (length[state.decisions == NEEDLESS] <= length[state.longest]).all()


def test_the_least_are_those_of_the_complete_map_up_to_the_tolerance(cola, simulation):
    single = cola.singles()
    truth, n = single.drops, single.costs.shape[1]
    for within in (0.1, 1.0):
        chosen = raced(single.costs, single.spans, goal="least:4", within=within).decisions == CHOSEN
        assert chosen.sum() == 4
        assert truth[chosen].max() - truth[~chosen].min() <= within / 100 * n


def test_groups_that_cost_least_are_named_by_both_ends():
    costs = np.zeros((3, 400))
    costs[1] = 1.0
    about = {"task": "t", "split": "validation", "metric": "accuracy", "n_layers": 5}
    for spans, answer in (
        ([(0, 1), (2, 3), (4, 4)], "layers 0–1, 4"),
        ([(0, 0), (2, 2), (3, 3)], "layers 0, 3"),
    ):
        state = raced(costs, np.array(spans), goal="least:2")
        assert race_summary(state, np.ones(400), 1.0, about, math.nan).answer == answer


def test_only_spans_whose_parts_are_within_are_tried_if_monotony_is_assumed(cola):
    state = raced(cola.costs, cola.spans, goal="spans", assume_monotone=True)
    within = {tuple(span) for span in cola.spans[state.decisions == WITHIN].tolist()}
    for (first, last), decision, read in zip(cola.spans.tolist(), state.decisions, state.n_read):
        parts = {(a, b) for a in range(first, last + 1) for b in range(a, last + 1)} - {(first, last)}
        assert (decision == ASSUMED) == (not parts <= within)
        assert (read == 0) == (decision == ASSUMED)
    assert ASSUMED in state.decisions


def test_a_table_has_the_drop_on_the_examples_read_and_bounds_of_the_drop_on_all(cola):
    state, order = raced(cola.costs, cola.spans, goal="longest"), order_of(1043, 0)
    table = race_table(state, np.ones(1043)).set_index(["first", "last"])
    for span, costs in zip(cola.spans.tolist(), cola.costs[:, order]):
        row = table.loc[tuple(span)]
        if row["n_examples"]:
            assert row["delta_points"] == pytest.approx(-100 * costs[: row["n_examples"]].mean())
            assert row["score"] == pytest.approx(1 + row["delta_points"] / 100)
            assert row["bound_low_points"] <= -100 * costs.mean() + 1e-9 <= row["bound_high_points"] + 1e-6
        else:
            assert row[["score", "delta_points", "bound_low_points"]].isna().all()
            assert row["decision"] == NEEDLESS


def test_a_span_without_finite_outputs_has_no_verdict(cola):
    costs = cola.costs.astype(float)
    costs[5, order_of(1043, 0)[20]] = np.nan
    state = raced(costs, cola.spans, goal="spans")
    assert (state.decisions == UNDEFINED).tolist() == [row == 5 for row in range(len(costs))]
    single = replace(cola, costs=costs).singles()
    least = raced(single.costs, single.spans, goal="least:3")
    assert (least.decisions == CHOSEN).sum() == 3


@pytest.mark.parametrize(
    "name",
    ["SST-2, MPNet", "MNLI, gte-small", "ARC-Easy, SmolLM2", "airline, MiniLM", "BLiMP, SmolLM2, suffixes"],
)
def test_recorded_studies_are_found_again_from_their_tables(name, simulation):
    import pandas as pd
    from scipy.stats import binomtest

    path = simulation.STUDIES / (simulation.RECORDED | simulation.OTHERS)[name]
    study, frame = simulation.recorded(name, path), pd.read_csv(path)
    if "grid" in frame:
        frame = frame[frame["grid"] == "airline"]
    assert study.drops == pytest.approx(-frame["delta_points"] * frame["n_examples"] / 100)
    for row, costs in zip(frame["p_value"], study.costs):
        lost, won = int((costs == 1).sum()), int((costs == -1).sum())
        if 1e-12 < row < 1:
            assert binomtest(lost, lost + won).pvalue == pytest.approx(row)


@pytest.mark.slow
def test_a_small_simulation_has_fewer_wrong_races_than_stated(cola, simulation):
    row = simulation.raced(cola, 20, goal="spans", risk=0.2)
    assert row["any_wrong"] <= 0.2
    assert simulation.fixed_part(cola, row)["any_wrong"] > 0.5, "the same share of examples for all spans"
    single = simulation.raced(cola.singles(), 5, goal="least:4")
    for plan in simulation.METHODS.values():
        other = simulation.fixed_budget(cola.singles(), single, "", plan)
        assert 0.3 * single["share"] < other["share"] <= 1.01 * single["share"]


@pytest.mark.parametrize(
    ("metric", "kind", "named"),
    [
        ("kl", "classification", ["--race", "kl", "range", "--metric accuracy"]),
        ("nll", "causal", ["--race", "nll", "range"]),
        ("perplexity", "causal", ["--race", "perplexity", "range"]),
        ("token_accuracy", "causal", ["--race", "token_accuracy", "tokens"]),
        ("agreement", "causal", ["--race", "agreement", "tokens"]),
        ("mcc", "classification", ["--race", "mcc", "mean", "--metric accuracy"]),
        ("macro_f1", "multilabel", ["--race", "macro_f1", "mean"]),
        ("spearman", "regression", ["--race", "spearman", "mean"]),
    ],
)
def test_a_metric_that_no_part_of_the_examples_bounds(metric, kind, named):
    with pytest.raises(ResultsError) as error:
        refuse_unraced(metric, kind)
    assert names(str(error.value), *named)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"goal": "spans", "within": 0.0}, ["--within", "0", "points"]),
        ({"goal": "spans", "within": float("nan")}, ["--within", "nan"]),
        ({"goal": "least:0"}, ["--race", "least:0", "least:K"]),
        ({"goal": "nearest"}, ["--race", "nearest", "longest"]),
        ({"goal": "spans", "risk": 0.5}, ["--risk", "0.5"]),
        ({"goal": "spans", "race_seed": -1}, ["--race-seed", "-1"]),
        ({"goal": "least:2", "assume_monotone": True}, ["--assume-monotone", "least:2"]),
        ({"risk": 0.01}, ["--risk", "--race"]),
        ({"assume_monotone": True}, ["--assume-monotone", "--race"]),
    ],
)
def test_a_bad_setting(settings, named):
    with pytest.raises(ResultsError) as error:
        RaceSettings(**settings)
    assert names(str(error.value), *named)


def test_a_choice_that_is_none(cola):
    for spans, goal, named in (
        (cola.spans, "least:2", ["least:2", "--spans single"]),
        (cola.singles().spans, "least:12", ["least:12", "12"]),
    ):
        with pytest.raises(ResultsError) as error:
            RaceState(spans, 100, RaceSettings(goal=goal), round_ends(100), whole=True)
        assert names(str(error.value), *named)
