"""One position of the last layer: where nothing else is read, and only there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_families import family, lora
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from adapter_probe.replay.replay import Replay
from adapter_probe.replay.tensors import split

SIZES = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def tuned(model: torch.nn.Module, targets: list[str], dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    return get_peft_model(model, config).to(dtype).eval()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2**-7), (torch.float64, 1e-12)])
def test_attention_is_not_given_one_position_in_any_precision(dtype, bound):
    torch.manual_seed(0)
    base = BertForSequenceClassification(BertConfig(**SIZES, intermediate_size=64))
    model = tuned(base, ["query", "value"], dtype)
    ids = torch.randint(5, 100, (3, 5), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    masks = np.random.default_rng(0).random((6, 4)) < 0.5
    one, all_ = (Replay(model, inputs, one_position=spare) for spare in (True, False))
    ours, own = (replay.outputs(inputs, masks).double() for replay in (one, all_))
    assert (ours - own).abs().max() <= bound * own.abs().max()


def test_pairs_of_a_text_whose_head_reads_another_position():
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, intermediate_size=64, num_key_value_heads=2, pad_token_id=99)
    model = tuned(LlamaForSequenceClassification(config), ["q_proj", "v_proj"], torch.float64)
    ids = torch.randint(5, 90, (3, 9), generator=torch.Generator().manual_seed(0))
    replay = Replay(model, {"input_ids": ids[:2]}, one_position=True)
    ids[1, -1] = 99  # ends in the padding token: the head reads the token before it
    masks = np.random.default_rng(0).random((6, 4)) < 0.5
    examples = np.array([0, 1, 2, 0, 1, 2])
    found = replay.outputs_of_pairs({"input_ids": ids}, examples, masks)[:, 0]
    own = [replay.own({"input_ids": ids}, mask)[example] for example, mask in zip(examples, masks)]
    assert torch.allclose(found, torch.stack(own), atol=1e-10)


def test_attention_over_windows_that_are_longer_than_what_is_read():
    """Longformer asserts that it is given whole windows."""
    base, inputs = family("longformer")
    model = lora(base)
    masks = np.random.default_rng(0).random((6, 8)) < 0.5
    replay = Replay(model, inputs, one_position=True)
    found = replay.outputs(inputs, masks)
    own = torch.stack([replay.own(inputs, mask) for mask in masks])
    assert replay._last is not None
    assert torch.allclose(found, own, atol=1e-10)


class Boxed(torch.nn.Module):
    """A module's result under a name."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return {"out": self.inner(*args, **kwargs)}


class Unboxed(Boxed):
    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)["out"]


def test_a_module_that_returns_no_tensor_is_left_as_it_is():
    torch.manual_seed(0)
    base = BertForSequenceClassification(BertConfig(**SIZES, intermediate_size=64))
    model = tuned(base, ["query", "value"], torch.float64)
    layer = base.bert.encoder.layer[-1]
    layer.attention.self = Unboxed(Boxed(layer.attention.self))
    inputs = {"input_ids": torch.randint(5, 100, (3, 5), generator=torch.Generator().manual_seed(0))}
    masks = np.random.default_rng(0).random((6, 4)) < 0.5
    one, all_ = (Replay(model, inputs, one_position=spare) for spare in (True, False))
    assert torch.allclose(one.outputs(inputs, masks), all_.outputs(inputs, masks), atol=1e-12)
    assert "intermediate" in one._last[1]


class Read:
    """The logits of some positions of every text."""

    def __init__(self, positions):
        self.positions = positions

    def where(self, rows, length):
        return (torch.arange(rows)[:, None] * length + torch.tensor(self.positions)).flatten()

    def __call__(self, model, run, copies):
        return split(run()["logits"][:, self.positions], 0, copies)


def test_a_language_model_computes_what_is_read():
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, intermediate_size=64, num_key_value_heads=2)
    model = tuned(LlamaForCausalLM(config), ["q_proj", "v_proj"], torch.float64)
    ids = torch.randint(5, 90, (3, 9), generator=torch.Generator().manual_seed(0))
    replay, rows = Replay(model, {"input_ids": ids[:1, :6]}, read=Read([0, 4])), []
    replay.layers[-1].module.mlp.gate_proj.register_forward_hook(
        lambda _, x, out: rows.append(out.shape[:-1])
    )
    masks = np.random.default_rng(0).random((6, 4)) < 0.5
    found = replay.outputs({"input_ids": ids}, masks, read=Read([1, 5, 8]))
    assert all(shape[0] == 1 and shape[1] % 9 == 0 and shape[1] <= 4 * 9 for shape in rows[1:])
    own = [replay.own({"input_ids": ids}, mask, Read([1, 5, 8])) for mask in masks]
    assert torch.allclose(found, torch.stack(own), atol=1e-10)
    assert all(name.startswith(("mlp", "post_", "self_attn.q_", "self_attn.o_")) for name in replay._last[1])
