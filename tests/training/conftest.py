"""A training in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from adapter_probe.checkpoints.description import Description
from adapter_probe.data.tasks import find_task
from adapter_probe.models.methods import Adapters
from adapter_probe.training.checkpoint import train_checkpoint
from adapter_probe.training.request import TrainingRequest
from adapter_probe.training.settings import TrainingSettings


@pytest.fixture(scope="session")
def short_task(tiny_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of `tiny_task`: 70 rows to train on, three steps an epoch at batch 32, and 32 to validate on."""
    folder = tmp_path_factory.mktemp("short")
    for split, n_rows in (("train", 70), ("validation", 32)):
        lines = (tiny_task / f"{split}.jsonl").read_text().splitlines()
        (folder / f"{split}.jsonl").write_text("\n".join(lines[:n_rows]))
    return folder


@pytest.fixture(scope="session")
def regression_task(tiny_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_task` with the score 2.5 for positive and -0.5 for negative, plus a trifle."""
    folder = tmp_path_factory.mktemp("regression")
    for split in ("train", "validation"):
        rows = map(json.loads, (tiny_task / f"{split}.jsonl").read_text().splitlines())
        scored = [
            {"text": row["text"], "score": (2.5 if row["label"] == "positive" else -0.5) + number / 1000}
            for number, row in enumerate(rows)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, scored)))
    return folder


@pytest.fixture(scope="session")
def train() -> Callable[..., Description]:
    """``train(base, task, out, report=..., method=..., **settings)``; six steps on `short_task`."""

    def run(
        base: Path,
        task: Path,
        out: Path,
        report: Callable = lambda _: None,
        method: Adapters = Adapters(size=4, init_std=0.1),  # noqa: B008  frozen
        **settings: object,
    ) -> Description:
        chosen = TrainingSettings(**{"epochs": 2, "learning_rate": 1e-2, **settings})
        request = TrainingRequest(str(base), find_task(task), method, chosen)
        return train_checkpoint(request, out, torch.device("cpu"), report)

    return run


@pytest.fixture(scope="session")
def tree() -> Callable[[Path], dict[str, tuple[bytes, int]]]:
    """Every file below a folder, locks aside: its bytes and when it was written."""

    def files(folder: Path) -> dict[str, tuple[bytes, int]]:
        return {
            os.path.relpath(path, folder): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.name.startswith(".lock")
        }

    return files
