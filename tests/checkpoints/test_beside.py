"""What lies beside an adapter: obeyed, named in the notes, or refused; nothing is passed over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from changed_files import edit
from exact import assert_close_in_float32
from peft import PeftModel
from peft_folders import KV, saved, written
from refusals import names, refused, refuses
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import adapter_probe as ap
from adapter_probe.errors import CheckpointError

TARGETS = ["q_proj", "down_proj"]
PREFERENCES = [{"prompt": "Say ab", "chosen": " ab", "rejected": "cab!"}]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``CAUSAL_LM`` and ``SEQ_CLS``, each with a base and a LoRA."""
    place = tmp_path_factory.mktemp("beside")
    for task in ("CAUSAL_LM", "SEQ_CLS"):
        saved(place / task, "llama", KV, task, TARGETS)
    return place


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda task: Path(shutil.copytree(made / task, tmp_path / task)) / "lora"


def file(name: str, content: object = None) -> Callable[[Path], None]:
    """Write a file of this name into a folder: JSON, or some bytes."""

    def write(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"1" if content is None else json.dumps(content).encode())

    return write


def config(**changes: object) -> Callable[[Path], None]:
    """The base's configuration with changes beside the adapter, as axolotl and Unsloth leave it there."""

    def write(folder: Path) -> None:
        edit(Path(shutil.copy(folder.parent / "base" / "config.json", folder)), **changes)

    return write


def tokenizer(**changes: object) -> Callable[[Path], None]:
    """The base's tokenizer with changed settings beside the adapter."""

    def write(folder: Path) -> None:
        own = AutoTokenizer.from_pretrained(folder.parent / "base")
        own.save_pretrained(folder)
        edit(folder / "tokenizer_config.json", **changes)

    return write


# (what lies beside, what the notes name; nothing where it has no part in a number)
BESIDE = {
    "another head": (file("value_head.safetensors"), ["value_head.safetensors"]),
    "weights": (file("non_lora_state_dict.bin"), ["non_lora_state_dict.bin"]),
    "TRL's head": (file("pytorch_model.bin"), ["pytorch_model.bin"]),
    "code": (file("modeling_own.py"), ["modeling_own.py"]),
    "how to write": (file("generation_config.json", {"eos_token_id": 7}), ["generation_config.json"]),
    "settings of no tokenizer": (
        file("tokenizer_config.json", {"model_max_length": 2}),
        ["tokenizer_config.json", "no tokenizer.json"],
    ),
    "tokens of none": (file("added_tokens.json", {"ab": 3}), ["added_tokens.json", "no tokenizer.json"]),
    "limits of no modules": (
        file("sentence_bert_config.json", {"max_seq_length": 2}),
        ["sentence_bert_config.json", "no modules.json"],
    ),
    "a template of another program": (file("chat_template.json", {}), ["chat_template.json"]),
    "unknown settings": (file("mm_projector.json", {}), ["mm_projector.json"]),
    "positions": (
        config(rope_scaling={"rope_type": "linear", "factor": 2.0}),
        ["config.json", "rope_parameters.rope_type"],
    ),
    "its own copy": (config(torch_dtype="float16", use_cache=False), []),
    "a limit": (tokenizer(model_max_length=12), ["own tokenizer", "model max length"]),
    "a side": (tokenizer(truncation_side="left"), ["own tokenizer", "truncation side"]),
    "an EOS": (tokenizer(add_eos_token=True), ["tokenizer_config.json", "add_eos_token: true"]),
    "no BOS": (tokenizer(add_bos_token=False), ["tokenizer_config.json", "add_bos_token: false"]),
    "as loaded": (tokenizer(add_bos_token=True, padding_side="right"), []),
    "the training": (file("training_args.bin"), []),
    "its state": (file("optimizer.pt"), []),
    "its log": (file("trainer_log.jsonl"), []),
    "a model card": (file("README.md"), []),
    "a folder of results": (file("ablation/summary.json", {}), []),
}


@pytest.mark.parametrize(("write", "said"), BESIDE.values(), ids=BESIDE)
def test_what_lies_beside_is_named(write: Callable[[Path], None], said: list[str], copied):
    folder = copied("CAUSAL_LM")
    before = ap.inspect(folder)["notes"]
    write(folder)
    notes = [note for note in ap.inspect(folder)["notes"] if note not in before]
    assert len(notes) == bool(said)
    assert all(names(note, *said) for note in notes)


def test_a_vocabulary_beside_that_makes_no_tokenizer_is_named(copied):
    folder = copied("CAUSAL_LM")
    (folder / "vocab.txt").write_text("ab\ncab\n")
    refuses(ap.CheckpointError, (str(folder), "vocab.txt", "tokenizer of its own"), ap.inspect, folder)


TEXTS = ["a long text that is cut somewhere", "short", "another one of many letters"]


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_cut_as_the_checkpoints_tokenizer_says(side: str, copied):
    folder = copied("SEQ_CLS")
    tokenizer(model_max_length=12, truncation_side=side)(folder)
    base = AutoModelForSequenceClassification.from_pretrained(folder.parent / "base")
    model, own = PeftModel.from_pretrained(base, folder).eval(), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = own(text, truncation=True, return_tensors="pt")["input_ids"]
        assert ids.shape[1] <= 12
        with torch.no_grad():
            wanted = model(input_ids=ids).logits
        assert_close_in_float32(ap.open(folder, device="cpu").logits(text), wanted, layers=3)


@pytest.mark.parametrize("name", ["value_head.safetensors", "value_head.bin", "pytorch_model.bin"])
def test_a_reward_models_head_is_refused_for_preferences_and_named_else(name: str, copied):
    folder = copied("CAUSAL_LM")
    save_file({"v_head.summary.weight": torch.ones(1, 24)}, folder / name)
    rows = written(folder.parent, PREFERENCES)
    assert names(refused(ap.ablate, folder, data=rows, error=CheckpointError), name, "likelihood", "SEQ_CLS")
    assert any(names(note, name) for note in ap.inspect(folder)["notes"])
    (folder / name).unlink()
    ap.ablate(folder, data=rows, spans="single")
