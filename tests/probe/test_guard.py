"""The guard band's arithmetic, from its definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adapter_probe.probe import guard
from adapter_probe.probe.guard import (
    FACTOR,
    Guard,
    chance_beyond_sample,
    margin_errors,
    margins,
    sample_size,
    sampled,
)

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
def test_outside_the_band_no_error_within_it_changes_a_prediction(fast, largest: float, seed: int):
    known = Guard(largest, 1)
    noise = np.random.default_rng(seed).uniform(-0.5, 0.5, fast.shape) * known.band * 0.999
    trusted = ~known.doubts(fast)
    assert np.array_equal(fast.argmax(-1)[trusted], (fast + noise).argmax(-1)[trusted])


def test_the_band_is_the_largest_error_and_a_factor():
    fast, exact = np.array([[[0.0, 1.0]], [[2.0, 0.0]]]), np.array([[[0.25, 1.0]], [[2.0, 0.5]]])
    known = Guard().after(fast, exact)
    assert known == Guard(0.5, 2)
    assert known.band == FACTOR * 0.5
    assert known.after(fast, fast) == Guard(0.5, 4)  # it never shrinks
    assert known.doubts(np.array([[0.0, 0.7], [0.0, 0.8], [np.nan, 5.0]])).tolist() == [True, False, True]


def test_the_sample_is_bounded_and_the_same_every_time():
    assert [sample_size(n) for n in (3, 16, 100, 1043, 10**6)] == [3, 16, 16, 52, 128]
    assert np.array_equal(sampled(1000), sampled(1000))
    assert len(set(sampled(1000).tolist())) == sample_size(1000)


@given(LOGITS, st.sampled_from([np.nan, np.inf, -np.inf]), st.booleans())
def test_a_logit_that_is_not_finite_is_never_trusted_and_moves_no_band(fast, spoilt: float, both: bool):
    exact = fast + np.float32(0.25) * np.arange(3, dtype=np.float32)
    sound = Guard().after(fast[1:], exact[1:])
    fast, exact = fast.copy(), exact.copy()
    fast[0, 1] = spoilt
    if both:
        exact[0, 1] = spoilt
    assert margin_errors(fast, exact)[0] == np.inf
    assert Guard().after(fast, exact) == sound
    assert Guard(1e-9, 1).doubts(fast)[0]


def test_nothing_is_trusted_where_nothing_could_be_compared():
    logits = np.array([[0.0, 1000.0]])
    assert Guard().after(np.array([[np.nan, 1.0]]), np.array([[0.0, 1.0]])).doubts(logits).all()


def test_the_chance_beyond_the_sample_by_drawing_samples(monkeypatch):
    """Errors of a heavy-tailed kind: how often one more example exceeds a random sample's largest."""
    monkeypatch.setattr(guard, "_LEAST", 9)
    generator, exceeded = np.random.default_rng(0), []
    for _ in range(4000):
        errors = generator.permutation(generator.standard_cauchy(60) ** 2)  # [examples], in random order
        exceeded.append(errors[9] > errors[:9].max())
    assert chance_beyond_sample(60) == 0.1
    assert np.mean(exceeded) == pytest.approx(0.1, abs=0.015)
    assert chance_beyond_sample(9) == 0.0  # all of them are in the sample
