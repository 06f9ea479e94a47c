"""Causal language models: the final states and the output embedding against transformers' own logits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from exact import assert_close_in_float64 as close
from transformers import BertConfig, BertLMHeadModel

from adapter_probe.data.packing import Group, PackedBatch, pack
from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.probe.tree import forward_variants


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("tied", [True, False])
def test_logits_over_the_vocabulary(
    decoder: str, tied: bool, adapted_model: Callable, random_examples: Callable
):
    model, encoded = (
        adapted_model(decoder, causal=True, tie_word_embeddings=tied),
        random_examples([5, 12, 1]),
    )
    assert model.head_kind == "causal"
    assert (model.base.get_output_embeddings().weight is model.base.get_input_embeddings().weight) is tied
    batch = pack(encoded, range(3))
    with torch.no_grad():
        own = torch.cat(
            [model.base(torch.from_numpy(encoded.input_ids[i])[None]).logits[0] for i in batch.index]
        )
        assert own.std() > 0.05
        close(model(batch), own)
        on, off = forward_variants(model, batch, np.array([[True] * 6, [False] * 6]), tokens_per_pass=20)
    close(on, own)
    assert (on - off).abs().max() > 0.1


@pytest.mark.usefixtures("in_float64")
def test_logits_are_made_where_they_are_wanted(adapted_model: Callable, random_examples: Callable):
    model = adapted_model("llama", causal=True)
    batch = pack(random_examples([5, 7]), range(2))
    with torch.no_grad():
        hidden = model.embed(batch)
        for layer in model.layers:
            hidden = layer.sites[0].finish(*layer.attention(hidden, batch.groups))
            hidden = layer.sites[1].finish(*layer.ffn(hidden))
        states = model.final_states(hidden[0])
        some = torch.tensor([3, 11])
        own = [model.base(batch.input_ids[rows][None]) for rows in batch.rows]
        whole = torch.cat([model.base.base_model(batch.input_ids[r][None])[0][0] for r in batch.rows])
        close(states, whole)
        logits = torch.cat([out.logits[0] for out in own])[some]
        close(model.output_embedding(states[some]), logits)


CONTEXT, ENDS = 6, (3, 5)


def branched() -> tuple[PackedBatch, list[list[int]]]:
    """A context of 6 tokens with ends of 3 and 5, and which tokens of the batch each text is."""
    positions = torch.cat([torch.arange(CONTEXT), *(CONTEXT + torch.arange(n) for n in ENDS)])
    length = len(positions)
    texts = [[*range(CONTEXT), *range(6, 9)], [*range(CONTEXT), *range(9, 14)]]
    sees = torch.zeros(length, length, dtype=torch.bool)
    for text in texts:
        for place, token in enumerate(text):
            sees[token, text[: place + 1]] = True
    ids = torch.from_numpy(np.random.default_rng(3).integers(5, 35, length))
    group = Group(0, 1, length, positions=positions[None], sees=sees[None])
    return PackedBatch(np.array([0]), (group,), ids, None, torch.tensor([0])), texts


@pytest.mark.usefixtures("in_float64")
def test_texts_may_share_a_context(decoder: str, adapted_model: Callable):
    """Also beyond a sliding window of 8, where positions count and not places in the batch."""
    if decoder == "phi3, long":
        pytest.skip("refused, see the next test")
    model = adapted_model(decoder, causal=True)
    batch, texts = branched()
    with torch.no_grad():
        logits = model(batch)
        for text in texts:
            own = model.base(batch.input_ids[text][None]).logits[0]
            close(logits[text], own)


def test_rotations_by_the_texts_length_are_not_shared(adapted_model: Callable):
    model = adapted_model("phi3, long", causal=True)
    with torch.no_grad(), pytest.raises(ModelError, match=r"beyond 10 tokens .*'longrope'.* share a context"):
        model(branched()[0])


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_embedding_is_pretrained(tied: bool, adapted_model: Callable):
    model = adapted_model("llama", causal=True, tie_word_embeddings=tied)
    roles = {name: role for role, name, _ in model.named_roles()}
    assert roles.get("lm_head.weight") == (None if tied else "base")
    assert model.parameter_counts()["head"] == 0
    assert not any("lm_head" in name or "embed" in name for name in model.choose_trained(frozenset()))


def test_an_encoder_is_no_causal_model():
    encoder = BertLMHeadModel(BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1))
    with pytest.raises(ModelError, match="BertLMHeadModel is not supported; give a model for sequence class"):
        AdaptedModel(encoder)


def test_any_other_module_is_refused():
    with pytest.raises(ModelError, match="Linear is not supported; give a transformers model"):
        AdaptedModel(torch.nn.Linear(2, 2))
