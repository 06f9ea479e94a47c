"""Vocabularies grown for a training: the logits of the trained model, or a refusal of rows in no file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import peft_cases
import pytest
import torch
from changed_files import retensor
from mask_loop import randomise, switched
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_cases import refusals, write_base
from refusals import names
from tiers import slow_unless
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    LlamaForCausalLM,
    T5ForConditionalGeneration,
)

import adapter_probe as ap
from adapter_probe.checkpoints.base import SharedBase
from adapter_probe.checkpoints.opening import open_any

pytestmark = pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
OLD, NEW = 64, 67
IDS = torch.tensor([[5, 6, NEW - 1, OLD, 7, 3]])
CAUSAL = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
BOTH = ["embed_tokens", "lm_head"]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bases")
    for tied in (True, False):
        write_base(place / f"llama-{tied}", "llama", LlamaForCausalLM, tie_word_embeddings=tied)
    write_base(place / "t5", "t5", T5ForConditionalGeneration)
    write_base(place / "bert", "bert", BertForSequenceClassification)
    return place


def trained(folder: Path, base: Path, cls: type = AutoModelForCausalLM, save="auto", **config) -> PeftModel:
    """The model in memory that is saved in ``folder``, with tokens more than its base."""
    torch.manual_seed(3)
    model = cls.from_pretrained(base)
    model.resize_token_embeddings(NEW, mean_resizing=False)
    model = get_peft_model(model, LoraConfig(r=4, base_model_name_or_path=str(base), **config))
    randomise(model)
    model.eval().save_pretrained(folder, save_embedding_layers=save)
    return model


def logits(model: torch.nn.Module) -> torch.Tensor:
    return peft_cases.logits(model, IDS)


CASES = {
    "saved by itself": CAUSAL,
    "trained": CAUSAL | {"modules_to_save": BOTH},
    "inputs trained": CAUSAL | {"modules_to_save": BOTH[:1]},
    "tuners": CAUSAL | {"target_modules": ["q_proj", *BOTH]},
    "tokens": CAUSAL | {"trainable_token_indices": [3, NEW - 1]},
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("case", slow_unless(("tuners", "tokens").__contains__, CASES))
def test_a_base_grows_to_the_rows_of_the_file(case: str, tied: bool, bases: Path, tmp_path: Path):
    right = logits(trained(tmp_path, bases / f"llama-{tied}", **CASES[case]))
    opened = open_any(tmp_path)
    assert torch.equal(logits(opened.model), right)
    assert right.shape[-1] == opened.description.base.vocab_size == NEW
    assert not any(parameter.isnan().any() for parameter in opened.model.parameters())
    assert any(names(note, str(OLD), str(NEW)) for note in opened.notes)
    assert ap.inspect(tmp_path)["notes"] == list(opened.notes)


def test_models_of_other_kinds_grow(bases: Path, tmp_path: Path):
    config = {"target_modules": ["q"], "task_type": "SEQ_2_SEQ_LM", "modules_to_save": ["shared"]}
    right = logits(trained(tmp_path / "t5", bases / "t5", AutoModelForSeq2SeqLM, **config))
    assert torch.equal(logits(open_any(tmp_path / "t5").model), right)
    config = {"target_modules": ["query"], "task_type": "SEQ_CLS"}
    right = logits(trained(tmp_path / "b", bases / "bert", AutoModelForSequenceClassification, **config))
    assert torch.equal(logits(open_any(tmp_path / "b").model), right)


LOST = {  # with the rows that no file has, and where
    "head": (False, {"modules_to_save": BOTH[:1]}, ("rows 64 to 66", "lm_head")),
    "gap": (True, {"trainable_token_indices": [3, 64, 66]}, ("row 65", "embeddings")),
    "tied head": (True, {"modules_to_save": BOTH[:1]}, ("rows 64 to 66", "lm_head")),
    "tokens": (False, {"trainable_token_indices": [64, 65, 66]}, ("rows 64 to 66", "lm_head")),
    "tuner": (True, {"target_modules": ["q_proj", BOTH[0]]}, ("rows 64 to 66", "model.embed_tokens")),
}


@pytest.mark.parametrize("case", slow_unless(("head", "gap").__contains__, LOST))
def test_rows_in_no_file(case: str, bases: Path, tmp_path: Path):
    tied, config, said = LOST[case]
    trained(tmp_path, bases / f"llama-{tied}", save=False, **CAUSAL | config)
    assert all(names(line, *said, "random", "base=") for line in refusals(tmp_path))


def test_a_base_never_shrinks(bases: Path, tmp_path: Path):
    trained(tmp_path, bases / "llama-False", **CAUSAL)
    retensor(tmp_path, lambda found: {k: t if "lora" in k else t[:60].clone() for k, t in found.items()})
    assert all(re.search(r"\[60, 32\].*\[64, 32\]", line) for line in refusals(tmp_path))


def test_a_shared_base_keeps_its_rows(bases: Path, tmp_path: Path):
    right = logits(trained(tmp_path, bases / "llama-True", **CAUSAL))
    plain = get_peft_model(
        AutoModelForCausalLM.from_pretrained(bases / "llama-True"), LoraConfig(r=2, **CAUSAL)
    )
    randomise(plain)
    plain.eval().save_pretrained(tmp_path / "plain")
    shared = SharedBase(torch.device("cpu"))
    ids = torch.tensor([[5, 6, 7]])
    for _ in range(2):
        assert torch.equal(logits(open_any(tmp_path, load=shared.load).model), right)
        own = open_any(tmp_path / "plain", str(bases / "llama-True"), load=shared.load).model
        with torch.no_grad():
            assert torch.equal(own(input_ids=ids).logits, plain(input_ids=ids).logits)


def test_spans_of_a_grown_model_as_a_loop_switches_them(bases: Path, tmp_path: Path):
    model = trained(tmp_path, bases / "llama-False", **CAUSAL)
    opened = ap.open(tmp_path, device="cpu")
    modules = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]
    for first, last in ((0, 2), (1, 1)):
        switched(modules[first : last + 1], False)
        with opened.switched_off(first, last):
            assert torch.allclose(logits(opened.base), logits(model), atol=1e-6)
        switched(modules, True)


def test_what_is_written_without_a_span_keeps_its_tokens(bases: Path, tmp_path: Path):
    trained(tmp_path / "a", bases / "llama-False", **CAUSAL | {"modules_to_save": BOTH})
    ap.convert(tmp_path / "a", tmp_path / "b", "peft", strength=0.5)
    assert json.loads((tmp_path / "b" / "adapter_config.json").read_text())["r"] == 4
    assert open_any(tmp_path / "b").description.base.vocab_size == NEW
