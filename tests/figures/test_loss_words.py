"""What figures say of a language model's loss: it rises, in its own unit."""

from __future__ import annotations

import pytest

from adapter_probe.wording import (
    amount_text,
    drop_name,
    drop_text,
    number_text,
    score_text,
    significance_test,
    unit_name,
)


@pytest.mark.parametrize(
    ("metric", "unit"), [("nll", "0.01 nats"), ("bits_per_byte", "0.01 bits"), ("perplexity", "0.01")]
)
def test_a_loss_rises_in_its_own_unit(metric, unit):
    assert unit_name(metric) == unit
    assert drop_name(metric) == "rise"
    assert drop_text(1.7, metric) == f"rise 0.017 {unit.removeprefix('0.01')[1:]}".rstrip()
    assert drop_text(-1.7, metric).startswith("fall 0.017")
    assert score_text(3.2141, metric) == f"3.214 {unit.removeprefix('0.01')[1:]}".rstrip()
    assert significance_test(metric) == "bootstrap"


@pytest.mark.parametrize("metric", ["accuracy", "acc_norm", "acc_bytes"])
def test_choices_are_counted_in_percent(metric):
    assert unit_name(metric) == "percentage points"
    assert score_text(0.5, metric) == "50.0%"
    assert significance_test(metric) == "McNemar"


def test_a_small_divergence_keeps_two_digits():
    assert score_text(3.14e-6, "kl") == "3.1e−6 nats"
    assert amount_text(0.042, "kl") == "0.00042 nats"
    assert drop_text(1.7, "kl") == "KL divergence 0.017 nats"
    assert number_text(0.042, "kl") == "0.042"
    assert amount_text(0.0, "kl") == "0.000 nats"
    assert amount_text(0.0003, "nll") == "0.000 nats"  # beside losses of several nats
