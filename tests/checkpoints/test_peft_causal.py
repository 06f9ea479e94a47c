"""PEFT's adapters on causal language models, against the logits that PEFT computes here and now."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from exact import Float64, assert_close_in_float32, assert_close_in_float64, to_float64
from refusals import names
from tiers import slow_unless
from tokenizers import processors
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import adapter_probe
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.peft_rewriting import write_without

peft = pytest.importorskip("peft")

FIXTURES = Path(__file__).parent / "fixtures"
LAYERS, HIDDEN, VOCABULARY = 4, 16, 53
IDS = torch.tensor([[2, 9, 14, 21, 7, 33, 3], [2, 30, 11, 8, 26, 50, 3]])
_SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
}
FAMILIES = {
    "gpt2": {"n_embd": HIDDEN, "n_inner": 24, "n_layer": LAYERS, "n_head": 2, "n_positions": 24},
    "llama": {**_SIZES, "num_key_value_heads": 1, "tie_word_embeddings": False},
    "qwen2": {**_SIZES, "num_key_value_heads": 1, "tie_word_embeddings": True},
}
ATTENTION = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "qwen2": ["q_proj", "v_proj"]}
FEEDFORWARD = {"gpt2": "mlp.c_proj", "llama": "down_proj", "qwen2": "down_proj"}
EMBEDDING = {"gpt2": "wte", "llama": "embed_tokens", "qwen2": "embed_tokens"}
NORMS = {
    "gpt2": ["ln_1", "ln_2"],
    "llama": ["input_layernorm", "norm"],
    "qwen2": ["input_layernorm", "norm"],
}


@torch.no_grad()
def randomise(module: torch.nn.Module, seed: int, only: tuple[str, ...] = ("",)) -> None:
    """Every parameter with one of `only` in its name so far from its start that leaving it out shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if any(part in name for part in only):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.2 / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(noise * 0.3 + 1.0)


@pytest.fixture(scope="session")
def causal_base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``causal_base(family) -> folder`` of a tiny random causal model."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(f"causal-{family}")
            shutil.copytree(FIXTURES / "bases" / "gpt2", folder, dirs_exist_ok=True)
            config = AutoConfig.for_model(
                family, vocab_size=VOCABULARY, bos_token_id=2, eos_token_id=3, **FAMILIES[family]
            )
            model = AutoModelForCausalLM.from_config(config)
            randomise(model, 0)
            model.save_pretrained(folder)
            made[family] = folder
        return made[family]

    return make


@pytest.fixture
def trained(causal_base: Callable[[str], Path], tmp_path: Path) -> Callable[..., torch.nn.Module]:
    """``trained(family, config, folder) -> PEFT's model``, whose checkpoint is then in the folder."""

    def make(family: str, config, folder: Path) -> torch.nn.Module:
        model = AutoModelForCausalLM.from_pretrained(causal_base(family))
        model = peft.get_peft_model(model, config)
        randomise(model, 1, ("lora_", "ln_tuning_layers", "modules_to_save"))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "ia3_l" in name:
                    parameter.add_(
                        0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
                    )
        model.save_pretrained(folder)
        return model.eval()

    return make


def logits(model: torch.nn.Module) -> torch.Tensor:
    """In float64, which the model stays in."""
    to_float64(model)
    with torch.no_grad(), Float64():
        return model(input_ids=IDS).logits


def lora(**settings: object):
    return peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=5, **settings)


