"""Tests and intervals against SciPy and the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest
from tiers import slow_unless

from adapter_probe.analysis.significance import (
    bootstrap_p,
    exact_interval,
    holm,
    mcnemar_p,
    percentile_interval,
)
from adapter_probe.metrics import FEW_DISCORDANT


@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 2**32))
def test_mcnemar_is_the_binomial_test(n_examples, n_variants, seed):
    generator = np.random.default_rng(seed)
    reference = generator.random(n_examples) < 0.7
    right = generator.random((n_variants, n_examples)) < 0.6
    for row, p in zip(right, mcnemar_p(right, reference)):
        lost, won = int((reference & ~row).sum()), int((row & ~reference).sum())
        expected = binomtest(lost, lost + won).pvalue if lost + won else 1.0
        assert p == pytest.approx(expected, rel=1e-9)


def test_mcnemar_stays_exact_where_p_is_tiny():
    reference = np.ones(10_000, dtype=bool)
    right = np.zeros((1, 10_000), dtype=bool)
    right[0, 4000:] = True  # 4,000 lost, none won: p = 2 * 2**-4000 is 0 in floating point
    assert mcnemar_p(right, reference)[0] == 0.0
    right[0, 500:] = True
    assert mcnemar_p(right, reference)[0] == pytest.approx(2.0 * 0.5**500, rel=1e-9)


@pytest.mark.parametrize("n", slow_unless((50, 2000).__contains__, [50, 240, 2000]))
@pytest.mark.parametrize("discordant", slow_unless((0, 5).__contains__, [0, 1, 5]))
def test_the_exact_interval_covers_the_difference(n: int, discordant: int):
    """By enumeration of all outcomes but rarest ones: at least 94 % whatever the share of losses."""
    for share in (0.0, 0.1, 0.3, 0.5, 0.8, 1.0):
        covered, difference = 0.0, (1 - 2 * share) * discordant / n
        for total in range(FEW_DISCORDANT):
            p = binom.pmf(np.arange(total + 1), total, share) * binom.pmf(total, n, discordant / n)
            for lost in np.flatnonzero(p > 1e-8).tolist():
                low, high = exact_interval(lost, total - lost, n)
                covered += p[lost] * (low <= difference <= high)
        assert covered >= 0.94
        assert covered < 1.0 or discordant < 5  # nor so wide that it says nothing


def test_the_exact_interval_and_mcnemar_say_the_same():
    for lost in range(FEW_DISCORDANT):
        for won in range(min(lost + 1, FEW_DISCORDANT - lost)):
            low, high = exact_interval(lost, won, 100)
            p = binomtest(lost, lost + won).pvalue if lost + won else 1.0
            assert (p < 0.05) == (low > 0 or high < 0), (lost, won)
            assert exact_interval(won, lost, 100) == (-high, -low)


@pytest.mark.parametrize(("lost", "won", "n"), [(0, 0, 7), (3, 0, 50), (2, 1, 60), (4, 9, 240), (20, 4, 24)])
def test_the_exact_interval_by_its_definition(lost: int, won: int, n: int):
    """Quantiles of products of drawn betas; of losses alone, the end of Clopper and Pearson."""
    generator, m = np.random.default_rng(0), lost + won
    sign = 2 * (generator.beta(won + 1, lost, 400_000) if lost else np.ones(400_000)) - 1
    share = generator.beta(m + 1, n - m, 400_000) if m < n else np.ones(400_000)
    least = generator.beta(m, n - m + 1, 400_000) if m else np.zeros(400_000)
    low, high = exact_interval(lost, won, n)
    assert high == pytest.approx(np.quantile(np.where(sign > 0, share, least) * sign, 0.975), abs=0.05 / n)
    if not won:
        assert low == pytest.approx(-binomtest(lost, n).proportion_ci(0.95, "exact").high)


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


def test_the_interval_is_that_of_quantiles():
    samples = np.random.default_rng(0).normal(size=(1000, 3))
    low, high = percentile_interval(samples)
    np.testing.assert_allclose(low, np.quantile(samples, 0.025, axis=0))
    np.testing.assert_allclose(high, np.quantile(samples, 0.975, axis=0))
    samples[:, 1] = np.nan
    samples[::2, 2] = np.nan  # undefined on some resamples: those that are left
    low, high = percentile_interval(samples)
    assert np.isnan(low).tolist() == [False, True, False]
    assert [low[2], high[2]] == pytest.approx(np.quantile(samples[1::2, 2], [0.025, 0.975]).tolist())


def test_bounds_of_a_difference_that_is_nothing_are_nothing():
    # 100 (7/9 - 4/9) and 100 (6/9 - 3/9) differ in floating point; that is no bound above 0.
    noise = 100 * (7 / 9 - 4 / 9) - 100 * (6 / 9 - 3 / 9)
    assert noise != 0
    assert percentile_interval(np.full((10, 2), [noise, -noise]))[0].tolist() == [0.0, 0.0]


@given(st.integers(20, 60), st.floats(0.05, 0.95), st.integers(0, 2**32))
def test_the_bootstrap_p_and_the_interval_say_the_same(n_resamples, centre, seed):
    differences = np.random.default_rng(seed).normal(centre, 0.5, size=(100 * n_resamples, 1))
    low, high = percentile_interval(differences)
    p = bootstrap_p(differences)[0]
    if abs(p - 0.05) > 0.002:  # the bounds interpolate between samples
        assert (p < 0.05) == bool(low[0] > 0 or high[0] < 0)


def test_the_bootstrap_p_by_counting():
    differences = np.array([[1.0, -1.0, 0.0], [2.0, 1.0, 0.0], [3.0, 1.0, 0.0], [4.0, 1.0, np.nan]])
    # None at or below 0: 2 (0 + 1) / 5; one of four below: 2 (1 + 1) / 5; all at 0: at most 1.
    assert bootstrap_p(differences).tolist() == pytest.approx([0.4, 0.8, 1.0])
    assert np.isnan(bootstrap_p(np.full((4, 1), np.nan))).all()
