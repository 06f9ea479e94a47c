"""What PEFT opens: numbers equal to PEFT's own, and one line for everything that PEFT would pass over."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path

import peft
import pytest
import torch
import transformers
from changed_files import edit, retensor
from peft import LoraConfig, PeftModel
from peft_cases import by_peft, logits, refusals, small_config, write_adapter, write_base
from peft_folders import T5, saved
from refusals import names, refused
from safetensors.torch import load_file, save_file
from tiers import slow_unless
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, BertModel, LlamaForCausalLM

from adapter_probe.checkpoints import base_config, peft_fields, peft_loading
from adapter_probe.checkpoints.base import load_any_base
from adapter_probe.checkpoints.base_config import mixes_examples
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.peft_opening import open_with_peft
from adapter_probe.errors import AdapterProbeError, CheckpointError
from adapter_probe.studies.inspect_convert import inspect

FIXTURES = Path(__file__).parent / "fixtures"
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``llama``, a base, and ``lora`` on it."""
    place = tmp_path_factory.mktemp("peft")
    llama = write_base(place / "llama", "llama", LlamaForCausalLM)
    lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    write_adapter(place / "lora", llama, AutoModelForCausalLM, lora)
    return place


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(made / name, tmp_path / "c"))


def refusal(folder: Path, base: str | None = None) -> str:
    message = refused(open_with_peft, folder, base, error=CheckpointError)
    assert str(folder) in message or "base" in message
    return message


def test_a_head_with_a_tuner_in_it_is_the_bases(tmp_path: Path):
    targets = ["q", "classification_head.dense"]
    folder = saved(tmp_path, "t5", T5 | {"num_labels": 2}, "SEQ_CLS", targets)
    own = by_peft(folder, tmp_path / "base", AutoModelForSequenceClassification)
    ids = torch.tensor([[5, 6, 7, own.config.eos_token_id]])
    assert torch.equal(logits(open_with_peft(folder).model, ids), logits(own, ids))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_of_weights_and_outputs(made: Path, dtype):
    opened = open_with_peft(made / "lora", load=partial(load_any_base, dtype=dtype))
    assert {p.dtype for p in opened.model.parameters()} == {dtype}
    exact, out = logits(open_with_peft(made / "lora").model), logits(opened.model)
    assert out.dtype == dtype
    assert torch.allclose(out.float(), exact, atol=1e-5 if dtype == torch.float64 else 0.3)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of processor time")
def test_a_pattern_that_takes_long_ends_without_whoever_tries_it():
    """By its own processor time, on a busy machine too, and where the process that waits was killed."""
    for pattern, slow in ((7 * "(.*)" + "x", True), ("(a+)+q", False)):
        given = json.dumps([pattern, [60 * "ab"], 1])
        done = subprocess.run([sys.executable, "-I", "-c", peft_fields._MATCHER], input=given, text=True)
        assert (done.returncode < 0) == slow


def test_a_setting_that_is_off_may_be_unknown(copied):
    assert open_with_peft(edit(copied("lora"), future_switch=None, unsloth_fixed=True)).head == "causal"


def test_a_field_of_no_peft_is_noted_where_no_version_is_recorded(copied):
    """Every PEFT that has a field that this one lacks records its version."""
    folder = copied("lora")
    plain = open_with_peft(folder)
    opened = open_with_peft(edit(folder, peft_version=None, trained_on="my data", seed=3))
    assert any(names(note, "trained_on, seed") for note in opened.notes)
    assert torch.equal(logits(opened.model), logits(plain.model))
    assert "trained_on" in refusal(edit(folder, peft_version="0.99"))


def other_values(hint: object) -> list[object]:
    """A value of each kind that a field of PEFT's configuration allows, and a mapping of the wrong values."""
    kinds = typing.get_args(hint) or (hint,)
    literals = [kind for kind in kinds if typing.get_origin(kind) is typing.Literal]
    found: list[object] = [value for kind in literals for value in typing.get_args(kind)]
    plain = {bool: [True, False], int: [3], float: [0.5], str: ["q_proj"]}
    for kind in kinds:
        holds = typing.get_args(kind)
        of_list = [[1]] if int in holds else [["q_proj"]]
        of_dict = [{"q_proj": 2}, {}] if kind is dict or typing.get_origin(kind) is dict else []
        found += plain.get(kind, of_list if typing.get_origin(kind) is list else of_dict)
    return found


