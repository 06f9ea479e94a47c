"""Bases in half precision and in few bits on a device: the scores of the same arithmetic on the processor."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from mask_loop import randomise
from peft import LoraConfig, get_peft_model
from peft_cases import WORDS
from peft_folders import KV, saved
from tiny_families import family
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

import adapter_probe as ap
from adapter_probe.checkpoints.spreading import stored_bytes

SIZES = {**KV, "max_position_embeddings": 40}


def stored_again(base: torch.nn.Module, tokenizer: Path, folder: Path) -> Path:
    """The folder of a base, with the tokenizer of another folder."""
    base.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder)
    return folder


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_folder_in_half_precision_scores_as_on_the_processor(stored, precision, devices, tmp_path):
    folder, data = stored["tokens"]
    base = AutoModelForCausalLM.from_pretrained(folder.parent / "base", dtype=torch.float16)
    base = stored_again(base, folder.parent / "base", tmp_path / "base")
    given = {"data": data, "base": base, "progress": False}
    exact = ap.ablate(folder, out=tmp_path / "exact", device="cpu", **given).results.outputs
    with devices() as machine:
        found = ap.ablate(folder, out=tmp_path / "half", precision=precision, **given).results.outputs
        assert machine.copies["up"]
    host = ap.ablate(folder, out=tmp_path / "host", precision=precision, device="cpu", **given)
    largest = np.abs(exact).max()
    rounding = {"float16": 2e-3, "bfloat16": 2e-2}[precision]
    np.testing.assert_allclose(found, exact, atol=rounding * largest)
    np.testing.assert_allclose(found, host.results.outputs, atol=rounding * largest)
    assert np.abs(found - exact).max() > 0
    assert np.ptp(exact, axis=0).max() > 10 * np.abs(found - exact).max()


def in_memory() -> torch.nn.Module:
    base, _ = family("llama", torch.float16)
    tuned = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    randomise(tuned, 0.3)
    return tuned.eval()


@pytest.mark.slow
def test_a_model_in_memory_in_float16_is_ablated_as_it_is_and_left_so(devices):
    model = in_memory().to("pretend:0")
    tuned = {name for name, p in model.named_parameters() if p.dtype == torch.float32}
    assert tuned  # PEFT keeps what it trains in float32
    rows = [{"prompt": "the cat", "completion": f" {word}"} for word in ("saw", "met", "was")]
    given = {"tokenizer": AutoTokenizer.from_pretrained(WORDS), "data": rows, "progress": False}
    state = lambda: {n: (p.dtype, p.device, p.data_ptr()) for n, p in model.named_parameters()}  # noqa: E731
    before = state()
    with devices():
        found = ap.ablate(model, precision="float16", **given).results.outputs
    assert state() == before
    exact = ap.ablate(in_memory(), **given).results.outputs
    np.testing.assert_allclose(found, exact, atol=2e-3 * np.abs(exact).max())


@pytest.fixture(scope="module")
def in_four_bits(stored, tmp_path_factory):
    """A LoRA's folder and rows, its base in NF4, and that base with its own weights, dequantised."""
    pytest.importorskip("bitsandbytes")
    place = tmp_path_factory.mktemp("four-bits")
    sizes = {**SIZES, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16}  # packed by 32 rows
    folder = saved(place, "llama", sizes, "CAUSAL_LM", ["v_proj", "down_proj"], noise=0.2)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    few = AutoModelForCausalLM.from_pretrained(place / "base", quantization_config=config, device_map="cpu")
    stored_again(few, place / "base", place / "few")
    full = few.dequantize(torch.float32)
    stored_again(full, place / "base", place / "full")
    return folder, stored["tokens"][1], full


@pytest.mark.parametrize(
    ("where", "used"), [("pretend:1", [False, True]), ("cpu", [False, False]), ("spread", [True, True])]
)
def test_a_base_in_four_bits_is_where_it_is_asked_for(
    where, used, in_four_bits, devices, tmp_path, monkeypatch
):
    """On an accelerator as dequantised; a processor may multiply weights of 4 bits in bfloat16."""
    folder, data, full = in_four_bits
    layer = stored_bytes(full.model.layers[0])
    ends = stored_bytes(full) - stored_bytes(full.model.layers)
    room = {"pretend:0": ends + layer // 4, "pretend:1": ends}
    monkeypatch.setattr("adapter_probe.checkpoints.base.free_places", lambda device: room)
    given = {"data": data, "progress": False}
    expected = ap.ablate(folder, base=folder.parent / "full", out=tmp_path / "full", device="cpu", **given)
    given |= {"device_map": "auto"} if where == "spread" else {"device": where}
    with devices(2) as machine:
        machine.peak.clear()
        found = ap.ablate(folder, base=folder.parent / "few", out=tmp_path / "few", **given)
        assert [machine.peak[n] > 0 for n in range(2)] == used
        if where == "pretend:1":
            given |= {"dequantise": True, "out": tmp_path / "as-full"}
            whole = ap.ablate(folder, base=folder.parent / "few", **given)
            np.testing.assert_allclose(whole.results.outputs, expected.results.outputs, atol=1e-4)
    atol = 0.01 * np.abs(expected.results.outputs).max() if where == "cpu" else 1e-4
    np.testing.assert_allclose(found.results.outputs, expected.results.outputs, atol=atol)
