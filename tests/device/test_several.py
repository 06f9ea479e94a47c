"""Models on several devices, with layers on the host and on disk: every score is that of the model on one."""

from __future__ import annotations

import copy
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft_cases import WORDS
from refusals import naming
from safetensors import safe_open
from tiers import slow_unless
from tiny_families import family, lora
from transformers import AutoTokenizer

import adapter_probe as ap
from adapter_probe.errors import CheckpointError

TEXTS = ["the cat saw a dog", "fine", "the house was big", "a cruel bird"]
CLASSES = [{"text": text, "label": n % 3} for n, text in enumerate(TEXTS)]
COMPLETIONS = [{"prompt": text, "completion": " the dog"} for text in TEXTS]
ANSWERS = [{"prompt": text, "answer": "the dog"} for text in TEXTS]
TUNED = {
    "bert": (["query", "output.dense"], "SEQ_CLS"),
    "llama": (["q_proj", "down_proj"], "CAUSAL_LM"),
    "t5 (labels)": (["q", "wo"], "SEQ_2_SEQ_LM"),
}
PLACES = {
    "two devices": ("pretend:0", "pretend:0", "pretend:1", "pretend:1"),
    "devices and the host": ("pretend:0", "cpu", "pretend:1", "cpu"),
    "devices, disk and the host": ("pretend:0", "pretend:1", "disk", "cpu"),
    "one device and disk": ("disk", "disk", "pretend:0", "pretend:0"),
}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(WORDS)


def model_of(name: str) -> torch.nn.Module:
    targets, task = TUNED[name]
    base, _ = family(name)
    if name == "llama":
        base.config.tie_word_embeddings = True
        base.tie_weights()
    return lora(base, target_modules=targets, task_type=task)


def spread(model: torch.nn.Module, places: tuple[str, ...], folder: Path) -> torch.nn.Module:
    """The model read from folders, a share of the layers in each place, all else on the first device."""
    model.save_pretrained(folder / "lora")
    base = copy.deepcopy(model).unload()
    base.save_pretrained(folder / "base")
    stacks = {n: m for n, m in base.named_modules() if isinstance(m, torch.nn.ModuleList)}
    layers = [f"{n}.{k}" for n, m in stacks.items() if not re.search(r"\d", n) for k in range(len(m))]
    main = next(place for place in places if place.startswith("pretend"))
    where = {name: main for name, m in base.named_modules() if [*m.parameters(False), *m.buffers(False)]}
    where = {name: p for name, p in where.items() if not name.startswith(tuple(f"{one}." for one in layers))}
    where |= {name: places[i * len(places) // len(layers)] for i, name in enumerate(layers)}
    read = {"device_map": where, "offload_folder": folder / "disk"}
    base = type(base).from_pretrained(folder / "base", dtype=torch.float64, **read)
    read["device_map"] = {f"base_model.model.{name}": place for name, place in where.items()}
    return PeftModel.from_pretrained(base, folder / "lora", autocast_adapter_dtype=False, **read)


@pytest.fixture(autouse=True)
def _read_on_the_host(monkeypatch, tmp_path):
    """safetensors reads onto the devices that it knows; PEFT writes offloaded weights below this folder."""
    read = lambda file, framework, device: safe_open(file, framework)  # noqa: E731
    monkeypatch.setattr("accelerate.utils.offload.safe_open", read)
    monkeypatch.chdir(tmp_path)


CASES = {
    "classes": ("bert", CLASSES, {}),
    "likelihoods": ("llama", COMPLETIONS, {}),
    "divergences": ("llama", COMPLETIONS, {"metric": "kl"}),
    "texts": ("llama", ANSWERS, {"generate": True, "max_new_tokens": 3}),
    "encoder and decoder": ("t5 (labels)", COMPLETIONS, {}),
}
QUICK = {
    ("classes", "two devices"), ("likelihoods", "devices, disk and the host"),
    ("texts", "devices and the host"), ("encoder and decoder", "one device and disk"),
}  # fmt: skip


@pytest.mark.parametrize(
    "chosen", slow_unless(QUICK.__contains__, itertools.product(CASES, PLACES)), ids=", ".join
)
def test_every_score_is_that_of_the_model_on_one(chosen, tokenizer, devices, tmp_path):
    name, rows, options = CASES[chosen[0]]
    model = model_of(name)
    given = {"tokenizer": tokenizer, "data": rows, "precision": "float64", "progress": False, **options}
    expected = ap.ablate(model, **given)
    with devices(2) as machine:
        placed = spread(model, PLACES[chosen[1]], tmp_path)
        before = {name: (p.device, type(p)) for name, p in placed.named_parameters()}
        found = ap.ablate(placed, **given)
        assert machine.copies["down"]
        assert {name: (p.device, type(p)) for name, p in placed.named_parameters()} == before
    np.testing.assert_array_equal(found.results.spans, expected.results.spans)
    if options.get("generate"):
        assert list(found.results.predictions.ravel()) == list(expected.results.predictions.ravel())
    else:
        np.testing.assert_allclose(found.results.outputs, expected.results.outputs, atol=1e-6)
        assert np.ptp(expected.results.outputs, axis=0).max() > 1e-3


def test_adapters_without_values_are_refused_by_name(tokenizer, devices, tmp_path):
    """PEFT puts new adapters of an offloaded layer where its weights are: nowhere."""
    with devices(2):
        base = spread(model_of("llama"), PLACES["devices and the host"], tmp_path).unload()
        empty = get_peft_model(base, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
        with pytest.raises(CheckpointError, match=naming("layers.1", "q_proj", "meta", "device_map='auto'")):
            ap.ablate(empty, tokenizer=tokenizer, data=COMPLETIONS, progress=False)
