"""What the host copies to and from a device, and what it waits for, while a study computes."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from peft_folders import written
from trainings import stop_at

import adapter_probe as ap
from adapter_probe.data.tasks import find_task
from adapter_probe.models.methods import Adapters, TopLayers
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.training.loop import Trainer
from adapter_probe.training.request import TrainingRequest, build_model, load_inputs
from adapter_probe.training.settings import TrainingSettings

ROWS = [{"text": f"{'the cat saw a dog'[: 8 + n % 3]}", "label": n % 2} for n in range(48)]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_host_waits_for_nothing_within_a_batch(precision, saved_classifier, devices, tmp_path):
    """A batch of a study more: no more numbers are waited for, and one tensor comes back for every length."""
    waits, down = [], []
    for n in (24, 48):
        (tmp_path / str(n)).mkdir()
        data = written(tmp_path / str(n), ROWS[:n])
        with devices() as machine:
            ap.ablate(
                saved_classifier, data=data, out=tmp_path / f"out{n}", tokens_per_pass=60, progress=False,
                precision=precision,
            )  # fmt: skip
            waits.append(dict(machine.waits))
            down.append(machine.copies["down"])
    assert waits[0] == waits[1]
    assert down[0] < down[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", [Adapters(size=4), TopLayers(1)], ids=["adapters", "top layers"])
def test_a_step_of_training_reads_the_loss_and_nothing_else(
    method, dtype, tiny_base, short_task, devices, tmp_path
):
    settings = TrainingSettings(epochs=2, learning_rate=1e-3, dtype=dtype)
    request = TrainingRequest(str(tiny_base("bert")), find_task(short_task), method, settings)
    inputs = load_inputs(request)
    model = build_model(request, inputs.base, torch.device("pretend"))
    steps = []
    with devices() as machine, RunDirectory(tmp_path / "run", {}, plan={}) as run:
        report = lambda now: steps.append((now.step, dict(machine.waits)))  # noqa: E731
        best, scores = Trainer(model, inputs.objective, settings=settings, run=run, report=report).train()
    assert {tensor.device.type for tensor in best.values()} == {"pretend"}
    assert np.isfinite(scores).all()
    reads = [waits["_local_scalar_dense"] for _, waits in sorted(dict(steps).items())]
    assert len(reads) == 6
    assert set(np.diff(reads)) == {1}


def test_a_resumed_training_has_its_whole_state_on_the_device(tiny_base, short_task, tmp_path):
    settings = TrainingSettings(epochs=2)
    request = TrainingRequest(str(tiny_base("bert")), find_task(short_task), Adapters(size=4), settings)
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
