"""What PEFT opens: numbers equal to PEFT's own, and one line for everything that PEFT would pass over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel
from peft_cases import IDS, write_adapter, write_base
from peft_folders import KV, T5, saved
from refusals import names
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    LlamaForCausalLM,
    T5ForConditionalGeneration,
)

from adapter_probe.checkpoints import quantised
from adapter_probe.checkpoints.opened_peft import OpenedPeft
from adapter_probe.checkpoints.opening import engine_of, open_any
from adapter_probe.checkpoints.peft_opening import open_with_peft
from adapter_probe.checkpoints.quantised import mixes_examples
from adapter_probe.errors import CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``llama`` and ``t5``, bases, and ``lora`` and ``t5-lora`` on them."""
    place = tmp_path_factory.mktemp("peft")
    llama = write_base(place / "llama", "llama", LlamaForCausalLM)
    t5 = write_base(place / "t5", "t5", T5ForConditionalGeneration)
    lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    write_adapter(place / "lora", llama, AutoModelForCausalLM, lora)
    both = LoraConfig(r=4, target_modules=["q", "wo"], task_type="SEQ_2_SEQ_LM")
    write_adapter(place / "t5-lora", t5, AutoModelForSeq2SeqLM, both)
    return place


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(made / name, tmp_path / "c"))


def edit(folder: Path, **changes: object) -> Path:
    document = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**document, **changes}))
    return folder


def retensor(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)
    return folder


def refusal(folder: Path, base: str | None = None) -> str:
    with pytest.raises(CheckpointError) as raised:
        open_with_peft(folder, base)
    message = str(raised.value)
    assert "\n" not in message
    assert str(folder) in message or "base" in message
    return message


@pytest.mark.parametrize("case", ["lora", "ia3", "norms", "lora-patterns", "lora-everywhere"])
def test_files_of_peft_give_its_logits(case: str):
    opened = open_with_peft(FIXTURES / "peft" / case, str(FIXTURES / "bases" / "bert"))
    texts = json.loads((FIXTURES / "texts.json").read_text())
    with np.load(FIXTURES / "peft" / case / "expected.npz") as expected, torch.no_grad():
        ours = [opened.model(input_ids=torch.tensor([ids])).logits[0].numpy() for ids in texts]
        assert np.abs(np.stack(ours) - expected["logits"][0]).max() < 1e-5
    assert opened.head == opened.description.task.kind == "classification"
    assert not opened.model.training
    assert opened.model.active_adapters == ["default"]


def test_the_general_engine_runs_what_peft_loads(made: Path):
    assert engine_of(FIXTURES / "peft" / "lora", str(FIXTURES / "bases" / "bert")).name == "general"
    assert engine_of(made / "t5-lora", None).name == "general"
    opened = open_any(made / "t5-lora")
    assert isinstance(opened, OpenedPeft)
    assert (opened.head, opened.description.task.kind) == ("seq2seq", "causal")
    assert isinstance(open_any(made / "lora"), OpenedPeft)


def test_a_lora_of_an_embedding_is_run_by_the_general_engine(tmp_path: Path):
    folder = saved(tmp_path, "llama", KV, "CAUSAL_LM", ["q_proj", "embed_tokens"])
    model, ids = open_any(folder).model, torch.tensor([[5, 6, 7]])
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    with torch.no_grad():
        bare = base(ids).logits
        own = PeftModel.from_pretrained(base, folder).eval()(ids).logits
        assert torch.equal(model(ids).logits, own)
    assert (own - bare).abs().max() > 1e-2


def test_a_head_with_a_tuner_in_it_is_the_bases(tmp_path: Path):
    targets = ["q", "classification_head.dense"]
    folder = saved(tmp_path, "t5", T5 | {"num_labels": 2}, "SEQ_CLS", targets)
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    ids = torch.tensor([[5, 6, 7, base.config.eos_token_id]])
    with torch.no_grad():
        own = PeftModel.from_pretrained(base, folder).eval()(input_ids=ids).logits
        assert torch.equal(open_with_peft(folder).model(input_ids=ids).logits, own)


