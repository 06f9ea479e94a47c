"""Replay against the loop with PEFT's tuners, in float64; and those without a switch in the layers."""

from __future__ import annotations

import numpy as np
import peft
import pytest
import torch
from mask_loop import assert_equal_to_loop, randomise, spans
from peft import LoraConfig, get_peft_model
from refusals import naming
from tiny_families import family, lora

from adapter_probe.errors import ModelError
from adapter_probe.replay.replay import Replay
from adapter_probe.replay.two_weights import TwoWeights, bytes_of_finished, finish_maps

L = ["q_proj", "v_proj", "down_proj"]
TWO = ["q_proj", "o_proj"]
LM = {"task_type": "CAUSAL_LM"}


def newer(name: str, **settings: object) -> peft.PeftConfig | None:
    """A tuner that the lowest supported version of PEFT does not have; None where it is missing."""
    return getattr(peft, name)(**settings) if hasattr(peft, name) else None


TUNERS = {
    "lora": LoraConfig(r=4, target_modules=L),
    "dora": LoraConfig(r=4, target_modules=L, use_dora=True),
    "rslora": LoraConfig(r=4, target_modules=L, use_rslora=True),
    "rank_pattern": LoraConfig(r=4, target_modules=L, rank_pattern={"q_proj": 2}),
    "some layers": LoraConfig(r=4, target_modules=L, layers_to_transform=[1, 3]),
    "modules_to_save": LoraConfig(r=4, target_modules=L, modules_to_save=["lm_head", "input_layernorm"]),
    "embeddings": LoraConfig(r=4, target_modules=[*L, "embed_tokens"]),
    "biases": LoraConfig(r=4, target_modules=L, lora_bias=True),
    "layer_replication": LoraConfig(r=4, target_modules=L, layer_replication=[[0, 3], [1, 4]]),
    "ia3": peft.IA3Config(target_modules=L, feedforward_modules=["down_proj"], **LM),
    "ln_tuning": peft.LNTuningConfig(target_modules=["input_layernorm"], **LM),
    "loha": peft.LoHaConfig(r=4, target_modules=L),
    "lokr": peft.LoKrConfig(r=4, target_modules=L),
    "oft": peft.OFTConfig(oft_block_size=4, target_modules=L),
    "boft": peft.BOFTConfig(boft_block_size=4, target_modules=L),
    "hra": peft.HRAConfig(r=4, target_modules=L),
    "fourierft": peft.FourierFTConfig(n_frequency=50, target_modules=L),
    "vblora": peft.VBLoRAConfig(r=2, num_vectors=8, vector_length=8, topk=2, target_modules=L),
    "randlora": peft.RandLoraConfig(r=4, target_modules=TWO),
    "miss": peft.MissConfig(r=4, target_modules=L),
    "shira": peft.ShiraConfig(r=4, target_modules=L),
    "c3a": peft.C3AConfig(block_size=8, target_modules=L),
    "adalora": peft.AdaLoraConfig(init_r=6, target_r=4, total_step=10, target_modules=L),
    "vera": peft.VeraConfig(r=4, target_modules=["q_proj"]),
    "tokens": LoraConfig(r=4, target_modules=L, trainable_token_indices=[7]),
    "pissa": LoraConfig(r=4, target_modules=L, init_lora_weights="pissa"),
    "olora": LoraConfig(r=4, target_modules=L, init_lora_weights="olora"),
    "psoft": newer("PsoftConfig", r=4, target_modules=L),
    "pvera": newer("PveraConfig", r=4, target_modules=["q_proj"]),
    "adamss": newer("AdamssConfig", r=4, num_subspaces=2, subspace_rank=1, target_modules=L),
    "beft": newer("BeftConfig", target_modules=L),
    "deft": newer("DeftConfig", r=4, target_modules=L),
    "delora": peft.DeloraConfig(r=4, target_modules=L),
    "frod": newer("FrodConfig", target_modules=["q_proj"]),
    "glora": newer("GloraConfig", r=4, target_modules=L),
    "gralora": newer("GraloraConfig", r=4, target_modules=TWO, gralora_k=2),
    "hira": newer("HiraConfig", r=4, target_modules=L),
    "osf": peft.OSFConfig(effective_rank=4, target_modules=L),
    "peanut": newer("PeanutConfig", r=4, target_modules=L),
    "road": peft.RoadConfig(target_modules=L, group_size=8),
    "supertuning": newer("SupertuningConfig", target_modules=L),
    "tinylora": newer("TinyLoraConfig", r=2, target_modules=L),
    "unilora": newer("UniLoraConfig", r=4, theta_d_length=64, target_modules=L),
    "waveft": peft.WaveFTConfig(n_frequency=50, target_modules=L),
}
TUNERS = {name: config for name, config in TUNERS.items() if config}
IN_FLOAT32 = ("pissa", "olora", "psoft")  # whose start PEFT computes in this precision only
INSIDE = ("c3a",)  # which PEFT always computes in float32, where some processors round differently by batch
QUICK = ("lora", "ia3", "layer_replication")


def tuned(config, std=0.2, name="llama", dtype=None):
    base, x = family(name, dtype)
    model = get_peft_model(base, config).double()
    randomise(model, std)
    return model.eval(), x


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
