"""Tests and intervals against SciPy, enumeration and the definitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, multinomial, ttest_1samp
from tiers import slow_unless

from adapter_probe.analysis.attribution import shares
from adapter_probe.analysis.resampling import Draws, draw_scores, draw_weights
from adapter_probe.analysis.significance import exact_end, holm, interval, over_seeds, p_values, sign_test
from adapter_probe.kinds.table import about_kind


def draws_of(values: np.ndarray, most: float = 100.0, seed: int = 0, n_draws: int = 10_000) -> Draws:
    """What is known of means of values ``[units, changes]``."""
    counts = np.ones(len(values), dtype=np.int64)
    ((weights, more),) = draw_weights(len(values), n_draws, seed, n_draws)
    total = weights.sum(axis=1)
    return Draws(weights @ values / total[:, None], more / (total + more), values, counts, most, is_mean=True)


def ends(lost: int, won: int, n: int) -> tuple[float, float]:
    pair = np.array([lost]), np.array([won])
    return -float(exact_end(*pair[::-1], n)[0]), float(exact_end(*pair, n)[0])


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_binomial_test(lost, won):
    expected = binomtest(lost, lost + won).pvalue if lost + won else 1.0
    assert sign_test(np.array([lost]), np.array([won]))[0] == pytest.approx(expected, rel=1e-9)


def test_mcnemar_stays_exact_where_p_is_tiny():
    p = sign_test(np.array([4000, 500]), np.zeros(2))
    assert p.tolist() == pytest.approx([0.0, 2.0 * 0.5**500], rel=1e-9)  # 2 * 2**-4000 is 0 in floating point


@pytest.mark.parametrize("n", slow_unless((50, 2000).__contains__, [50, 240, 2000]))
@pytest.mark.parametrize("discordant", slow_unless((0, 5).__contains__, [0, 1, 5, 40]))
def test_the_exact_interval_covers_the_difference(n: int, discordant: int):
    """By enumeration of all outcomes but rarest ones: at least 94 % whatever the share of losses."""
    for share in (0.0, 0.1, 0.3, 0.5, 0.8, 1.0):
        difference, outcomes = (1 - 2 * share) * discordant / n, []
        for total in range(min(n, 25 + 2 * discordant) + 1):
            p = binom.pmf(np.arange(total + 1), total, share) * binom.pmf(total, n, discordant / n)
            outcomes += [(lost, total - lost, p[lost]) for lost in np.flatnonzero(p > 1e-8)]
        lost, won, p = np.array(outcomes).T
        inside = (-exact_end(won, lost, n) <= difference) & (difference <= exact_end(lost, won, n))
        covered = p @ inside
        assert covered >= 0.94
        assert covered < 1.0 or discordant < 5  # nor so wide that it says nothing


def test_the_exact_interval_and_mcnemar_say_the_same():
    for lost in [*range(25), 300]:
        for won in range(min(lost + 1, 25)):
            low, high = ends(lost, won, 400)
            p = binomtest(lost, lost + won).pvalue if lost + won else 1.0
            assert (p < 0.05) == (low > 0 or high < 0), (lost, won)
            assert ends(won, lost, 400) == pytest.approx((-high, -low), abs=1e-9)


@pytest.mark.parametrize(
    ("lost", "won", "n"),
    [(0, 0, 7), (3, 0, 50), (2, 1, 60), (4, 9, 240), (20, 4, 24), (400, 350, 10_000), (3000, 10, 10_000)],
)
def test_the_exact_interval_by_its_definition(lost: int, won: int, n: int):
    """Quantiles of products of drawn betas; of losses alone, the end of Clopper and Pearson."""
    generator, m = np.random.default_rng(0), lost + won
    sign = 2 * (generator.beta(won + 1, lost, 400_000) if lost else np.ones(400_000)) - 1
    share = generator.beta(m + 1, n - m, 400_000) if m < n else np.ones(400_000)
    least = generator.beta(m, n - m + 1, 400_000) if m else np.zeros(400_000)
    low, high = ends(lost, won, n)
    drawn = np.quantile(np.where(sign > 0, share, least) * sign, 0.975)
    assert high == pytest.approx(drawn, abs=max(0.05 / n, 2e-4))
    if not won:
        assert low == pytest.approx(-binomtest(lost, n).proportion_ci(0.95, "exact").high)


@pytest.mark.parametrize(("lost", "won"), [(4, 0), (6, 0), (5, 1), (9, 1), (14, 4)])
def test_draws_of_right_and_wrong_answers_say_what_the_exact_test_says(lost: int, won: int):
    """Where the exact way is closed, weights with one more example give the sign test and its interval."""
    values = np.zeros((60, 1))
    values[:lost], values[lost : lost + won] = -100, 100
    drawn = replace(draws_of(values, n_draws=100_000), is_mean=False)
    assert p_values(drawn)[0] == pytest.approx(binomtest(lost, lost + won).pvalue, rel=0.1)
    low, high = interval(drawn)
    exact = ends(lost, won, 60)
    assert [low[0], high[0]] == pytest.approx([100 * exact[0], 100 * exact[1]], abs=0.5)
    assert interval(draws_of(values))[0][0] == pytest.approx(100 * exact[0])


@pytest.mark.parametrize("n", [5, 9])
@pytest.mark.parametrize(
    "p", [(0.05, 0.1, 0.7, 0.1, 0.05), (0.0, 0.3, 0.7, 0.0, 0.0), (0.1, 0.2, 0.2, 0.2, 0.3)]
)
def test_interactions_of_few_examples_are_covered(n: int, p: tuple[float, ...]):
    """By enumeration of all counts of the values -2 to 2 that n examples can have."""
    covered, size, truth = 0.0, np.arange(-2, 3), 100 * float(np.arange(-2, 3) @ p)
    counts = np.array([own for own in product(range(n + 1), repeat=5) if sum(own) == n])
    chances = multinomial.pmf(counts, n, p)
    counts, chances = counts[chances > 1e-5], chances[chances > 1e-5]
    values = np.stack([np.repeat(100.0 * size, own) for own in counts], axis=1)
    low, high = interval(draws_of(values, most=200.0, n_draws=4000))
    covered = chances @ ((low <= truth) & (truth <= high))
    assert covered > 0.95


def test_the_intervals_never_have_the_width_0_where_nothing_was_seen():
    nothing = draws_of(np.zeros((100, 2)), most=200.0)
    low, high = interval(nothing)
    bound = 200 * (1 - 0.025 ** (1 / 100))  # Clopper and Pearson of 0 of 100, twice
    assert [*low, *high] == pytest.approx([-bound, -bound, bound, bound])
    assert p_values(nothing).tolist() == [1.0, 1.0]


def test_few_texts_are_never_significant():
    """Below six units no test can say 5 %; of losses, which have no bound, nothing is said at all."""
    for n in range(2, 9):
        values = -np.random.default_rng(n).uniform(1, 2, (n, 50))
        p = p_values(draws_of(values))
        assert p.min() >= 0.9 * 2.0 ** (1 - n)  # all signs alike, by chance
        assert (p > 0.05).all() or n >= 6
        unbounded = draws_of(values, most=np.inf)
        for found in (p_values(unbounded), *interval(unbounded)):
            assert np.isnan(found).all() == (n < 6)


def change_of(metric: str, kind: str, predictions: np.ndarray, scored_with: np.ndarray, units=None) -> Draws:
    """What is known of the change of the second row of predictions against the first."""
    units = np.arange(len(scored_with)) if units is None else units
    study = SimpleNamespace(
        metric=metric, kind=kind, taken_by_metric=predictions, scored_with=scored_with, units=units,
        label_names=("a", "b"), settings={}, scored=SimpleNamespace(TASK=about_kind(kind)),
    )  # fmt: skip
    return draw_scores([study]).changes([1], 0)


ONES = np.ones(300, dtype=np.int64)
RIGHT = np.ones(300)


@pytest.mark.parametrize(
    ("metric", "kind", "right", "labels", "size"),
    [
        ("accuracy", "classification", ONES, ONES, 1.0),
        ("acc_norm", "causal", ONES, ONES, 1.0),
        ("text_match", "causal", 1 - ONES, 1 - ONES, 1.0),  # 0 is right
        ("exact_match", "extractive", RIGHT, np.arange(300), 1.0),
        ("token_accuracy", "causal", 10 * ONES, 10 * ONES, 0.1),
        ("recall@10", "ranking", RIGHT, ONES, 1.0),
        ("pairwise_accuracy", "pairwise", RIGHT, ONES, 1.0),
        ("pairwise_accuracy", "pairwise", RIGHT, ONES, 0.5),  # from right to tied
    ],
)
@pytest.mark.parametrize(("lost", "p"), [(4, 0.125), (5, 0.0625), (6, 0.03125)])
def test_every_share_of_right_answers_is_exact(metric, kind, right, labels, size, lost, p):
    """4 of 300 lost, with a p of 0.125 by the binomial test, whatever is counted as an answer."""
    fewer = right.copy()
    step = {"token_accuracy": -1, "text_match": 1}.get(metric, -size)
    fewer[:lost] += np.asarray(step).astype(right.dtype)
    change = change_of(metric, kind, np.stack([right, fewer]), labels)
    assert p_values(change)[0] == pytest.approx(p)
    (low,), (high,) = interval(change)
    exact = ends(lost, 0, 300)
    assert (low, high) == pytest.approx((100 * size * exact[0], 100 * size * exact[1]))
    assert (high < 0) == (p < 0.05)


@pytest.mark.parametrize("metric", ["f1", "mcc", "macro_f1"])
def test_few_changes_of_functions_of_counts_say_no_more_than_mcnemar(metric):
    """5 of 300 lost, all one way, which has a p of 0.06 at the least; two of two have 0.5."""
    labels = np.arange(300) % 2
    for n, lost in ((300, 5), (2, 2)):
        worse = labels[:n].copy()
        worse[:lost] = 1 - worse[:lost]
        change = change_of(metric, "classification", np.stack([labels[:n], worse]), labels[:n])
        assert p_values(change)[0] > 0.05, n
        (low,), (high,) = interval(change)
        assert low < 0 <= high, n


def test_two_paragraphs_that_lose_a_question_each_are_two_units():
    paragraphs, right = np.arange(40) // 20, np.ones((2, 40), np.float32)
    right[1, [0, 20]] = 0
    change = change_of("exact_match", "extractive", right, paragraphs, paragraphs)
    assert p_values(change)[0] == pytest.approx(0.5)
    (low,), (high,) = interval(change)
    assert low <= -5.0
    assert high > 0


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_no_draw_of_a_correlation_is_undefined(metric):
    """Of four equal values and two others, 9 % of resamples are constant, but no weight is 0."""
    labels = np.array([0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    change = change_of(metric, "regression", np.stack([labels, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]]), labels)
    assert np.isfinite(change.samples).all()
    assert np.isfinite(interval(change)).all()
    # What is undefined without a single example says nothing of others.
    labels = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    change = change_of(metric, "regression", np.stack([labels, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]]), labels)
    assert np.isnan([*interval(change), p_values(change)]).all()


def test_shares_of_few_changes_are_covered():
    """Three layers, every span with the same drop of few examples."""
    first, last = np.triu_indices(3)
    missed, generator = [], np.random.default_rng(0)

    def parts(own: np.ndarray) -> np.ndarray:
        grid = np.zeros((*own.shape[:-1], 3, 3))
        grid[..., first, last] = -own
        return shares(grid)

    for _ in range(150):
        lost = generator.random((100, 6)) < 0.02
        low, high = interval(draws_of(-100.0 * lost, n_draws=1000).map(parts))
        truth = parts(np.full(6, -2.0))
        assert (high > low).all()
        missed.append(((truth < low) | (truth > high)).mean())
    assert np.mean(missed) < 0.05


@pytest.mark.parametrize("tail", [1.0, 1.25, 1.5])
def test_losses_with_heavy_tails_are_covered(tail):
    """Of 30 texts whose losses are lognormal; a quantile of plain weights misses 12 % and more of them."""
    generator = np.random.default_rng(0)
    values = np.exp(tail * generator.normal(size=(30, 3000))) - np.exp(tail**2 / 2)
    drawn = draws_of(-values, most=np.inf, n_draws=1000)
    low, high = interval(drawn)
    assert ((low > 0) | (high < 0)).mean() <= 0.07
    plain = np.quantile(drawn.samples, [0.025, 0.975], axis=0)
    assert ((plain[0] > 0) | (plain[1] < 0)).mean() > 0.12


@pytest.mark.parametrize(("tail", "n"), [(1.0, 30), (1.5, 30), (1.5, 100)])
def test_of_many_spans_without_effect_few_texts_with_a_long_tail_claim_nothing(tail, n):
    """In 5% of maps of 40 spans, after Holm; with one distance for every draw it is 7, 36 and 18% of them."""
    generator = np.random.default_rng(0)
    values = np.exp(tail * generator.normal(size=(n, 100, 40))) - np.exp(tail**2 / 2)
    p = np.concatenate(
        [p_values(draws_of(-own, most=np.inf)) for own in np.split(values.reshape(n, -1), 10, 1)]
    )
    wrong = [(holm(own) < 0.05).any() for own in p.reshape(100, 40)]
    assert np.mean(wrong) <= 0.05


def test_a_tail_on_neither_side_hides_no_effect():
    """Of 30 normal rises of 1.2 standard deviations most are found among 40, as by Student's t."""
    values = np.random.default_rng(0).normal(1.2, 1.0, (30, 400))
    found = np.mean(
        [(holm(own) < 0.05).mean() for own in p_values(draws_of(-values, most=np.inf)).reshape(10, 40)]
    )
    student = np.mean([(holm(own) < 0.05).mean() for own in ttest_1samp(values, 0).pvalue.reshape(10, 40)])
    assert 0.7 < found < student


