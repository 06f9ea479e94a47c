"""Bases that are stored in four or eight bits run as they are, with what PEFT computes on them."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from mask_loop import over_variants, randomise
from peft import LoraConfig, PeftModel, get_peft_model
from peft_cases import IDS, logits, write_adapter, write_base
from peft_folders import written
from refusals import names, naming, refuses
from scorer import Scorer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaForCausalLM,
    TorchAoConfig,
)
from where import DEVICE

import adapter_probe as ap
from adapter_probe.checkpoints.base import load_without_weights
from adapter_probe.checkpoints.opened_peft import OpenedPeft, contents_of
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.errors import CheckpointError, ModelError

pytestmark = pytest.mark.slow  # the import of bitsandbytes alone takes seconds

FOUR = {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.float32}
SETTINGS = {
    "nf4": FOUR | {"bnb_4bit_quant_type": "nf4"},
    "nf4, double": FOUR | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": FOUR | {"bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True},
    "int8, no outliers": {"load_in_8bit": True, "llm_int8_threshold": 0.0},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base in full, a LoRA on it, and the base quantised in every way, by name."""
    pytest.importorskip("bitsandbytes")
    place = tmp_path_factory.mktemp("quantised")
    # bitsandbytes packs rows by 32 for a processor.
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    full = write_base(place / "full", "llama", LlamaForCausalLM, **sizes)
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    write_adapter(place / "lora", full, AutoModelForCausalLM, config)
    for name, settings in SETTINGS.items():
        quantised = BitsAndBytesConfig(**settings)
        model = AutoModelForCausalLM.from_pretrained(full, quantization_config=quantised, dtype=torch.float32)
        model.save_pretrained(place / name)
        for file in full.glob("*token*"):
            shutil.copy(file, place / name)
    return place


