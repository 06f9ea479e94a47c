"""`adapter-probe inspect` against a count by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from changed_files import edit
from peft import LoraConfig, get_peft_model
from refusals import names
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification

HIDDEN, LAYERS, SIZE, LABELS = 32, 3, 4, 2
ADAPTERS = 2 * LAYERS * (2 * HIDDEN * SIZE + HIDDEN + SIZE)
NORMS = (2 * LAYERS + 1) * 2 * HIDDEN
POOLER = HIDDEN * HIDDEN + HIDDEN
HEAD = HIDDEN * LABELS + LABELS


def n_parameters(base: Path) -> int:
    return sum(tensor.size for tensor in load_file(base / "model.safetensors").values())


def test_the_numbers(program, trained, tiny_base, tree):
    before = tree(trained)
    outcome = program("inspect", trained, "--json")
    assert tree(trained) == before
    facts = json.loads(outcome.stdout)
    base = n_parameters(tiny_base("bert"))
    assert outcome.stderr == ""
    assert facts["parameters"] == {
        "adapters": ADAPTERS,
        "layernorms": NORMS,
        "pooler": POOLER,
        "head": HEAD,
        "base": base - NORMS - POOLER,
    }
    trained_count = ADAPTERS + NORMS + HEAD
    assert facts["trained_parameters"] == trained_count
    trained_by_role = {"adapters": ADAPTERS, "layernorms": NORMS, "pooler": 0, "head": HEAD, "base": 0}
    assert facts["trained_by_role"] == trained_by_role
    assert facts["trained_parameters_without_head"] == trained_count - HEAD
    assert facts["percent_of_base"] == pytest.approx(100 * (trained_count - HEAD) / base)
    assert facts["adapters_percent_of_base"] == pytest.approx(100 * ADAPTERS / base)
    assert (facts["n_layers"], facts["n_sites"], facts["hidden_size"]) == (LAYERS, 2 * LAYERS, HIDDEN)
    assert (facts["family"], facts["base"]) == ("bert", str(tiny_base("bert")))
    assert facts["method"]["size"] == SIZE

    delta = load_file(trained / "delta.safetensors")
    assert sum(tensor.size for tensor in delta.values()) == trained_count


def test_a_base_without_pooler(program, train_arguments, tiny_base, tmp_path):
    arguments = list(train_arguments)
    arguments[arguments.index("--base") + 1] = base = tiny_base("bert", pooler=False)
    assert program(*arguments, "--out", tmp_path / "c").code == 0
    facts = json.loads(program("inspect", tmp_path / "c", "--json").stdout)
    trained_count = ADAPTERS + NORMS + HEAD + POOLER
    assert facts["trained_parameters"] == trained_count
    assert facts["parameters"]["base"] == n_parameters(base) - NORMS
    # The pooler is no part of such a base: it came with the task, as the head did.
    assert facts["percent_of_base"] == pytest.approx(100 * (ADAPTERS + NORMS) / n_parameters(base))


def test_the_text_gives_the_same_numbers(program, trained, tiny_base):
    outcome = program("inspect", trained)
    base = n_parameters(tiny_base("bert"))
    told, _, frozen = outcome.stdout.partition("\nfrozen")
    for number in (ADAPTERS, NORMS, HEAD, ADAPTERS + NORMS + HEAD):
        assert f" {number:,} parameters" in told
    for number in (base - NORMS, POOLER, base - NORMS - POOLER):
        assert f" {number:,} parameters" in frozen
    assert "layernorms" not in frozen
    assert any(
        names(line, "adapters", f"{100 * ADAPTERS / base:.1f}".removesuffix(".0"))
        for line in told.splitlines()
    )
    for part in (
        str(tiny_base("bert")),
        "3, adapters in 6 places, hidden size 32",
        "adapters, size 4, init std 0.2, activation gelu",
    ):
        assert part in outcome.stdout


def test_what_a_lora_trains_is_listed_and_no_more(program, tiny_base, tmp_path: Path):
    """The pooler that is trained beside it, and not the LayerNorms, which are frozen."""
    model = AutoModelForSequenceClassification.from_pretrained(tiny_base("bert"), num_labels=LABELS)
    settings = LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS", modules_to_save=["pooler"])
    get_peft_model(model, settings).save_pretrained(tmp_path)
    facts = json.loads(program("inspect", tmp_path, "--json").stdout)
    lora = LAYERS * 2 * 2 * HIDDEN
    trained = {"adapters": lora, "layernorms": 0, "pooler": POOLER, "head": HEAD, "base": 0}
    assert facts["trained_by_role"] == trained
    assert facts["trained_parameters"] == lora + POOLER + HEAD
    told, _, frozen = program("inspect", tmp_path).stdout.partition("\nfrozen")
    assert "layernorms" not in told
    assert "pooler" not in frozen
    share = 100 * lora / n_parameters(tiny_base("bert"))
    assert any(
        names(line, "adapters", f"{lora:,}", f"{share:.1f}".removesuffix(".0")) for line in told.splitlines()
    )


def test_an_undefined_score_can_be_shown(program, trained, tmp_path):
    # A regression whose predictions are constant has no correlation; its checkpoint says null.
    folder = shutil.copytree(trained, tmp_path / "c")
    edit(folder / "adapter_probe.json", scores={"accuracy": None})
    outcome = program("inspect", folder)
    assert outcome.code == 0
    assert "undefined accuracy" in outcome.stdout
    edit(folder / "adapter_probe.json", scores={"accuracy": 0.6, "mcc": 0.25})
    assert "60.0% accuracy, Matthews correlation 0.250" in program("inspect", folder).stdout
