"""What the host copies to and from a device, and what it waits for, while a study computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from trainings import request_of

import adapter_probe as ap
from adapter_probe.models.methods import Adapters, TopLayers
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.training.loop import Trainer
from adapter_probe.training.request import build_model, load_inputs


def test_the_host_waits_for_batches_and_not_for_passes(stored, devices, tmp_path):
    """With more variants of the same batches, no number more is waited for."""
    (folder, data), waits = stored["classes"], []
    given = {"data": data, "progress": False, "precision": "bfloat16"}
    for spans in ("single", "all"):
        with devices() as machine:
            ap.ablate(folder, out=tmp_path / spans, spans=spans, **given)
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
