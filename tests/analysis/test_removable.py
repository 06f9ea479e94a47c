"""What can go, and which spans are flagged, against searches through all and simulation."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from ablation_facts import changed
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import binomtest

from adapter_probe.analysis.removable import (
    bounds_of_chosen,
    longest_removable,
    non_monotone,
    random_halves,
    removable_table,
    spans_with_adapters,
    tolerance_border,
    tolerance_steps,
)
from adapter_probe.analysis.resampling import Draws, draw_weights
from adapter_probe.analysis.significance import interval
from adapter_probe.analysis.summary_parts import notable_spans
from adapter_probe.spans import contiguous_spans

SPANS = np.array([(span.first, span.last) for span in contiguous_spans(5)])
EIGHTHS = st.one_of(st.just(math.nan), st.integers(-32, 8).map(lambda n: n / 8))


def frame_of(deltas: list[float], lows: list[float]) -> pd.DataFrame:
    frame = pd.DataFrame({"first": SPANS[:, 0], "last": SPANS[:, 1]})
    frame["n_layers"] = frame["last"] - frame["first"] + 1
    return frame.assign(delta_points=deltas, bound_low_points=lows)


@given(
    st.lists(EIGHTHS, min_size=len(SPANS), max_size=len(SPANS)),
    st.lists(EIGHTHS, min_size=len(SPANS), max_size=len(SPANS)),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.sampled_from(["estimate", "interval"]),
)
def test_the_longest_by_a_search_through_all(deltas, lows, tolerance, basis):
    judged = deltas if basis == "estimate" else lows
    fitting = [
        (-(last - first + 1), math.inf if math.isnan(delta) else -delta, first)
        for (first, last), delta, value in zip(SPANS.tolist(), deltas, judged)
        if value >= -tolerance
    ]
    found = longest_removable(frame_of(deltas, lows), tolerance, basis)
    if not fitting:
        assert found is None
    else:
        n_layers, _, first = min(fitting)
        assert (found["n_layers"], found["first"]) == (-n_layers, first)


def test_scores_that_differ_by_rounding_alone_tie():
    frame = frame_of([-9.0] * len(SPANS), [-9.0] * len(SPANS))
    for row, delta in ((1, -0.1 - 0.2), (6, -0.3)):  # spans 0-1 and 1-2; -0.30000000000000004 and -0.3
        frame.loc[row, "delta_points"] = delta
    assert longest_removable(frame, 1.0)["first"] == 0
    assert notable_spans(frame)["longest_removable"]["1"].first == 0


def test_both_bases_at_each_tolerance():
    deltas, lows = [-9.0] * len(SPANS), [-9.0] * len(SPANS)
    deltas[1], lows[1] = -0.4, -1.5  # span 0-1
    deltas[5], lows[5] = -0.2, -0.9  # span 1-1
    table = removable_table(frame_of(deltas, lows))
    assert table[["tolerance_points", "basis"]].to_numpy().tolist() == [
        [t, basis] for t in (0.5, 1.0, 2.0) for basis in ("estimate", "interval")
    ]
    expected = [(0, 1), (pd.NA, pd.NA), (0, 1), (1, 1), (0, 1), (0, 1)]
    assert list(zip(table["first"], table["last"])) == expected


@given(st.lists(st.booleans(), min_size=5, max_size=5))
def test_layers_without_adapters_are_no_ends_of_a_span_and_do_not_count(adapted):
    found = spans_with_adapters(frame_of([0.0] * len(SPANS), [0.0] * len(SPANS)), np.array(adapted))
    layers = [layer for layer, has in enumerate(adapted) if has]
    pairs = [(a, b, j - i + 1) for i, a in enumerate(layers) for j, b in enumerate(layers) if i <= j]
    assert sorted(zip(found["first"], found["last"], found["n_layers"])) == pairs


def test_steps_of_the_tolerance():
    """A tenth of a point up to 2, a quarter up to 5, a half up to 10, one up to 20, and five beyond."""
    steps = tolerance_steps(np.array([31.2, math.nan, -4.0]), 1.37)
    known = [n / 10 for n in range(20)] + [n / 4 for n in range(8, 20)] + [n / 2 for n in range(10, 20)]
    assert steps == sorted([*known, *range(10, 20), 20, 25, 30, 32, 1.37])
    assert tolerance_steps(np.array([math.nan]), 0.5) == [n / 10 for n in range(11)]
    assert tolerance_steps(np.array([200.0]), 0.0)[-3:] == [95, 100, 200]
    assert tolerance_steps(np.array([4572.0]), 0.0)[-4:] == [3500, 4000, 4500, 4572]
    assert tolerance_steps(np.array([2.5]), 0.0)[-3:] == [2, 2.25, 3]


@pytest.mark.parametrize("n_examples", [40, 41])
def test_halves_have_no_example_in_common(make_results, n_examples):
    results = make_results(2, n_examples=n_examples)
    chosen, judged = random_halves(results)
    assert (len(chosen), sorted([*chosen, *judged])) == (n_examples // 2, list(range(n_examples)))
    assert chosen.tolist() == sorted(chosen) != list(range(len(chosen)))
    half = results.of_examples(judged)
    np.testing.assert_array_equal(half.predictions, results.predictions[:, judged])
    np.testing.assert_array_equal(half.scored_with, results.scored_with[judged])
    paragraphs = np.arange(n_examples) // 3  # of three questions each
    outputs = np.zeros((len(results.masks), n_examples, 2), np.float32)
    questions = changed(
        results, kind="extractive", metric="squad_f1", label_names=(), scored_with=paragraphs, outputs=outputs
    )
    chosen, judged = (set(paragraphs[half]) for half in random_halves(questions))
    assert (len(chosen), chosen & judged) == ((n_examples + 2) // 3 // 2, set())


def changes_of(values: np.ndarray, most: float = 100.0, n_draws: int = 2) -> Draws:
    """What is known of changes from what every example contributes, ``[examples, spans]``."""
    n = len(values)
    ((weights, more),) = draw_weights(n, n_draws, 0, n_draws)
    total = weights.sum(axis=1)
    samples = weights @ values / total[:, None]
    return Draws(samples, more / (total + more), values, np.ones(n, np.int64), most, is_mean=True)


def lost_of(right: np.ndarray, reference: np.ndarray) -> Draws:
    """Changes in accuracy, from bool ``[examples, spans]`` and ``[examples]``."""
    return changes_of(100.0 * (right - reference[:, None].astype(float)))


def bounds_of(changes: Draws) -> np.ndarray:
    frame = pd.DataFrame({"first": SPANS[:, 0], "last": SPANS[:, 1]})
    return bounds_of_chosen(frame, lambda tails: interval(changes, tails)[0])


def nothing_changes(n: int) -> np.ndarray:
    return np.zeros((n, len(SPANS)))


def test_a_bound_of_a_chosen_span_is_the_lowest_of_the_spans_inside():
    """Each at 5 % divided by the number of spans of its length; here hardly any example changes."""
    values = nothing_changes(300)
    values[:6, SPANS.tolist().index([2, 3])] = -100
    found = dict(zip(map(tuple, SPANS.tolist()), bounds_of(changes_of(values))))
    none = [-100 * binomtest(0, 300).proportion_ci(1 - 2 * 0.05 / k, "exact").high for k in (5, 4, 3, 2, 1)]
    six = -100 * binomtest(6, 300).proportion_ci(1 - 2 * 0.05 / 4, "exact").high
    for (first, last), bound in found.items():
        broken = first <= 2 and last >= 3
        assert bound == pytest.approx(six if broken else none[0], abs=1e-6), (first, last)
    assert sorted(none) == none  # a longer span alone would have the closer bound


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.02])
def test_no_false_claim_of_a_removable_span_in_19_of_20_maps(share):
    """Spans that cost just more than the tolerance, independent and alike: simulated, as the worst cases."""
    for alike in (True, False):
        wrong = []
        for seed in range(150):
            generator = np.random.default_rng([seed, alike])
            shape = (400, 1 if alike else len(SPANS))
            lost, won = generator.random(shape) < 0.0101 + share, generator.random(shape) < share
            values = np.broadcast_to(100.0 * won - 100.0 * (lost & ~won), (400, len(SPANS)))
            truth = 100 * (share * 1.0 - (0.0101 + share) * (1 - share))
            wrong.append((bounds_of(changes_of(values)) > truth + 1e-9).any())
        assert np.mean(wrong) < 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / 150)


def test_the_levels_of_spans_of_which_none_is_inside_another_add_up_to_one():
    """All such sets of spans of five layers, so that Bonferroni's inequality holds for every one of them."""
    spans = SPANS.tolist()
    inside = np.array([[a <= c and d <= b for c, d in spans] for a, b in spans]) & ~np.eye(
        len(spans), dtype=bool
    )
    level = [1 / (5 - (last - first)) for first, last in spans]
    sets = [()]
    for span in range(len(spans)):
        apart = [own for own in sets if not any(inside[span, o] or inside[o, span] for o in own)]
        sets += [(*own, span) for own in apart]
    most = max(sum(level[span] for span in own) for own in sets)
    assert most == pytest.approx(1.0)


