"""Several active adapters: spans of each, and of all, equal to PEFT's own models with factors set to zero."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from changed_files import retensor
from mask_loop import randomise
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_cases import write_base
from peft_folders import KV, saved
from refusals import naming
from safetensors.torch import load_file, save_file
from test_batches import batches_of
from tiers import slow_unless
from tiny_families import family
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import adapter_probe as ap
from adapter_probe.errors import AdapterProbeError

LAYERS = {"bert": "bert.encoder.layer", "t5 (labels)": "", "llama": "model.layers"}
READ = {"read": lambda out: out.logits[:, :3] if out.logits.dim() == 2 else out.logits[:, 0, :3]}
ROWS = [{"context": "the cat", "choices": ["saw a dog", "was"], "gold": n % 2} for n in range(6)]


def without(model: torch.nn.Module, off: set[tuple[str, int, str]], strength: float = 0.0) -> torch.nn.Module:
    """A copy in which adapters are scaled in their factors, by name, layer and stack."""
    whole = copy.deepcopy(model)
    for name, module in whole.get_base_model().named_modules():
        if isinstance(module, BaseTunerLayer):
            layer = next(int(part) for part in name.split(".") if part.isdecimal())
            stack = next((own for own in ("encoder", "decoder") if name.startswith(own)), "")
            for adapter, factor in module.lora_B.items():
                if {(adapter, layer, stack), (adapter, layer, "")} & off:
                    factor.weight.data *= strength
    return whole


@pytest.mark.parametrize("strength", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slow_unless("bert".__eq__, LAYERS))
def test_spans_of_each_and_of_all_equal_the_loop(name: str, strength: float):
    base, x = family(name)
    settings = {"init_lora_weights": False, "r": 3}
    targets = {"bert": ["query", "value"], "t5 (labels)": ["q", "wo"], "llama": ["q_proj", "up_proj"]}[name]
    model = get_peft_model(base, LoraConfig(target_modules=targets, **settings), adapter_name="a")
    model.add_adapter("b", LoraConfig(target_modules=targets[1:], use_rslora=True, **settings))
    model.add_adapter("c", LoraConfig(target_modules=targets[1:], **settings))
    model.base_model.add_weighted_adapter(["a", "c"], [0.7, 0.3], "mixed", combination_type="cat")
    model.base_model.set_adapter(["mixed", "b"])
    model.eval().double()
    batches = batches_of(x, 2)
    given = {"batches": batches, "labels": np.arange(6) % 3, "precision": "float64", "progress": False}
    study = ap.ablate(model, strength=strength, **given, **READ)
    results, named = study.results, {"mixed", "b"}
    assert set(study.spans["stack"].str.split().str[-1]) == {"mixed", "b", "together"}
    for row, (part, (first, last)) in enumerate(zip(results.stacks.tolist(), results.spans.tolist())):
        stack = next((own for own in ("encoder", "decoder") if part.startswith(own)), "")
        adapters = named if not part or part.endswith("together") else {part.split()[-1]}
        layers = range(first, last + 1) if first >= 0 else range(9 * (results.row_names[row] == "none"))
        whole = without(model, {(own, layer, stack) for own in adapters for layer in layers}, strength)
        with torch.no_grad():
            expected = torch.cat([READ["read"](whole(**batch)) for batch in batches]).numpy()
        np.testing.assert_allclose(results.outputs[row], expected, atol=1e-6 * np.abs(expected).max())
    assert np.ptp(results.outputs, axis=0).max() > 1e-3
    assert model.active_adapters == ["mixed", "b"]
    assert not [name for name, _ in model.named_modules() if "adapter_0" in name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of named adapters on one base, one of them of another kind, with rows."""
    top, tokenizer = tmp_path_factory.mktemp("several"), byte_tokenizer(True)
    write_base(top / "base", "llama", LlamaForCausalLM, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(top / "base")
    for number, (name, targets) in enumerate({"one": ["q_proj"], "two": ["q_proj", "up_proj"]}.items()):
        config = LoraConfig(r=2 + number, target_modules=targets, task_type="CAUSAL_LM")
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(top / "base"), config)
        randomise(model, 0.2 + 0.1 * number)
        model.save_pretrained(top / "named" / name)
    other = IA3Config(target_modules=["k_proj"], feedforward_modules=[], task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(top / "base"), other).save_pretrained(
        top / "named" / "other"
    )
    (top / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return top


@pytest.mark.slow
def test_a_folder_of_named_adapters_equals_the_model_in_memory(folder: Path):
    given = {"data": folder / "rows.jsonl", "progress": False}
    study = ap.ablate(folder / "named", adapter="one,two", out=folder / "study", **given)
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(folder / "base"), folder / "named" / "one", adapter_name="one"
    )
    model.load_adapter(folder / "named" / "two", adapter_name="two")
    model.base_model.set_adapter(["one", "two"])
    again = ap.ablate(model.eval(), tokenizer=byte_tokenizer(True), **given)
    assert study.results.row_names == again.results.row_names
    np.testing.assert_allclose(study.results.outputs, again.results.outputs, rtol=0, atol=1e-4)
    assert {f"adapter {name}" for name in ("one", "two")} < set(study.summary.stacks)
    assert ap.load(folder / "study").spans.equals(study.spans)
    resumed = ap.ablate(folder / "named", adapter="one,two", out=folder / "study", **given)
    assert resumed.spans.equals(study.spans)


