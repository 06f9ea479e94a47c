"""Bases in half precision and in few bits on a device: the scores of the same arithmetic on the processor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mask_loop import randomise
from peft import LoraConfig, get_peft_model
from peft_folders import KV, TOKENIZER, saved, written
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

import adapter_probe as ap

SIZES = {**KV, "max_position_embeddings": 40}
ROWS = [{"sentence_good": f"Cats {v}.", "sentence_bad": f"Cats {v}s."} for v in ("purr", "sleep", "ab")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("causal")
    lora = saved(folder, "llama", SIZES, "CAUSAL_LM", ["v_proj", "down_proj"], noise=0.2)
    return lora, written(folder, ROWS)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_folder_in_half_precision_scores_as_on_the_processor(checkpoint, precision, devices, tmp_path):
    folder, data = checkpoint
    base = AutoModelForCausalLM.from_pretrained(folder.parent / "base")
    base.to(torch.float16).save_pretrained(tmp_path / "base")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "base" / name).write_bytes((folder.parent / "base" / name).read_bytes())
    given = {"data": data, "base": tmp_path / "base", "progress": False}
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


def in_memory(**options) -> torch.nn.Module:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, "vocab_size": len(TOKENIZER)}))
    model = get_peft_model(
        model.to(torch.float16), LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    )
    randomise(model, 0.3)
    return model.eval()


@pytest.mark.slow
def test_a_model_in_memory_in_float16_is_ablated_as_it_is_and_left_so(devices):
    model = in_memory().to("pretend:0")
    tuned = {name for name, p in model.named_parameters() if p.dtype == torch.float32}
    assert tuned  # PEFT keeps what it trains in float32
    before = {name: (p.dtype, p.device, p.data_ptr()) for name, p in model.named_parameters()}
    with devices():
        study = ap.ablate(model, tokenizer=TOKENIZER, data=ROWS, precision="float16", progress=False)
    assert {name: (p.dtype, p.device, p.data_ptr()) for name, p in model.named_parameters()} == before
    exact = ap.ablate(in_memory(), tokenizer=TOKENIZER, data=ROWS, progress=False).results.outputs
    np.testing.assert_allclose(study.results.outputs, exact, atol=2e-3 * np.abs(exact).max())


@pytest.mark.parametrize("settings", [{"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}], ids=["nf4"])
def test_a_base_in_few_bits_is_spread_over_two_devices(settings, devices, tmp_path, monkeypatch):
    pytest.importorskip("bitsandbytes")
    from adapter_probe.checkpoints import base as reading
    from adapter_probe.checkpoints.spreading import stored_bytes

    sizes = {**SIZES, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16}  # packed by 32 rows
    folder = saved(tmp_path, "llama", sizes, "CAUSAL_LM", ["v_proj", "down_proj"], noise=0.2)
    data = written(tmp_path, ROWS)
    config = BitsAndBytesConfig(**settings)
    quantised = AutoModelForCausalLM.from_pretrained(
        folder.parent / "base", quantization_config=config, device_map="cpu"
    )
    quantised.save_pretrained(tmp_path / "few")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "few" / name).write_bytes((tmp_path / "base" / name).read_bytes())
    given = {"data": data, "base": tmp_path / "few", "progress": False}
    expected = ap.ablate(folder, out=tmp_path / "one", device="cpu", **given).results.outputs
    full = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    ends = stored_bytes(full) - stored_bytes(full.model.layers)
    room = {"pretend:0": ends + stored_bytes(full.model.layers[0]) // 4, "pretend:1": ends}
    monkeypatch.setattr(reading, "free_places", lambda device: room)
    with devices(2) as machine:
        found = ap.ablate(folder, out=tmp_path / "two", device_map="auto", **given).results.outputs
        assert machine.copies["across"]
    np.testing.assert_allclose(found, expected, atol=1e-4)
