"""Adapters scaled in place of off, in float64: against PEFT's own factors and interpolated weights."""

from __future__ import annotations

import copy

import numpy as np
import peft
import pytest
import torch
from mask_loop import output, read, spans
from refusals import naming
from tiers import slow_unless
from torch import nn
from tuners import IN_FLOAT32, INSIDE, TUNERS, tuned

from adapter_probe.errors import ModelError
from adapter_probe.replay.replay import Replay
from adapter_probe.replay.switches import Switches, blend
from adapter_probe.replay.two_weights import TwoWeights, finish_maps

STRENGTHS = (0.5, -1.0, 1.0000001)
SCALED_BY_PEFT = ("lora", "rslora", "rank_pattern", "biases", "some layers")
# PEFT cannot merge them, or merges what is outside the layers too.
UNMERGED = (
    "layer_replication", "embeddings", "tokens", "modules_to_save", "vera", "peanut", "hira", "biases",
    "beft",
)  # fmt: skip
MERGED_IN_FLOAT32 = ("deft",)  # by PEFT itself, whatever the model's precision


def masks_of(model: nn.Module, strength: float, x: dict) -> tuple[Replay, np.ndarray, torch.Tensor]:
    replay = Replay(model, x, switches=Switches(strength))
    masks = spans(len(replay.layers))[[0, 1, 3, len(replay.layers)]]
    return replay, masks, replay.outputs(x, masks.repeat(2, axis=1), rows=200, read=read)


def assert_close(
    ours: torch.Tensor, wanted: list[torch.Tensor], changes: bool = True, tolerance: float = 1e-10
) -> None:
    own = torch.stack(wanted)
    assert (ours - own).abs().max() < tolerance * max(1, float(own.abs().max()))
    assert not changes or (own - own[0]).abs().max() > 1e-3


def scaled_by_peft(model: nn.Module, masks: np.ndarray, strength: float, x: dict) -> list[torch.Tensor]:
    """Outputs with the LoRAs of layers that are off scaled by PEFT's own factors."""
    wanted = []
    for mask in masks:
        scaled = copy.deepcopy(model)
        for on, layer in zip(mask, scaled.get_base_model().model.layers):
            for module in layer.modules():
                if not on and isinstance(module, peft.tuners.lora.LoraLayer):
                    module.set_scale("default", strength)
        with torch.no_grad():
            wanted.append(output(scaled(**x)))
    return wanted


@pytest.mark.parametrize("finished", slow_unless(bool, [False, True]))
@pytest.mark.parametrize("name", slow_unless(lambda name: name == "lora", SCALED_BY_PEFT))
def test_a_lora_is_scaled_as_by_pefts_own_factors(name, finished):
    model, x = tuned(TUNERS[name])
    for strength in STRENGTHS:
        own = copy.deepcopy(model)
        if finished:
            finish_maps(own, strength)
        _, masks, ours = masks_of(own, strength, x)
        assert len(model.get_base_model().model.layers) == masks.shape[1]
        assert_close(ours, scaled_by_peft(model, masks, strength, x), strength != STRENGTHS[-1])


@pytest.mark.parametrize("name", slow_unless("dora".__eq__, [n for n in TUNERS if n not in UNMERGED]))
def test_every_tuner_lies_between_its_weights_without_and_with_it(name):
    dtype = torch.float32 if name in IN_FLOAT32 else None
    model, x = tuned(TUNERS[name], dtype=dtype)
    model = model.float() if name in INSIDE else model
    merged = copy.deepcopy(model).merge_and_unload().state_dict()
    plain = copy.deepcopy(model).unload()
    base = {key: value.clone() for key, value in plain.state_dict().items()}
    for strength in STRENGTHS[:2]:
        _, masks, ours = masks_of(model, strength, x)
        wanted = []
        for mask in masks:
            for key, value in plain.state_dict().items():
                layer = next((int(part) for part in key.split(".") if part.isdigit()), None)
                share = 1.0 if layer is None or mask[layer] else strength
                value.copy_(base[key] + share * (merged[key] - base[key]))
            with torch.no_grad():
                wanted.append(output(plain(**x)))
        exact = 1e-6 if name in MERGED_IN_FLOAT32 else 1e-10
        assert_close(ours, wanted, tolerance=1e-5 if name in INSIDE else exact)


@pytest.mark.slow
def test_a_model_is_left_as_it_was():
    for name in ("lora", "dora", "ia3"):
        model, x = tuned(TUNERS[name])
        before = {key: dict(vars(module)) for key, module in model.named_modules()}
        with torch.no_grad():
            intact = model(**x).logits
        masks_of(model, 0.5, x)
        after = {key: vars(module) for key, module in model.named_modules()}
        assert {k: {*v} for k, v in after.items()} == {k: {*v} for k, v in before.items()}
        assert all(after[key].get("scaling") == own.get("scaling") for key, own in before.items())
        with torch.no_grad():
            assert torch.equal(model(**x).logits, intact)


def test_experts_are_scaled_and_outputs_that_are_no_numbers_refused():
    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], target_parameters=targets)
    model, x = tuned(config, 0.1, "mixtral")
    _, masks, ours = masks_of(model, 0.5, x)
    assert_close(ours, scaled_by_peft(model, masks, 0.5, x))
    whole = torch.zeros(1, dtype=torch.long)
    assert blend(whole, whole, 0.5) is whole
    with pytest.raises(ModelError, match=naming("--strength 0.5", "Tensor")):
        blend(whole, whole + 1, 0.5)


def test_a_strength_that_overflows_with_the_loras_own_factor_is_infinite_and_no_error():
    model, _ = tuned(TUNERS["lora"])
    model = model.float()
    largest = float(np.finfo(np.float32).max)
    finish_maps(model, largest)
    weights = [module.scaled for module in model.modules() if isinstance(module, TwoWeights)]
    assert weights
    assert not torch.isfinite(weights[0]).all()