@pytest.mark.parametrize(
    ("asked", "facts"),
    [
        ("one,three", ["adapter='three'", "one", "two"]),
        ("one,one", ["adapter='one,one'", "twice"]),
        ("one,", ["adapter='one,'", "empty name"]),
        ("one,other", ["adapter='one,other'", "LORA"]),
    ],
)
def test_adapters_that_are_not_there_or_do_not_go_together(asked: str, facts: list[str], folder: Path):
    with pytest.raises(AdapterProbeError, match=naming(*facts)):
        ap.ablate(folder / "named", adapter=asked, data=folder / "rows.jsonl", progress=False)


def test_an_adapter_with_names_of_a_wrapper_is_as_active_as_without(folder: Path, tmp_path: Path):
    other = Path(shutil.copytree(folder / "named", tmp_path / "named"))
    start, wrapped = "base_model.model.", "base_model.model._orig_mod."
    retensor(other / "two", lambda found: {name.replace(start, wrapped, 1): x for name, x in found.items()})
    given = {"data": folder / "rows.jsonl", "adapter": "one,two", "spans": "whole", "progress": False}
    plain = ap.ablate(folder / "named", out=tmp_path / "a", **given)
    wrapped = ap.ablate(other, out=tmp_path / "b", **given)
    np.testing.assert_array_equal(wrapped.results.outputs, plain.results.outputs)


def test_several_of_mlx_are_refused(folder: Path, tmp_path: Path):
    other = Path(shutil.copytree(folder / "named", tmp_path / "named"))
    tensors = {}
    for name, tensor in load_file(other / "two" / "adapter_model.safetensors").items():
        module, _, part = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        tensors[f"{module}.{part.lower()}"] = tensor.T.contiguous()
    shutil.rmtree(other / "two")
    (other / "two").mkdir()
    save_file(tensors, other / "two" / "adapters.safetensors")
    rank = min(min(tensor.shape) for tensor in tensors.values())
    about = {"fine_tune_type": "lora", "lora_parameters": {"rank": rank, "scale": 1.0}}
    (other / "two" / "adapter_config.json").write_text(json.dumps(about))
    with pytest.raises(AdapterProbeError, match=naming(str(other / "two"), "PEFT", "convert --to peft")):
        ap.ablate(other, base=folder / "base", adapter="one,two", data=folder / "rows.jsonl", progress=False)


def test_several_heads_are_refused_in_our_words(tmp_path):
    saved(tmp_path, "bert", {k: v for k, v in KV.items() if k != "num_key_value_heads"}, "SEQ_CLS", ["query"])
    for name in ("one", "two"):
        shutil.copytree(tmp_path / "lora", tmp_path / "both" / name)
    with pytest.raises(AdapterProbeError, match=naming("one,two", "classifier", "head", "give one")):
        ap.ablate(tmp_path / "both", adapter="one,two", data=[{"text": "a", "label": "0"}], progress=False)
