"""Ablations of checkpoints of PEFT on bases of many families, from folder to figure."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import peft
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from mask_loop import switched
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_folders import KV, T5, reference, saved, span_off, written
from refusals import naming
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
)

import adapter_probe
from adapter_probe.errors import ModelError, ResultsError
from adapter_probe.studies.prune import prune

CAUSAL = {
    "mixtral": (KV | {"num_local_experts": 4, "num_experts_per_tok": 2}, ["q_proj", "v_proj"]),
    "olmo2": (KV, ["q_proj", "down_proj"]),
    "mamba": ({"hidden_size": 24, "num_hidden_layers": 3, "state_size": 4, "time_step_rank": 4}, ["in_proj"]),
    "gpt_bigcode": ({"n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64}, ["c_attn", "c_proj"]),
}
CHOICES = [
    {"context": "ab ab", "choices": [" ab", " c", " abab ab"], "gold": 1},
    {"context": "one two", "choices": [" three", " ab"], "gold": 0},
    {"context": "a much longer context than others", "choices": [" yes", " no", " y"], "gold": 0},
] * 2
WORDS = ["ab", "cd ab", "ba", "ab cd", "x", "a longer one"]
LABELLED = [{"text": text, "label": n % 2} for n, text in enumerate(WORDS * 2)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAUSAL)
def test_a_language_model_without_a_row_of_its_own(kind, tmp_path):
    checkpoint = saved(tmp_path, kind, CAUSAL[kind][0], "CAUSAL_LM", CAUSAL[kind][1])
    data = written(tmp_path, CHOICES)
    study = adapter_probe.ablate(checkpoint, data=data, progress=False)
    model, layers = reference(checkpoint, "CAUSAL_LM")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.parent / "base")
    for (first, last), found in zip(study.results.spans.tolist(), study.results.outputs):
        span_off(layers, first, last)
        for row, sums in zip(CHOICES, found):
            for choice, ours in zip(row["choices"], sums):
                context = tokenizer.encode(row["context"])
                ids = tokenizer.encode(row["context"] + " " + choice)
                with torch.no_grad():
                    logits = model(torch.tensor([ids[:-1]])).logits[0].double().log_softmax(-1)
                own = sum(float(logits[n - 1, ids[n]]) for n in range(len(context), len(ids)))
                assert ours == pytest.approx(own, rel=1e-4, abs=1e-4)
    assert np.ptp(study.results.outputs[:, :, 0], axis=0).min() > 1e-3
    parts = {path: path.stat().st_mtime_ns for path in study.folder.rglob("*part*")}
    again = adapter_probe.ablate(checkpoint, data=data, progress=False)
    assert parts == {path: path.stat().st_mtime_ns for path in study.folder.rglob("*part*")}
    np.testing.assert_array_equal(again.results.outputs, study.results.outputs)
    assert study.heatmap() is not None
    pruned = prune(checkpoint, tmp_path / "lora-1", span=1, data=[data], progress=False)
    assert pruned.adapter_parameters_after * 3 == pruned.adapter_parameters_before * 2
    (smaller, kept), (model, layers) = (reference(x, "CAUSAL_LM") for x in (pruned.checkpoint, checkpoint))
    assert len(kept) == 2
    span_off(layers, 1, 1)
    ids = torch.tensor([tokenizer.encode("ab ab ab")])
    with torch.no_grad():
        assert torch.equal(smaller(ids).logits, model(ids).logits)


@pytest.mark.slow
def test_texts_classified_by_an_encoder_and_a_decoder(tmp_path):
    checkpoint = saved(tmp_path, "t5", T5, "SEQ_CLS", ["q", "v", "wo"])
    data = written(tmp_path, LABELLED)
    study = adapter_probe.ablate(checkpoint, data=data, progress=False)
    model, layers = reference(checkpoint, "SEQ_CLS")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.parent / "base")
    assert len(layers) == 4
    for mask, found in zip(study.results.masks, study.results.outputs):
        for modules, on in zip(layers, mask.reshape(len(layers), -1).any(axis=1)):
            switched(modules, bool(on))
        for row, logits in zip(LABELLED, found):
            with torch.no_grad():
                own = model(**tokenizer(row["text"], return_tensors="pt")).logits[0]
            np.testing.assert_allclose(logits, own, atol=1e-4)
    one = adapter_probe.ablate(checkpoint, data=data, progress=False, sites="ffn", spans="single", group=2)
    assert len(one.spans) == 2


@pytest.mark.slow
def test_a_quantised_base_runs_as_it_is(tmp_path):
    pytest.importorskip("bitsandbytes")
    sizes = KV | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    checkpoint = saved(tmp_path, "llama", sizes, "CAUSAL_LM", ["q_proj", "down_proj"])
    settings = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}
    base = AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", dtype=torch.float32, device_map="cpu",
        quantization_config=BitsAndBytesConfig(load_in_4bit=True, **settings),
    )  # fmt: skip
    base.save_pretrained(tmp_path / "base")
    study = adapter_probe.ablate(checkpoint, data=written(tmp_path, CHOICES), progress=False)
    assert "bitsandbytes" in study.summary.base_weights
    assert study.record.created_with["bitsandbytes"] == version("bitsandbytes")
    with pytest.raises(ResultsError, match=naming("precision='mixed'")):
        adapter_probe.ablate(checkpoint, data=tmp_path / "rows.jsonl", precision="mixed", progress=False)
    model, tokenizer = peft.PeftModel.from_pretrained(base, checkpoint).eval(), byte_tokenizer(True)
    off = study.results.row_names.index("0-1")
    for row, intact, bare in zip(CHOICES, study.results.outputs[0], study.results.outputs[off]):
        context = tokenizer.encode(row["context"])
        ids = tokenizer.encode(row["context"] + " " + row["choices"][0])
        for found, on in ((intact, True), (bare, False)):
            switched([m for m in model.modules() if isinstance(m, BaseTunerLayer)], on)
            with torch.no_grad():
                logits = model(torch.tensor([ids[:-1]])).logits[0].double().log_softmax(-1)
            own = sum(float(logits[n - 1, ids[n]]) for n in range(len(context), len(ids)))
            assert found[0] == pytest.approx(own, abs=1e-4)


@pytest.mark.slow
def test_a_sublayer_of_layers_without_two_is_refused(tmp_path):
    checkpoint = saved(tmp_path, "mamba", CAUSAL["mamba"][0], "CAUSAL_LM", ["in_proj"])
    with pytest.raises(ModelError, match=naming("sites='attention'", "mixer.in_proj")):
        adapter_probe.ablate(checkpoint, data=written(tmp_path, CHOICES), sites="attention", progress=False)