def test_without_a_task_type_the_base_says_what_it_is_for(copied):
    folder = edit(copied("t5-lora"), task_type=None, auto_mapping=None)
    assert open_with_peft(folder).head == "seq2seq"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_of_weights_and_outputs(made: Path, dtype):
    opened = open_with_peft(made / "lora", dtype=dtype)
    assert {p.dtype for p in opened.model.parameters()} == {dtype}
    exact = open_with_peft(made / "lora").model(input_ids=IDS).logits.detach()
    out = opened.model(input_ids=IDS).logits.detach()
    assert out.dtype == dtype
    assert torch.allclose(out.float(), exact, atol=1e-5 if dtype == torch.float64 else 0.3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: {k: v for k, v in t.items() if "1.self_attn" not in k},
            ("lacks", "base_model.model.model.layers.1"),
        ),
        (
            lambda t: {**t, "base_model.model.extra.lora_A.weight": torch.ones(2, 2)},
            ("contains", "base_model.model.extra"),
        ),
        (
            lambda t: {**t, "base_model.model.model.norm.weight": torch.ones(32)},
            ("model.norm.weight", "base"),
        ),
        (lambda t: {k: v[:2] if "lora_A" in k else v for k, v in t.items()}, ("shape", "[2, 48]", "[4, 48]")),
        (lambda t: {k: v * torch.nan for k, v in t.items()}, ("NaN",)),
    ],
)
def test_tensors_that_do_not_fit(copied, change, words):
    assert names(refusal(retensor(copied("lora"), change)), *words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "PREFIX_TUNING"),
        ({"peft_type": "XLORA"}, "XLORA"),
        ({"peft_type": "HYPERLORA"}, "HYPERLORA"),
        ({"task_type": "FEATURE_EXTRACTION"}, "FEATURE_EXTRACTION"),
        ({"future_switch": 3}, "future_switch"),
        ({"use_rslora": "yes"}, "use_rslora"),
        ({"r": "8"}, '"8"'),
        ({"r": -1}, "PEFT"),
        ({"lora_alpha": float("inf")}, "lora_alpha"),
        ({"bias": "some"}, "bias"),
        ({"target_modules": ["nothing"]}, "PEFT"),
        ({"target_modules": ["lm_head"]}, "base_model.model.model.layers.0"),
        ({"target_modules": "(([a-z._]|[a-z0-9._])+)+X"}, "too long"),
        ({"target_modules": 7 * "(.*)" + "x"}, "too long"),  # no group is repeated
        ({"rank_pattern": {"([": 3}}, "regular expression"),
        ({"modules_to_save": ["norm"]}, "base_model.model.model.layers.0.input_layernorm.weight"),
        ({"megatron_config": {"a": 1}}, "Megatron"),
        ({"alora_invocation_tokens": [1]}, "activated LoRA"),
        ({"layers_to_transform": [0]}, "base_model.model.model.layers.1"),
        ({"init_lora_weights": "pissa_niter_4"}, '"pissa_niter_4"'),
        ({"init_lora_weights": "olora"}, '"olora"'),
    ],
)
def test_configurations_that_do_not_fit(copied, changes, words):
    assert names(refusal(edit(copied("lora"), **changes)), words)


def test_a_setting_that_is_off_may_be_unknown(copied):
    assert open_with_peft(edit(copied("lora"), future_switch=None, unsloth_fixed=True)).head == "causal"


def test_a_field_of_no_peft_is_noted_where_no_version_is_recorded(copied):
    """Every PEFT that has a field that this one lacks records its version."""
    folder = copied("lora")
    plain = open_with_peft(folder)
    opened = open_with_peft(edit(folder, peft_version=None, trained_on="my data", seed=3))
    assert any(names(note, "trained_on, seed") for note in opened.notes)
    assert torch.equal(opened.model(input_ids=IDS).logits, plain.model(input_ids=IDS).logits)
    assert "trained_on" in refusal(edit(folder, peft_version="0.99"))


