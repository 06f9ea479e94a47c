"""PEFT's adapters of every type on causal language models, against the logits that PEFT computes."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import peft
import peft_cases
import pytest
import torch
from changed_files import edit
from exact import Float64, assert_close_in_float32, assert_close_in_float64, to_float64
from mask_loop import with_lora
from peft import LoraConfig
from peft_cases import by_peft, write_adapter, write_base
from refusals import names
from tiers import slow_unless
from tokenizers import processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
    Trainer,
    TrainingArguments,
)
from tuners import TUNERS, TWO, L, newer

import adapter_probe as ap
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.peft_rewriting import write_without

CHANGING_THE_BASE = ("pissa", "olora")  # which test_adapter_folder is about
FAMILIES = {"llama": LlamaForCausalLM, "gpt2": GPT2LMHeadModel, "qwen2": Qwen2ForCausalLM}


def lora(**settings: object) -> LoraConfig:
    return LoraConfig(r=2, lora_alpha=5, **settings)


OF_LLAMA = {name: config for name, config in TUNERS.items() if name not in CHANGING_THE_BASE} | {
    "plain": lora(),  # PEFT has its own targets for most families
    "all-linear": lora(target_modules="all-linear"),
    "regex": lora(target_modules=r".*\.(q|v)_proj", exclude_modules=r".*\.0\..*"),
    "dora everywhere": lora(target_modules="all-linear", use_dora=True),
    "both ends": lora(target_modules=L, modules_to_save=["embed_tokens", "lm_head"]),
    "vera, projections left out": peft.VeraConfig(r=4, target_modules=["q_proj"], save_projection=False),
    "vblora, few weights": peft.VBLoRAConfig(
        r=2, num_vectors=8, vector_length=8, topk=2, target_modules=L, save_only_topk_weights=True
    ),
    "lily": newer("LilyConfig", target_modules=TWO),
}
OF_GPT2 = {
    "plain": lora(),
    "all-linear": lora(target_modules="all-linear"),
    "dora everywhere": lora(target_modules="all-linear", use_dora=True),
    "patterns": lora(
        target_modules=["c_attn"], use_rslora=True, layers_to_transform=[1, 3],
        rank_pattern={r"\.1\..*": 3}, alpha_pattern={"c_attn": 7},
    ),
    "layers pattern": lora(target_modules=["c_attn"], layers_to_transform=2, layers_pattern="h"),
    "both ends": lora(target_modules=["c_attn"], modules_to_save=["wte", "lm_head"]),
    "ia3": peft.IA3Config(target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"]),
    "ln_tuning": peft.LNTuningConfig(target_modules=["ln_1", "ln_2"]),
}  # fmt: skip
OF_QWEN2 = {  # whose embeddings are tied
    "tokens": lora(target_modules=L, trainable_token_indices=[9, 14]),
    "head": lora(target_modules=L, modules_to_save=["lm_head"]),
    "embeddings": lora(target_modules=L, modules_to_save=["embed_tokens"]),
    "both ends": lora(target_modules=L, modules_to_save=["embed_tokens", "lm_head"]),
}
CASES = {
    f"{family}, {name}": (family, config)
    for family, configs in zip(FAMILIES, (OF_LLAMA, OF_GPT2, OF_QWEN2))
    for name, config in configs.items()
    if config
}
# The cases that differ most on one family, and one case on the family that differs most.
QUICK = [f"llama, {name}" for name in ("plain", "dora", "tokens", "embeddings", "ia3", "ln_tuning")]
QUICK += ["llama, both ends", "gpt2, patterns"]


@pytest.fixture(scope="session")
def base_of_family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``base_of_family(family) -> folder`` of a tiny causal model whose every parameter is random."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            settings = {
                "num_hidden_layers": 4,
                "pad_token_id": None,
                "tie_word_embeddings": family != "llama",
            }
            write_base(folder, family, FAMILIES[family], **settings)
            model = AutoModelForCausalLM.from_pretrained(folder)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.2 * torch.randn_like(parameter)
            model.save_pretrained(folder)
            made[family] = folder
        return made[family]

    return make


def logits(model: torch.nn.Module, tuner: str = "") -> torch.Tensor:
    """In float64, which the model stays in."""
    to_float64(model)
    # PEFT computes FourierFT in float32 whatever the weights are.
    with nullcontext() if "fourierft" in tuner else Float64():
        return peft_cases.logits(model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", slow_unless(QUICK.__contains__, CASES))
def test_logits_are_pefts(case: str, base_of_family, tmp_path: Path):
    family, config = copy.deepcopy(CASES[case])
    base, config.task_type = base_of_family(family), "CAUSAL_LM"
    folder = write_adapter(tmp_path, base, AutoModelForCausalLM, config)
    torch.manual_seed(77)
    theirs = by_peft(folder, base)
    torch.manual_seed(78)
    opened = open_any(folder)
    assert opened.description.task.kind == "causal"
    wanted = logits(theirs, case)
    assert (wanted - logits(AutoModelForCausalLM.from_pretrained(base))).abs().max() > 1e-3
    assert_close_in_float64(logits(opened.model, case), wanted)


def test_the_class_tells_the_task_where_no_task_type_does(base_of_family, tmp_path: Path):
    folder = write_adapter(tmp_path, base_of_family("llama"), AutoModelForCausalLM, lora(target_modules=L))
    assert_close_in_float64(logits(open_any(folder).model), logits(by_peft(folder, base_of_family("llama"))))


def test_a_tokenizer_that_was_saved_with_the_adapter(base_of_family, tmp_path: Path):
    """It is the one of the training: here one that begins and ends texts differently than the base's."""
    folder, base = tmp_path / "c", str(base_of_family("llama"))
    write_adapter(
        folder, Path(base), AutoModelForCausalLM, lora(target_modules="all-linear", task_type="CAUSAL_LM")
    )
    plain = open_any(folder, base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.sep_token  # changes no text's tokens
    tokenizer.save_pretrained(folder)
    same = open_any(folder, base)
    assert same.description.tokenizer == plain.description.tokenizer
    assert same.notes == plain.notes
    end_by_sep(tokenizer)
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(folder)
    ids = tokenizer("w1 w2")["input_ids"]
    assert ids != AutoTokenizer.from_pretrained(base)("w1 w2")["input_ids"]
    opened = open_any(folder, base)
    assert opened.tokenizer("w1 w2")["input_ids"] == ids
    assert names(opened.notes[-1], "tokenizer", "base", "chat template, post processor")
    old, new = plain.description.tokenizer, opened.description.tokenizer
    assert {"post_processor", "chat_template"} <= {name for name in new if new[name] != old.get(name)}
    write_without(opened, (), tmp_path / "peft")
    assert open_any(tmp_path / "peft", base).description.tokenizer == new


def end_by_sep(tokenizer: PreTrainedTokenizerFast) -> None:
    """Texts end by its token."""
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", special_tokens=[("[SEP]", tokenizer.sep_token_id)]
    )


