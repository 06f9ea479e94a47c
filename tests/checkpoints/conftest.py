"""Checkpoints of random adapters: as good as trained ones for opening and saving, and made at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from training_models import load_plain, moved, with_method
from trainings import short_task, train  # noqa: F401 (fixtures)

from adapter_probe.checkpoints.identity import tokenizer_parts
from adapter_probe.checkpoints.native import Description, save_checkpoint
from adapter_probe.checkpoints.tokenizer import load_tokenizer
from adapter_probe.data.tasks import find_task
from adapter_probe.models.methods import Adapters, Method
from adapter_probe.training.model import TrainingModel


@pytest.fixture(scope="session")
def write_checkpoint(tiny_task: Path) -> Callable[..., TrainingModel]:
    """``write_checkpoint(base, folder, train_pooler=False, method=None) -> the model that was saved``."""
    task = find_task(tiny_task)

    def write(
        base: Path, folder: Path, train_pooler: bool = False, method: Method | None = None
    ) -> TrainingModel:
        loaded = load_plain(base)
        method = method or Adapters(size=4, init_std=0.3, activation="tanh", train_pooler=train_pooler)
        model = moved(with_method(loaded, method, seed=3), seed=4)
        tokenizer = tokenizer_parts(load_tokenizer(str(base)))
        description = Description(method, loaded.identity, task, 40, "", tokenizer=tokenizer)
        save_checkpoint(folder, model.named_delta(), description)
        return model

    return write


@pytest.fixture(scope="session")
def bert_checkpoint(
    tiny_base: Callable[..., Path],
    write_checkpoint: Callable[..., TrainingModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A checkpoint on `tiny_base("bert")`; copy it before changing it."""
    folder = tmp_path_factory.mktemp("checkpoint") / "bert"
    write_checkpoint(tiny_base("bert"), folder)
    return folder
