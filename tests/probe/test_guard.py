"""The guard band's arithmetic, from its definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiers import slow_unless

from adapter_probe.probe.guard import CHANCE, Guard, doubts, least_certain, margin_errors, margins, sampled

LOGITS = arrays(np.float32, st.tuples(st.integers(1, 6), st.just(3)), elements=st.floats(-8, 8, width=32))


@given(LOGITS)
def test_margins_and_errors_by_their_definitions(fast):
    exact = np.roll(fast, 1, axis=0) / 2
    for row, low, high in zip(range(len(fast)), fast, exact):
        first, second, *_ = sorted(map(float, low), reverse=True)
        assert np.isclose(margins(fast)[row], first - second)
        off = [abs((low[a] - low[b]) - (high[a] - high[b])) for a in range(3) for b in range(3)]
        assert np.isclose(margin_errors(fast, exact)[row], max(off), atol=1e-5)


@given(LOGITS, st.floats(0, 4), st.integers(0, 2**32))
def test_outside_the_band_no_error_within_it_changes_a_prediction(fast, band: float, seed: int):
    noise = np.random.default_rng(seed).uniform(-0.5, 0.5, fast.shape) * band * 0.999
    trusted = ~doubts(fast, band)
    assert np.array_equal(fast.argmax(-1)[trusted], (fast + noise).argmax(-1)[trusted])


def test_the_tail_of_exponential_errors_is_found():
    errors = np.random.default_rng(0).exponential(0.5, 20_000)
    known = Guard.of(errors)
    assert known.threshold == pytest.approx(0.5 * math.log(10), rel=0.03)
    assert known.scale == pytest.approx(0.5, rel=0.1)
    assert known.scale > 0.5  # the upper end of an interval
    at = np.array([1.5, 2.5, 3.5])
    truth = np.exp(-at / 0.5)
    assert (known.exceeded(at) > truth).all()
    assert (known.exceeded(at) < 2.5 * truth).all()
    assert known.first_band(100_000) == pytest.approx(0.5 * math.log(100_000 / 30), rel=0.1)
    assert known.first_band(100_000, estimate=True) == pytest.approx(0.5 * math.log(10_000), rel=0.1)


@pytest.mark.parametrize(
    "draw", slow_unless("of several scales".__eq__, ["exponential", "normal", "of several scales"])
)
def test_the_chance_that_any_prediction_differs_by_drawing_studies(draw: str):
    """Fast margins of whole studies with known errors: beyond the band next to none is on the other side."""
    generator, n, n_studies, differ = np.random.default_rng(1), 4_000, 400, 0
    for _ in range(n_studies):
        exact = generator.normal(0, 3, n)
        errors = 0.1 * (generator.exponential(1, n) if draw == "exponential" else generator.normal(0, 1, n))
        if draw == "of several scales":
            errors *= np.repeat(generator.uniform(0.3, 1.5, n // 40), 40)
        fast = exact + errors * generator.choice([-1, 1], n)
        margin, error = np.abs(fast), np.abs(errors)
        sample, inside = error[:32], margin <= Guard.of(error[:32]).first_band(n)
        while True:
            known = Guard.of(np.concatenate([sample, error[inside]]))
            chosen = np.flatnonzero((margin <= known.band(margin[~inside])) & ~inside)
            if not len(chosen):
                break
            inside[chosen[np.argsort(margin[chosen])[: max(32, known.pairs // 2)]]] = True
        assert known.exceeded(margin[~inside]).sum() <= CHANCE
        differ += bool(((fast > 0) != (exact > 0))[~inside].any())
    assert differ <= CHANCE * n_studies


def test_the_band_is_the_narrowest_that_keeps_the_chance():
    known = Guard(pairs=100, largest_error=1.0, threshold=0.2, scale=0.1)
    found = np.linspace(0.0, 3.0, 4001)
    band = known.band(found)
    assert band in found
    assert known.exceeded(found[found > band]).sum() <= CHANCE < known.exceeded(found[found >= band]).sum()
    assert known.band(np.array([5.0, np.nan])) == known.threshold


def test_equal_errors_and_none():
    same = Guard.of(np.full(50, 0.25))
    assert (same.pairs, same.threshold, same.scale) == (50, 0.25, 0.0)
    assert same.exceeded(np.array([0.2, 0.3])).tolist() == [1.0, 0.0]
    assert Guard.of(np.array([])).band(np.array([9.0])) == math.inf
    assert Guard.of(np.array([np.inf])).first_band(9) == math.inf


@given(LOGITS, st.sampled_from([np.nan, np.inf, -np.inf]), st.booleans())
def test_a_logit_that_is_not_finite_is_never_trusted_and_moves_no_band(fast, spoilt: float, both: bool):
    exact = fast + np.float32(0.25) * np.arange(3, dtype=np.float32)
    sound = Guard.of(margin_errors(fast[1:], exact[1:]))
    fast, exact = fast.copy(), exact.copy()
    fast[0, 1] = spoilt
    if both:
        exact[0, 1] = spoilt
    assert margin_errors(fast, exact)[0] == np.inf
    assert Guard.of(margin_errors(fast, exact)) == sound
    assert doubts(fast, 1e-9)[0]


def test_the_least_certain_pairs_are_those_of_the_smallest_margins():
    fast = np.array([[[0.0, 3.0], [0.0, 1.0]], [[2.0, 0.0], [np.nan, 9.0]]])
    every = np.nonzero(np.ones((2, 2), dtype=bool))
    for n, expected in ((1, [(1, 1)]), (2, [(0, 1), (1, 1)]), (3, [(0, 1), (1, 0), (1, 1)])):
        assert list(zip(*least_certain(fast, every, n))) == expected
    assert least_certain(fast, every, 4) is every


def test_the_sample_is_of_different_pairs_and_the_same_every_time():
    variants, examples = sampled(79, 1043)
    assert len(variants) == 32 == len({*zip(variants.tolist(), examples.tolist())})
    assert (variants.max(), examples.max()) < (79, 1043)
    assert len(set(examples.tolist())) == 32
    assert all(map(np.array_equal, sampled(79, 1043), (variants, examples)))
    assert [sorted(part.tolist()) for part in sampled(2, 3)] == [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]]
