"""Checkpoints whose tensors are random, not trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from adapter_probe.checkpoints.base import load_base
from adapter_probe.checkpoints.description import Description
from adapter_probe.checkpoints.native import save_checkpoint
from adapter_probe.data.tasks import find_task
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.methods import Adapters


@pytest.fixture(scope="session")
def random_checkpoint(tiny_base: Callable, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``random_checkpoint(task folder, max_length)``: of a tiny BERT with adapters."""

    def make(task_folder: Path, max_length: int) -> Path:
        task = find_task(task_folder)
        base = load_base(str(tiny_base("bert")), max(1, len(task.label_names)))
        method = Adapters(size=6, init_std=0.4, activation="tanh")
        model = AdaptedModel(base.model)
        generator = torch.Generator().manual_seed(1)
        model.install(method, generator)
        trained = model.choose_trained(base.missing)
        with torch.no_grad():
            for parameter in trained.values():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        description = Description(method, base.identity, task, max_length, delta_sha256="")
        return save_checkpoint(tmp_path_factory.mktemp("checkpoint"), trained, description)

    return make
