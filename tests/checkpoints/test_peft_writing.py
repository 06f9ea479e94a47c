"""What is written for PEFT is loaded by PEFT itself, and gives the same logits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import Float64, assert_close_in_float64, to_float64
from tiers import slow_unless
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
)

from adapter_probe.checkpoints.converting import to_peft
from adapter_probe.checkpoints.opening import open_any, open_checkpoint
from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.spans import Span
from adapter_probe.studies.pruning import prune

from .test_peft_causal import CASES, FIXTURES, causal_base, is_quick, logits, trained  # noqa: F401 (fixtures)

peft = pytest.importorskip("peft")

ENCODERS = sorted(path.parent.name for path in FIXTURES.glob("peft/*/expected.npz"))
TEXTS = json.loads((FIXTURES / "texts.json").read_text())


def base_of(folder: Path) -> str:
    config = json.loads((folder / "adapter_config.json").read_text())
    name = config.get("model_name") or config["base_model_name_or_path"]
    return str(FIXTURES / "bases" / name.rpartition("/")[2])


def by_peft(folder: Path, base: str, n_outputs: int = 3) -> np.ndarray:
    """Logits as in the fixtures' ``expected.npz``, by PEFT alone, in float64."""
    asks = json.loads((folder / "adapter_config.json").read_text())["task_type"] == "QUESTION_ANS"
    cls = AutoModelForQuestionAnswering if asks else AutoModelForSequenceClassification
    plain = cls.from_pretrained(base, num_labels=2 if asks else n_outputs)
    model = to_float64(peft.PeftModel.from_pretrained(plain, folder)).eval()
    with torch.no_grad(), Float64():
        outputs = [model(input_ids=torch.tensor([ids])) for ids in TEXTS]
    if asks:
        return np.concatenate(
            [torch.stack([o.start_logits[0], o.end_logits[0]], -1).numpy() for o in outputs]
        )
    return np.stack([o.logits[0].numpy() for o in outputs])


QUICK = ("ia3", "lora-everywhere", "lora-patterns", "norms", "qa")


@pytest.mark.parametrize("case", slow_unless(QUICK.__contains__, ENCODERS))
def test_what_peft_wrote_is_written_again(case: str, tmp_path: Path):
    folder = FIXTURES / "peft" / case
    base = base_of(folder)
    to_peft(open_checkpoint(folder, base), tmp_path / "p", folder)
    wanted = np.load(folder / "expected.npz")["logits"][0]
    assert_close_in_float64(by_peft(tmp_path / "p", base), wanted)
    again = open_checkpoint(tmp_path / "p", base)
    assert {spec.module for spec in again.description.method.inner} == {
        spec.module for spec in open_checkpoint(folder, base).description.method.inner
    }


@pytest.mark.parametrize(
    "case", ["lora", "lora-everywhere", "1.0-gpt2-lora", "gpt2-ia3", "ia3", "deberta-lora"]
)
def test_lora_of_adapterhub_becomes_pefts(case: str, tmp_path: Path):
    folder = FIXTURES / "adapterhub" / case
    base = base_of(folder)
    to_peft(open_any(folder, base), tmp_path / "p", folder)
    wanted = np.load(folder / "expected.npz")["logits"][0]
    assert_close_in_float64(by_peft(tmp_path / "p", base), wanted)


@pytest.mark.parametrize(
    ("case", "family"),
    [
        pytest.param(case, family, marks=() if is_quick(case, family) else pytest.mark.slow)
        for case in CASES
        for family in ("gpt2", "llama", "qwen2")
    ],
)
def test_causal_models_are_written_again(case: str, family: str, trained, causal_base, tmp_path: Path):  # noqa: F811
    wanted = logits(trained(family, CASES[case](family), tmp_path / "c"))
    base = str(causal_base(family))
    to_peft(open_checkpoint(tmp_path / "c", base), tmp_path / "p", tmp_path / "c")
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "p").eval()
    assert_close_in_float64(logits(model), wanted)
    assert json.loads((tmp_path / "p" / "adapter_config.json").read_text())["task_type"] == "CAUSAL_LM"


