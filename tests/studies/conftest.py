"""Checkpoints, and ablations of them: two seeds on the same examples."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from random_checkpoints import random_checkpoint  # noqa: F401 (fixture)
from trainings import (  # noqa: F401 (fixtures)
    in_this_process,
    label_task,
    regression_task,
    short_task,
    tag_task,
)

import adapter_probe as ap

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "checkpoints"), str(HERE)]  # cases that several files use


@pytest.fixture(scope="session")
def checkpoint(random_checkpoint: Callable[..., Path], tiny_task: Path) -> Path:  # noqa: F811
    return random_checkpoint(tiny_task, 24)


@pytest.fixture(scope="session")
def study(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ap.Ablation:
    return ap.ablate(checkpoint, out=tmp_path_factory.mktemp("a") / "ablation", progress=False)


@pytest.fixture(scope="session")
def other(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ap.Ablation:
    """An ablation of another checkpoint, of the same base and task, on the same examples."""
    import safetensors.torch
    import torch

    from adapter_probe.checkpoints.files import DELTA
    from adapter_probe.checkpoints.native import save_checkpoint
    from adapter_probe.checkpoints.opening import open_any

    folder = tmp_path_factory.mktemp("b")
    tensors = safetensors.torch.load_file(checkpoint / DELTA)
    draw = torch.Generator().manual_seed(7)
    moved = {name: t + 0.2 * torch.randn(t.shape, generator=draw) for name, t in tensors.items()}
    save_checkpoint(folder / "checkpoint", moved, open_any(checkpoint).description)
    return ap.ablate(folder / "checkpoint", progress=False)


@pytest.fixture
def copied(study: ap.Ablation, tmp_path: Path) -> Path:
    """A copy of the study's folder."""
    return Path(shutil.copytree(study.folder, tmp_path / "copy"))
