"""The packed forward against the transformers model's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from exact import assert_close_in_float32, assert_close_in_float64
from torch.nn import functional as F

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.models.adapted import AdaptedModel

ROBERTAS = ("xlm-roberta", "camembert", "data2vec-text")  # of the same row in the table
FAMILIES = ("bert", "roberta", "electra", *(pytest.param(n, marks=pytest.mark.slow) for n in ROBERTAS))
CLOSE = {"float64": assert_close_in_float64, "float32": partial(assert_close_in_float32, layers=3)}
LENGTHS = (5, 12, 1, 5, 40, 12, 3, 5, 2)


def padded(model: AdaptedModel, encoded: Encoded) -> torch.Tensor:
    """Logits of the transformers model's own forward on one padded batch."""
    longest = max(encoded.lengths)
    ids = torch.full((len(encoded), longest), model.base.config.pad_token_id)
    attention, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, example in enumerate(encoded.input_ids):
        ids[row, : len(example)] = torch.from_numpy(example)
        attention[row, : len(example)] = 1
        if encoded.token_type_ids is not None:
            types[row, : len(example)] = torch.from_numpy(encoded.token_type_ids[row])
    return model.base(input_ids=ids, attention_mask=attention, token_type_ids=types).logits


def packed(model: AdaptedModel, encoded: Encoded) -> torch.Tensor:
    """Logits of the packed forward, put back into the dataset's order."""
    batch = pack(encoded, range(len(encoded)))
    logits = model(batch)
    return logits[torch.from_numpy(batch.index).argsort()]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_the_models_own_forward(
    family: str, dtype: str, tiny_model: Callable, tiny_examples: Callable, separate_runs: Callable
):
    model, base_state = tiny_model(family, dtype=dtype)
    encoded = tiny_examples(family, LENGTHS)
    with torch.no_grad():
        logits = packed(model, encoded)
        own = padded(model, encoded)
    alone = separate_runs(model, base_state)(encoded, [True] * 6)
    assert alone.std(dim=0).max() > 0.1  # examples differ, so there is something to tell apart
    assert logits.dtype == getattr(torch, dtype)
    for expected in (own, alone):
        CLOSE[dtype](logits, expected)


@pytest.mark.parametrize("activation", ["gelu_tanh", "relu", "swish", "tanh"])
def test_every_activation_reaches_the_adapters(
    activation: str, tiny_model: Callable, tiny_examples: Callable, separate_runs: Callable
):
    model, base_state = tiny_model("bert", activation=activation, dtype="float64")
    encoded = tiny_examples("bert", [4, 7])
    expected = separate_runs(model, base_state)(encoded, [True] * 6)
    with torch.no_grad():
        torch.testing.assert_close(packed(model, encoded), expected, rtol=0, atol=1e-10)


def test_token_types_matter(tiny_model: Callable, tiny_examples: Callable):
    model, _ = tiny_model("bert")
    encoded = tiny_examples("bert", [6, 9])
    without = Encoded(encoded.input_ids, None, "")
    with torch.no_grad():
        assert (packed(model, encoded) - packed(model, without)).abs().max() > 0.01
        zeros = Encoded(encoded.input_ids, tuple(0 * t for t in encoded.token_type_ids), "")
        torch.testing.assert_close(packed(model, zeros), packed(model, without))


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_gradients_equal_those_of_the_models_own_forward(
    family: str, tiny_model: Callable, tiny_examples: Callable
):
    model, _ = tiny_model(family, dropout=0.0, dtype="float64")
    encoded = tiny_examples(family, LENGTHS)
    labels = torch.arange(len(encoded)) % 3
    trained = model.train().choose_trained(frozenset())
    gradients = [
        torch.autograd.grad(F.cross_entropy(forward(model, encoded), labels), list(trained.values()))
        for forward in (packed, padded)
    ]
    for name, ours, own in zip(trained, *gradients):
        assert own.abs().max() > 0, name
        torch.testing.assert_close(ours, own, rtol=0, atol=1e-10, msg=name)


DROPOUTS = (
    "embeddings.dropout",
    "attention.self.dropout",
    "attention.output.dropout",
    "layer.1.output.dropout",
)


@pytest.mark.parametrize("where", DROPOUTS)
def test_each_dropout_acts_in_training_and_only_there(
    where: str, tiny_model: Callable, tiny_examples: Callable
):
    model, _ = tiny_model("bert", dropout=0.0)
    encoded = tiny_examples("bert", [8, 8, 11])
    dropouts = [m for name, m in model.base.named_modules() if name.endswith(where)]
    assert dropouts
    with torch.no_grad():
        still = packed(model.train(), encoded)
        for dropout in dropouts:
            dropout.p = 0.4
        assert not torch.allclose(packed(model, encoded), still, atol=1e-3)
        torch.testing.assert_close(packed(model.eval(), encoded), still)


def test_attention_dropout_has_the_models_probability(tiny_model: Callable, tiny_examples: Callable):
    """The variance of what comes out is p / (1 - p) times the sum of the squares of the weighted values."""
    model, _ = tiny_model("bert", layers=1, heads=1, dropout=0.0, dtype="float64")
    batch = pack(tiny_examples("bert", [10]), [0])
    layer, parts, p = model.layers[0], model.layers[0].parts, 0.3
    with torch.no_grad():
        hidden = model.embed(batch)
        query, key, value = (
            part(hidden)[0] for part in (layer.parts.query, layer.parts.key, layer.parts.value)
        )
        weights = torch.softmax(query @ key.T / 32**0.5, dim=-1)
        layer.parts = replace(parts, attention_out=torch.nn.Identity())
        parts.attention_dropout.train().p = p
        torch.manual_seed(0)
        draws = torch.stack([layer.attention(hidden, batch.groups)[0][0] for _ in range(500)])
    expected = weights**2 @ value**2 * p / (1 - p)
    assert (draws.mean(dim=0) - weights @ value).abs().max() < 0.25 * expected.sqrt().max()
    assert draws.var(dim=0).mean() == pytest.approx(expected.mean().item(), rel=0.1)