def test_few_maps_have_a_flag_where_all_spans_cost_the_same():
    flagged = []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        base = generator.random(400) < 0.8
        flips = generator.random((400, len(SPANS))) < 0.2
        right = np.where(flips, generator.random((400, len(SPANS))) < 0.7, base[:, None])
        flagged.append(non_monotone(SPANS, lost_of(right, base)).any())
        noise = generator.normal(size=(400, len(SPANS)))
        flagged.append(non_monotone(SPANS, changes_of(noise, np.inf)).any())
    assert np.mean(flagged) < 0.1  # at most 5 %; 12 of 120 or more has a chance of 0.02


def test_a_span_that_mends_what_a_part_of_it_breaks_is_flagged():
    generator = np.random.default_rng(0)
    base = generator.random(2000) < 0.9
    right = np.repeat(base[:, None], len(SPANS), axis=1)
    broken = generator.random(2000) < 0.1
    row = {tuple(span): i for i, span in enumerate(SPANS.tolist())}
    right[broken, row[2, 3]] = False  # layers 2-3 cost 9 points, all others nothing
    containing = (SPANS[:, 0] <= 2) & (SPANS[:, 1] >= 3) & (np.arange(len(SPANS)) != row[2, 3])
    assert non_monotone(SPANS, lost_of(right, base)).tolist() == containing.tolist()
    losses = generator.normal(0, 0.1, (300, len(SPANS)))
    losses[:, row[2, 3]] -= 9.0
    assert non_monotone(SPANS, changes_of(losses, np.inf)).tolist() == containing.tolist()


