"""An anatomy that does not fit is refused by name, and the check leaves no trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from refusals import naming
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.bases.anatomy import anatomy_for
from adapter_probe.models.bases.attention import Attention
from adapter_probe.models.bases.family import Anatomy

SMALL = {
    "vocab_size": 50, "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4,
    "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "pad_token_id": 0, "initializer_range": 0.3,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def made(model_type: str, **changes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(
        AutoConfig.for_model(model_type, **{**SMALL, **changes})
    )


def row(model_type: str) -> Anatomy:
    return anatomy_for(AutoConfig.for_model(model_type))


def test_parameters_that_no_part_owns_are_named():
    base = made("bert")
    for layer in base.bert.encoder.layer:
        layer.output.gate = nn.Linear(32, 32)
    with pytest.raises(ModelError, match=naming("layer 0", "bert", "'output.gate.weight'")):
        AdaptedModel(base)


@pytest.mark.parametrize(
    ("model_type", "changes", "what"),
    [
        ("modernbert", {"attention": Attention}, "layer 0"),
        ("modernbert", {"final_norm": None}, "the head"),
        ("electra", {"projection": None}, "the embeddings"),
        ("bert", {"pre_norm": True}, "layer 0"),
    ],
)
def test_what_is_computed_otherwise_is_named(model_type: str, changes: dict, what: str):
    base = made(model_type)
    with pytest.raises(ModelError, match=naming(model_type, what)):
        AdaptedModel(base, anatomy=replace(row(model_type), **changes))


def test_infinite_outputs_of_the_base_itself_are_no_misfit():
    base = made("modernbert")
    base.model.final_norm.weight.data.fill_(3e38)
    with pytest.raises(ModelError, match=naming("transformers", "NaN", "infinite", "the head", "modernbert")):
        AdaptedModel(base)


def test_an_error_inside_torch_names_the_layer():
    """Half of what a gated map gives is too narrow for the next map, and torch has an error of its own."""
    base, anatomy = made("bert"), row("bert")
    with pytest.raises(ModelError, match=naming("layer 0", "mat1 and mat2 shapes")) as caught:
        AdaptedModel(
            base,
            anatomy=replace(
                anatomy,
                layer=replace(anatomy.layer, ffn_in_gated=True),
            ),
        )
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_layer_that_differs_from_the_others_is_named():
    """As SmolLM3's layers without rotary positions, where nothing in a parameter's name tells."""
    base = made("bert")
    attention = base.bert.encoder.layer[1].attention.self
    attention.forward = lambda hidden_states, *_, **__: (attention.query(hidden_states), None)
    with pytest.raises(ModelError, match=naming("bert", "layer 1")):
        AdaptedModel(base)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", ["modernbert", "bert"])
def test_rounding_is_no_misfit(model_type: str, dtype: torch.dtype):
    """Nor where a few states are very large, as in trained models."""
    base = made(model_type, num_hidden_layers=12)
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if "embed" in name and parameter.dim() == 2:
                parameter[:, 3] += 1000
    AdaptedModel(base.to(dtype))


def test_nothing_is_left_behind():
    base = made("bert").train()
    base.bert.encoder.layer[1].eval()
    modes = [module.training for module in base.modules()]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with pytest.raises(ModelError, match="the head"):
        AdaptedModel(
            base,
            anatomy=replace(
                row("bert"), head=("bert.pooler", "classifier", "dropout", "dropout", torch.tanh)
            ),
        )
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in base.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in base.modules())
    AdaptedModel(base)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in base.modules()] == modes
    assert all(parameter.grad is None for parameter in base.parameters())
