"""Bases in other precisions and for other heads: what is loaded, and what identifies it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft_cases import write_base
from refusals import naming
from transformers import BertConfig, BertModel, LlamaForCausalLM, LlamaModel

from adapter_probe.checkpoints.base import AnyLoaded, load_any_base
from adapter_probe.checkpoints.base_config import find_any_base
from adapter_probe.checkpoints.model_class import choose_class
from adapter_probe.errors import CheckpointError
from adapter_probe.kinds.table import about_kind
from adapter_probe.models.methods import FullFineTuning
from adapter_probe.training.own_methods import load_base


def saved(
    folder: Path, tied: bool = True, kind: type = LlamaForCausalLM, dtype: torch.dtype = torch.float32
) -> str:
    return str(write_base(folder, "llama", kind, dtype, tie_word_embeddings=tied))


def load(folder: str, head: str = "causal", dtype: torch.dtype = torch.float32) -> AnyLoaded:
    found = find_any_base(folder)
    return load_any_base(found, choose_class(folder, found.config, head, ()), None, dtype)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_the_weights_are_cast_and_identify_the_base_as_before(stored: torch.dtype, tmp_path: Path):
    folder = saved(tmp_path, dtype=stored)
    whole, half = load(folder), load(folder, dtype=torch.bfloat16)
    assert half.identity == whole.identity
    expected = dict(whole.model.named_parameters())
    for name, parameter in half.model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, expected[name].to(torch.bfloat16)), name
    assert half.model.lm_head.weight is half.model.model.embed_tokens.weight
    assert half.model.model.rotary_emb.inv_freq.dtype == torch.float32
    torch.testing.assert_close(
        half.model(torch.tensor([[1, 2, 3]])).logits,
        LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)(torch.tensor([[1, 2, 3]])).logits,
    )


def test_a_pooler_that_the_base_lacks_does_not_identify_it(tmp_path: Path):
    config = BertConfig(
        vocab_size=35, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    BertModel(config, add_pooling_layer=False).to(torch.float16).save_pretrained(tmp_path)
    whole, half = (load(str(tmp_path), "features", dtype) for dtype in (torch.float32, torch.bfloat16))
    assert {name.partition(".")[0] for name in whole.missing} == {"pooler"}
    assert half.identity == whole.identity
    assert load_any_base(
        find_any_base(str(tmp_path)), BertModel, None, torch.float32, seed=1
    ).identity == whole.identity  # fmt: skip


def test_an_output_embedding_of_its_own_identifies_the_base_too(tmp_path: Path):
    folder = saved(tmp_path, tied=False)
    first = load(folder).identity
    model = LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(tmp_path / "other")
    other = load(str(tmp_path / "other")).identity
    assert other.weights_sha256 != first.weights_sha256
    classifiers = [
        load(name, "classification").identity.weights_sha256 for name in (folder, str(tmp_path / "other"))
    ]
    assert classifiers[0] == classifiers[1]


def test_a_base_without_its_output_embedding_is_no_language_model(tmp_path: Path):
    task = SimpleNamespace(kind="causal", about=about_kind("causal"), label_names=())
    folder = saved(tmp_path, tied=False, kind=LlamaModel)
    with pytest.raises(CheckpointError, match=naming("1", "lm_head.weight")):
        load_base(find_any_base(folder), task, FullFineTuning(), 0)
    tied = find_any_base(saved(tmp_path / "tied", kind=LlamaModel))
    assert load_base(tied, task, FullFineTuning(), 0).missing == frozenset()