@pytest.mark.slow
def test_every_setting_of_pefts_lora_is_obeyed_or_refused(copied, made: Path):
    """Whatever one of its fields holds: the logits of PEFT or one line, no traceback and no other number."""
    hints, tried, several = typing.get_type_hints(LoraConfig), 0, 0
    folder = copied("lora")
    document = json.loads((folder / CONFIG).read_text())
    kept = ("base_model_name_or_path", "inference_mode")
    for field in (field.name for field in dataclasses.fields(LoraConfig) if field.name not in kept):
        for value in other_values(hints[field]):
            (folder / CONFIG).write_text(json.dumps({**document, field: value}))
            tried += 1
            try:
                ours = logits(open_with_peft(folder).model)
            except AdapterProbeError as error:
                several += "\n" in str(error)
                continue
            assert torch.allclose(ours, logits(by_peft(folder, made / "llama")), atol=1e-5), (field, value)
    assert tried > 50
    assert several == 0  # lines in a message


def test_adapters_outside_the_layers_only(made: Path, tmp_path: Path):
    config = LoraConfig(r=2, target_modules=["lm_head"], task_type="CAUSAL_LM")
    folder = write_adapter(tmp_path / "head", made / "llama", AutoModelForCausalLM, config)
    assert names(refusal(folder), "outside", "lm_head")


def test_bases_that_do_not_fit(copied, made: Path, tmp_path: Path):
    folder = copied("lora")
    wider = write_base(tmp_path / "wide", "llama", LlamaForCausalLM, hidden_size=64)
    assert names(refusal(folder, str(wider)), "[32, 4]", "[64, 4]")
    deeper = write_base(tmp_path / "deep", "llama", LlamaForCausalLM, num_hidden_layers=4)
    assert names(refusal(folder, str(deeper)), "lacks", "base_model.model.model.layers.3")
    flatter = write_base(tmp_path / "flat", "llama", LlamaForCausalLM, num_hidden_layers=2)
    assert names(refusal(folder, str(flatter)), "contains", "base_model.model.model.layers.2")


PREFIX = "base_model.model."
BEGINS = {  # what the names of a file begin with in place of ``base_model.model.model.``, and what is named
    "doubled": (2 * PREFIX + "model.", ["'base_model.model.base_model.'"]),
    "missing": ("model.", ["nothing", "'base_model.model.'"]),
    "missing, with the model's": ("", ["nothing", "'base_model.model.model.'"]),
    "another class's": (PREFIX + "model.language_model.", ["language_model"]),
    "partial": (PREFIX, ["without a head", "base_model.model.", "base_model.model.model."]),
}


@pytest.mark.parametrize(("begin", "facts"), BEGINS.values(), ids=BEGINS)
def test_another_beginning_of_names_is_named(begin: str, facts: list[str], copied):
    whole = f"{PREFIX}model."
    folder = retensor(
        copied("lora"), lambda found: {begin + n.removeprefix(whole): t for n, t in found.items()}
    )
    said = refusal(folder)
    assert all(fact in said for fact in facts)


def test_a_base_that_is_an_adapter_is_told_so(made: Path, copied):
    folder = edit(copied("lora"), base_model_name_or_path=str(made / "lora"))
    for said in (refusal(folder), refusal(made / "lora", str(made / "lora"))):
        assert names(said, str(made / "lora"), "itself an adapter", str(made / "llama"), "merge_and_unload")


