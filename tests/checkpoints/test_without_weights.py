"""What is counted without weights is what the models hold that are opened in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from peft import IA3Config, LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_cases import write_adapter, write_base
from tiers import slow_unless
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, T5ForConditionalGeneration

from adapter_probe.checkpoints.base import load_without_weights
from adapter_probe.checkpoints.opened_peft import contents_of
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.models.methods import Adapters
from adapter_probe.studies.inspect_convert import inspect

TARGETS = ["q", "v", "wo"]


def counted(folder: Path, base: Path | None = None) -> dict[str, Any]:
    opened = open_any(folder, base and str(base), load=load_without_weights)
    own = opened.model.get_base_model() if hasattr(opened.model, "get_base_model") else opened.model
    assert all(p.is_meta for n, p in own.named_parameters() if n.startswith(f"{own.base_model_prefix}.emb"))
    return contents_of(opened)


def pretrained_in(found: dict[str, Any]) -> float:
    """The number of the base's parameters, by the share of those that are trained."""
    return pytest.approx(100 * found["trained_parameters_without_head"] / found["percent_of_base"])


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_a_bottleneck_checkpoint(family, tiny_base, write_checkpoint, tmp_path):
    write_checkpoint(tiny_base(family), tmp_path / "c", method=Adapters(size=3, sites="ffn"))
    found = counted(tmp_path / "c")
    assert found == contents_of(open_any(tmp_path / "c"))
    base = AutoModelForSequenceClassification.from_pretrained(tiny_base(family), num_labels=2)
    counts = {n: p.numel() for n, p in base.named_parameters()}
    assert pretrained_in(found) == sum(size for name, size in counts.items() if name.startswith(family))
    assert found["parameters"]["layernorms"] == sum(
        size for name, size in counts.items() if "LayerNorm" in name
    )
    n_layers = base.config.num_hidden_layers
    assert found["parameters"]["adapters"] == n_layers * (2 * 3 * 32 + 3 + 32)
    assert (found["n_layers"], found["n_sites"], found["hidden_size"]) == (n_layers, n_layers, 32)


def test_weights_in_several_files_under_old_names(tiny_base, write_checkpoint, tmp_path):
    base = tiny_base("bert")
    write_checkpoint(base, tmp_path / "c")
    expected, moved = counted(tmp_path / "c"), tmp_path / "moved"
    moved.mkdir()
    for path in base.iterdir():
        if path.suffix == ".json":
            (moved / path.name).write_bytes(path.read_bytes())
    tensors = safetensors.torch.load_file(base / "model.safetensors")
    for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    names = sorted(tensors)
    where = {name: f"{'ab'[number % 2]}.safetensors" for number, name in enumerate(names)}
    for file in set(where.values()):
        own = {name: tensors[name] for name in names if where[name] == file}
        safetensors.torch.save_file(own, moved / file, {"format": "pt"})
    (moved / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert counted(tmp_path / "c", moved) == expected | {"base": str(moved)}


CONFIGS = {
    "DoRA": LoraConfig(
        r=4, target_modules=TARGETS, use_dora=True, layers_to_transform=[1], layers_pattern="block"
    ),
    "LoRA": LoraConfig(r=4, target_modules=TARGETS, task_type="SEQ_2_SEQ_LM"),
    "IA3": IA3Config(target_modules=TARGETS, feedforward_modules=["wo"], modules_to_save=["lm_head"]),
}


@pytest.mark.parametrize("case", slow_unless("DoRA".__eq__, CONFIGS))
def test_a_checkpoint_of_peft(case, tmp_path: Path):
    t5 = write_base(tmp_path / "t5", "t5", T5ForConditionalGeneration)
    folder = write_adapter(tmp_path / "a", t5, AutoModelForSeq2SeqLM, CONFIGS[case])
    opened, found = open_any(folder), counted(folder)
    assert found == contents_of(opened)
    model = opened.model
    tuned = {n for n, module in model.get_base_model().named_modules() if isinstance(module, BaseTunerLayer)}
    assert {spec.module for spec in opened.description.method.inner} == tuned
    adapters = [n for n in model.state_dict() if any(p in n for p in ("lora_", "ia3_"))]
    assert found["parameters"]["adapters"] == sum(model.state_dict()[n].numel() for n in adapters)
    whole = [p for n, p in model.named_parameters() if "modules_to_save" in n]
    assert found["trained_parameters"] == found["parameters"]["adapters"] + sum(p.numel() for p in whole)
    base = AutoModelForSeq2SeqLM.from_pretrained(t5)
    assert pretrained_in(found) == sum(p.numel() for p in base.parameters())
    norms = [p for n, p in base.named_parameters() if "layer_norm" in n]
    assert found["parameters"]["layernorms"] == sum(p.numel() for p in norms)
    assert (found["n_layers"], found["hidden_size"], found["family"]) == (6, 32, "t5")
    facts = inspect(folder)
    assert facts["n_sites"] == sum(bool(part) for layer in opened_layers(model) for part in layer)
    assert facts["stacks"] == {"encoder": 3, "decoder": 3}


def opened_layers(model: torch.nn.Module) -> list[tuple[bool, bool]]:
    """Whether the attention and the feed-forward network of each block hold a tuner."""
    base, found = model.get_base_model(), []
    for block in (*base.encoder.block, *base.decoder.block):
        tuned = [n for n, one in block.named_modules() if isinstance(one, BaseTunerLayer)]
        found.append((any("Attention" in n for n in tuned), any("DenseReluDense" in n for n in tuned)))
    return found
