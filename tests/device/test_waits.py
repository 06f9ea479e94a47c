"""What the host copies to and from a device, and what it waits for, while a study computes."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from peft_folders import written
from trainings import request_of, stop_at

import adapter_probe as ap
from adapter_probe.models.methods import Adapters, TopLayers
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.training.loop import Trainer
from adapter_probe.training.request import build_model, load_inputs

ROWS = [{"text": f"{'the cat saw a dog'[: 8 + n % 3]}", "label": n % 2} for n in range(6)]


def test_the_host_waits_for_batches_and_not_for_passes(saved_classifier, devices, tmp_path):
    """With more variants of the same batches, no number more is waited for."""
    data, waits = written(tmp_path, ROWS), []
    given = {"data": data, "progress": False, "precision": "bfloat16"}
    for spans in ("single", "all"):
        with devices() as machine:
            ap.ablate(saved_classifier, out=tmp_path / spans, spans=spans, **given)
            waits.append(dict(machine.waits))
    assert waits[0] == waits[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", [Adapters(size=4), TopLayers(1)], ids=["adapters", "top layers"])
def test_a_step_of_training_reads_the_loss_and_nothing_else(
    method, dtype, tiny_base, short_task, devices, tmp_path
):
    given = {"epochs": 2, "batch_size": 32, "learning_rate": 1e-3, "dtype": dtype}
    request = request_of(tiny_base("bert"), short_task, method, **given)
    inputs, settings = load_inputs(request), request.settings
    model = build_model(request, inputs.base, torch.device("pretend"))
    steps = []
    with devices() as machine, RunDirectory(tmp_path / "run", {}, plan={}) as run:
        report = lambda now: steps.append((now.step, dict(machine.waits)))  # noqa: E731
        best, scores = Trainer(model, inputs.objective, settings=settings, run=run, report=report).train()
    assert {tensor.device.type for tensor in best.values()} == {"pretend"}
    assert np.isfinite(scores).all()
    reads = [waits["adapter_probe"] for _, waits in sorted(dict(steps).items())]
    assert len(reads) == 6
    assert set(np.diff(reads)) == {1}


def test_a_resumed_training_has_its_whole_state_on_the_device(tiny_base, short_task, tmp_path):
    request = request_of(tiny_base("bert"), short_task, Adapters(size=4), epochs=2, batch_size=32)
    settings = request.settings
    inputs, found = load_inputs(request), []
    for folder, stops in (("whole", (None,)), ("cut", (2, None))):
        for stop in stops:
            model = build_model(request, load_inputs(request).base, torch.device("pretend"))
            with RunDirectory(tmp_path / folder, {}, plan={}) as run:
                report = stop_at(stop) if stop else (lambda _: None)
                trainer = Trainer(model, inputs.objective, settings=settings, run=run, report=report)
                with contextlib.suppress(KeyboardInterrupt):
                    trainer.train()
        moments = [t for state in trainer._optimizer.state.values() for t in state.values()]
        assert {tensor.device.type for tensor in moments if tensor.dim()} == {"pretend"}
        found.append({name: tensor.cpu() for name, tensor in trainer._best.items()})
    whole, cut = found
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