CASES = {
    "plain": lambda family: lora(),  # PEFT has its own targets for most families
    "all-linear": lambda family: lora(target_modules="all-linear"),
    "patterns": lambda family: lora(
        target_modules=ATTENTION[family],
        use_rslora=True,
        layers_to_transform=[1, 3],
        rank_pattern={r"\.1\..*": 3},
        alpha_pattern={ATTENTION[family][0]: 7},
    ),
    "layers-pattern": lambda family: lora(
        target_modules=ATTENTION[family],
        layers_to_transform=2,
        layers_pattern="h" if family == "gpt2" else "layers",
    ),
    "by-regex": lambda family: lora(target_modules=rf".*\.(0|3)\..*({'|'.join(ATTENTION[family])})"),
    "dora": lambda family: lora(target_modules="all-linear", use_dora=True),
    "tokens": lambda family: lora(target_modules=ATTENTION[family], trainable_token_indices=[9, 14]),
    "head": lambda family: lora(target_modules=ATTENTION[family], modules_to_save=["lm_head"]),
    "embeddings": lambda family: lora(target_modules=ATTENTION[family], modules_to_save=[EMBEDDING[family]]),
    "both-ends": lambda family: lora(
        target_modules=ATTENTION[family], modules_to_save=[EMBEDDING[family], "lm_head"]
    ),
    "ia3": lambda family: peft.IA3Config(
        task_type="CAUSAL_LM",
        target_modules=[*ATTENTION[family], FEEDFORWARD[family]],
        feedforward_modules=[FEEDFORWARD[family]],
    ),
    "norms": lambda family: peft.LNTuningConfig(task_type="CAUSAL_LM", target_modules=NORMS[family]),
}


# The cases that differ most on one family, and one case on the family that differs most.
QUICK = [(case, "llama") for case in ("plain", "dora", "tokens", "both-ends", "ia3", "norms")]
QUICK += [("patterns", "gpt2")]


@pytest.mark.parametrize(
    ("case", "family"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in itertools.product(CASES, FAMILIES)
    ],
)
def test_logits_are_pefts(case: str, family: str, trained, causal_base, tmp_path: Path):
    model = trained(family, CASES[case](family), tmp_path / "c")
    wanted = logits(model)
    plain = logits(AutoModelForCausalLM.from_pretrained(causal_base(family)))
    assert (wanted - plain).abs().max() > 1e-2  # or the test tests nothing
    opened = open_any(tmp_path / "c", str(causal_base(family)))
    assert opened.description.task.kind == "causal"
    assert_close_in_float64(logits(opened.model), wanted)


def test_the_class_tells_the_task_where_no_task_type_does(trained, causal_base, tmp_path: Path):
    config = peft.LoraConfig(r=2, lora_alpha=5, target_modules=ATTENTION["llama"])
    wanted = logits(trained("llama", config, tmp_path / "c"))
    opened = open_any(tmp_path / "c", str(causal_base("llama")))
    assert_close_in_float64(logits(opened.model), wanted)


def test_a_tokenizer_that_was_saved_with_the_adapter(trained, causal_base, tmp_path: Path):
    """It is the one of the training: here one that begins and ends texts differently than the base's."""
    folder, base = tmp_path / "c", str(causal_base("llama"))
    trained("llama", CASES["all-linear"]("llama"), folder)
    plain = open_any(folder, base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.sep_token  # changes no text's tokens
    tokenizer.save_pretrained(folder)
    same = open_any(folder, base)
    assert same.description.tokenizer == plain.description.tokenizer
    assert same.notes == plain.notes
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", special_tokens=[("[SEP]", tokenizer.sep_token_id)]
    )
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


@pytest.mark.parametrize("pad", slow_unless("[SEP]".__eq__, ["[SEP]", "[MASK]"]))
def test_a_classifier_reads_the_token_that_the_training_read(pad: str, causal_base, tmp_path: Path):
    """With a padding token that also ends texts, the one before; neither the base nor PEFT records it."""
    base = str(causal_base("llama"))
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = pad
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", special_tokens=[("[SEP]", tokenizer.sep_token_id)]
    )
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    assert model.config.pad_token_id is None
    model.config.pad_token_id = tokenizer.pad_token_id
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=5, target_modules="all-linear")
    model = peft.get_peft_model(model, config)
    randomise(model, 1, ("lora_", "modules_to_save"))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with torch.no_grad():
        ids = torch.tensor([tokenizer("w1 w2 w3")["input_ids"]])
        expected = model.eval()(input_ids=ids).logits
    found = adapter_probe.open(tmp_path, base=base, device="cpu").logits("w1 w2 w3")
    assert_close_in_float32(found, expected, LAYERS)
