"""What is written for PEFT is loaded by PEFT itself, and gives the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import Float64, assert_close_in_float64, to_float64
from peft_cases import base_of
from refusals import naming, refuses
from tiers import slow_unless
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.peft_writing import to_peft
from adapter_probe.errors import CheckpointError
from adapter_probe.studies.inspect_convert import convert
from adapter_probe.studies.prune import prune

peft = pytest.importorskip("peft")

FIXTURES = Path(__file__).parent / "fixtures"
TEXTS = json.loads((FIXTURES / "texts.json").read_text())


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


@pytest.mark.parametrize(
    "case",
    slow_unless(
        ("lora-everywhere", "1.0-gpt2-lora", "ia3").__contains__,
        ["lora", "lora-everywhere", "1.0-gpt2-lora", "gpt2-ia3", "ia3", "deberta-lora"],
    ),
)
def test_lora_of_adapterhub_becomes_pefts(case: str, tmp_path: Path):
    folder = FIXTURES / "adapterhub" / case
    base = base_of(folder)
    to_peft(open_any(folder, base), tmp_path / "p")
    wanted = np.load(folder / "expected.npz")["logits"][0]
    assert_close_in_float64(by_peft(tmp_path / "p", base), wanted)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Labelled examples in the words of the fixtures' bases."""
    path = tmp_path / "rows.tsv"
    lines = [f"{' '.join(f'w{(7 * n + k) % 40}' for k in range(3 + n % 4))}\t{n % 3}" for n in range(24)]
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return path


def test_a_pruned_checkpoint_of_peft_is_pefts(rows: Path, tmp_path: Path):
    """Of an encoder, with patterns of ranks and layers; other tuners are in probe/test_prune_peft."""
    folder = FIXTURES / "peft" / "lora-patterns"
    base = base_of(folder)
    pruned = prune(folder, tmp_path / "p", span=2, base=base, data=[rows], device="cpu", progress=False)
    assert pruned.adapter_parameters_after < pruned.adapter_parameters_before
    expected = np.load(folder / "expected.npz")
    (row,) = np.flatnonzero((expected["skipped"] == [False, False, True]).all(axis=1))
    assert_close_in_float64(by_peft(tmp_path / "p", base), expected["logits"][row])
    assert json.loads((tmp_path / "p" / "adapter_config.json").read_text())["base_model_name_or_path"] == (
        "tiny-random/bert"
    )
    assert not (tmp_path / "p" / "adapter_probe.json").exists()


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("adapterhub/houlsby", ("double_seq_bn",)),
        ("adapterhub/union", ("lora", "par_bn")),
        ("adapterhub/distilbert-flex", ("library-specific", "head")),
    ],
)
def test_what_peft_cannot_hold_is_named(case: str, words: tuple[str, ...], tmp_path: Path):
    opened = open_any(FIXTURES / case, base_of(FIXTURES / case))
    refuses(CheckpointError, (*words, "LoRA", "(IA)³"), to_peft, opened, tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_nothing_is_written_over(tmp_path: Path):
    folder = FIXTURES / "adapterhub" / "lora"
    convert(folder, tmp_path / "p", "peft", base=base_of(folder))
    made = tmp_path / "p"
    for source, to in ((folder, "peft"), (made, "peft"), (folder, "native"), (folder, "adapterhub")):
        with pytest.raises(CheckpointError, match=naming(str(tmp_path / "p"), "already")):
            convert(source, tmp_path / "p", to, base=base_of(folder))
    convert(tmp_path / "p", tmp_path / "q", "peft", base=base_of(folder))
    assert_close_in_float64(
        by_peft(tmp_path / "q", base_of(folder)), by_peft(tmp_path / "p", base_of(folder))
    )
