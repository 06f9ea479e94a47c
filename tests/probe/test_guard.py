"""The guard band's arithmetic, from its definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adapter_probe.probe.guard import FACTOR, Guard, margin_errors, margins, sample_size, sampled

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
    guard = Guard(largest, 1)
    noise = np.random.default_rng(seed).uniform(-0.5, 0.5, fast.shape) * guard.band * 0.999
    trusted = ~guard.doubts(fast)
    assert np.array_equal(fast.argmax(-1)[trusted], (fast + noise).argmax(-1)[trusted])


def test_the_band_is_the_largest_error_and_a_factor():
    fast, exact = np.array([[[0.0, 1.0]], [[2.0, 0.0]]]), np.array([[[0.25, 1.0]], [[2.0, 0.5]]])
    guard = Guard().after(fast, exact)
    assert guard == Guard(0.5, 2)
    assert guard.band == FACTOR * 0.5
    assert guard.after(fast, fast) == Guard(0.5, 4)  # it never shrinks
    assert guard.doubts(np.array([[0.0, 0.7], [0.0, 0.8], [np.nan, 5.0]])).tolist() == [True, False, True]


def test_the_sample_is_bounded_and_the_same_every_time():
    assert [sample_size(n) for n in (3, 16, 100, 1043, 10**6)] == [3, 16, 16, 52, 128]
    assert np.array_equal(sampled(1000), sampled(1000))
    assert len(set(sampled(1000).tolist())) == sample_size(1000)
