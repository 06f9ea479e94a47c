"""Frozen layers' outputs kept over epochs: the same training as without keeping them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exact import assert_close_in_float32
from safetensors.numpy import load_file
from tiers import slow_unless
from trainings import stop_at

import adapter_probe.training.features as features
import adapter_probe.training.loop as loop
from adapter_probe.data.packing import pack
from adapter_probe.models.methods import Adapters, HeadOnly, TopLayers
from adapter_probe.training.features import FrozenFeatures
from adapter_probe.training.request import TrainingRequest, build_model, load_inputs
from adapter_probe.training.settings import TrainingSettings

METHODS = [TopLayers(0), TopLayers(1), TopLayers(2), HeadOnly()]


@pytest.fixture
def prepared(tiny_base, short_task):
    from adapter_probe.data.tasks import find_task

    def make(method, family="bert"):
        request = TrainingRequest(str(tiny_base(family)), find_task(short_task), method, TrainingSettings())
        inputs = load_inputs(request)
        return build_model(request, inputs.base, torch.device("cpu")), inputs.objective.train

    return make


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["bert", pytest.param("roberta", marks=pytest.mark.slow), "electra"])
def test_outputs_are_those_of_the_model(method, family, prepared):
    model, encoded = prepared(method, family)
    kept, anew = FrozenFeatures(model, encoded), FrozenFeatures(model, encoded, max_bytes=0)
    assert kept.n_bytes
    assert not anew.n_bytes
    model.eval()
    for index in (np.arange(9), np.array([60, 3, 41, 5])):
        batch = pack(encoded, index)
        assert_close_in_float32(kept.forward(batch), model(batch), layers=3)
        assert torch.equal(anew.forward(batch), model(batch))


def test_a_model_that_trains_from_the_bottom_keeps_nothing(prepared):
    model, encoded = prepared(Adapters(size=2))
    assert not FrozenFeatures(model, encoded).n_bytes


@pytest.mark.parametrize("method", slow_unless((TopLayers(1), HeadOnly()).__contains__, METHODS))
def test_training_with_and_without(method, tiny_base, short_task, train, tmp_path, monkeypatch):
    kept = train(tiny_base("bert"), short_task, tmp_path / "kept", method=method)
    monkeypatch.setattr(loop, "FrozenFeatures", lambda model, encoded, _: FrozenFeatures(model, encoded, 0))
    anew = train(tiny_base("bert"), short_task, tmp_path / "anew", method=method)
    assert kept.training["validation_scores"] == anew.training["validation_scores"]
    first, second = (load_file(tmp_path / name / "delta.safetensors") for name in ("kept", "anew"))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        # No output depends on a bias of all keys. Its gradient is rounding, which AdamW makes whole steps of.
        if not name.endswith("key.bias"):
            np.testing.assert_allclose(tensor, second[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_frozen_layers_run_once_an_example(tiny_base, short_task, train, tmp_path, monkeypatch):
    rows: list[int] = []
    original = loop.FrozenFeatures.__init__

    def counted(self, model, encoded, *arguments):
        lowest = model.layers[0].intermediate.dense
        if not lowest._forward_pre_hooks:
            lowest.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
        original(self, model, encoded, *arguments)

    monkeypatch.setattr(loop.FrozenFeatures, "__init__", counted)
    train(tiny_base("bert"), short_task, tmp_path / "c", method=TopLayers(1), epochs=4)
    assert sum(rows) == 70 + 32  # the examples of both sets


def test_all_trainings_of_a_machine_fit_its_memory(monkeypatch):
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 6 << 18}  # 6 GiB
    monkeypatch.setattr(features.os, "sysconf", sizes.__getitem__)
    assert 4 * features.feature_bytes(1) == 6 << 30
    assert 3 * features.feature_bytes(3) == features.feature_bytes(1)
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1024")
    assert features.feature_bytes() == 256 << 20
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "9000000")
    assert features.feature_bytes() == features.MAX_BYTES
    monkeypatch.delenv("SLURM_MEM_PER_NODE")  # of clusters that give memory with every processor
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "512")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    assert features.feature_bytes() == 512 << 20


def test_both_sets_share_the_memory_there_was_at_first(tiny_base, short_task, train, tmp_path, monkeypatch):
    """Where the training set's features leave no room, the validation set's are computed anew."""
    made = []

    def noted(model, encoded, max_bytes):
        made.append(FrozenFeatures(model, encoded, max_bytes))
        return made[-1]

    monkeypatch.setattr(loop, "FrozenFeatures", noted)
    train(tiny_base("bert"), short_task, tmp_path / "roomy", method=TopLayers(1))
    assert [one.n_bytes > 0 for one in made] == [True, True]
    with pytest.raises(KeyboardInterrupt):
        train(tiny_base("bert"), short_task, tmp_path / "cut", stop_at(1), method=TopLayers(1))
    monkeypatch.setattr(loop, "feature_bytes", lambda _: made[0].n_bytes + 10)
    train(tiny_base("bert"), short_task, tmp_path / "cut", method=TopLayers(1))  # goes on as it began
    assert [one.n_bytes > 0 for one in made[2:]] == [True] * 4
    train(tiny_base("bert"), short_task, tmp_path / "tight", method=TopLayers(1))
    assert [one.n_bytes > 0 for one in made[6:]] == [True, False]
