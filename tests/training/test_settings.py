"""The schedule in closed form, and settings that make no sense."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_probe.errors import TrainingError
from adapter_probe.training.settings import TrainingSettings


def rates(n_steps: int, **settings: float) -> list[float]:
    return [TrainingSettings(**settings).rate_at(step, n_steps) for step in range(n_steps)]


def test_the_papers_schedule():
    # 10 % of 20 steps up to the peak, then 18 steps down; the step after the last would have rate 0.
    up, down = [0.5, 1.0], [(20 - step) / 18 for step in range(2, 20)]
    assert rates(20, learning_rate=3e-3) == pytest.approx([3e-3 * share for share in up + down], rel=1e-12)


@given(n_steps=st.integers(1, 500), warmup=st.floats(0, 1), learning_rate=st.floats(1e-6, 1))
def test_the_schedule_is_two_straight_lines(n_steps, warmup, learning_rate):
    values = np.array(rates(n_steps, learning_rate=learning_rate, warmup=warmup))
    rise = int(np.argmax(values >= learning_rate * (1 - 1e-12))) + 1 if warmup * n_steps > 0.5 else 0
    assert abs(rise - warmup * n_steps) <= 0.5
    up, down = np.linspace(0, learning_rate, rise + 1), np.linspace(learning_rate, 0, n_steps - rise + 1)
    np.testing.assert_allclose(values, np.concatenate([up[1:], down[:-1]]), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", -3),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("learning_rate", -1.0),
        ("learning_rate", math.inf),
        ("learning_rate", math.nan),
        ("warmup", -0.1),
        ("warmup", 1.1),
        ("warmup", math.nan),
        ("seed", -1),
        ("seed", 2**64),
        ("dtype", "float16"),
    ],
)
def test_settings_that_make_no_sense(name, value):
    with pytest.raises(TrainingError) as caught:
        TrainingSettings(**{name: value})
    for part in (f"--{name.replace('_', '-')}", str(value)):
        assert part in str(caught.value)
