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
from refusals import naming

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.probe.tree import forward_variants
from adapter_probe.spans import span_variants

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "electra")
QUICK = ("bert", "roberta", "electra")  # the others are of RoBERTa's row in the table
CLOSE = {"float64": assert_close_in_float64, "float32": partial(assert_close_in_float32, layers=3)}
LENGTHS = (5, 12, 1, 5, 40)
ON = np.ones((1, 6), dtype=bool)


def by_tree(
    model: AdaptedModel,
    encoded: Encoded,
    masks: np.ndarray,
    tokens_per_pass: int = 10**9,
    norms: str = "trained",
) -> torch.Tensor:
    """Logits ``[variants, examples, labels]``, put back into the dataset's order."""
    batch = pack(encoded, range(len(encoded)))
    logits = forward_variants(model, batch, masks, tokens_per_pass=tokens_per_pass, norms=norms)
    return logits[:, torch.from_numpy(batch.index).argsort()]


def one_by_one(run: Callable, encoded: Encoded, masks: np.ndarray) -> torch.Tensor:
    return torch.stack([run(encoded, mask) for mask in masks])


def differ_everywhere(logits: torch.Tensor) -> bool:
    """Whether every two variants differ by far more than any tolerance, so that none can pass for another."""
    distances = torch.cdist(logits.flatten(1).double(), logits.flatten(1).double())
    return bool((distances + torch.eye(len(logits)) > 1e-3).all())


@pytest.mark.parametrize("norms", ["trained", "pretrained"])
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES]
)
def test_every_span_equals_a_run_of_its_own(
    family: str,
    dtype: str,
    norms: str,
    tiny_model: Callable,
    tiny_examples: Callable,
    separate_runs: Callable,
):
    model, base_state = tiny_model(family, dtype=dtype)
    encoded = tiny_examples(family, LENGTHS)
    masks = span_variants(3).masks
    expected = one_by_one(separate_runs(model, base_state, norms), encoded, masks)
    assert differ_everywhere(expected)
    for tokens_per_pass in (1, 130, 10**9):
        logits = by_tree(model, encoded, masks, tokens_per_pass, norms)
        CLOSE[dtype](logits, expected)


@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize("sites", ["attention", "ffn"])
def test_spans_of_one_kind_of_site_equal_runs_of_their_own(
    sites: str, complement: bool, tiny_model: Callable, tiny_examples: Callable, separate_runs: Callable
):
    model, base_state = tiny_model("electra", dtype="float64")
    encoded = tiny_examples("electra", LENGTHS)
    masks = span_variants(3, sites, complement).masks
    for norms in ("trained", "pretrained"):
        expected = one_by_one(separate_runs(model, base_state, norms), encoded, masks)
        logits = by_tree(model, encoded, masks, 100, norms)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


@pytest.fixture(scope="module")
def brute(tiny_model: Callable, tiny_examples: Callable, separate_runs: Callable) -> dict:
    """For each choice of norms, the logits of all 64 variants of a three-layer model, run one by one."""
    model, base_state = tiny_model("bert", hidden=16, dtype="float64")
    encoded = tiny_examples("bert", (4, 9, 4, 1))
    every_mask = (np.arange(64)[:, None] >> np.arange(6)) % 2 == 1
    known = {
        norms: one_by_one(separate_runs(model, base_state, norms), encoded, every_mask)
        for norms in ("trained", "pretrained")
    }
    assert all(differ_everywhere(logits) for logits in known.values())
    return {"model": model, "encoded": encoded, **known}


@given(
    masks=arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=12).map(lambda shape: (shape[0], 6))),
    tokens_per_pass=st.integers(1, 400),
    norms=st.sampled_from(["trained", "pretrained"]),
)
@example(masks=ON, tokens_per_pass=1, norms="trained")
@example(masks=~ON, tokens_per_pass=1, norms="pretrained")
@example(masks=np.repeat(ON, 3, axis=0), tokens_per_pass=18, norms="trained")
@example(masks=np.concatenate([ON, ~ON, ON, ~ON]), tokens_per_pass=18, norms="pretrained")
@example(masks=(np.arange(64)[::-1, None] >> np.arange(6)) % 2 == 1, tokens_per_pass=60, norms="pretrained")
@settings(max_examples=50, deadline=None)
def test_any_masks_equal_runs_of_their_own(brute: dict, masks, tokens_per_pass: int, norms: str):
    logits = by_tree(brute["model"], brute["encoded"], masks, tokens_per_pass, norms)
    expected = brute[norms][masks @ (1 << np.arange(6))]
    assert logits.shape == (len(masks), 4, 3)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


