"""What cannot be honoured of other libraries' checkpoints is named in one line, never half loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapter_probe.checkpoints.opening import open_checkpoint
from adapter_probe.errors import CheckpointError

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
        open_checkpoint(folder, base)
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
        ({"non_linearity": "sinc"}, "activation 'sinc' is not one of"),
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
        ({"use_dora": True}, "DoRA (use_dora)"),
        ({"peft_type": "PREFIX_TUNING"}, "'PREFIX_TUNING'"),
        ({"task_type": "CAUSAL_LM"}, "'CAUSAL_LM'"),
        ({"init_lora_weights": "pissa"}, "'pissa', which changes the base's weights"),
        ({"layer_replication": [[0, 2]]}, "replicated layers"),
    ],
)
def test_kinds_of_peft_that_are_not_supported(copied, changes: dict, words: str):
    folder = copied("peft/lora")
    edit(folder / "adapter_config.json", **changes)
    assert words in refusal(folder)


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
    assert "not understood: bert.encoder.layer.0.output: prompt" in refusal(folder)
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
    message = refusal(folder)
    assert "lacks 1 of the adapters" in message
    assert "layer 1 after the attention sublayer" in message


def test_a_missing_head_is_not_made_up(copied):
    folder = copied("adapterhub/houlsby")
    (folder / "pytorch_model_head.bin").unlink()
    assert "holds no prediction head" in refusal(folder)


def test_half_a_head_is_not_made_up(copied):
    folder = copied("adapterhub/houlsby")
    retensor(folder / "pytorch_model_head.bin", lambda t: {"classifier.weight": t["classifier.weight"]})
    assert "holds classifier.bias; these weights would be random" in refusal(folder)


def test_a_head_of_another_size_is_refused(copied):
    folder = copied("adapterhub/houlsby")
    edit(folder / "head_config.json", label2id={"a": 0, "b": 1}, num_labels=2)
    assert "classifier.bias has shape [3]" in refusal(folder) or "has shape [3, 16]" in refusal(folder)


def test_a_head_for_something_else_is_refused(copied):
    folder = copied("adapterhub/houlsby")
    edit(folder / "head_config.json", model_class="BertForTokenClassification")
    assert "BertForTokenClassification, which is not supported; supported are" in refusal(folder)


def test_a_pooler_that_nobody_holds_is_refused(copied, tmp_path: Path):
    folder, base = copied("adapterhub/houlsby"), Path(shutil.copytree(BERT, tmp_path / "base"))
    retensor(base / "model.safetensors", lambda t: {k: v for k, v in t.items() if "pooler" not in k})
    assert "bert.pooler.dense.bias and 1 more; these weights would be random" in refusal(folder, str(base))


def test_another_familys_base_is_refused():
    message = refusal(FIXTURES / "adapterhub" / "houlsby", str(FIXTURES / "bases" / "roberta"))
    assert "was trained on a bert model of 16 hidden units" in message


def test_a_base_that_is_not_there_is_named():
    assert "base 'tiny-random/bert'" in refusal(FIXTURES / "adapterhub" / "houlsby", None)
    assert "--base" in refusal(FIXTURES / "peft" / "lora", None)


def test_a_folder_of_several_adapters_lists_them(copied, tmp_path: Path):
    for name in ("first", "second"):
        shutil.copytree(FIXTURES / "adapterhub" / "houlsby", tmp_path / "all" / name)
    assert "holds 2 adapters, first, second" in refusal(tmp_path / "all")
    shutil.rmtree(tmp_path / "all" / "first")
    assert open_checkpoint(tmp_path / "all", BERT).description.task.label_names == ("bad", "fair", "good")


def test_a_pickle_that_runs_code_does_not(copied):
    class Evil:
        def __reduce__(self):
            return (print, ("ran",))

    folder = copied("adapterhub/houlsby")
    torch.save({"bert.encoder.layer.0.output.adapters.task.x": Evil()}, folder / "pytorch_adapter.bin")
    assert "pytorch_adapter.bin is damaged, or holds more than tensors" in refusal(folder)


def test_nan_is_refused(copied):
    folder = copied("peft/lora")
    retensor(folder / "adapter_model.safetensors", lambda t: {k: v * float("nan") for k, v in t.items()})
    assert "holds NaN or infinite values" in refusal(folder)


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
    folder = copied("adapterhub/lora")
    now = {spec.scale for spec in open_checkpoint(folder, BERT).description.method.inner}
    document = json.loads((folder / "adapter_config.json").read_text())
    document["version"] = "adapters.1.0.1"
    (folder / "adapter_config.json").write_text(json.dumps(document))
    then = {spec.scale for spec in open_checkpoint(folder, BERT).description.method.inner}
    assert (now, then) == ({3.0}, {1.0})
