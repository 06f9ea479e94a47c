"""Every family on an accelerator, by the stand-in of `tests/fixtures/accelerator.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from accelerator import DEVICE, accelerator
from torch.utils._python_dispatch import _disable_current_modes

from adapter_probe.data.packing import pack
from adapter_probe.models.bases.relative import DisentangledAttention
from adapter_probe.probe.pairs import forward_pairs
from adapter_probe.probe.tree import forward_variants
from adapter_probe.spans import span_variants

LENGTHS = (5, 12, 1, 5, 40, 3)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def host_arithmetic_is_real(monkeypatch: pytest.MonkeyPatch):
    """DeBERTa's distances are numbers of the host, which fake tensors would hide."""
    rows = DisentangledAttention._rows

    def real(self, longest):
        with _disable_current_modes():
            return rows(self, longest)

    monkeypatch.setattr(DisentangledAttention, "_rows", real)


def test_the_tree_stays_on_the_device(family: str, adapted_model: Callable, random_examples: Callable):
    model = adapted_model(family).to(torch.bfloat16)
    encoded, masks = random_examples(LENGTHS), span_variants(3).masks
    with accelerator() as device:
        device.move(model)
        batch = pack(encoded, range(len(encoded))).to(DEVICE)
        logits = forward_variants(model, batch, masks, tokens_per_pass=150)
        assert logits.device == DEVICE
        assert logits.shape == (len(masks), len(encoded), model.base.config.num_labels)
        assert device.copies["down"] == 0
        copied = device.copies["up"]
        forward_variants(model, batch, masks, tokens_per_pass=150)
        assert device.copies["up"] == copied  # the host sends what forks only once


@pytest.mark.parametrize("length", [1, 12, 40])
def test_pairs_stay_on_the_device(
    family: str, length: int, adapted_model: Callable, random_examples: Callable
):
    model, encoded = adapted_model(family), random_examples((length,) * 3)
    pairs = np.array([0, 1, 1, 2, 0])
    masks = np.random.default_rng(0).random((len(pairs), 6)) < 0.5
    with accelerator() as device:
        device.move(model)
        batch = pack(encoded, range(len(encoded))).to(DEVICE)
        logits = forward_pairs(model, batch, pairs, masks, tokens_per_pass=40)
        assert logits.device == DEVICE
        assert logits.shape == (len(pairs), model.base.config.num_labels)
        assert device.copies["down"] == 0