@pytest.mark.parametrize("seed", range(12))
def test_flags_by_their_definition(seed):
    """The binomial test of every pair of a span and one inside it, times the number of pairs."""
    generator, spans = np.random.default_rng(seed), SPANS.tolist()
    right, base = (
        generator.random((60, len(SPANS))) < generator.random(len(SPANS)),
        generator.random(60) < 0.7,
    )
    expected, pairs = np.zeros(len(SPANS), bool), []
    for outer, (first, last) in enumerate(spans):
        for inner, (a, b) in enumerate(spans):
            if first <= a and b <= last and inner != outer:
                won, lost = (right[:, x] & ~right[:, y] for x, y in ((outer, inner), (inner, outer)))
                n = int(won.sum() + lost.sum())
                p = binomtest(int(won.sum()), n, alternative="greater").pvalue if n else 1.0
                pairs.append((outer, p))
    for outer, p in pairs:
        expected[outer] |= p * len(pairs) < 0.05
    assert non_monotone(SPANS, lost_of(right, base)).tolist() == expected.tolist()


@pytest.mark.filterwarnings("error")
def test_what_is_undefined_is_not_compared():
    values = np.tile(100.0 * np.arange(len(SPANS)), (50, 1))  # every longer span costs less than one inside
    values += np.random.default_rng(0).normal(size=values.shape)
    assert non_monotone(SPANS, changes_of(values, np.inf))[4]
    values[:, 4] = math.nan
    assert not non_monotone(SPANS, changes_of(values, np.inf))[4]
    assert not non_monotone(SPANS, changes_of(values * math.nan, np.inf)).any()


def test_every_array_is_restricted_to_the_examples(make_results):
    """Also the log-likelihoods by a reference model."""
    pairs = changed(
        make_results(2, n_labels=2), kind="pairwise", metric="margin", label_names=(),
        scored_with=np.ones(40, np.int64), reference=np.arange(80.0).reshape(40, 2),
    )  # fmt: skip
    chosen = np.array([3, 17])
    half = pairs.of_examples(chosen)
    np.testing.assert_array_equal(half.scored.reference, pairs.scored.reference[chosen])
    np.testing.assert_array_equal(half.predictions, pairs.predictions[:, chosen])


grids = st.tuples(st.integers(1, 8), st.integers(1, 8)).flatmap(
    lambda shape: hnp.arrays(float, shape, elements=st.sampled_from([-2.0, 0.0, 1.0, 1.001, 7.0, np.nan]))
)


def border_by_brute_force(drops: np.ndarray, tolerance: float) -> Counter:
    """Ask of every pair of cells whether they touch and whether the tolerance parts them."""
    found = Counter()
    cells = [(r, c) for r, c in np.ndindex(drops.shape) if not np.isnan(drops[r, c])]
    for r, c in cells:
        for other_r, other_c in cells:
            parted = (drops[r, c] <= tolerance) and not (drops[other_r, other_c] <= tolerance)
            if parted and abs(r - other_r) + abs(c - other_c) == 1:
                corners = {(x, y) for x in (c, c + 1) for y in (r, r + 1)}
                shared = {(x, y) for x in (other_c, other_c + 1) for y in (other_r, other_r + 1)}
                found[tuple(sorted(corners & shared))] += 1
    return found


@given(grids, st.sampled_from([0.0, 1.0, 5.0, 50.0]))
def test_it_parts_within_from_beyond_and_nothing_else(drops, tolerance):
    edges = tolerance_border(drops, tolerance)
    assert Counter(tuple(sorted(edge)) for edge in edges) == border_by_brute_force(drops, tolerance)
