"""Adapters with their largest directions only, against an SVD of PEFT's own delta weights, in float64."""

from __future__ import annotations

import copy

import numpy as np
import peft
import pytest
import torch
from mask_loop import output, read, spans
from peft.tuners.tuners_utils import BaseTunerLayer
from refusals import naming
from tiers import slow_unless
from tiny_families import TARGETS, family, lora
from torch import nn
from tuners import TUNERS, tuned

from adapter_probe.errors import ModelError
from adapter_probe.replay.directions import directions, rank_of, refuse_without, truncate
from adapter_probe.replay.replay import Replay
from adapter_probe.replay.sharing import sharing
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.two_weights import TwoWeights, finish_maps

BY_FACTORS = ("lora", "rslora", "rank_pattern", "biases", "adalora", "some layers")
BY_MATRIX = ("vera", "loha", "lokr", "fourierft", "randlora", "shira")
FAMILIES = ("llama", "bert", "t5 (labels)", "mamba", "gpt2", "beit", "vit", "qwen2", "gemma2", "opt")
WITHOUT = ("ia3", "ln_tuning", "oft", "boft", "hra")
RANK = 2


def truncated(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """The best matrix of a rank, by NumPy."""
    u, s, v = np.linalg.svd(matrix.detach().double().numpy(), full_matrices=False)
    return torch.from_numpy((u[..., :rank] * s[..., None, :rank]) @ v[..., :rank, :])


def by_hand(model: nn.Module, off: list[int], rank: int) -> torch.nn.Module:
    """The model whose base has what PEFT's adapters add in its weights, truncated in some layers."""
    plain = copy.deepcopy(model).unload()
    with torch.no_grad():
        for name, module in model.get_base_model().named_modules():
            if isinstance(module, BaseTunerLayer):
                layer, base = int(name.split(".layers.")[1].split(".")[0]), module.get_base_layer()
                delta = module.get_delta_weight("default").to_dense().double()
                delta = truncated(delta, rank) if layer in off else delta
                of = plain.get_submodule(name)
                of.weight.copy_(base.weight + delta)
                if getattr(module, "lora_bias", {}).get("default"):
                    bias = module.scaling["default"] * module.lora_B["default"].bias
                    of.bias = nn.Parameter(bias if base.bias is None else base.bias + bias)
    return plain


def compared(model: nn.Module, x: dict, rank: int, wanted, finished: bool = False) -> None:
    own = copy.deepcopy(model)
    if finished:
        assert finish_maps(own, rank=rank)
    replay = Replay(own, x, read=read, switches=Switches(rank=rank))
    n = len(replay.layers)
    masks = spans(n)[[0, 1, 3, n]]
    for part in (replay, replay.twin()):
        ours = part.outputs(x, masks.repeat(2, axis=1), rows=200, read=read)
        for mask, found in zip(masks, ours):
            with torch.no_grad():
                exact = output(wanted(np.flatnonzero(~mask).tolist())(**x))
            assert (found - exact).abs().max() < 1e-9 * max(1, float(exact.abs().max()))
        assert (ours - ours[0]).abs().max() > 1e-4


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "lora", [*BY_FACTORS, *BY_MATRIX]))
def test_every_span_equals_an_svd_of_the_delta_weights(name):
    model, x = tuned(TUNERS[name])
    rank = 3 if name == "rank_pattern" else RANK  # some of whose maps have fewer
    compared(model, x, rank, lambda off: by_hand(model, off, rank))
    if name == "lora":
        compared(model, x, RANK, lambda off: by_hand(model, off, RANK), finished=True)


def test_of_a_dora_the_direction_is_truncated_and_the_lengths_stay():
    model, x = tuned(TUNERS["dora"])

    def wanted(off: list[int]) -> nn.Module:
        own = copy.deepcopy(model)
        with torch.no_grad():
            for number in off:
                for module in own.get_base_model().model.layers[number].modules():
                    if isinstance(module, peft.tuners.lora.LoraLayer):
                        a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
                        u, s, v = np.linalg.svd((b @ a).numpy(), full_matrices=False)
                        a.zero_(), b.zero_()
                        a[:RANK] = torch.from_numpy(v[:RANK])
                        b[:, :RANK] = torch.from_numpy(u[:, :RANK] * s[:RANK])
        return own

    compared(model, x, RANK, wanted)


