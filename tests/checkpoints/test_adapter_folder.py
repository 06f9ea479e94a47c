"""What lies in and beside an adapter's folder: further adapters, starts of PiSSA, names with wrappers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import peft_cases
import pytest
import torch
from changed_files import edit, retensor
from mask_loop import randomise
from peft import LoraConfig, get_peft_model
from peft_cases import refusals, write_adapter, write_base
from refusals import names, refused
from safetensors.torch import load_file
from tiers import slow_unless
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import adapter_probe as ap
from adapter_probe.checkpoints.adapter_folder import choose_adapter, plain_name
from adapter_probe.checkpoints.files import checkpoint_files
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.errors import CheckpointError, shown

pytestmark = pytest.mark.filterwarnings("ignore:PiSSA changes the base weights:UserWarning")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``llama``, a base, and on it ``one`` and ``two``, which differ."""
    place = tmp_path_factory.mktemp("folders")
    llama = write_base(place / "llama", "llama", LlamaForCausalLM)
    for name, std in (("one", 0.3), ("two", 0.2)):
        config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
        write_adapter(place / name, llama, AutoModelForCausalLM, config, std)
    return place


def logits(folder: Path, base: Path | None = None, **named: str) -> torch.Tensor:
    return peft_cases.logits(ap.open(folder, base=base, **named).base)


def notes(folder: Path) -> list[str]:
    """The notes of opening, which are those of inspecting too."""
    said = list(ap.open(folder).notes)
    assert ap.inspect(folder)["notes"] == said
    return said


# --- several adapters


def test_the_others_of_a_folder_are_named_and_chosen_by_name(made: Path, tmp_path: Path):
    shutil.copytree(made / "one", tmp_path / "a")
    assert notes(tmp_path / "a") == []
    shutil.copytree(made / "two", tmp_path / "a" / "ref")
    shutil.copytree(made / "two", tmp_path / "a" / "checkpoint-5")  # of the same training, earlier
    (said,) = notes(tmp_path / "a")
    assert names(said, "'ref'", "adapter=NAME")
    assert "checkpoint-5" not in said
    assert torch.equal(logits(tmp_path / "a"), logits(made / "one"))
    assert torch.equal(logits(tmp_path / "a", adapter="ref"), logits(made / "two"))
    assert ap.inspect(tmp_path / "a", adapter="ref")["task"] == "ref"


def test_a_tokenizer_above_belongs_to_all_adapters(made: Path, tmp_path: Path):
    shutil.copytree(made / "one", tmp_path / "a")
    shutil.copytree(made / "two", tmp_path / "a" / "ref")
    (tmp_path / "a" / "chat_template.jinja").write_text("{{ messages }}")
    opened = ap.open(tmp_path / "a", adapter="ref")
    assert any(names(note, "chat template") for note in opened.notes)
    assert "../chat_template.jinja" in checkpoint_files(tmp_path / "a" / "ref")


def test_folders_of_many_adapters_below_are_listed(made: Path, tmp_path: Path):
    for name in ("cola/lora/base", "sst2/lora/base"):
        shutil.copytree(made / "one", tmp_path / name)
    for said in refusals(tmp_path):
        assert names(said, str(tmp_path), "2", "cola/lora/base", "sst2/lora/base", "adapter='cola/lora/base'")
    assert torch.equal(logits(tmp_path, adapter="cola/lora/base"), logits(made / "one"))
    assert ap.inspect(tmp_path / "cola" / "lora")["n_layers"] == 3  # the only one is opened


@pytest.mark.parametrize("name", ["rev", "..", "../one", "", "/", "a\0b", "x" * 300])
def test_adapters_that_are_not_there(name: str, made: Path, tmp_path: Path):
    shutil.copytree(made / "one", tmp_path / "a")
    shutil.copytree(made / "two", tmp_path / "a" / "ref")
    said = refused(choose_adapter, tmp_path / "a", name, error=CheckpointError)
    assert names(said, f"--adapter {shown(name)}", "'ref'")


# --- starts that change the base


@pytest.fixture(scope="module")
def pissa(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """Folders as LLaMA-Factory leaves them, the residual base, and the logits of the trained model."""
    place = tmp_path_factory.mktemp("pissa")
    config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="pissa", task_type="CAUSAL_LM")
    config.base_model_name_or_path = str(made / "llama")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(made / "llama"), config)

    def save(folder: Path, start: object = True, **more: str) -> None:
        model.peft_config["default"].init_lora_weights = start
        model.save_pretrained(folder, **more)

    save(place / "run" / "pissa_init")
    randomise(model)
    for name in ("", "pissa_backup", "checkpoint-5"):
        save(place / "run" / name)
    right = peft_cases.logits(model.eval())
    start = str(place / "run" / "pissa_init")
    save(place / "run" / "pissa_converted", "pissa", path_initial_model_for_weight_conversion=start)
    shutil.copytree(made / "llama", place / "residual")
    shutil.copytree(place / "run" / "pissa_init", place / "residual" / "pissa_init")
    model.load_adapter(place / "run" / "pissa_init", "default")
    model.unload().save_pretrained(place / "residual")
    return place, right


