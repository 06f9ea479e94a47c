"""Pairs against the prefix tree's rows, and against the transformers model's own runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_probe.probe.pairs import pair_logits

LENGTHS = (5, 12, 1, 5, 20)


@pytest.fixture(scope="module")
def bert(tiny_model: Callable, tiny_examples: Callable, separate_runs: Callable):
    model, base_state = tiny_model("bert", dtype="float64")
    encoded = tiny_examples("bert", LENGTHS)
    runs = {norms: separate_runs(model, base_state, norms) for norms in ("trained", "pretrained")}
    return model.eval(), encoded, runs


PAIRS = st.lists(st.tuples(st.integers(0, 4), st.lists(st.booleans(), min_size=6, max_size=6)), min_size=1)


@settings(max_examples=25, deadline=None)
@given(PAIRS, st.integers(1, 60), st.sampled_from(["trained", "pretrained"]))
def test_each_pair_equals_a_run_of_its_own(bert, pairs, tokens_per_pass: int, norms: str):
    model, encoded, runs = bert
    items, masks = np.array([i for i, _ in pairs]), np.array([mask for _, mask in pairs])
    got = pair_logits(model, encoded, items, masks, tokens_per_pass=tokens_per_pass, norms=norms)
    expected = [runs[norms](encoded, mask)[item].numpy() for item, mask in zip(items, masks)]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_the_model_is_left_as_it_was(bert):
    model, encoded, _ = bert
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pair_logits(model, encoded, np.array([0]), np.zeros((1, 6), dtype=bool), tokens_per_pass=100)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(site._on for site in model.sites)