@pytest.mark.parametrize(
    ("kind", "whole", "part"),
    [
        ("gemma3", "Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"),
        pytest.param("llava", "LlavaForConditionalGeneration", "LlamaForCausalLM", marks=pytest.mark.slow),
    ],
)
def test_an_adapter_of_the_text_class_on_a_folder_of_texts_and_images(kind, whole, part, tmp_path: Path):
    """Whose weights the folder has under names that begin otherwise."""
    base = write_base(tmp_path / "base", kind, getattr(transformers, whole))
    stored, cls = load_file(base / "model.safetensors"), getattr(transformers, part)

    def own_text() -> torch.nn.Module:
        text = cls(small_config(kind).get_text_config())
        ends = {name: [n for n in stored if f".{n}".endswith(f".{name.removeprefix('model.')}")] for name in
                text.state_dict()}  # fmt: skip
        ends = {name: next((n for n in found if "vision" not in n), "") for name, found in ends.items()}
        text.load_state_dict({name: stored[n] for name, n in ends.items() if n}, strict=False)
        text.tie_weights()
        return text

    config = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    peft.get_peft_model(own_text(), config).save_pretrained(tmp_path / "lora")
    theirs = PeftModel.from_pretrained(own_text(), tmp_path / "lora").eval()
    opened = open_with_peft(tmp_path / "lora", str(base))
    assert type(opened.model.get_base_model()) is cls
    torch.testing.assert_close(logits(opened.model), logits(theirs), atol=1e-5, rtol=0)


def test_a_pooler_that_the_training_drew_is_lost_and_the_ways_out_are_named(tmp_path: Path):
    """PEFT's plainest script for a classifier on a base of sentence embeddings, which has none."""
    base = write_base(tmp_path / "base", "bert", partial(BertModel, add_pooling_layer=False))
    cls, config = (
        AutoModelForSequenceClassification,
        LoraConfig(target_modules=["query"], task_type="SEQ_CLS"),
    )
    folder = write_adapter(tmp_path / "lora", base, cls, config)
    said = refusal(folder)
    assert names(said, "no pooler", "modules_to_save", "'pooler'", "--base")
    looked = inspect(folder)
    assert any("no pooler" in note for note in looked["notes"])
    assert looked["n_sites"] == 3
    torch.manual_seed(0)
    model = cls.from_pretrained(base)
    model.save_pretrained(tmp_path / "kept")
    for file in base.glob("*token*"):
        shutil.copy(file, tmp_path / "kept")
    assert open_with_peft(folder, str(tmp_path / "kept")).notes == ()
    config.modules_to_save = ["pooler", "classifier"]
    assert open_with_peft(write_adapter(tmp_path / "both", base, cls, config)).head == "classification"


@pytest.mark.parametrize("name", ["chatglm", "llama", "bert"])
def test_code_beside_a_base_is_never_run(made: Path, tmp_path: Path, name: str):
    base = Path(shutil.copytree(made / "llama", tmp_path / "base"))
    code = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    edit(base / "config.json", model_type=name, auto_map=code)
    (base / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    if name == "llama":
        opened = open_with_peft(made / "lora", str(base))
        assert torch.equal(logits(opened.model), logits(open_with_peft(made / "lora").model))
        assert any(names(note, "evil.M", "never run", "llama") for note in opened.notes)
        assert inspect(made / "lora", base=base)["notes"] == list(opened.notes)
    else:
        assert {"chatglm": "adapter_probe.ablate", "bert": "lora"}[name] in refusal(made / "lora", str(base))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("mapping", "refused"),
    [
        (("LlamaBiModel", "transformers_modules.owner.model.abc.modeling"), True),
        (("LlamaBiForCausalLM", "my_models"), True),
        (("LlamaForCausalLM", "transformers_modules.owner.model.abc.modeling"), False),
        (("LlamaForCausalLM", "transformers.models.llama.modeling_llama"), False),
        (("OptimizedModule", "torch._dynamo.eval_frame"), False),
    ],
)
def test_a_class_of_other_code_that_does_not_run(mapping, refused, copied, made: Path):
    library = dict(zip(("base_model_class", "parent_library"), mapping))
    folder = edit(copied("lora"), task_type=None, auto_mapping=library)
    if not refused:
        assert inspect(folder)["notes"] == list(open_with_peft(folder).notes) == []
        return
    for said in refusals(folder, made / "llama"):
        assert names(said, mapping[0], "LlamaForCausalLM", "auto_mapping")


