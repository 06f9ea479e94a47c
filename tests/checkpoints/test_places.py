from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from refusals import naming
from transformers import AutoConfig, AutoModelForSequenceClassification, FunnelConfig, T5Config

from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.bases.anatomy import anatomy_for, length_limit, supported_model_types

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "electra")
OTHERS = ("distilbert", "mpnet", "albert", "deberta-v2", "deberta", "modernbert")


def test_these_families_are_supported():
    assert sorted(supported_model_types()) == sorted(FAMILIES + OTHERS)


@pytest.mark.parametrize("config", [T5Config(), FunnelConfig()])
def test_another_family_is_refused_and_the_supported_are_named(config: object):
    with pytest.raises(ModelError) as caught:
        anatomy_for(config)
    for name in (config.model_type, *FAMILIES, *OTHERS, "adapter_probe/models/bases", "anatomy=..."):
        assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_of_another_family_is_refused():
    config = FunnelConfig(vocab_size=10, d_model=8, n_head=2, d_head=4, block_sizes=[1], d_inner=8)
    with pytest.raises(ModelError, match=naming("'funnel'", "bert, roberta")):
        AdaptedModel(AutoModelForSequenceClassification.from_config(config))


@pytest.mark.parametrize("change", [{"is_decoder": True}, {"add_cross_attention": True}])
def test_a_decoder_is_refused(change: dict):
    with pytest.raises(ModelError, match="decoder"):
        anatomy_for(AutoConfig.for_model("bert", **change))


def test_relative_positions_are_refused():
    with pytest.raises(ModelError, match=naming("'relative_key'", "'absolute'")):
        anatomy_for(AutoConfig.for_model("bert", position_embedding_type="relative_key"))


@pytest.mark.parametrize(
    ("family", "change", "allowed"),
    [
        ("albert", {"inner_group_num": 2}, "1"),
        ("albert", {"position_embedding_type": "relative_key"}, "'absolute'"),
        ("deberta-v2", {"conv_kernel_size": 3}, "0"),
        ("deberta", {"talking_head": True}, "False"),
        ("modernbert", {"classifier_pooling": "mean"}, "'cls'"),
    ],
)
def test_what_the_engine_does_not_compute_is_refused(family: str, change: dict, allowed: str):
    anatomy_for(AutoConfig.for_model(family))
    ((name, value),) = change.items()
    with pytest.raises(ModelError, match=naming(name, repr(value), allowed)):
        anatomy_for(AutoConfig.for_model(family, **change))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_length_limit_is_what_the_model_can_read(family: str, tiny_model: Callable):
    base = tiny_model(family, layers=1)[0].base
    limit = length_limit(None, base.config, tokenizer_limit=10**30)
    assert limit == 40
    assert base(torch.full((1, limit), 7)).logits.isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        base(torch.full((1, limit + 1), 7))


def test_the_least_of_all_limits_counts():
    config = AutoConfig.for_model("roberta", max_position_embeddings=514)
    assert length_limit(None, config, 10**30) == 512
    assert length_limit(None, config, 300) == 300
    assert length_limit(128, config, 300) == 128
    assert length_limit(1000, config, 10**30) == 512
    assert length_limit(3, config, 512) == 3


def test_a_limit_without_room_is_refused():
    with pytest.raises(ModelError, match=naming("max_length", "3", "2")):
        length_limit(2, AutoConfig.for_model("bert"), 512)
