from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, DistilBertConfig, GPT2Config

from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.anatomy import anatomy_for, length_limit, supported_model_types

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "electra")


def test_these_families_are_supported():
    assert set(supported_model_types()) == set(FAMILIES)


@pytest.mark.parametrize("config", [DistilBertConfig(), GPT2Config()])
def test_another_family_is_refused_and_the_supported_are_named(config: object):
    with pytest.raises(ModelError) as caught:
        anatomy_for(config)
    for name in (config.model_type, *FAMILIES):
        assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_of_another_family_is_refused():
    config = DistilBertConfig(vocab_size=10, dim=8, n_heads=2, n_layers=1, hidden_dim=8)
    with pytest.raises(ModelError, match="'distilbert' is not supported; supported are bert, roberta"):
        AdaptedModel(AutoModelForSequenceClassification.from_config(config))


@pytest.mark.parametrize("change", [{"is_decoder": True}, {"add_cross_attention": True}])
def test_a_decoder_is_refused(change: dict):
    with pytest.raises(ModelError, match="decoder"):
        anatomy_for(AutoConfig.for_model("bert", **change))


def test_relative_positions_are_refused():
    with pytest.raises(ModelError, match="'relative_key' is not supported; allowed is 'absolute'"):
        anatomy_for(AutoConfig.for_model("bert", position_embedding_type="relative_key"))


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
    with pytest.raises(ModelError, match="max_length 2 is not allowed; give at least 3"):
        length_limit(2, AutoConfig.for_model("bert"), 512)
