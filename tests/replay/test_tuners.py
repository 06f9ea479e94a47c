"""Replay against the loop with PEFT's tuners, in float64; and those without a switch in the layers."""

from __future__ import annotations

import numpy as np
import peft
import pytest
import torch
from mask_loop import assert_equal_to_loop, spans
from peft import LoraConfig, get_peft_model
from refusals import naming
from tiny_families import family, lora
from tuners import IN_FLOAT32, INSIDE, LM, TUNERS, TWO, tuned

from adapter_probe.errors import ModelError
from adapter_probe.replay.replay import Replay
from adapter_probe.replay.two_weights import TwoWeights, bytes_of_finished, finish_maps

QUICK = ("lora", "ia3", "layer_replication")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in TUNERS]
)
def test_every_span_equals_the_loop(name):
    dtype = torch.float32 if name in IN_FLOAT32 else None
    model, x = tuned(TUNERS[name], 1.0 if name == "vera" else 0.2, dtype=dtype)
    exact = name not in INSIDE
    replay = Replay(model if exact else model.float(), x)
    tolerance = 1e-10 if exact else 1e-5
    assert_equal_to_loop(replay, x, spans(len(replay.layers)), tolerance)
    if name not in ("modules_to_save", "embeddings"):  # all that the tuner changes is inside the layers
        off = replay.outputs(x, np.zeros((1, len(replay.has_adapter)), bool))[0]
        with torch.no_grad(), model.disable_adapter():
            assert torch.allclose(model(**x).logits, off, atol=tolerance)


@pytest.mark.slow
def test_of_two_adapters_the_active_one_is_switched():
    model, x = tuned(TUNERS["lora"])
    model.add_adapter("other", LoraConfig(r=2, target_modules=TWO, init_lora_weights=False))
    model.double().eval()
    replay = Replay(model, x)
    first = replay.outputs(x, np.ones((1, len(replay.has_adapter)), bool))
    model.set_adapter("other")
    replay = Replay(model, x)
    assert_equal_to_loop(replay, x, spans(len(replay.layers)))
    assert (replay.outputs(x, np.ones((1, len(replay.has_adapter)), bool)) - first).abs().max() > 1e-3


def test_lora_on_the_parameters_of_experts_belongs_to_the_feed_forward_network():
    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    model, x = tuned(LoraConfig(r=4, target_modules=["q_proj"], target_parameters=targets), 0.1, "mixtral")
    replay = Replay(model, x)
    assert [len(layer.parts[1]) for layer in replay.layers] == [2] * 4
    assert_equal_to_loop(replay, x, spans(4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        peft.PromptTuningConfig(num_virtual_tokens=3, **LM),
        peft.PrefixTuningConfig(num_virtual_tokens=3, **LM),
        peft.PromptEncoderConfig(num_virtual_tokens=3, encoder_hidden_size=16, **LM),
        peft.AdaptionPromptConfig(adapter_len=3, adapter_layers=2, **LM),
        peft.TrainableTokensConfig(token_indices=[7], target_modules=["embed_tokens"]),
    ],
    ids=lambda config: config.peft_type.value,
)
def test_tuners_without_a_switch_in_the_layers_are_refused(config):
    base, x = family("llama")
    with pytest.raises(ModelError, match=naming("no", "layer", "adapter")):
        Replay(get_peft_model(base, config).double().eval(), x)


@pytest.mark.skipif(not hasattr(peft, "LilyConfig"), reason="this version of PEFT has no Lily")
def test_a_router_that_averages_over_the_batch_is_refused():
    model, x = tuned(peft.LilyConfig(target_modules=TWO), 0.1)
    with pytest.raises(ModelError, match=naming("text", "texts", "batch")):
        Replay(model, x)


def test_hooks_of_the_whole_forward_are_refused():
    base, x = family("llama")
    x["input_ids"][:, -3] = 7
    model = lora(base, alora_invocation_tokens=[7], task_type="CAUSAL_LM")
    with pytest.raises(ModelError) as caught:
        Replay(model, x)
    assert isinstance(caught.value.__cause__, IndexError)  # of the hook, which keeps the whole batch's mask
    assert str(caught.value.__cause__) in str(caught.value)


def test_merged_adapters_are_refused():
    model, x = tuned(TUNERS["lora"])
    model.merge_adapter()
    with pytest.raises(ModelError, match=naming("merged", "q_proj")):
        Replay(model, x)


@pytest.mark.parametrize("name", ["llama", pytest.param("mixtral", marks=pytest.mark.slow), "bert"])
def test_two_finished_weights_and_a_twin_equal_pefts_switches(name):
    base, x = family(name)
    replay = Replay(lora(base), x)
    n = len(replay.has_adapter)
    masks = np.concatenate([np.ones((1, n)), np.random.default_rng(0).random((5, n)) < 0.5]).astype(bool)
    want, expected = replay.outputs(x, masks), bytes_of_finished(base)
    assert finish_maps(replay.model) == expected > 0
    assert sum(isinstance(module, TwoWeights) for module in replay.model.modules()) >= 4
    finished = Replay(replay.model, x)
    twin = finished.twin()
    shared = {id(p) for p in finished.model.parameters()}
    assert twin.model is not finished.model
    assert all(id(p) in shared for p in twin.model.parameters())
    for one in (finished, twin):
        assert abs(one.outputs(x, masks) - want).max() < 1e-10


def test_of_packed_maps_the_added_weights_alone_are_freed():
    model, _ = tuned(TUNERS["lora"])
    finish_maps(model, 0.5)
    module = next(module for module in model.modules() if isinstance(module, TwoWeights))
    x, weight = torch.randn(3, module.off.shape[1], dtype=module.off.dtype), module.off
    wanted = [torch.nn.functional.linear(x, w, module.bias) for w in (module.on, module.scaled, module.off)]
    module.pack(lambda linear: linear)
    assert module.off is weight
    assert module.on.numel() == module.scaled.numel() == 0
    for own, choose in zip(
        wanted,
        (lambda: module.choose(True), lambda: module.choose(False), lambda: module.enable_adapters(False)),
    ):
        choose()
        assert torch.equal(module(x), own)