@pytest.mark.slow
def test_experts_have_directions_each():
    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], target_parameters=targets)
    model, x = tuned(config, 0.1, "mixtral")

    def wanted(off: list[int]) -> nn.Module:
        own = copy.deepcopy(model)
        for number in off:
            for module in own.get_base_model().model.layers[number].modules():
                if isinstance(module, peft.tuners.lora.LoraLayer):
                    delta = truncated(module.get_delta_weight("default"), RANK)
                    truncate(module, RANK)
                    assert abs(module.get_delta_weight("default") - delta).max() < 1e-12
        return own

    compared(model, x, RANK, wanted)


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "bert", FAMILIES))
def test_every_family_equals_its_merged_weights(name):
    base, x = family(name)
    model = lora(base, target_modules=TARGETS.get(name, "all-linear"))
    replay = Replay(model, x, read=read, switches=Switches(rank=1))
    masks = spans(len(replay.layers))[[0, -1, -2]]
    ours = replay.outputs(x, masks.repeat(2, axis=1), read=read)
    for mask, found in zip(masks, ours):
        own = copy.deepcopy(model)
        off = tuple(f"{layer.name}." for layer, on in zip(replay.layers, mask) if not on)
        for key, module in own.named_modules():
            if isinstance(module, BaseTunerLayer) and key.startswith(off) and off:
                delta = truncated(module.get_delta_weight("default"), 1)
                with torch.no_grad():
                    module.get_base_layer().weight.add_(delta)
                    module.lora_B["default"].weight.zero_()
        with torch.no_grad():
            exact = output(own(**x))
        finite = exact.isfinite()  # Gemma 2's own forward has NaN at padding in float64
        assert finite.any()
        assert torch.equal(found.isfinite(), finite)
        found, exact = found[finite], exact[finite]
        assert (found - exact).abs().max() < 1e-9 * max(1, float(exact.abs().max()))


@pytest.mark.parametrize("name", ["rank_pattern", "adalora", "loha", "vera"])
def test_singular_values_are_those_of_the_delta_weights(name):
    model, _ = tuned(TUNERS[name])
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            delta = module.get_delta_weight("default").detach()
            found = directions(module)
            exact = np.linalg.svd(delta.numpy(), compute_uv=False)[: len(found.values)]
            np.testing.assert_allclose(found.values, exact, atol=1e-12)
            product = found.left * found.values @ found.right
            assert (product - delta).abs().max() < 1e-12
            assert rank_of(module) == min(len(found.values), np.linalg.matrix_rank(delta.numpy()))


@pytest.mark.slow
def test_all_directions_are_the_intact_model_and_it_is_left_as_it_was():
    for name in ("lora", "vera", "adalora"):
        model, x = tuned(TUNERS[name])
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        with torch.no_grad():
            intact = output(model(**x))
        for rank in (40, 1):
            replay = Replay(sharing(model), x, read=read, switches=Switches(rank=rank))
            mask = np.zeros((1, replay.has_adapter.size), dtype=bool)
            change = (replay.outputs(x, mask, read=read)[0] - intact).abs().max()
            assert change < 1e-12 if rank == 40 else change > 1e-4
            with torch.no_grad():
                assert torch.equal(output(replay.model(**x)), intact)
        assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_adapters_without_directions_and_ranks_that_keep_all_are_refused():
    for name in WITHOUT:
        model, _ = tuned(TUNERS[name])
        tuners = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
        with pytest.raises(ModelError, match=naming("ranks", "matrix")):
            refuse_without(tuners, 2)
    model, _ = tuned(TUNERS["lora"])
    tuners = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    refuse_without(tuners, 4)
    with pytest.raises(ModelError, match=naming("rank 5", "1 to 4")):
        refuse_without(tuners, 5)
    finished = copy.deepcopy(model)
    finish_maps(finished, rank=2)
    assert any(isinstance(module, TwoWeights) for module in finished.modules())
