"""What is special in some families: images, limits, and an anatomy of one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from refusals import naming
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)

from adapter_probe.data.packing import Group, pack
from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.bases.anatomy import length_limit
from adapter_probe.models.bases.encoder import layer_parts
from adapter_probe.models.bases.family import Anatomy
from adapter_probe.models.bases.parts import LayerNames
from adapter_probe.models.layer import Layer
from adapter_probe.models.methods import Adapters
from adapter_probe.probe.tree import forward_variants
from adapter_probe.spans import span_variants


def test_a_model_reads_as_far_as_the_limit_says(family: str, plain_model: Callable):
    plain = plain_model(family)
    assert length_limit(None, plain.config, 10**30) == 40
    assert length_limit(None, plain.config, 30) == length_limit(30, plain.config, 10**30) == 30
    with torch.no_grad():
        assert plain(torch.full((1, 40), 7)).logits.isfinite().all()


@pytest.mark.parametrize("name", ["distilbert", "mpnet", "albert", "deberta-v2"])
def test_learned_positions_end_there(name: str, plain_model: Callable):
    with pytest.raises((IndexError, RuntimeError)):
        plain_model(name)(torch.full((1, 41), 7))


def ernie() -> torch.nn.Module:
    """A family that is not in the table."""
    config = AutoConfig.for_model(
        "ernie", vocab_size=35, num_hidden_layers=3, hidden_size=32, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=40, use_task_id=False, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config).double().eval()


ERNIE = Anatomy(
    model_types=("ernie",),
    head=("ernie.pooler", "dropout", "classifier"),
    reads_sequence=("ernie.pooler",),
    pooler="pooler",
)


def test_another_family_runs_by_an_anatomy_of_ones_own(random_examples: Callable, own_logits: Callable):
    with pytest.raises(ModelError, match=naming("'ernie'", "anatomy=")) as caught:
        AdaptedModel(ernie())
    assert "\n" not in str(caught.value)
    model, encoded = AdaptedModel(ernie(), anatomy=ERNIE), random_examples([7, 3, 7])
    model.install(Adapters(4, 0.3), torch.Generator().manual_seed(0))
    model.double().eval()
    batch = pack(encoded, range(3))
    masks = span_variants(3).masks
    with torch.no_grad():
        own = own_logits(model.base, encoded, padded=False)[torch.from_numpy(batch.index)]
        for logits in (model(batch), forward_variants(model, batch, masks, tokens_per_pass=99)[0]):
            torch.testing.assert_close(logits, own, rtol=0, atol=1e-10)
    assert model.parameter_counts()["layernorms"] == 7 * 64


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ({"layers": "encoder.blocks.{}"}, "encoder.blocks.0"),
        ({"layer": LayerNames(query="attention.q")}, "attention.q"),
        ({"layer": LayerNames(attention_dropout="attention.drop")}, "attention.drop"),
        ({"norms": ("embeddings.norm",)}, "embeddings.norm"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_anatomy_that_does_not_fit_names_the_part(wrong: dict, part: str):
    with pytest.raises(ModelError, match=naming(f"'{part}'")):
        AdaptedModel(ernie(), anatomy=replace(ERNIE, **wrong)).parameter_counts()


VIT = Anatomy(
    model_types=("vit",),
    head=("classifier",),
    norms=(),
    final_norm="layernorm",
    layers="layers.{}",
    pre_norm=True,
    layer=LayerNames(
        attention="attention",
        query="attention.q_proj",
        key="attention.k_proj",
        value="attention.v_proj",
        attention_dropout="attention.attention_dropout",
        attention_out="attention.o_proj",
        attention_out_dropout="dropout",
        attention_norm="layernorm_before",
        attention_site="attention",
        ffn_in="mlp.fc1",
        activation="mlp.activation_fn",
        ffn_out="mlp.fc2",
        ffn_out_dropout="dropout",
        ffn_norm="layernorm_after",
        ffn_site="mlp",
    ),
)


def test_layers_of_an_image_model_have_the_same_anatomy():
    """Patches are positions: what is missing for images is only a batch of them."""
    config = AutoConfig.for_model(
        "vit", num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64, image_size=8,
        patch_size=4, num_channels=1, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    base = AutoModelForImageClassification.from_config(config).double().eval()
    if not hasattr(base.vit, "layers"):
        pytest.skip("this release of transformers names a ViT's parts in its older way")
    images = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    layers = [
        Layer(parts, VIT.attention(base.vit, parts.attention), VIT.pre_norm)
        for parts in layer_parts(base.vit, VIT)
    ]
    with torch.no_grad():
        hidden = base.vit.embeddings(images)
        n, length = hidden.shape[:2]
        hidden, groups = hidden.reshape(1, n * length, -1), (Group(0, n, length),)
        first = torch.arange(n) * length
        for number, layer in enumerate(layers):
            wanted = first if number == len(layers) - 1 else None
            hidden = layer.sites[0].finish(*layer.attention(hidden, groups, wanted))
            hidden = layer.sites[1].finish(*layer.ffn(hidden))
        logits = base.classifier(base.vit.layernorm(hidden[0]))
        torch.testing.assert_close(logits, base(images).logits, rtol=0, atol=1e-10)
