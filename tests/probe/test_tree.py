"""The prefix tree against one run of the transformers model for every variant and example."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from brute_force import BruteForce
from exact import assert_close_in_float32, assert_close_in_float64
from placed_models import Placed, Variants, placed_on
from tiers import slow_unless

from adapter_probe.models.methods import Adapters
from adapter_probe.spans import span_variants

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "electra")
CLOSE = {"float64": assert_close_in_float64, "float32": partial(assert_close_in_float32, layers=3)}
LENGTHS = (5, 12, 1, 5, 40)


@pytest.fixture(scope="module")
def placed(tiny_base: Callable) -> Callable[..., Placed]:
    """``placed(family, dtype="float64", **base)``: a base of `tiny_base` with adapters."""

    def make(family: str, dtype: str = "float64", **base: object) -> Placed:
        return placed_on(tiny_base(family, **base), Adapters(size=5), dtype=getattr(torch, dtype))

    return make


def differ_everywhere(logits: torch.Tensor) -> bool:
    """Whether every two variants differ by far more than any tolerance, so that none can pass for another."""
    distances = torch.cdist(logits.flatten(1).double(), logits.flatten(1).double())
    return bool((distances + torch.eye(len(logits)) > 1e-3).all())


@pytest.mark.parametrize("norms", slow_unless("pretrained".__eq__, ["trained", "pretrained"]))
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", slow_unless("bert".__eq__, FAMILIES))
def test_every_span_equals_a_run_of_its_own(family, dtype, norms, placed, tiny_examples):
    model, encoded = placed(family, dtype), tiny_examples(family, LENGTHS)
    masks, variants = span_variants(3).masks, Variants(model, encoded, norms)
    expected = BruteForce(model, norms).every(encoded, masks)
    assert differ_everywhere(expected)
    for tokens_per_pass in (1, 130, 10**9):
        CLOSE[dtype](variants(masks, tokens_per_pass), expected)


def test_a_single_layer_model(placed: Callable, tiny_examples: Callable):
    """Its first layer is also its last."""
    model, encoded = placed("roberta", layers=1), tiny_examples("roberta", LENGTHS)
    masks = np.array([[1, 1], [0, 1], [1, 0], [0, 0]], dtype=bool)
    expected = BruteForce(model).every(encoded, masks)
    torch.testing.assert_close(Variants(model, encoded)(masks, 64), expected, rtol=0, atol=1e-10)


def test_the_model_is_left_as_it_was(placed: Callable, tiny_examples: Callable):
    variants = Variants(placed("bert"), tiny_examples("bert", LENGTHS), "pretrained")
    before = {name: tensor.clone() for name, tensor in variants.model.state_dict().items()}
    off = np.zeros((1, 6), dtype=bool)
    first = variants(off)
    after = variants.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(first, variants(off))
