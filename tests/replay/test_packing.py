"""Texts of several lengths in one row of a layer's call: the same numbers as each length alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
)

from adapter_probe.models.functional import can_pack_weight
from adapter_probe.probe.runners import pack
from adapter_probe.replay.attention import attending
from adapter_probe.replay.replay import Replay, logits
from adapter_probe.replay.tensors import split

SIZES = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
LENGTHS = ((3, 4), (1, 7), (5, 9), (2, 12))  # texts, and tokens of each


def bert(**settings: object) -> PreTrainedModel:
    return BertForSequenceClassification(BertConfig(**SIZES, intermediate_size=64, **settings))


def llama(**settings: object) -> PreTrainedModel:
    config = LlamaConfig(**SIZES, intermediate_size=64, num_key_value_heads=2, pad_token_id=99, **settings)
    return LlamaForSequenceClassification(config)


def gpt2() -> PreTrainedModel:
    sizes = {"vocab_size": 100, "n_embd": 32, "n_layer": 3, "n_head": 4, "pad_token_id": 99}
    return GPT2ForSequenceClassification(GPT2Config(**sizes))


def questions() -> PreTrainedModel:
    return BertForQuestionAnswering(BertConfig(**SIZES, intermediate_size=64))


def tuned(make: Callable[..., PreTrainedModel], targets: list[str], dtype: torch.dtype, **settings: object):
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    return get_peft_model(make(**settings), config).to(dtype).eval()


def texts(lengths: tuple[tuple[int, int], ...] = LENGTHS) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(5, 90, size, generator=generator) for size in lengths]
    return [{"input_ids": own, "attention_mask": torch.ones_like(own)} for own in ids]


def ends(_: torch.nn.Module, run: Callable, copies: int) -> torch.Tensor:
    out = run()
    return split(torch.stack([out["start_logits"], out["end_logits"]], dim=-1), 0, copies)


def prepared(model: torch.nn.Module, read: Callable = logits) -> Replay:
    replay = Replay(model, texts(((2, 3),))[0], read=read, one_position=read is logits)
    replay.find_packing(texts(((2, 3), (2, 6))), read)
    return replay


@pytest.mark.parametrize("rows", [4096, 90])
@pytest.mark.parametrize(
    ("make", "targets", "folds"),
    [
        (bert, ["attention.output.dense"], True),
        (bert, ["query", "value"], False),
        (llama, ["q_proj", "down_proj"], False),  # rotations follow the map of the keys
        (gpt2, ["c_proj"], False),  # queries, keys and values are one map
        (questions, ["value", "output.dense"], False),  # every position is read
    ],
)
def test_outputs_are_those_of_each_text_alone(make, targets, folds, rows):
    read = ends if make is questions else logits
    replay = prepared(tuned(make, targets, torch.float64), read)
    masks = np.random.default_rng(0).random((8, len(replay.has_adapter))) < 0.5
    masks[0] = True
    assert replay.packs
    assert (replay.folds is not None) == folds
    found = replay.twin().outputs_of_lengths(texts(), masks, rows=rows, read=read)
    for ours, inputs in zip(found, texts(), strict=True):
        for number in range(len(inputs["input_ids"])):
            alone = {name: x[number : number + 1] for name, x in inputs.items()}
            for values, mask in zip(ours, masks, strict=True):
                assert torch.allclose(values[number], replay.own(alone, mask, read)[0], rtol=0, atol=1e-10)


def in_batch(module: torch.nn.Module, args: tuple, out: torch.Tensor) -> torch.Tensor:
    return out + out.mean(dim=-2, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", ["attention of its own", "a mean over positions"])
def test_a_layer_that_mixes_positions_in_another_way_gets_one_length_at_a_time(how, dtype):
    settings = {"attn_implementation": "eager"} if how == "attention of its own" else {}
    model = tuned(bert, ["query"], dtype, **settings)
    if not settings:
        model.get_base_model().bert.encoder.layer[1].output.dense.register_forward_hook(in_batch)
    assert not prepared(model).packs


def test_rounding_in_float32_is_no_mixing():
    """Products over a wide layer are off by a dozen units, by the number of rows and the instruction set."""
    wide = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 2, "num_attention_heads": 12}
    config = LoraConfig(r=4, target_modules=["query"], init_lora_weights=False)
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=100, **wide, initializer_range=0.1))
    replay = Replay(get_peft_model(model, config).eval(), texts(((2, 3),))[0], read=logits, one_position=True)
    replay.find_packing(texts(((2, 3), (2, 6))))
    assert replay.packs


@pytest.mark.parametrize("batches_before", [0, 2])
@pytest.mark.parametrize("rows", [4096, 40])
def test_a_head_that_reads_another_position_than_in_the_example(rows, batches_before):
    """Its texts are computed at all positions again, in whichever batch they are."""
    replay = prepared(tuned(llama, ["q_proj", "v_proj"], torch.float64))
    inputs = texts()
    inputs[2]["input_ids"][1, -1] = 99  # ends in the padding token: the head reads the token before it
    masks = np.random.default_rng(0).random((4, len(replay.has_adapter))) < 0.5
    for _ in range(batches_before):
        replay.outputs_of_lengths(texts(), masks, rows=rows)
    assert replay.read_position is not None
    found = replay.outputs_of_lengths(inputs, masks, rows=rows)
    for ours, own in zip(found, inputs, strict=True):
        for values, mask in zip(ours, masks, strict=True):
            assert torch.allclose(values, replay.own(own, mask), rtol=0, atol=1e-10)


@pytest.mark.skipif(
    not can_pack_weight(torch.ones(1, dtype=torch.bfloat16)), reason="oneDNN has no bfloat16 here"
)
def test_few_programs_are_made_for_texts_of_many_lengths(capfd):
    """In bfloat16, oneDNN makes one for every number of rows of every map."""
    replay = prepared(tuned(bert, ["attention.output.dense"], torch.bfloat16))
    pack(layer.module for layer in replay.layers)
    masks = np.random.default_rng(0).random((12, len(replay.has_adapter))) < 0.5
    rng = np.random.default_rng(1)
    batches = [
        [*(own := rng.permutation(np.arange(10, 40))[:6]), 220 + rng.integers(16) - own.sum()]
        for _ in range(12)
    ]
    batches = [texts(tuple((1, int(length)) for length in own)) for own in batches]
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION):
        for batch in batches:
            replay.outputs_of_lengths(batch, masks, rows=1024)
    made = [line for line in capfd.readouterr().out.splitlines() if "create:cache_miss" in line]
    shapes = {line.split(",")[-2] for line in made if ",inner_product," in line}
    assert made
    assert len(shapes) < 80  # of 12 numbers of tokens, 3 times as many without rows of zeros


@pytest.mark.parametrize("family", [bert, llama])
def test_pairs_of_padded_texts(family):
    """Each pair's logits are those of its text alone; a head that reads the last position reads padding."""
    replay = prepared(tuned(family, ["query"] if family is bert else ["q_proj"], torch.float64))
    alone = [{name: x[:1] for name, x in own.items()} for own in texts()]
    longest = max(own["input_ids"].shape[1] for own in alone)
    padded = {
        name: torch.cat([F.pad(own[name], (0, longest - own[name].shape[1])) for own in alone])
        for name in alone[0]
    }
    replay.find_padding(alone, padded)
    assert replay.pads == (family is bert)
    if replay.pads:
        rng = np.random.default_rng(0)
        items, masks = rng.integers(len(alone), size=9), rng.random((9, len(replay.has_adapter))) < 0.5
        found = replay.outputs_of_pairs(padded, items, masks)
        for values, item, mask in zip(found, items, masks, strict=True):
            assert torch.allclose(values, replay.own(alone[item], mask), rtol=0, atol=1e-10)