@given(
    family=st.sampled_from(FAMILIES),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    masks=arrays(bool, st.tuples(st.integers(1, 4), st.just(4))),
    tokens_per_pass=st.integers(1, 1000),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_any_examples_of_any_family_equal_runs_of_their_own(
    tiny_model, tiny_examples, separate_runs, family, lengths, masks, tokens_per_pass, seed
):
    model, base_state = tiny_model(family, layers=2, hidden=16, dtype="float64", seed=seed)
    encoded = tiny_examples(family, lengths, seed)
    expected = one_by_one(separate_runs(model, base_state), encoded, masks)
    logits = by_tree(model, encoded, masks, tokens_per_pass)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "family", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "electra"))]
)
def test_bfloat16_is_near(
    family: str, tiny_model: Callable, tiny_examples: Callable, separate_runs: Callable
):
    model, base_state = tiny_model(family, dtype="float64")
    encoded = tiny_examples(family, LENGTHS)
    masks = span_variants(3).masks
    for norms in ("trained", "pretrained"):
        expected = one_by_one(separate_runs(model.double(), base_state, norms), encoded, masks)
        logits = by_tree(model.to(torch.bfloat16), encoded, masks, 130, norms)
        assert logits.dtype == torch.bfloat16
        error = (logits.double() - expected).square().mean().sqrt()
        assert 0 < error < 0.1 * expected.std(dim=0).square().mean().sqrt()


def test_a_single_layer_model(tiny_model: Callable, tiny_examples: Callable, separate_runs: Callable):
    """Its first layer is also its last."""
    model, base_state = tiny_model("roberta", layers=1, dtype="float64")
    encoded = tiny_examples("roberta", LENGTHS)
    masks = np.array([[1, 1], [0, 1], [1, 0], [0, 0]], dtype=bool)
    expected = one_by_one(separate_runs(model, base_state), encoded, masks)
    torch.testing.assert_close(by_tree(model, encoded, masks, 64), expected, rtol=0, atol=1e-10)


def test_a_variant_does_not_depend_on_its_company(tiny_model: Callable, tiny_examples: Callable):
    model, _ = tiny_model("bert", dtype="float64")
    encoded = tiny_examples("bert", LENGTHS)
    masks = span_variants(3).masks
    together = by_tree(model, encoded, masks, 200)
    for row, mask in enumerate(masks):
        alone = by_tree(model, encoded, mask[None], 200)
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-12)
    shuffled = np.random.default_rng(0).permutation(len(masks))
    torch.testing.assert_close(
        by_tree(model, encoded, masks[shuffled], 200), together[shuffled], rtol=0, atol=1e-12
    )


def test_the_intact_row_is_the_models_own_forward(tiny_model: Callable, tiny_examples: Callable):
    model, _ = tiny_model("camembert", dtype="float64")
    batch = pack(tiny_examples("camembert", LENGTHS), range(5))
    logits = forward_variants(model, batch, span_variants(3).masks, tokens_per_pass=100)
    with torch.no_grad():
        torch.testing.assert_close(logits[0], model(batch), rtol=0, atol=1e-12)


def test_the_model_is_left_as_it_was(tiny_model: Callable, tiny_examples: Callable):
    model, _ = tiny_model("bert")
    encoded = tiny_examples("bert", LENGTHS)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = by_tree(model, encoded, ~ON, norms="pretrained")
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(first, by_tree(model, encoded, ~ON, norms="pretrained"))


def test_masks_may_be_numbers(tiny_model: Callable, tiny_examples: Callable):
    model, _ = tiny_model("bert")
    encoded = tiny_examples("bert", LENGTHS)
    masks = span_variants(3).masks
    assert torch.equal(by_tree(model, encoded, masks.astype(int)), by_tree(model, encoded, masks))


@pytest.mark.parametrize(
    "masks",
    [
        np.ones(6),
        np.ones((0, 6)),
        np.ones((2, 5)),
        np.ones((2, 7)),
        np.ones((1, 2, 6)),
        np.ones((0, 0)),
        True,
    ],
    ids=lambda masks: str(np.shape(masks)),
)
def test_masks_of_another_shape_are_refused(masks, tiny_model: Callable, tiny_examples: Callable):
    model, _ = tiny_model("bert")
    with pytest.raises(ValueError, match=naming("[variants, 6]")) as caught:
        by_tree(model, tiny_examples("bert", [3]), masks)
    assert f"shape {np.shape(masks)}" in str(caught.value)
