"""AdapterHub's adapters on causal language models, against the logits that the library computed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from adapter_probe.checkpoints.opening import open_checkpoint
from adapter_probe.errors import CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"
TEXTS = json.loads((FIXTURES / "texts.json").read_text())
CASES = sorted(path.parent.name for path in FIXTURES.glob("causal/*/logits.npz"))


@pytest.fixture
def causal_gpt2(tmp_path: Path) -> str:
    """The fixtures' GPT-2 with its output embedding: the files hold the encoder alone, to which it is "
    "tied."""
    folder = Path(shutil.copytree(FIXTURES / "bases" / "gpt2", tmp_path / "gpt2"))
    tensors = {
        f"transformer.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_librarys_own(case: str, causal_gpt2: str):
    opened = open_checkpoint(FIXTURES / "causal" / case, causal_gpt2)
    assert opened.description.task.kind == "causal"
    with torch.no_grad():
        got = [opened.model.base(input_ids=torch.tensor([ids])).logits[0].numpy() for ids in TEXTS]
    wanted = np.load(FIXTURES / "causal" / case / "logits.npz")["logits"]
    np.testing.assert_allclose(np.concatenate(got), wanted, rtol=1e-5, atol=1e-5)


def test_a_head_that_is_more_than_an_embedding_is_refused(causal_gpt2: str, tmp_path: Path):
    folder = Path(shutil.copytree(FIXTURES / "causal" / "gpt2-flex", tmp_path / "c"))
    path = folder / "pytorch_model_head.bin"
    tensors = torch.load(path, weights_only=True)
    torch.save({**tensors, "heads.task.0.bias": torch.zeros(53)}, path)
    with pytest.raises(CheckpointError, match="a causal head with a bias or of several layers"):
        open_checkpoint(folder, causal_gpt2)