@pytest.mark.parametrize("case", ["plain", "patterns", "dora", "ia3"])
def test_layers_left_out_of_a_causal_model(case: str, trained, causal_base, tmp_path: Path):  # noqa: F811
    trained("llama", CASES[case]("llama"), tmp_path / "c")
    base = str(causal_base("llama"))
    opened = open_checkpoint(tmp_path / "c", base)
    kept = tuple(s for s in opened.description.method.inner if ".layers.1." not in s.module)
    to_peft(opened, tmp_path / "p", method=replace(opened.description.method, inner=kept))
    for module in opened.model.modules():
        if hasattr(module, "on"):
            module.on = True
    for site in opened.model.layers[1].sites:
        for module in site.modules:
            module.on = False
    wanted = logits(opened.model.base)
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "p").eval()
    assert_close_in_float64(logits(model), wanted)
    document = json.loads((tmp_path / "p" / "adapter_config.json").read_text())
    if case == "plain":
        assert document["layers_to_transform"] == [0, 2, 3]
        assert document["target_modules"] == ["self_attn.q_proj", "self_attn.v_proj"]
        assert document["lora_alpha"] == 5


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Labelled examples in the words of the fixtures' bases."""
    path = tmp_path / "rows.tsv"
    lines = [f"{' '.join(f'w{(7 * n + k) % 40}' for k in range(3 + n % 4))}\t{n % 3}" for n in range(24)]
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("case", "span"), [("lora", Span(1, 1)), ("lora-patterns", Span(2, 2)), ("ia3", Span(0, 1))]
)
def test_a_pruned_checkpoint_of_peft_is_pefts(case: str, span: Span, rows: Path, tmp_path: Path):
    folder = FIXTURES / "peft" / case
    base = base_of(folder)
    pair = (span.first, span.last)
    pruned = prune(folder, tmp_path / "p", span=pair, base=base, data=[rows], device="cpu", progress=False)
    assert pruned.adapter_parameters_after < pruned.adapter_parameters_before
    expected = np.load(folder / "expected.npz")
    layers = list(range(span.first, span.last + 1))
    row = [np.flatnonzero(skipped).tolist() for skipped in expected["skipped"]].index(layers)
    wanted = expected["logits"][row]
    assert_close_in_float64(by_peft(tmp_path / "p", base), wanted)
    assert json.loads((tmp_path / "p" / "adapter_config.json").read_text())["base_model_name_or_path"] == (
        "tiny-random/bert"
    )
    assert not (tmp_path / "p" / "adapter_probe.json").exists()


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("adapterhub/houlsby", "not double_seq_bn"),
        ("adapterhub/union", "not lora and par_bn"),
        ("adapterhub/distilbert-flex", "with a library-specific head"),
    ],
)
def test_what_peft_cannot_hold_is_named(case: str, words: str, tmp_path: Path):
    opened = open_checkpoint(FIXTURES / case, base_of(FIXTURES / case))
    with pytest.raises(CheckpointError) as caught:
        to_peft(opened, tmp_path / "p")
    assert words in str(caught.value)
    assert "PEFT's format can represent LoRA, DoRA, (IA)³ or tuned LayerNorms" in str(caught.value)
    assert not (tmp_path / "p").exists()


def test_nothing_is_written_over(tmp_path: Path):
    folder = FIXTURES / "peft" / "lora"
    opened = open_checkpoint(folder, base_of(folder))
    to_peft(opened, tmp_path / "p")
    with pytest.raises(CheckpointError, match="already contains a checkpoint"):
        to_peft(opened, tmp_path / "p")
    empty = ImportedMethod("peft", ("lora",))
    with pytest.raises(CheckpointError, match="not no adapters at all"):
        to_peft(opened, tmp_path / "q", method=empty)
