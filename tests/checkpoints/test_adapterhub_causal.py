"""AdapterHub's adapters on causal language models, against the logits that the library computed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import Float64, assert_close_in_float64, to_float64
from refusals import naming
from safetensors.torch import load_file, save_file

from adapter_probe.checkpoints.opened_peft import OpenedPlaced
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.errors import CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"
TEXTS = json.loads((FIXTURES / "texts.json").read_text())
CASES = sorted(path.parent.name for path in FIXTURES.glob("causal/*/logits.npz"))


PREFIXES = {"gpt2": "transformer", "llama": "model", "mistral": "model"}
LAYERS = 3


@pytest.fixture
def causal_base(tmp_path: Path) -> Callable[[str], str]:
    """``causal_base(family) -> folder``: the fixtures' base under the names of a causal model.

    The files hold the encoder alone: GPT-2's output embedding is tied to the input embedding. That of the
    others is 0 here, so that only the one in the adapters' heads makes logits.
    """

    def make(family: str) -> str:
        folder = Path(shutil.copytree(FIXTURES / "bases" / family, tmp_path / family))
        plain = load_file(folder / "model.safetensors")
        tensors = {f"{PREFIXES[family]}.{name}": tensor for name, tensor in plain.items()}
        if family != "gpt2":
            tensors["lm_head.weight"] = torch.zeros_like(plain["embed_tokens.weight"])
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return str(folder)

    return make


def case_of(name: str):
    quick = name.startswith("gpt2") or name == "llama-houlsby"
    return name if quick else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("case", [case_of(name) for name in CASES])
def test_logits_are_the_librarys_own(case: str, causal_base):
    opened = open_any(FIXTURES / "causal" / case, causal_base(case.partition("-")[0]))
    assert opened.description.task.kind == "causal"
    assert isinstance(opened, OpenedPlaced)
    to_float64(opened.model)
    with torch.no_grad(), Float64():
        got = [opened.model(input_ids=torch.tensor([ids])).logits[0].numpy() for ids in TEXTS]
    wanted = np.load(FIXTURES / "causal" / case / "logits.npz")["logits"]
    assert_close_in_float64(np.concatenate(got), wanted)


def test_a_head_that_is_more_than_an_embedding_is_refused(causal_base, tmp_path: Path):
    folder = Path(shutil.copytree(FIXTURES / "causal" / "gpt2-flex", tmp_path / "c"))
    path = folder / "pytorch_model_head.bin"
    tensors = torch.load(path, weights_only=True)
    torch.save({**tensors, "heads.task.0.bias": torch.zeros(53)}, path)
    with pytest.raises(CheckpointError, match=naming(str(folder), "causal head", "bias")):
        open_any(folder, causal_base("gpt2"))