def test_an_interval_excludes_0_where_p_is_small():
    generator = np.random.default_rng(0)
    values = generator.normal(size=(80, 300)) + generator.normal(0, 0.3, 300)
    for most in (np.inf, 10.0):
        drawn = draws_of(values, most=most)
        (low, high), p = interval(drawn), p_values(drawn)
        clear = np.abs(p - 0.05) > 0.002  # the ends lie between draws
        assert ((p < 0.05) == ((low > 0) | (high < 0)))[clear].all()
        assert 5 < (p < 0.05).sum() < 295


def test_a_mean_over_seeds_adds_what_seeds_and_examples_leave_open():
    """Without examples' noise it is the t interval over the seeds; of equal seeds, that of the examples."""
    generator = np.random.default_rng(1)
    of_seeds = generator.normal(1.0, 1.0, (3, 40))
    alike = draws_of(np.tile(of_seeds.mean(axis=0), (2000, 1)), most=np.inf)
    low, high, p = over_seeds(alike, of_seeds)
    found = ttest_1samp(of_seeds, 0.0)
    expected = found.confidence_interval(0.95)
    np.testing.assert_allclose([low, high], [expected.low, expected.high], atol=1e-6)
    np.testing.assert_allclose(p, found.pvalue, rtol=1e-4)
    values = generator.normal(0.2, 1.0, (300, 40))
    drawn = draws_of(values, most=np.inf)
    same = over_seeds(drawn, np.tile(values.mean(axis=0), (3, 1)))
    np.testing.assert_allclose(same[:2], interval(drawn), atol=1e-6)
    both = over_seeds(drawn, values.mean(axis=0) + np.array([[-0.1], [0.0], [0.1]]))
    assert (both[0] < same[0]).all()
    assert (both[1] > same[1]).all()
    for low, high, p in (same, both):
        assert ((p < 0.05) == ((low > 0) | (high < 0))).all()


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
def test_means_over_seeds_cover_what_they_say(n_seeds: int):
    """Seeds and examples are crossed random factors; the larger either variance, the other hardly counts."""
    for spread in (0.0, 0.02, 1.0):
        generator = np.random.default_rng([n_seeds, int(100 * spread)])
        shape, missed = (200, 1500), 0
        common, seeds = generator.normal(size=shape), spread * generator.normal(size=(n_seeds, shape[1]))
        own = 0.7 * generator.normal(size=(n_seeds, *shape))
        values = common + own + seeds[:, None]
        low, high, p = over_seeds(draws_of(values.mean(axis=0), np.inf, n_draws=2000), values.mean(axis=1))
        missed = ((low > 0) | (high < 0)).mean()
        assert missed <= 0.065
        assert (p < 0.05).mean() <= 0.065


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_by_its_definition(p):
    """A hypothesis is rejected at level t if it and all with smaller p pass p_(i) <= t / (m - i)."""
    p = np.array(p)
    adjusted = holm(p)
    assert (adjusted >= p).all()
    order = np.argsort(p, kind="stable")
    for rank, index in enumerate(order):
        needed = max((len(p) - k) * p[order[k]] for k in range(rank + 1))
        assert adjusted[index] == pytest.approx(min(1.0, needed))


def test_holm_leaves_out_what_is_undefined():
    assert holm(np.array([0.01, np.nan, 0.02])).tolist() == pytest.approx([0.02, np.nan, 0.02], nan_ok=True)
    assert np.isnan(holm(np.array([np.nan]))).all()
