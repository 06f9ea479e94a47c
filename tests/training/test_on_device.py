"""Training on an accelerator, by the stand-in of `tests/fixtures/accelerator.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerator import accelerator
from torch import nn

from adapter_probe.data.tasks import find_task
from adapter_probe.models.methods import Adapters, Method, TopLayers
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.training.loop import Progress, Trainer
from adapter_probe.training.request import TrainingRequest, build_model, load_inputs
from adapter_probe.training.settings import TrainingSettings

pytestmark = pytest.mark.slow


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> Callable[[nn.Module], None]:
    """``gradients(model)``: PyTorch's own backward pass, which a build without CUDA has not, gives some."""

    def give(model: nn.Module) -> None:
        def backward(loss: torch.Tensor) -> None:
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)

        monkeypatch.setattr(torch.Tensor, "backward", backward)

    return give


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", [Adapters(size=4), TopLayers(1)], ids=["adapters", "cached features"])
def test_a_step_reads_the_loss_and_nothing_else(
    method: Method, dtype: str, tiny_base: Callable[..., Path], short_task: Path, tmp_path: Path, gradients
):
    settings = TrainingSettings(epochs=2, learning_rate=1e-3, dtype=dtype)
    request = TrainingRequest(str(tiny_base("bert")), find_task(short_task), method, settings)
    inputs = load_inputs(request)
    model = build_model(request, inputs.base, torch.device("cpu"))
    steps = []
    folder = RunDirectory(tmp_path / "run", {}, plan={})
    with accelerator(reads_allowed=True) as device, torch.no_grad(), folder as run:
        device.move(model)
        gradients(model)
        best, scores = Trainer(
            model, inputs.objective, settings=settings, run=run, report=lambda now: steps.append(now.step)
        ).train()
        assert len(scores) == 2
        assert {tensor.device.type for tensor in best.values()} == {"cuda"}
        assert device.reads == len(set(steps)) == 6
        assert np.isfinite(scores).all()


def test_a_resumed_training_has_its_whole_state_on_the_device(
    tiny_base: Callable[..., Path], short_task: Path, tmp_path: Path, gradients
):
    def stop_at_two(now: Progress) -> None:
        if now.step == 2:
            raise KeyboardInterrupt

    request = TrainingRequest(
        str(tiny_base("bert")), find_task(short_task), Adapters(size=4), TrainingSettings()
    )
    inputs = load_inputs(request)
    model = build_model(request, inputs.base, torch.device("cpu"))
    steps: list[int] = []
    with accelerator(reads_allowed=True) as device, torch.no_grad():
        device.move(model)
        gradients(model)
        for report in (stop_at_two, lambda now: steps.append(now.step)):
            with RunDirectory(tmp_path / "run", {}, plan={}) as run:
                trainer = Trainer(model, inputs.objective, settings=request.settings, run=run, report=report)
                with contextlib.suppress(KeyboardInterrupt):
                    trainer.train()
        states = trainer._optimizer.state.values()
        assert {tensor.device.type for state in states for tensor in state.values()} == {"cuda"}
    assert steps[0] == 3
