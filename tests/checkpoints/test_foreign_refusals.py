"""What cannot be honoured of other libraries' checkpoints is named in one line, never half loaded."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from refusals import names, naming
from safetensors.torch import load_file, save_file

from adapter_probe.checkpoints.opening import open_any, open_checkpoint
from adapter_probe.errors import CheckpointError, quote
from adapter_probe.models.bases.encoders import ENCODERS

FIXTURES = Path(__file__).parent / "fixtures"
BERT = str(FIXTURES / "bases" / "bert")


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """A case, to be changed."""
    return lambda case: Path(shutil.copytree(FIXTURES / case, tmp_path / "c"))


def edit(path: Path, **changes: object) -> None:
    document = json.loads(path.read_text())
    target = document["config"] if document.get("config") else document
    target.update(changes)
    path.write_text(json.dumps(document))


def retensor(path: Path, change: Callable[[dict], dict]) -> None:
    if path.suffix == ".bin":
        torch.save(change(torch.load(path, weights_only=True)), path)
    else:
        save_file(change(load_file(path)), path)


def refusal(folder: Path, base: str | None = BERT) -> str:
    with pytest.raises(CheckpointError) as raised:
        open_any(folder, base)
    message = str(raised.value)
    assert "\n" not in message
    assert message
    return message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"phm_layer": True}, "compacter"),
        ({"inv_adapter": "nice"}, "invertible adapters"),
        ({"architecture": "prefix_tuning"}, "prefix tuning"),
        ({"architecture": "prompt_tuning"}, "prompt tuning"),
        ({"architecture": "reft"}, "ReFT"),
        ({"scaling": "sometimes"}, "sometimes"),
        ({"non_linearity": "sinc"}, "'sinc'"),
    ],
)
def test_configurations_that_are_not_supported(copied: Callable[[str], Path], changes: dict, words: str):
    folder = copied("adapterhub/houlsby")
    edit(folder / "adapter_config.json", **changes)
    assert words in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"use_dora": True}, "DoRA"), ({"vera_d": 0.1}, "VeRA"), ({"use_gating": True}, "gated LoRA")],
)
def test_kinds_of_adapterhub_lora_that_are_not_supported(copied, changes: dict, words: str):
    folder = copied("adapterhub/lora")
    edit(folder / "adapter_config.json", **changes)
    assert words in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_dora": True}, ("lacks", "base_model.model.bert.encoder.layer")),
        ({"peft_type": "PREFIX_TUNING"}, ('"PREFIX_TUNING"',)),
        ({"task_type": "SEQ_2_SEQ_LM"}, ("seq2seq", "bert")),
        ({"init_lora_weights": "pissa"}, ('"pissa"',)),
        ({"layer_replication": [[0, 2]]}, ("contains", f"PEFT {peft.__version__}")),
    ],
)
def test_kinds_of_peft_that_are_not_supported(copied, changes: dict, words: tuple[str, ...]):
    folder = copied("peft/lora")
    edit(folder / "adapter_config.json", **changes)
    assert names(refusal(folder), *words)


def test_fusion_is_refused(copied):
    folder = copied("adapterhub/houlsby")
    (folder / "adapter_fusion_config.json").write_text("{}")
    assert "AdapterFusion" in refusal(folder)


def test_tensors_that_are_not_understood_are_refused(copied):
    folder = copied("adapterhub/houlsby")
    retensor(
        folder / "pytorch_adapter.bin",
        lambda t: {**t, "bert.encoder.layer.0.output.adapters.task.prompt": torch.ones(2)},
    )
    assert names(refusal(folder), str(folder), "bert.encoder.layer.0.output", "prompt")
    folder = Path(shutil.copytree(FIXTURES / "adapterhub/houlsby", folder.parent / "d"))
    retensor(
        folder / "pytorch_adapter.bin", lambda t: {**t, "bert.invertible_adapters.task.F": torch.ones(2)}
    )
    assert "invertible adapters" in refusal(folder)


def test_lacking_adapters_are_told_by_layer(copied):
    folder = copied("adapterhub/houlsby")
    retensor(
        folder / "pytorch_adapter.bin",
        lambda tensors: {k: v for k, v in tensors.items() if "layer.1.attention" not in k},
    )
    assert names(refusal(folder), "lacks 1", "layer 1", "attention")


def test_a_missing_head_is_not_made_up(copied):
    folder = copied("adapterhub/houlsby")
    (folder / "pytorch_model_head.bin").unlink()
    assert names(refusal(folder), str(folder), BERT, "prediction head")


def test_half_a_head_is_not_made_up(copied):
    folder = copied("adapterhub/houlsby")
    retensor(folder / "pytorch_model_head.bin", lambda t: {"classifier.weight": t["classifier.weight"]})
    assert names(refusal(folder), str(folder), BERT, "classifier.bias", "random")


def test_a_head_of_another_size_is_refused(copied):
    folder = copied("adapterhub/houlsby")
    edit(folder / "head_config.json", label2id={"a": 0, "b": 1}, num_labels=2)
    assert names(refusal(folder), "classifier.bias", "[3]", "[2]")


def test_a_head_for_something_else_is_refused(copied):
    folder = copied("adapterhub/houlsby")
    edit(folder / "head_config.json", model_class="BertForTokenClassification")
    assert names(refusal(folder), "BertForTokenClassification", "*ForQuestionAnswering")


def test_a_pooler_that_nobody_holds_is_refused(copied, tmp_path: Path):
    folder, base = copied("adapterhub/houlsby"), Path(shutil.copytree(BERT, tmp_path / "base"))
    retensor(base / "model.safetensors", lambda t: {k: v for k, v in t.items() if "pooler" not in k})
    assert names(refusal(folder, str(base)), str(base), "bert.pooler.dense.bias", "1 more", "random")


def test_another_familys_base_is_refused():
    message = refusal(FIXTURES / "adapterhub" / "houlsby", str(FIXTURES / "bases" / "roberta"))
    assert names(message, "bert", "roberta", "hidden size 16")


def test_a_base_that_is_not_there_is_named():
    assert names(refusal(FIXTURES / "adapterhub" / "houlsby", None), '"tiny-random/bert"', "--base")
    assert "--base" in refusal(FIXTURES / "peft" / "lora", None)


def test_a_folder_of_several_adapters_lists_them(copied, tmp_path: Path):
    for name in ("first", "second"):
        shutil.copytree(FIXTURES / "adapterhub" / "houlsby", tmp_path / "all" / name)
    assert names(refusal(tmp_path / "all"), "2 adapters", "first, second")
    shutil.rmtree(tmp_path / "all" / "first")
    assert open_checkpoint(tmp_path / "all", BERT).description.task.label_names == ("bad", "fair", "good")


def test_a_pickle_that_runs_code_does_not(copied):
    class Evil:
        def __reduce__(self):
            return (print, ("ran",))

    folder = copied("adapterhub/houlsby")
    torch.save({"bert.encoder.layer.0.output.adapters.task.x": Evil()}, folder / "pytorch_adapter.bin")
    assert names(refusal(folder), str(folder / "pytorch_adapter.bin"), "tensors")


def test_nan_is_refused(copied):
    folder = copied("peft/lora")
    retensor(folder / "adapter_model.safetensors", lambda t: {k: v * float("nan") for k, v in t.items()})
    assert names(refusal(folder), str(folder / "adapter_model.safetensors"), "NaN", "infinite")


def test_old_names_of_tensors_and_activations(copied):
    """Files of adapter-transformers 1: other module names, no version, gelu meaning the tanh form."""
    folder = copied("adapterhub/houlsby")
    document = json.loads((folder / "adapter_config.json").read_text())
    del document["version"]
    document["config"]["non_linearity"] = "gelu"
    (folder / "adapter_config.json").write_text(json.dumps(document))
    old = {
        ".attention.output.adapters.": ".attention.output.attention_text_task_adapters.",
        ".output.adapters.": ".output.layer_text_task_adapters.",
    }

    def rename(tensors: dict) -> dict:
        out = {}
        for name, tensor in tensors.items():
            place = next(new for new in old if new in name)
            out[name.replace(place, old[place])] = tensor
        return out

    retensor(folder / "pytorch_adapter.bin", rename)
    opened = open_checkpoint(folder, BERT)
    assert opened.model.has_adapter.all()
    assert {spec.activation for spec in opened.description.method.bottlenecks} == {"gelu_new"}
    assert opened.description.method.library == "adapter-transformers"


def test_lora_of_versions_that_lost_the_scaling(copied):
    # Their logits are held in test_foreign; here that nothing but the version decides.
    folder = copied("adapterhub/lora")
    now = {spec.scale for spec in open_any(folder, BERT).description.method.inner}
    document = json.loads((folder / "adapter_config.json").read_text())
    document["version"] = "adapters.1.0.1"
    (folder / "adapter_config.json").write_text(json.dumps(document))
    then = {spec.scale for spec in open_any(folder, BERT).description.method.inner}
    assert (now, then) == ({3.0}, {1.0})


@pytest.mark.parametrize(("case", "kinds"), [("lora", "lora"), ("ia3", "ia3"), ("union", "lora and par_bn")])
def test_an_anatomy_is_refused_with_adapters_inside_the_sublayers(case: str, kinds: str):
    row = next(row for row in ENCODERS if "bert" in row.model_types)
    folder = FIXTURES / "adapterhub" / case
    words = naming(str(folder), kinds, "anatomy")
    with pytest.raises(CheckpointError, match=words):
        open_any(folder, BERT, anatomy=row)


PEFT, HUB = "peft/lora", "adapterhub/lora"
NAN = float("nan")
LIBRARY = f"PEFT {peft.__version__}"
QUERY_VALUE = "attention.self.query", "attention.self.value"


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        (PEFT, {"lora_alpha": NAN}, ("lora_alpha", "NaN", "finite number")),
        (PEFT, {"lora_alpha": float("inf")}, ("lora_alpha", "Infinity", "finite number")),
        (PEFT, {"lora_alpha": None}, ("lacks", "lora_alpha")),
        (PEFT, {"lora_alpha": True}, ("lora_alpha", "true", "number")),
        (PEFT, {"r": 0}, ("LORA", "`r`", "positive integer")),
        (PEFT, {"r": 7}, ("query.lora_A.weight", "[2, 16]", BERT, "[7, 16]")),
        (PEFT, {"rank_pattern": {"query": 4}}, ("query.lora_A.weight", "[2, 16]", BERT, "[4, 16]")),
        (PEFT, {"rank_pattern": [3]}, ("rank_pattern", "[3]", "object")),
        (PEFT, {"alpha_pattern": ["query"]}, ("alpha_pattern", '["query"]', "object")),
        (PEFT, {"alpha_pattern": {"query": NAN}}, ("alpha_pattern", "NaN", "finite number")),
        (PEFT, {"alpha_pattern": {"(query": 9}}, ('"(query"', "regular expression")),
        (PEFT, {"task_type": ["SEQ_CLS"]}, ('["SEQ_CLS"]', "SEQ_CLS, QUESTION_ANS, CAUSAL_LM")),
        (PEFT, {"base_model_name_or_path": 3}, ("base_model_name_or_path", "3", "string")),
        (PEFT, {"peft_type": ["LORA"]}, ("peft_type", '["LORA"]', "string")),
        (PEFT, {"new_way": "fast"}, ('"new_way", "fast"', LIBRARY)),
        (PEFT, {"new_way": 0}, ('"new_way", 0', LIBRARY)),
        (
            PEFT,
            {"target_modules": ["query"]},
            ("layer.0.attention.self.value.lora_A.weight", "5 more", LIBRARY, BERT),
        ),
        (
            PEFT,
            {"layers_to_transform": [0, 1]},
            ("layer.2.attention.self.query.lora_A.weight", "3 more", LIBRARY, BERT),
        ),
        (
            PEFT,
            {"exclude_modules": ["layer.0.attention.self.query"]},
            ("layer.0.attention.self.query.lora_A.weight", "1 more", LIBRARY, BERT),
        ),
        (
            PEFT,
            {"target_modules": ["query", "value", "key"]},
            ("lacks", "bert.encoder.layer.0.attention.self.key.lora_A.weight", "5 more", LIBRARY, BERT),
        ),
        (
            PEFT,
            {"modules_to_save": ["classifier", "pooler"]},
            ("lacks", "base_model.model.bert.pooler.dense.weight"),
        ),
        (
            PEFT,
            {"lora_bias": True},
            ("lacks", "layer.0.attention.self.query.lora_B.bias", "5 more", LIBRARY, BERT),
        ),
        (PEFT, {"bias": "some"}, ("LORA", "bias", "some")),
        (
            "peft/lora-patterns",
            {"lora_bias": False},
            ("contains", "layer.0.attention.self.key.lora_B.bias", "5 more", LIBRARY, BERT),
        ),
        (
            "peft/ia3",
            {"feedforward_modules": []},
            ("attention.output.dense.ia3_l", "[1, 16]", BERT, "[16, 1]"),
        ),
        (HUB, {"alpha": None}, ("alpha", "null", "number")),
        (HUB, {"alpha": NAN}, ("alpha", "NaN", "number")),
        (HUB, {"r": 0}, ("r", "0", "at least 1")),
        (HUB, {"r": 7}, ("bert.encoder.layer.0.attention.self.query", "[2, 16]", "[16, 2]", "r 7")),
        (HUB, {"composition_mode": "future"}, ("composition_mode", '"future"', "add", "scale")),
        (HUB, {"leave_out": [1]}, ("lora", *QUERY_VALUE, "layer 1", "configuration")),
        (HUB, {"selfattn_lora": False}, ("lora", *QUERY_VALUE, "layer 0", "configuration")),
        (HUB, {"attn_matrices": ["q"]}, ("lora", *QUERY_VALUE, "layer 0", "configuration")),
        (HUB, {"attn_matrices": ["w"]}, ("attn_matrices", '"w"', "q", "k", "v")),
        (HUB, {"intermediate_lora": True}, ("lora", *QUERY_VALUE, "layer 0", "configuration")),
        (HUB, {"rank_free": True}, ('"rank_free", true', "adapters 1.3")),
        ("adapterhub/houlsby", {"leave_out": [1]}, ("2 adapters", "layer 1", "attention", "configuration")),
        ("adapterhub/houlsby", {"output_adapter": False}, ("3 adapters", "layer 0", "ffn", "configuration")),
        (
            "adapterhub/houlsby",
            {"reduction_factor": 2},
            ("layer 0", "attention", "size 4", "reduction_factor", "8"),
        ),
        ("adapterhub/houlsby", {"reduction_factor": 0}, ("reduction_factor", "0", "1e-06")),
        (
            "adapterhub/houlsby",
            {"reduction_factor": {"0": 4}},
            ("layer 1", "attention", "size 4", "reduction_factor", "0"),
        ),
        ("adapterhub/houlsby", {"scaling": NAN}, ("scaling", "NaN", "number")),
        ("adapterhub/houlsby", {"cross_adapter": True}, ("cross_adapter",)),
        ("adapterhub/houlsby", {"ln_before": "no"}, ("ln_before", '"no"', "true", "false")),
        ("adapterhub/houlsby", {"leave_out": "1"}, ("leave_out", '"1"', "list")),
        ("adapterhub/houlsby", {"leave_out": None}, ("leave_out", "null", "list")),
        ("adapterhub/houlsby", {"swirl": 2}, ('"swirl", 2', "adapters 1.3")),
    ],
)
def test_a_configuration_that_is_unknown_or_contradicts_the_tensors(copied, case, changes, words):
    folder = copied(case)
    edit(folder / "adapter_config.json", **changes)
    message = refusal(folder)
    assert str(folder) in message
    assert names(message.replace(str(folder), ""), *words)  # pytest numbers its folders


@pytest.mark.parametrize("name", ["lora_alpha", "r"])
def test_a_missing_number_is_not_made_up(copied, name: str):
    folder = copied(PEFT)
    document = json.loads((folder / "adapter_config.json").read_text())
    del document[name]
    (folder / "adapter_config.json").write_text(json.dumps(document))
    assert names(refusal(folder), str(folder / "adapter_config.json"), "lacks", name)


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        (PEFT, {"lora_dropout": 0.4, "inference_mode": False, "new_way": None, "newer": [], "newest": False}),
        (HUB, {"dropout": 0.3, "init_weights": "bert", "new_way": None}),
        ("adapterhub/houlsby", {"phm_dim": 8, "dropout": 0.1, "stochastic_depth": 0.2, "new_way": None}),
    ],
)
def test_what_is_known_to_change_nothing_changes_nothing(copied, case, changes):
    folder = copied(case)
    scales = {spec.scale for spec in open_any(folder, BERT).description.method.inner}
    edit(folder / "adapter_config.json", **changes)
    assert {spec.scale for spec in open_any(folder, BERT).description.method.inner} == scales


def test_unknown_fields_of_the_whole_and_of_a_union(copied):
    folder = copied("adapterhub/union")
    file = folder / "adapter_config.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "mixture": "yes"}))
    assert '"mixture", "yes"' in refusal(folder)
    file.write_text(json.dumps({**document, "config": {**document["config"], "weights": [1, 2]}}))
    assert '"weights"' in refusal(folder)
    file.write_text(json.dumps({**document, "config": {**document["config"], "configs": {}}}))
    assert names(refusal(folder), "configs", "{}", "list")
    for architecture in ("lora_only", None, ["union"]):
        file.write_text(
            json.dumps({**document, "config": {**document["config"], "architecture": architecture}})
        )
        assert names(refusal(folder), "several", "architecture", quote(architecture))


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_pattern_that_backtracks_for_ever_is_refused(copied):
    folder = copied(PEFT)
    edit(folder / "adapter_config.json", alpha_pattern={"([a-z.0-9_]+)*X": 9})
    assert names(refusal(folder), "([a-z.0-9_]+)*X", "too long")


def test_a_part_of_a_composition_is_refused(tmp_path: Path):
    for name in ("task", "other"):
        shutil.copytree(FIXTURES / "adapterhub" / "houlsby", tmp_path / "all" / name)
    folder, setup = tmp_path / "all" / "task", tmp_path / "all" / "adapter_setup.json"
    open_checkpoint(folder, BERT)
    setup.write_text("{}")
    assert names(refusal(folder), str(setup), "composition")
    setup.unlink()
    fusion = tmp_path / "all" / "task,other" / "adapter_fusion_config.json"
    fusion.parent.mkdir()
    fusion.write_text(json.dumps({"config": {}, "name": "task,other"}))
    assert names(refusal(folder), str(fusion), "AdapterFusion")
    shutil.rmtree(tmp_path / "all" / "other")
    assert names(refusal(tmp_path / "all"), str(fusion), "AdapterFusion")
    fusion.write_text(json.dumps({"config": {}, "name": "a,b"}))
    open_checkpoint(folder, BERT)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda t: t.to(torch.int32), "int32"),
        (lambda t: t > 0, "bool"),
        (lambda t: t.to(torch.complex64), "complex64"),
        (lambda t: t.to(torch.uint8), "uint8"),
    ],
)
def test_numbers_that_are_not_real_are_not_cast(copied, change, kind: str):
    for case, name in ((PEFT, "adapter_model.safetensors"), ("adapterhub/houlsby", "pytorch_adapter.bin")):
        folder = Path(
            shutil.copytree(FIXTURES / case, copied(case).parent / f"{kind}-{case.replace('/', '-')}")
        )
        shutil.rmtree(folder.parent / "c")
        retensor(folder / name, lambda tensors: {k: change(t) for k, t in tensors.items()})
        assert names(refusal(folder), kind, "floating-point")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_pointer_of_git_lfs_says_how_to_get_the_file(copied, name: str):
    folder = copied(PEFT)
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert names(refusal(folder), str(folder / name), "git lfs pull")


def test_a_file_that_unpacks_to_more_is_not_unpacked(copied):
    folder = copied("adapterhub/houlsby")
    file = folder / "pytorch_adapter.bin"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    assert names(refusal(folder), str(file), "compressed")
    wide = torch.ones(1).expand(100_000, 100_000)
    torch.save({"bert.encoder.layer.0.output.adapters.task.adapter_up.weight": wide}, file)
    assert names(refusal(folder), str(file), "[100000, 100000]", "more")