def classifier_on(base: Path) -> peft.PeftModel:
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    return with_lora(model, "all-linear", "SEQ_CLS", r=2, lora_alpha=5)


def assert_opened_as_trained(
    folder: Path, base: Path, model: peft.PeftModel, tokenizer: PreTrainedTokenizerFast
) -> ap.Model:
    """What is opened has the logits of the model that was saved."""
    with torch.no_grad():
        expected = model.eval()(input_ids=torch.tensor([tokenizer("w1 w2 w3")["input_ids"]])).logits
    opened = ap.open(folder, base=base, device="cpu")
    assert_close_in_float32(opened.logits("w1 w2 w3"), expected, layers=4)
    return opened


@pytest.mark.parametrize("pad", slow_unless("[SEP]".__eq__, ["[SEP]", "[MASK]"]))
@pytest.mark.parametrize("ends", ["checkpoint", "base"], ids="texts end by that of the {}".format)
@pytest.mark.parametrize("pads", ["checkpoint", "base"], ids="padding token in that of the {}".format)
def test_a_classifier_reads_the_token_that_the_training_read(pads, ends, pad, base_of_family, tmp_path):
    """With a padding token that also ends texts, the one before; neither the base nor PEFT records it."""
    base, folder = shutil.copytree(base_of_family("llama"), tmp_path / "base"), tmp_path / "checkpoint"
    model, tokenizer = classifier_on(base), AutoTokenizer.from_pretrained(base)
    assert model.config.pad_token_id is None
    (base / "special_tokens_map.json").unlink()  # which is read, and no longer written
    for place in ("base", "checkpoint"):
        if place == ends:
            end_by_sep(tokenizer)
        tokenizer.pad_token = pad if place == pads or pads == "base" else None
        if place == "base" or "checkpoint" in (pads, ends):
            tokenizer.save_pretrained(tmp_path / place)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    assert_opened_as_trained(folder, base, model, tokenizer)


@pytest.mark.parametrize("saved", [True, False], ids=["with its tokenizer", "without"])
def test_a_classifier_skips_the_padding_token_of_its_trainer(saved: bool, base_of_family, tmp_path: Path):
    """Transformers' Trainer writes its tokenizer's into the configuration, though the base names another."""
    base, folder = shutil.copytree(base_of_family("llama"), tmp_path / "base"), tmp_path / "checkpoint"
    edit(base / "config.json", pad_token_id=0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    end_by_sep(tokenizer)
    tokenizer.save_pretrained(base)
    tokenizer.pad_token = tokenizer.sep_token
    model = classifier_on(base)
    settings = TrainingArguments(tmp_path / "run", use_cpu=True, report_to=[], learning_rate=0.0, max_steps=1)
    rows = [tokenizer("w1 w2") | {"labels": 1}]
    trainer = Trainer(model, settings, train_dataset=rows, processing_class=tokenizer if saved else None)
    trainer.train()
    trainer.save_model(folder)
    assert model.config.pad_token_id == (tokenizer.sep_token_id if saved else 0)
    opened = assert_opened_as_trained(folder, base, model, tokenizer)
    assert any(names(note, "skips", "[SEP]", "pads", "base", "0") for note in opened.notes) == saved
