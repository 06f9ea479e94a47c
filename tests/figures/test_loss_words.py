"""What figures say of a language model's loss: it rises, in its own unit."""

from __future__ import annotations

import pytest

from adapter_probe.figures import wording
from adapter_probe.figures.wording import bare_score, drop_label, unit_name


@pytest.mark.parametrize(
    ("metric", "unit"), [("nll", "0.01 nats"), ("bits_per_byte", "0.01 bits"), ("perplexity", "0.01")]
)
def test_a_loss_rises_in_its_own_unit(metric, unit):
    assert unit_name(metric) == unit
    label = drop_label(metric, "test")
    assert label.startswith("rise in test ")
    assert label.endswith(f"({unit})")
    assert wording.test_name(metric) == "bootstrap"


@pytest.mark.parametrize("metric", ["accuracy", "acc_norm", "acc_bytes"])
def test_choices_are_counted_in_percent(metric):
    assert unit_name(metric) == "percentage points"
    assert bare_score(0.5, metric) == "50.0 %"
    assert wording.test_name(metric) == "McNemar"
