"""Trained adapters of size 64 on a real base and real validation data.

    python real_case.py FOLDER SPEC

SPEC is JSON: task, base and checkpoint (folders; where the last is null, one is trained briefly on so many
sentences as ``train`` says), and rows (of the validation data; null for all).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from saving import facts, finish, save_adapter, save_base, save_texts

from adapter_probe.checkpoints.opened_peft import OpenedPlaced
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.tasks import find_task, load_split
from adapter_probe.models.methods import Adapters
from adapter_probe.training.checkpoint import train_checkpoint
from adapter_probe.training.request import TrainingRequest
from adapter_probe.training.settings import TrainingSettings


def main() -> None:
    """Make the case."""
    folder, spec = Path(sys.argv[1]), json.loads(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = spec["checkpoint"] or train_briefly(folder / "training", spec)
    opened = open_any(checkpoint, spec["base"])
    assert isinstance(opened, OpenedPlaced), "bottlenecks on an encoder"
    save_base(opened.model, Path(spec["base"]), folder)
    save_adapter(opened, folder)
    save_rows(folder, opened, spec)
    known = facts(opened.model, opened.description.method)
    trained = "given" if spec["checkpoint"] else f"one epoch on {spec['train']} sentences"
    finish(folder, spec, {**known, "trained": trained})


def train_briefly(folder: Path, spec: dict[str, Any]) -> Path:
    """A checkpoint that was trained just enough for its predictions to vary."""
    shutil.rmtree(folder, ignore_errors=True)
    settings = TrainingSettings(epochs=1, learning_rate=1e-3)
    task = find_task(spec["task"])
    request = TrainingRequest(spec["base"], task, Adapters(64), settings, max_train=spec["train"])
    train_checkpoint(request, folder, torch.device("cpu"), lambda progress: None)
    return folder


def save_rows(folder: Path, opened: OpenedPlaced, spec: dict[str, Any]) -> None:
    """Write the validation texts that all contenders read, the first so many of them."""
    task = find_task(spec["task"])
    names = opened.description.task.label_names
    rows = load_split(task, "validation")
    texts = [rows.texts] if rows.texts_b is None else [rows.texts, rows.texts_b]
    limit = spec["rows"] or len(rows)
    save_texts(folder, [names[n] for n in rows.labels[:limit]], list(zip(*texts))[:limit])


if __name__ == "__main__":
    main()
