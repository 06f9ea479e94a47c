"""Extractive question answering: a head that reads every position."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from refusals import naming
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, AutoModelForQuestionAnswering

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import PackedBatch, pack
from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.methods import Adapters, FullFineTuning, TopLayers

ROBERTAS = ("xlm-roberta", "camembert", "data2vec-text")  # of the same row in the table
FAMILIES = ("bert", "roberta", "electra", *(pytest.param(n, marks=pytest.mark.slow) for n in ROBERTAS))
LENGTHS = (5, 12, 1, 5, 12, 3)


def own_logits(model: AdaptedModel, encoded: Encoded, batch: PackedBatch) -> torch.Tensor:
    """Start and end logits ``[tokens, 2]`` of the transformers model, one example at a time."""
    rows = []
    for example in batch.index:
        ids = torch.from_numpy(encoded.input_ids[example])[None]
        types = encoded.token_type_ids and torch.from_numpy(encoded.token_type_ids[example])[None]
        out = model.base(ids, token_type_ids=types)
        rows.append(torch.stack([out.start_logits[0], out.end_logits[0]], dim=1))
    return torch.cat(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_token_gets_the_models_own_start_and_end(
    family: str, make_model: Callable, tiny_examples: Callable
):
    model, encoded = make_model(family, Adapters(5, 0.3), spans=True), tiny_examples(family, LENGTHS)
    assert model.reads_all_positions
    batch = pack(encoded, range(len(encoded)))
    with torch.no_grad():
        logits = model(batch)
        assert logits.shape == (38, 2)
        torch.testing.assert_close(logits, own_logits(model, encoded, batch), rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", [Adapters(5, 0.3), TopLayers(1), FullFineTuning()], ids=str)
def test_gradients_equal_those_of_the_models_own_forward(
    method: object, make_model: Callable, tiny_examples: Callable
):
    model = make_model("bert", method, spans=True, dropout=0.0)
    encoded = tiny_examples("bert", LENGTHS)
    batch = pack(encoded, range(len(encoded)))
    trained = list(model.train().choose_trained(frozenset()).values())
    target = torch.tensor([3, 30])

    def gradients(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(F.cross_entropy(logits.T, target), trained)

    ours = gradients(model(batch))
    for one, other in zip(ours, gradients(own_logits(model, encoded, batch)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_its_head_and_only_that_is_the_head(family: str, make_model: Callable):
    model = make_model(family, Adapters(4), spans=True)
    heads = {name for group, name, _ in model.named_roles() if group == "head"}
    assert heads == {"qa_outputs.weight", "qa_outputs.bias"}
    assert model.parameter_counts()["pooler"] == 0
    assert not make_model(family, Adapters(4)).reads_all_positions


def test_a_span_head_needs_two_outputs(tiny_base: Callable):
    base = AutoModelForQuestionAnswering.from_pretrained(tiny_base("bert"), num_labels=3)
    with pytest.raises(ModelError, match=naming("BertForQuestionAnswering", "3")):
        AdaptedModel(base)


def test_a_model_with_another_head_is_refused(tiny_base: Callable):
    with pytest.raises(ModelError, match=naming("RobertaForMaskedLM")):
        AdaptedModel(AutoModelForMaskedLM.from_pretrained(tiny_base("roberta")))