def test_adapters_outside_the_layers_only(made: Path, tmp_path: Path):
    config = LoraConfig(r=2, target_modules=["lm_head"], task_type="CAUSAL_LM")
    folder = write_adapter(tmp_path / "head", made / "llama", AutoModelForCausalLM, config)
    assert names(refusal(folder), "outside", "lm_head")


def test_bases_that_do_not_fit(copied, made: Path, tmp_path: Path):
    folder = copied("lora")
    wider = write_base(tmp_path / "wide", "llama", LlamaForCausalLM, hidden_size=64)
    assert names(refusal(folder, str(wider)), "[32, 4]", "[64, 4]")
    deeper = write_base(tmp_path / "deep", "llama", LlamaForCausalLM, num_hidden_layers=4)
    assert names(refusal(folder, str(deeper)), "lacks", "base_model.model.model.layers.3")
    flatter = write_base(tmp_path / "flat", "llama", LlamaForCausalLM, num_hidden_layers=2)
    assert names(refusal(folder, str(flatter)), "contains", "base_model.model.model.layers.2")
    assert "seq2seq" in refusal(edit(folder, task_type="SEQ_2_SEQ_LM"), str(made / "llama"))


@pytest.mark.parametrize("name", ["chatglm", "llama", "bert"])
def test_code_beside_a_base_is_never_run(made: Path, tmp_path: Path, name: str):
    base = Path(shutil.copytree(made / "llama", tmp_path / "base"))
    config = json.loads((base / "config.json").read_text())
    code = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    (base / "config.json").write_text(json.dumps({**config, "model_type": name, "auto_map": code}))
    (base / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    if name == "llama":
        open_with_peft(made / "lora", str(base))
    else:
        assert {
            "chatglm": "adapter_probe.ablate",
            "bert": "lora",
        }[name] in refusal(made / "lora", str(base))
    assert not (tmp_path / "ran").exists()


def test_a_pickle_is_never_run(copied, tmp_path: Path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    folder = copied("lora")
    (folder / WEIGHTS).unlink()
    torch.save({"a": Evil()}, folder / "adapter_model.bin")
    assert names(refusal(folder), str(folder / "adapter_model.bin"), "tensors")
    assert not (tmp_path / "ran").exists()


def test_a_quantised_base_that_is_missing_names_its_twin(copied):
    folder = edit(copied("lora"), base_model_name_or_path="unsloth/tiny-thing-unsloth-bnb-4bit")
    message = refusal(folder)
    assert "unsloth/tiny-thing " in message
    assert "another" in message


@pytest.mark.parametrize(
    ("method", "package"),
    [("gptq", "gptqmodel"), ("awq", "gptqmodel"), ("hqq", "hqq"), ("bitsandbytes", "bitsandbytes")],
)
def test_a_quantisation_without_its_package(method, package, made: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(quantised, "find_spec", lambda name: None)
    base = Path(shutil.copytree(made / "llama", tmp_path / "base"))
    config = json.loads((base / "config.json").read_text())
    given = {"quant_method": method, "bits": 4}
    (base / "config.json").write_text(json.dumps({**config, "quantization_config": given}))
    said = refusal(made / "lora", str(base))
    assert names(said, "quantised", method, f"package {package}", "--base", "another")
    assert ("[quantised]" in said) == (method == "bitsandbytes")


def test_outliers_are_what_a_configuration_says():
    eight = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    assert mixes_examples(eight)
    assert not mixes_examples(
        {"quantization_config": {**eight["quantization_config"], "llm_int8_threshold": 0.0}}
    )
    assert not mixes_examples({"quantization_config": {"quant_method": "gptq", "bits": 8}})
    assert not mixes_examples({})