@pytest.mark.parametrize("name", ["", "pissa_init", "pissa_backup", "checkpoint-5"])
def test_an_adapter_of_a_changed_base_is_refused_and_the_plain_one_named(name: str, pissa):
    place, _ = pissa
    for said in refusals(place / "run" / name):
        assert names(said, str(place / "run" / name), str(place / "run" / "pissa_converted"), "base=")


def test_what_belongs_to_the_base_opens(pissa, made: Path):
    place, right = pissa
    assert torch.allclose(logits(place / "run" / "pissa_converted"), right, atol=1e-5)
    assert torch.allclose(logits(place / "run", place / "residual"), right, atol=1e-5)
    start = logits(place / "residual" / "pissa_init", place / "residual")
    bare = peft_cases.logits(AutoModelForCausalLM.from_pretrained(made / "llama"))
    assert torch.allclose(start, bare, atol=1e-5)  # before any training it is the base


@pytest.mark.parametrize(
    ("beside", "refused"),
    [
        ("olora_init", True),
        ("corda_init", True),
        ("loftq_init", True),
        ("loft_init", True),
        ("lora_ga_init", True),
        ("eva_init", False),  # which leaves the base as it is: B is zero
        ("my_init", False),
    ],
)
def test_kinds_of_starts(beside: str, refused: bool, made: Path, tmp_path: Path):
    for name in ("a", beside):
        shutil.copytree(made / "one", tmp_path / name)
    if refused:
        assert all(names(said, beside) for said in refusals(tmp_path / "a"))
        edit(tmp_path / beside, r=2)  # that of another training
    assert notes(tmp_path / "a") == []


# --- names with wrappers, and shards


START = "base_model.model."
WRAPPED = {  # a part of the names, what it becomes, and what the note names
    "compiled inside": (START, f"{START}_orig_mod.", "_orig_mod"),
    "FSDP": (".self_attn", "._fsdp_wrapped_module.self_attn", "_fsdp_wrapped_module"),
    "Lightning": (START, f"module._forward_module.{START}", "_forward_module, module"),
    "compiled": (START, f"_orig_mod.{START}", "_orig_mod"),
    "parallel": (START, f"module.{START}", "module"),
    "parallel inside": (START, f"{START}module.", "module"),
}


@pytest.mark.parametrize("case", slow_unless(("compiled inside", "FSDP", "Lightning").__contains__, WRAPPED))
def test_names_with_wrappers(case: str, made: Path, tmp_path: Path):
    part, wrapped, wrapper = WRAPPED[case]
    folder = Path(shutil.copytree(made / "one", tmp_path / "a"))
    retensor(folder, lambda found: {name.replace(part, wrapped): t for name, t in found.items()})
    (said,) = notes(folder)
    assert names(said, wrapper)
    assert torch.equal(logits(folder), logits(made / "one"))
    for strength in (None, 1.0) if "," in wrapper else ():  # the names are the same whoever wraps
        ap.convert(folder, tmp_path / str(strength), "peft", strength=strength)
        found = peft_cases.logits(peft_cases.by_peft(tmp_path / str(strength), made / "llama"))
        assert torch.allclose(found, logits(made / "one"), atol=1e-6)


def test_modules_of_such_names_are_no_wrappers():
    for name in ("base_model.model.model.module.x", "base_model.model.my_orig_mod.x", "x.module.y"):
        assert plain_name(name) == name


def test_a_name_with_a_wrapper_and_without(made: Path, tmp_path: Path):
    folder = Path(shutil.copytree(made / "one", tmp_path / "a"))
    first = min(load_file(folder / WEIGHTS))
    retensor(folder, lambda found: {**found, f"module.{first}": found[first] + 1})
    assert all(names(said, first, "twice") for said in refusals(folder))


@pytest.mark.parametrize("shard", [lambda t: t[:0], lambda t: t.flatten(), lambda t: t.flatten()[:5]])
def test_weights_that_were_saved_ungathered(shard: Callable, made: Path, tmp_path: Path):
    folder = Path(shutil.copytree(made / "one", tmp_path / "a"))
    retensor(folder, lambda found: {name: shard(tensor).clone() for name, tensor in found.items()})
    assert all(
        names(said, str(folder / WEIGHTS), "ungathered", "ZeRO-3", "FSDP") for said in refusals(folder)
    )


# --- the base's name


@pytest.mark.parametrize("name", [3, True, ["x"], {"x": 1}, 0.5])
def test_a_base_that_is_no_string(name: object, made: Path, tmp_path: Path):
    folder = edit(Path(shutil.copytree(made / "one", tmp_path / "a")), base_model_name_or_path=name)
    assert all(names(said, str(folder), json.dumps(name), "string", "base=") for said in refusals(folder))
    edit(folder, base_model_name_or_path=str(made / "llama"), revision=3)
    assert all(names(said, "revision", "3", "string") for said in refusals(folder))
    assert open_any(edit(folder, revision=None))