TYPES = [  # a base, its class, and a task type in the adapter's configuration that does not fit, or none
    ("llama", "LlamaForCausalLM", "SEQ_2_SEQ_LM"),
    ("bert", "BertForSequenceClassification", "CAUSAL_LM"),
    ("t5", "T5ForConditionalGeneration", "CAUSAL_LM"),
    ("t5", "T5ForConditionalGeneration", None),
    ("llama", "LlamaForSequenceClassification", "CAUSAL_LM"),
    ("bert", "BertForSequenceClassification", "SEQ_2_SEQ_LM"),
    ("bert", "BertForTokenClassification", "CAUSAL_LM"),
    ("bart", "BartForConditionalGeneration", "CAUSAL_LM"),
]


@pytest.mark.parametrize("case", slow_unless(TYPES[:4].__contains__, TYPES), ids=str)
def test_the_base_says_what_it_is_for_where_the_task_type_does_not(case: tuple, tmp_path: Path):
    """PEFT loads such an adapter on the class that the user gives."""
    base, cls, task = case
    own = getattr(transformers, cls)
    place = write_base(tmp_path / "base", base, own)
    targets = {"llama": ["q_proj"], "bert": ["query"], "t5": ["q"], "bart": ["q_proj"]}[base]
    whole = ["classifier"] if (base, task) == ("bert", "CAUSAL_LM") else None  # the head, trained too
    config = LoraConfig(r=4, target_modules=targets, modules_to_save=whole)
    folder = edit(write_adapter(tmp_path / "a", place, own, config), task_type=task, auto_mapping=None)
    opened = open_any(folder)
    assert torch.equal(logits(opened.model), logits(by_peft(write_plain(folder, tmp_path), place, own)))
    said = [note for note in opened.notes if "task type" in note]
    assert len(said) == (task is not None)
    assert all(names(note, task, cls) for note in said)
    found = inspect(folder)
    assert found["notes"] == list(opened.notes)
    assert found["metric"] == opened.description.task.metric


def write_plain(folder: Path, place: Path) -> Path:
    """The same without a task type, with which PEFT loads it on any class."""
    return edit(Path(shutil.copytree(folder, place / "plain")), task_type=None)


@pytest.mark.parametrize(("base", "headless"), [("llama", "LlamaModel"), ("bert", "BertModel")])
@pytest.mark.parametrize("stored", slow_unless("with a head".__eq__, ["with a head", "without"]))
def test_adapters_of_a_model_without_a_head(base: str, headless: str, stored: str, tmp_path: Path):
    whole = {"llama": "LlamaForCausalLM", "bert": "BertForSequenceClassification"}[base]
    cls = getattr(transformers, headless)
    place = write_base(tmp_path / "base", base, getattr(transformers, whole) if "with a" in stored else cls)
    targets = ["q_proj"] if base == "llama" else ["query"]
    folder = write_adapter(tmp_path / "a", place, cls, LoraConfig(r=4, target_modules=targets))
    for changes in ({}, {"auto_mapping": None}):
        edit(folder, **changes)
        assert all(names(said, "trained without a head", str(folder)) for said in refusals(folder))


def test_biases_that_an_older_peft_did_not_save(tmp_path: Path, monkeypatch):
    base = FIXTURES / "bases" / "bert"
    cls = transformers.BertForSequenceClassification
    config = LoraConfig(r=4, target_modules=["query"], task_type="SEQ_CLS", bias="lora_only")
    folder = write_adapter(tmp_path / "a", base, cls, config)
    right = logits(by_peft(folder, base, cls))
    older = peft_loading.saved_tensors

    def saved_by_an_older(model):
        return {name: t for name, t in older(model).items() if "base_layer.bias" not in name}

    for saves in (older, saved_by_an_older):  # an older PEFT loads them, too
        monkeypatch.setattr(peft_loading, "saved_tensors", saves)
        assert torch.equal(logits(open_any(folder).model), right)
    retensor(folder, lambda t: {name: one for name, one in t.items() if "base_layer.bias" not in name})
    for saves in (older, saved_by_an_older):
        monkeypatch.setattr(peft_loading, "saved_tensors", saves)
        for said in refusals(folder):
            assert names(said, "query.base_layer.bias", "'lora_only'", "lost", "0.21")