def test_a_vocabulary_grown_over_a_quantised_base(made, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(made / "nf4", dtype=torch.float32)
    base.resize_token_embeddings(67, mean_resizing=False)
    config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    config.task_type, config.base_model_name_or_path = "CAUSAL_LM", str(made / "nf4")
    model = get_peft_model(base, config)
    randomise(model)
    model.eval().save_pretrained(tmp_path)
    opened, ids = open_any(tmp_path), torch.tensor([[5, 66, 64, 7]])
    assert opened.quantised == "bitsandbytes"
    with torch.no_grad():
        assert torch.equal(opened.model(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize("name", list(SETTINGS))
def test_as_they_are(name, made):
    opened = open_any(made / "lora", str(made / name))
    assert isinstance(opened, OpenedPeft)
    assert opened.quantised == "bitsandbytes"
    assert opened.alone == (name == "int8")
    base = AutoModelForCausalLM.from_pretrained(made / name, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, made / "lora").eval()
    ours = logits(opened.model, IDS[:1])
    assert torch.equal(ours, logits(theirs, IDS[:1]))
    full = logits(open_any(made / "lora", str(made / "full")).model, IDS[:1])
    assert not torch.allclose(ours, full, atol=1e-3), "the quantised base is another model"
    layers = [type(module).__module__ for module in opened.model.get_base_model().modules()]
    assert any(name.startswith("bitsandbytes.nn") for name in layers)


@pytest.mark.parametrize("name", ["nf4", "nf4, double", "fp4", "int8"])
def test_dequantised_while_loading(name, made):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    opened = open_any(made / "lora", str(made / name), dequantise=True)
    assert (opened.quantised, opened.alone) == (None, False)
    base = AutoModelForCausalLM.from_pretrained(made / name, dtype=torch.float32).dequantize()
    theirs = PeftModel.from_pretrained(base.float(), made / "lora").eval()
    weights = dict(opened.model.named_parameters())
    for key, wanted in theirs.named_parameters():
        assert torch.equal(weights[key], wanted.float()), key
    with torch.no_grad():
        ours, right = opened.model(input_ids=IDS[:1]).logits, theirs(input_ids=IDS[:1]).logits
        assert torch.equal(ours, right)
        stored = open_any(made / "lora", str(made / name))
        if name != "int8":  # whose products round the activations too
            # bitsandbytes multiplies in bfloat16 where the processor can.
            exact = 0.02 if bitsandbytes.functional.has_avx512bf16() else 1e-4
            torch.testing.assert_close(ours, stored.model(input_ids=IDS[:1]).logits, rtol=exact, atol=exact)
    kinds = {type(module).__module__.partition(".")[0] for module in opened.model.modules()}
    assert "bitsandbytes" not in kinds
    assert opened.description.base.weights_sha256 != stored.description.base.weights_sha256
    for said in (note for note in opened.notes if "quantised" in note):
        assert names(said, "bitsandbytes", "dequantised")
    assert any("dequantised" in note for note in opened.notes)


def test_a_base_in_full_cannot_be_dequantised(made):
    refuses(CheckpointError, ("--dequantise",), open_any, made / "lora", str(made / "full"), dequantise=True)


def test_every_quantisation_is_another_base(made):
    hashes = {
        open_any(made / "lora", str(made / n)).description.base.weights_sha256 for n in ("nf4", "fp4", "int8")
    }
    assert len(hashes) == 3


def test_the_precision_of_what_is_not_quantised(made):
    opened = open_any(made / "lora", str(made / "nf4"), dtype=torch.bfloat16)
    model = opened.model.get_base_model()
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16
    assert model(input_ids=IDS[:1]).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["nf4", "nf4, double", "fp4", "int8"])
def test_what_is_packed_is_counted_as_in_full(name, made):
    found = contents_of(open_any(made / "lora", str(made / name), load=load_without_weights))
    full = AutoModelForCausalLM.from_pretrained(made / "full")
    pretrained = 100 * found["trained_parameters_without_head"] / found["percent_of_base"]
    assert pretrained == pytest.approx(sum(parameter.numel() for parameter in full.parameters()))
    assert found["quantised"] == "quantised with bitsandbytes"


INTO = {"int8": ("Int8WeightOnlyConfig", {}), "int4": ("IntxWeightOnlyConfig", {"weight_dtype": torch.int4})}
"""Of torchao, by what a processor computes; other 4 bits of it need a GPU's kernels."""
PAIRS = [{"sentence_good": f"w7 w{n} w3", "sentence_bad": f"w7 w{n + 1} w{n}"} for n in (5, 20, 31)]
AS_SAVED = [  # the quantisation, the precision of the rest, and the largest error of a sum
    ("nf4", torch.float32, 1e-4), ("nf4", torch.float16, 0.03), ("fp4", torch.bfloat16, 0.15),
    ("int8, no outliers", torch.float32, 1e-4), ("int8, no outliers", torch.float16, 0.03),
    ("torchao int8", torch.float32, 1e-4), ("torchao int8", torch.bfloat16, 0.15),
    ("torchao int4", torch.float32, 1e-4),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "exact"), AS_SAVED)
def test_every_span_is_that_of_a_loop_with_pefts_switches(name, dtype, exact, made, tmp_path):
    """Bases as people save and load them: ``dtype="auto"`` of Transformers is the precision of the rest."""
    if name.startswith("torchao"):
        quantisation = pytest.importorskip("torchao.quantization")
        kind, given = INTO[name.removeprefix("torchao ")]
        quantised = TorchAoConfig(getattr(quantisation, kind)(**given))
    else:
        quantised = BitsAndBytesConfig(**SETTINGS[name] | {"bnb_4bit_compute_dtype": dtype})
    AutoModelForCausalLM.from_pretrained(
        made / "full", quantization_config=quantised, dtype=dtype
    ).save_pretrained(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(made / "full", eos_token="[SEP]")
    tokenizer.save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype="auto", device_map={"": DEVICE})
    assert base.get_input_embeddings().weight.dtype == dtype
    model = PeftModel.from_pretrained(base, made / "lora", autocast_adapter_dtype=False).eval()
    precision = str(dtype).removeprefix("torch.")
    study = ap.ablate(
        made / "lora", base=tmp_path / "base", data=written(tmp_path, PAIRS), precision=precision,
        out=tmp_path / "out", progress=False,
    )  # fmt: skip
    scorer = Scorer(model, tokenizer, 60)
    expected = over_variants(model, study, lambda: [scorer.sums(row) for row in PAIRS])
    np.testing.assert_allclose(study.results.outputs, expected, rtol=0, atol=exact)
    assert np.ptp(expected, axis=0).max() > 5 * exact


def test_outputs_that_depend_on_the_batch_are_refused(made, tmp_path):
    for name in ("int8", "nf4"):
        tokenizer = AutoTokenizer.from_pretrained(made / name, eos_token="[SEP]")
        tokenizer.save_pretrained(made / name)
    asked = [{"question": f"w1 w{n} w3", "choices": ["w4", "w5 w6"], "answer": 0} for n in (7, 8, 9)]
    rows = written(tmp_path, asked)
    with pytest.raises(ModelError, match=naming("llm_int8_threshold")):
        ap.ablate(made / "lora", base=made / "int8", data=rows, out=tmp_path / "out")
    study = ap.ablate(made / "lora", base=made / "nf4", data=rows, out=tmp_path / "four")
    assert len(study.spans) == 6
    assert "bitsandbytes" in study.summary.base_weights
    assert study.record.created_with["bitsandbytes"] == version("bitsandbytes")
    whole = ap.ablate(made / "lora", base=made / "int8", dequantise=True, data=rows, out=tmp_path / "eight")
    assert len(whole.spans) == 6
    assert names(whole.summary.base_weights, "dequantised")


@pytest.mark.parametrize("settings", [{}, {"dequantise": True}, {"strength": 0.5}])
def test_it_is_pruned_on_the_base_that_it_is_measured_on(settings, made, tmp_path):
    """Also scaled; the scores are those of an ablation with the same settings."""
    rows = [{"context": "the cat", "choices": ["saw a dog", "was"], "gold": n % 2} for n in range(4)]
    tokenizer = AutoTokenizer.from_pretrained(made / "fp4", eos_token="[SEP]")
    tokenizer.save_pretrained(made / "fp4")
    given = {"base": made / "fp4", "data": written(tmp_path, rows), "progress": False}
    pruned = ap.prune(made / "lora", tmp_path / "out", span=0, **given, **settings)
    study = ap.ablate(made / "lora", spans="single", **given, **settings, out=tmp_path / "study")
    assert (tmp_path / "out" / "adapter_config.json").is_file()
    assert pruned.score_after == study.spans["score"].iloc[0]
    assert pruned.strength == settings.get("strength", 0.0)


def test_directions_are_truncated_without_a_base_in_full(made, tmp_path):
    """As PEFT computes with the LoRA that `prune` writes, on the quantised base."""
    rows = [{"text": f"the cat saw {n * 'a '}dog"} for n in range(6)]
    given = {"base": made / "nf4", "data": written(tmp_path, rows), "progress": False}
    study = ap.ranks(made / "lora", ranks=(2,), out=tmp_path / "study", **given)
    ap.prune(made / "lora", tmp_path / "out", rank=2, **given)
    whole = ap.ablate(tmp_path / "out", spans="whole", out=tmp_path / "cut", **given)
    assert study.table["score"].iloc[0] == pytest.approx(whole.summary.intact_score, rel=1e-5)
    assert study.table["score"].iloc[0] != study.table["score"].iloc[1]
