"""The prefix tree against one run of the transformers model for every variant and example."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from exact import assert_close_in_float32, assert_close_in_float64
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from placed_models import Placed, Variants, placed_on
from tiers import slow_unless

from adapter_probe.data.encoding import Encoded
from adapter_probe.models.methods import Adapters
from adapter_probe.spans import span_variants

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "electra")
CLOSE = {"float64": assert_close_in_float64, "float32": partial(assert_close_in_float32, layers=3)}
LENGTHS = (5, 12, 1, 5, 40)
ON = np.ones((1, 6), dtype=bool)
EVERY_MASK = (np.arange(64)[:, None] >> np.arange(6)) % 2 == 1


@pytest.fixture(scope="module")
def placed(tiny_base: Callable) -> Callable[..., Placed]:
    """``placed(family, dtype="float64", **base)``: a base of `tiny_base` with adapters."""

    def make(family: str, dtype: str = "float64", **base: object) -> Placed:
        return placed_on(tiny_base(family, **base), Adapters(size=5), dtype=getattr(torch, dtype))

    return make


def one_by_one(run: Callable, encoded: Encoded, masks: np.ndarray) -> torch.Tensor:
    return torch.stack([run(encoded, mask) for mask in masks])


def differ_everywhere(logits: torch.Tensor) -> bool:
    """Whether every two variants differ by far more than any tolerance, so that none can pass for another."""
    distances = torch.cdist(logits.flatten(1).double(), logits.flatten(1).double())
    return bool((distances + torch.eye(len(logits)) > 1e-3).all())


@pytest.mark.parametrize("norms", slow_unless("pretrained".__eq__, ["trained", "pretrained"]))
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", slow_unless("bert".__eq__, FAMILIES))
def test_every_span_equals_a_run_of_its_own(
    family: str, dtype: str, norms: str, placed: Callable, tiny_examples: Callable, separate_runs: Callable
):
    model, encoded = placed(family, dtype), tiny_examples(family, LENGTHS)
    masks, variants = span_variants(3).masks, Variants(model, encoded, norms)
    expected = one_by_one(separate_runs(model, model.before, norms), encoded, masks)
    assert differ_everywhere(expected)
    for tokens_per_pass in (1, 130, 10**9):
        CLOSE[dtype](variants(masks, tokens_per_pass), expected)


@pytest.fixture(scope="module")
def brute(placed: Callable, tiny_examples: Callable, separate_runs: Callable) -> Callable[[str], tuple]:
    """For a choice of norms, a three-layer model and its logits under all 64 variants, run one by one."""
    model, encoded = placed("bert", hidden=16), tiny_examples("bert", (4, 9, 4, 1))
    known = {
        norms: (
            Variants(model, encoded, norms),
            one_by_one(separate_runs(model, model.before, norms), encoded, EVERY_MASK),
        )
        for norms in ("trained", "pretrained")
    }
    assert all(differ_everywhere(logits) for _, logits in known.values())
    return known.__getitem__


@given(
    masks=arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=12).map(lambda shape: (shape[0], 6))),
    tokens_per_pass=st.integers(1, 400),
    norms=st.sampled_from(["trained", "pretrained"]),
)
@example(masks=ON, tokens_per_pass=1, norms="trained")
@example(masks=~ON, tokens_per_pass=1, norms="pretrained")
@example(masks=np.repeat(ON, 3, axis=0), tokens_per_pass=18, norms="trained")
@example(masks=np.concatenate([ON, ~ON, ON, ~ON]), tokens_per_pass=18, norms="pretrained")
@example(masks=EVERY_MASK[::-1], tokens_per_pass=60, norms="pretrained")
@pytest.mark.slow
def test_any_masks_equal_runs_of_their_own(brute: Callable, masks, tokens_per_pass: int, norms: str):
    variants, every = brute(norms)
    logits, expected = variants(masks, tokens_per_pass), every[masks @ (1 << np.arange(6))]
    assert logits.shape == (len(masks), 4, 3)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 3), st.lists(st.booleans(), min_size=6, max_size=6)), min_size=1),
    tokens_per_pass=st.integers(1, 60),
    norms=st.sampled_from(["trained", "pretrained"]),
)
@pytest.mark.slow
def test_any_pairs_equal_runs_of_their_own(brute: Callable, pairs, tokens_per_pass: int, norms: str):
    """Of an example and a mask, as mixed precision repeats them."""
    variants, every = brute(norms)
    items, masks = np.array([item for item, _ in pairs]), np.array([mask for _, mask in pairs])
    logits = variants.pairs(items, masks, tokens_per_pass)
    torch.testing.assert_close(logits, every[masks @ (1 << np.arange(6)), items], rtol=0, atol=1e-10)


@given(
    family=st.sampled_from(FAMILIES),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    masks=arrays(bool, st.tuples(st.integers(1, 4), st.just(4))),
    tokens_per_pass=st.integers(1, 1000),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12, deadline=None)
@pytest.mark.slow
def test_any_examples_of_any_family_equal_runs_of_their_own(
    placed, tiny_examples, separate_runs, family, lengths, masks, tokens_per_pass, seed
):
    model, encoded = placed(family, layers=2, hidden=16), tiny_examples(family, lengths, seed)
    expected = one_by_one(separate_runs(model, model.before), encoded, masks)
    logits = Variants(model, encoded)(masks, tokens_per_pass)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "family", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "electra"))]
)
@pytest.mark.slow
def test_bfloat16_is_near(family: str, placed: Callable, tiny_examples: Callable, separate_runs: Callable):
    model, encoded, masks = placed(family), tiny_examples(family, LENGTHS), span_variants(3).masks
    for norms in ("trained", "pretrained"):
        expected = one_by_one(separate_runs(model, model.before, norms), encoded, masks)
        logits = Variants(model, encoded, norms, dtype=torch.bfloat16)(masks, 130)
        assert logits.dtype == torch.bfloat16
        error = (logits.double() - expected).square().mean().sqrt()
        assert 0 < error < 0.1 * expected.std(dim=0).square().mean().sqrt()


def test_a_single_layer_model(placed: Callable, tiny_examples: Callable, separate_runs: Callable):
    """Its first layer is also its last."""
    model, encoded = placed("roberta", layers=1), tiny_examples("roberta", LENGTHS)
    masks = np.array([[1, 1], [0, 1], [1, 0], [0, 0]], dtype=bool)
    expected = one_by_one(separate_runs(model, model.before), encoded, masks)
    torch.testing.assert_close(Variants(model, encoded)(masks, 64), expected, rtol=0, atol=1e-10)


def test_the_model_is_left_as_it_was(placed: Callable, tiny_examples: Callable):
    variants = Variants(placed("bert"), tiny_examples("bert", LENGTHS), "pretrained")
    before = {name: tensor.clone() for name, tensor in variants.model.state_dict().items()}
    first = variants(~ON)
    after = variants.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(first, variants(~ON))