def test_adapters_of_experts_one_by_one_are_right_without_a_false_alarm(tmp_path: Path):
    """Transformers 5 has one parameter for all experts, and PEFT notes a rank for it that no module has."""
    pytest.importorskip("peft", "0.20")  # which an older PEFT refuses
    sizes = {"num_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
    base = write_base(tmp_path / "base", "qwen3_moe", transformers.Qwen3MoeForCausalLM, **sizes)
    merged = AutoModelForCausalLM.from_pretrained(base)
    weights, tensors = dict(merged.named_parameters()), {}
    torch.manual_seed(0)
    for layer, expert in itertools.product(range(3), range(4)):
        for part, rows in (("gate_proj", slice(24)), ("up_proj", slice(24, 48)), ("down_proj", slice(32))):
            place = f"model.layers.{layer}.mlp.experts"
            whole = weights[f"{place}.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}"][expert]
            down, up = 0.3 * torch.randn(2, whole.shape[1]), 0.3 * torch.randn(len(whole[rows]), 2)
            name = f"base_model.model.{place}.{expert}.{part}"
            tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
            whole.data[rows] += 2 * up @ down
    (tmp_path / "a").mkdir()
    save_file(tensors, tmp_path / "a" / WEIGHTS)
    fields = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4}
    fields["target_modules"] = ["gate_proj", "up_proj", "down_proj"]
    (tmp_path / "a" / CONFIG).write_text(json.dumps({**fields, "base_model_name_or_path": str(base)}))
    opened = open_any(tmp_path / "a")
    assert torch.allclose(logits(opened.model), logits(merged), atol=1e-5)
    assert inspect(tmp_path / "a")["notes"] == list(opened.notes) == []


@pytest.mark.skipif("kasa_config" not in vars(LoraConfig(r=1)), reason="this PEFT has no KaSA")
def test_a_method_that_changes_the_base_is_noted(made, tmp_path):
    """Switching such adapters off, by PEFT too, does not give the base's own weights back."""
    config = LoraConfig(r=2, target_modules=["q_proj"], kasa_config={"beta": 1e-4}, task_type="CAUSAL_LM")
    folder = write_adapter(tmp_path / "kasa", made / "llama", AutoModelForCausalLM, config)
    opened, base = open_with_peft(folder), AutoModelForCausalLM.from_pretrained(made / "llama").eval()
    weight = "model.layers.0.self_attn.q_proj.base_layer.weight"
    inside = opened.model.get_base_model().get_parameter(weight)
    assert (inside - base.get_parameter(weight.replace("base_layer.", ""))).abs().max() > 1e-4
    assert any(names(note, "KaSA", "base", "off") for note in opened.notes)


def test_a_pattern_that_matches_nothing_is_noted(copied):
    folder = edit(copied("lora"), rank_pattern={"nothing": 3, "q_proj": 4}, alpha_pattern={"none": 2})
    notes = open_with_peft(folder).notes
    for said in (("nothing", "rank_pattern"), ("none", "alpha_pattern")):
        assert any(names(note, *said) for note in notes)
    assert not any("q_proj" in note for note in notes)
    assert inspect(folder)["notes"] == list(notes)


def test_a_quantised_base_that_is_missing_names_its_twin(copied):
    folder = edit(copied("lora"), base_model_name_or_path="unsloth/tiny-thing-unsloth-bnb-4bit")
    message = refusal(folder)
    assert "unsloth/tiny-thing " in message
    assert "another" in message


@pytest.mark.parametrize(
    ("method", "package"),
    [("gptq", "gptqmodel"), ("awq", "gptqmodel"), ("hqq", "hqq"), ("bitsandbytes", "bitsandbytes")],
)
def test_a_quantisation_without_its_package(method, package, made: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(base_config, "find_spec", lambda name: None)
    base = Path(shutil.copytree(made / "llama", tmp_path / "base"))
    edit(base / "config.json", quantization_config={"quant_method": method, "bits": 4})
    said = refusal(made / "lora", str(base))
    assert names(said, "quantised", method, f"package {package}", "--base", "another")
    assert ("[quantised]" in said) == (method == "bitsandbytes")


def test_outliers_are_what_a_configuration_says():
    eight = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    assert mixes_examples(eight)
    assert not mixes_examples(
        {"quantization_config": {**eight["quantization_config"], "llm_int8_threshold": 0.0}}
    )
    assert not mixes_examples({"quantization_config": {"quant_method": "gptq", "bits": 8}})
    assert not mixes_examples({})
