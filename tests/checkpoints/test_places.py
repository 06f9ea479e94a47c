"""The table of families whose layers are known by name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from refusals import refuses
from transformers import AutoConfig, AutoModelForSequenceClassification, FunnelConfig, T5Config

from adapter_probe.checkpoints.base import positions_of
from adapter_probe.checkpoints.places import DECODERS, ENCODERS, FAMILIES, places_in
from adapter_probe.errors import ModelError

BERTS = ("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "electra")
OTHERS = ("distilbert", "mpnet", "albert", "deberta-v2", "deberta", "modernbert")
SMALL = {"vocab_size": 35, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
         "intermediate_size": 64, "pad_token_id": 1, "max_position_embeddings": 42}  # fmt: skip


def test_these_encoders_are_supported():
    assert sorted(ENCODERS) == sorted(BERTS + OTHERS)
    assert FAMILIES.keys() == ENCODERS.keys() | DECODERS.keys()


@pytest.mark.parametrize("config", [T5Config(), FunnelConfig()])
def test_another_family_is_refused_and_the_supported_are_named(config: object):
    with pytest.raises(ModelError) as caught:
        places_in(config)
    for name in (config.model_type, *BERTS, *OTHERS, *DECODERS):
        assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "change", "allowed"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "'absolute'"),
        ("albert", {"inner_group_num": 2}, "1"),
        ("albert", {"position_embedding_type": "relative_key"}, "'absolute'"),
        ("modernbert", {"classifier_pooling": "mean"}, "'cls'"),
    ],
)
def test_other_computations_are_refused(family: str, change: dict, allowed: str):
    places_in(AutoConfig.for_model(family))
    ((name, value),) = change.items()
    refuses(ModelError, (name, repr(value), allowed), places_in, AutoConfig.for_model(family, **change))


@pytest.mark.parametrize("family", [*BERTS, "distilbert", "mpnet", "albert", "deberta-v2"])
def test_the_length_limit_is_what_the_model_can_read(family: str):
    config = AutoConfig.for_model(family, **SMALL)
    base = AutoModelForSequenceClassification.from_config(config).eval()
    limit = positions_of(base)
    assert limit in (40, 42)
    with torch.no_grad():
        assert base(torch.full((1, limit), 7)).logits.isfinite().all()
        with pytest.raises((IndexError, RuntimeError)):
            base(torch.full((1, limit + 1), 7))


@pytest.mark.parametrize(("groups", "modules"), [(1, [0] * 5), (2, [0, 0, 0, 1, 1]), (5, [0, 1, 2, 3, 4])])
def test_layers_that_share_a_module_have_its_name(groups: int, modules: list[int]):
    config = SimpleNamespace(num_hidden_layers=5, num_hidden_groups=groups)
    names = ENCODERS["albert"].layer_names(config)
    assert names == tuple(f"encoder.albert_layer_groups.{n}.albert_layers.0" for n in modules)
