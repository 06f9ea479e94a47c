"""The prefix tree on every architecture of adapter, and on heads that read all positions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from brute_force import BruteForce
from placed_models import Variants, placed_on
from torch import Tensor

from adapter_probe.models.methods import Adapters

LENGTHS = (4, 9, 4, 1)
EVERY_MASK = (np.arange(16)[:, None] >> np.arange(4)) % 2 == 1
SETTINGS = (
    {},
    {"sites": "attention"},
    {"sites": "ffn"},
    {"placement": "parallel"},
    {"interaction": "multiply"},
    {"placement": "parallel", "interaction": "multiply"},
    {"norm": "layernorm"},
    {"norm": "batchnorm"},
    {"hidden_layers": 2},
    {"hidden_layers": 3, "norm": "batchnorm", "placement": "parallel", "sites": "attention"},
    {"hidden_layers": 2, "norm": "layernorm", "interaction": "multiply", "sites": "ffn"},
)
SPANS = (False, True)


@pytest.fixture(scope="module")
def known(tiny_base: Callable, tiny_examples: Callable) -> Callable[..., tuple[Variants, Tensor]]:
    """``known(number, spans, norms, strength=0.0)``: what runs masks, and the logits of every mask.

    The models have two layers of width 16.
    """
    made: dict[tuple, tuple[Variants, Tensor]] = {}

    def make(number: int, spans: bool, norms: str, strength: float = 0.0) -> tuple[Variants, Tensor]:
        key = (number, spans, norms, strength)
        if key not in made:
            family = ("bert", "roberta", "electra")[(number + spans) % 3]
            folder, encoded = tiny_base(family, layers=2, hidden=16), tiny_examples(family, LENGTHS)
            placed = placed_on(folder, Adapters(5, **SETTINGS[number]), spans=spans)
            expected = BruteForce(placed, norms, strength).every(encoded, EVERY_MASK)
            made[key] = Variants(placed, encoded, norms, strength), expected
        return made[key]

    return make


def bits_of(number: int) -> np.ndarray:
    """Bool ``[columns]``: which hold an adapter."""
    sites = SETTINGS[number].get("sites", "both")
    return np.array([sites != "ffn", sites != "attention"] * 2)


@pytest.mark.parametrize(
    ("number", "spans"),
    [
        pytest.param(
            n, spans, marks=() if (n, spans) == (3, True) else pytest.mark.slow, id=f"{chosen}-{spans}"
        )
        for n, chosen in enumerate(SETTINGS)
        for spans in SPANS
    ],
)
def test_every_mask_equals_a_run_of_its_own(number: int, spans: bool, known: Callable):
    for norms in ("trained", "pretrained"):
        variants, expected = known(number, spans, norms)
        # Sites without an adapter make no difference; every other bit makes one.
        assert len({round(row.sum().item(), 6) for row in expected}) == 2 ** bits_of(number).sum()
        assert variants.replay.has_adapter.tolist() == bits_of(number).tolist()
        for tokens_per_pass in (1, 40, 10**9):
            logits = variants(EVERY_MASK, tokens_per_pass)
            assert logits.shape == ((16, 18, 2) if spans else (16, 4, 3))
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
        if not spans:
            rows, places = np.indices((16, 4)).reshape(2, -1)
            pairs = variants.pairs(places, EVERY_MASK[rows], 40)
            torch.testing.assert_close(pairs, expected[rows, places], rtol=0, atol=1e-10)


SCALED = ((3, 0.5, "pretrained"), (5, 0.5, "trained"), (5, -1.5, "pretrained"))


@pytest.mark.parametrize(
    ("number", "strength", "norms"),
    [
        pytest.param(*case, marks=() if case in SCALED else pytest.mark.slow)
        for case in product(range(len(SETTINGS)), [0.5, -1.5], ["trained", "pretrained"])
    ],
)
def test_scaled_adapters_equal_runs_of_their_own(number: int, strength: float, norms: str, known: Callable):
    variants, expected = known(number, False, norms, strength)
    torch.testing.assert_close(variants(EVERY_MASK, 100), expected, rtol=0, atol=1e-10)
    rows, places = np.indices((16, 4)).reshape(2, -1)
    pairs = variants.pairs(places, EVERY_MASK[rows])
    torch.testing.assert_close(pairs, expected[rows, places], rtol=0, atol=1e-10)
    assert (expected[0] - expected[-1]).abs().max() > 1e-3
