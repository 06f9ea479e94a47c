"""Bases of families outside the table, and in other precisions: what opening takes beside the folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from refusals import naming

import adapter_probe
from adapter_probe.checkpoints.base import load_base
from adapter_probe.checkpoints.base_config import find_base
from adapter_probe.checkpoints.description import Description
from adapter_probe.checkpoints.native import save_checkpoint
from adapter_probe.checkpoints.opening import open_checkpoint
from adapter_probe.data.packing import pack
from adapter_probe.data.tasks import find_task
from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.bases.family import Anatomy
from adapter_probe.models.methods import Adapters

ERNIE = Anatomy(
    model_types=("ernie",),
    head=("ernie.pooler", "dropout", "classifier"),
    reads_sequence=("ernie.pooler",),
    pooler="pooler",
)


@pytest.fixture
def ernie(tiny_base: Callable[..., Path], tmp_path: Path) -> Path:
    """A BERT under the name of a family whose layers are built alike."""
    folder = shutil.copytree(tiny_base("bert"), tmp_path / "ernie")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "ernie", "use_task_id": False}))
    return folder


def test_a_checkpoint_opens_by_an_anatomy(
    ernie: Path, tiny_task: Path, tiny_examples: Callable, tmp_path: Path
):
    with pytest.raises(CheckpointError, match=naming("'ernie'")):
        load_base(str(ernie), 2)
    loaded, method = load_base(find_base(str(ernie), anatomy=ERNIE), 2), Adapters(size=4, init_std=0.3)
    model = AdaptedModel(loaded.model, loaded.anatomy).eval()
    model.install(method, torch.Generator().manual_seed(3))
    trained = model.choose_trained(loaded.missing)
    description = Description(method, loaded.identity, find_task(tiny_task), 40, "")
    save_checkpoint(tmp_path / "checkpoint", trained, description)
    with pytest.raises(CheckpointError, match=naming("'ernie'")):
        open_checkpoint(tmp_path / "checkpoint")
    opened = open_checkpoint(tmp_path / "checkpoint", anatomy=ERNIE)
    public = adapter_probe.open(tmp_path / "checkpoint", anatomy=ERNIE, device="cpu")
    batch = pack(tiny_examples("bert", [5, 9]), [0, 1])
    with torch.no_grad():
        torch.testing.assert_close(opened.model(batch), model(batch))
    assert public.logits(["a", "b"]).shape == (2, 2)


def test_a_checkpoint_opens_in_the_precision_asked_for(bert_checkpoint: Path, tiny_examples: Callable):
    whole, half = open_checkpoint(bert_checkpoint), open_checkpoint(bert_checkpoint, dtype=torch.bfloat16)
    assert half.description == whole.description
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    batch = pack(tiny_examples("bert", [5, 9]), [0, 1])
    with torch.no_grad():
        rounded = whole.model.to(torch.bfloat16)
        torch.testing.assert_close(half.model(batch), rounded(batch), rtol=0, atol=0)
