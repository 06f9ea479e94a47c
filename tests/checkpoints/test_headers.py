"""What headers and JSON say of a checkpoint is what the opened model says; after a change, nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from adapter_probe.checkpoints.headers import read_contents
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.models.methods import Adapters, LayerNormOnly
from adapter_probe.studies.inspect_convert import contents_of


@pytest.fixture
def base(tiny_base: Callable[..., Path], tmp_path: Path) -> Path:
    return shutil.copytree(tiny_base("bert"), tmp_path / "base")


@pytest.fixture
def checkpoint(base: Path, write_checkpoint: Callable[..., object], tmp_path: Path) -> Path:
    write_checkpoint(base, tmp_path / "c")
    return tmp_path / "c"


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_headers_say_what_the_model_says(family, stored, tiny_base, write_checkpoint, tmp_path):
    write_checkpoint(tiny_base(family, dtype=stored), tmp_path / "c")
    found = read_contents(tmp_path / "c")
    assert found is not None
    assert found == contents_of(open_any(tmp_path / "c"))


def test_a_base_without_a_pooler(tiny_base, write_checkpoint, tmp_path):
    write_checkpoint(tiny_base("bert", pooler=False), tmp_path / "c")
    assert read_contents(tmp_path / "c") == contents_of(open_any(tmp_path / "c"))


@pytest.mark.parametrize("sites", ["attention", "ffn"])
def test_adapters_in_one_sublayer(sites, base, write_checkpoint, tmp_path):
    write_checkpoint(base, tmp_path / "c", method=Adapters(size=3, sites=sites))
    found = read_contents(tmp_path / "c")
    assert found is not None
    assert found == contents_of(open_any(tmp_path / "c"))


def test_weights_in_several_files_under_old_names(checkpoint, base):
    whole = base / "model.safetensors"
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in safetensors.torch.load_file(whole).items()
    }
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in parts.items():
        safetensors.torch.save_file({name: tensors[name] for name in own}, base / file, {"format": "pt"})
    where = {name: file for file, own in parts.items() for name in own}
    (base / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    whole.unlink()
    found = read_contents(checkpoint)
    assert found is not None
    assert found == contents_of(open_any(checkpoint))


def change(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().index_put_((torch.zeros(1, dtype=torch.long),) * tensor.dim(), torch.tensor(7.0))


@pytest.mark.parametrize("what", ["weights", "config", "tokenizer", "delta", "a header too long", "no base"])
def test_after_a_change_there_is_no_answer(what, checkpoint, base):
    assert read_contents(checkpoint) is not None
    weights = base / "model.safetensors"
    if what == "weights":
        tensors = safetensors.torch.load_file(weights)
        name = min(tensors)
        safetensors.torch.save_file({**tensors, name: change(tensors[name])}, weights, {"format": "pt"})
    elif what == "config":
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    elif what == "tokenizer":
        (base / "tokenizer.json").write_text("{}")
    elif what == "delta":
        with (checkpoint / "delta.safetensors").open("ab") as file:
            file.write(b" ")
    elif what == "a header too long":
        weights.write_bytes((1 << 40).to_bytes(8, "little") + weights.read_bytes()[8:])
    else:
        shutil.rmtree(base)
    assert read_contents(checkpoint) is None


def test_other_methods_are_left_to_opening(base, write_checkpoint, tmp_path):
    write_checkpoint(base, tmp_path / "c", method=LayerNormOnly())
    assert read_contents(tmp_path / "c") is None


@pytest.mark.slow
def test_inspect_loads_no_torch(checkpoint):
    code = (
        "import sys; from adapter_probe.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "print([m for m in ('torch', 'transformers', 'pandas') if m in sys.modules])"
    )
    arguments = [sys.executable, "-c", code, "inspect", str(checkpoint)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "[]")