def test_a_mask_that_the_model_does_not_take_hides_no_padding():
    replay = prepared(tuned(bert, ["query"], torch.float64))
    alone = [{"input_ids": own["input_ids"][:1]} for own in texts()[:2]]
    ids = [F.pad(own["input_ids"], (0, 7 - own["input_ids"].shape[1])) for own in alone]
    replay.find_padding(alone, {"input_ids": torch.cat(ids)})
    assert not replay.pads


def test_attention_is_replaced_in_one_thread_alone_and_put_back():
    own, x = F.scaled_dot_product_attention, torch.rand(1, 1, 3, 4)
    expected = own(x, x, x)
    with ThreadPoolExecutor(1) as other, attending(lambda *_: F.scaled_dot_product_attention(x, x, 2 * x)):
        torch.testing.assert_close(F.scaled_dot_product_attention(x, x, x), 2 * expected)
        torch.testing.assert_close(other.submit(F.scaled_dot_product_attention, x, x, x).result(), expected)
        with attending(lambda *_: x):
            assert F.scaled_dot_product_attention(x, x, x) is x
        torch.testing.assert_close(F.scaled_dot_product_attention(x, x, x), 2 * expected)
    assert F.scaled_dot_product_attention is own


def test_attention_that_somebody_else_replaces_meanwhile_stays_theirs(monkeypatch):
    own = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", own)  # is put back after the test
    x, theirs = torch.rand(1, 1, 3, 4), lambda *args: own(*args) + 1
    with attending(lambda *_: x):
        F.scaled_dot_product_attention = theirs
        with attending(lambda *_: 2 * x):
            torch.testing.assert_close(F.scaled_dot_product_attention(x, x, x), 2 * x)
    assert F.scaled_dot_product_attention is theirs
