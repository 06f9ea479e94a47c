"""A checkpoint or a base that is not as it was written is refused in one line that says what is wrong."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import names, naming
from safetensors.numpy import load_file, save_file

from adapter_probe.checkpoints.base import load_base, load_tokenizer
from adapter_probe.checkpoints.headers import read_contents
from adapter_probe.checkpoints.opening import open_checkpoint
from adapter_probe.errors import AdapterProbeError, CheckpointError

DELETE = object()


def refusal(folder: Path, base: Path | None = None) -> str:
    with pytest.raises(AdapterProbeError) as caught:
        open_checkpoint(folder, None if base is None else str(base))
    message = str(caught.value)
    assert "\n" not in message
    assert "__init__" not in message, f"speaks of the code, not of the file: {message}"
    return message


def edit(folder: Path, path: str, value: object) -> None:
    """Set (or delete) the entry of adapter_probe.json at a dotted path."""
    file = folder / "adapter_probe.json"
    document = json.loads(file.read_text())
    *parents, last = path.split(".")
    place = document
    for key in parents:
        place = place[key]
    if value is DELETE:
        del place[last]
    else:
        place[last] = value
    file.write_text(json.dumps(document))


def change_delta(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Change the delta's tensors and give the description the new hash, so that only the change shows."""
    file = folder / "delta.safetensors"
    tensors = {name: tensor.copy() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)
    edit(folder, "delta_sha256", hashlib.sha256(file.read_bytes()).hexdigest())


@pytest.fixture
def checkpoint(bert_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint that the test may spoil."""
    return shutil.copytree(bert_checkpoint, tmp_path / "checkpoint")


@pytest.fixture
def base(tiny_base: Callable[..., Path], tmp_path: Path) -> Path:
    """The checkpoint's base, that the test may spoil."""
    return shutil.copytree(tiny_base("bert"), tmp_path / "base")


def test_the_edits_of_these_tests_do_no_harm_by_themselves(checkpoint, base):
    change_delta(checkpoint, lambda _: None)
    open_checkpoint(checkpoint, str(base))


# --- no checkpoint


def test_a_missing_folder(tmp_path):
    assert names(refusal(tmp_path / "none"), str(tmp_path / "none"), "folder")


def test_a_folder_that_is_no_checkpoint(tmp_path):
    message = refusal(tmp_path)
    assert str(tmp_path) in message
    assert "adapter_probe.json" in message


def test_a_file_in_place_of_a_folder(checkpoint):
    assert str(checkpoint / "delta.safetensors") in refusal(checkpoint / "delta.safetensors")


# --- adapter_probe.json


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("schema", 1, ["schema 1", "schema 2"]),
        ("schema", 3, ["schema 3", "schema 2"]),
        ("schema", DELETE, ["schema", "2"]),
        ("max_length", DELETE, ["max_length"]),
        ("delta_sha256", DELETE, ["delta_sha256"]),
        ("method", DELETE, ["method"]),
        ("method.size", 0, ["size", "0", "from 1 to"]),
        ("method.size", "4", ["size", '"4"']),
        ("method.name", "lora", ["lora", "adapters"]),
        ("method.activation", "sigmoid", ["sigmoid", "gelu", "tanh"]),
        ("method.colour", "red", ["colour"]),
        ("method.init_std", "wide", ["init_std", "wide"]),
        ("method", "adapters", ["method"]),
        ("method", ["adapters"], ["method"]),
        ("base", DELETE, ["base"]),
        ("base.vocab_size", DELETE, ["vocab_size"]),
        ("base.colour", "red", ["colour"]),
        ("base", "bert", ["base"]),
        ("base.name", 5, ["base", "name"]),
        ("base.n_layers", "three", ["n_layers", "three"]),
        ("task", DELETE, ["task"]),
        ("task.metric", "bleu", ["bleu", "accuracy", "mcc"]),
        ("task.kind", "ranking", ["ranking", "classification", "regression"]),
        ("task.label_names", ["one"], ["one", "label_names"]),
        ("task.columns.text", None, ["columns", "text"]),
        ("max_length", "forty", ["max_length", "forty"]),
        ("max_length", 0, ["max_length", "0"]),
        ("scores", [0.5], ["scores"]),
        ("training", "long", ["training", "long"]),
        ("colour", "red", ["colour"]),
    ],
)
def test_an_edited_description(checkpoint, path, value, named):
    edit(checkpoint, path, value)
    message = refusal(checkpoint)
    for part in ("adapter_probe.json", *named):
        assert part in message


@pytest.mark.parametrize("content", [b"", b'{"schema": 1', b"[]", b"null", b"\xff\xfe\x00", b"[" * 100_000])
def test_a_description_that_is_no_json_object(checkpoint, content):
    file = checkpoint / "adapter_probe.json"
    file.write_bytes(content)
    assert refusal(checkpoint).count(str(file)) == 1


# --- delta.safetensors


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_or_cut_shows(data, checkpoint):
    file = checkpoint / "delta.safetensors"
    content = file.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        spoilt = content[:place]
    else:
        bit = data.draw(st.integers(0, 7))
        spoilt = content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
    try:
        file.write_bytes(spoilt)
        message = refusal(checkpoint)
    finally:
        file.write_bytes(content)
    assert message.startswith(str(file))
    assert names(message, "damaged", "sha256")


def test_a_missing_delta(checkpoint):
    (checkpoint / "delta.safetensors").unlink()
    assert str(checkpoint / "delta.safetensors") in refusal(checkpoint)


def test_a_pickle_under_the_name_of_the_delta_is_not_read(checkpoint, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "boom"), "w"))

    content = pickle.dumps(Bomb())
    (checkpoint / "delta.safetensors").write_bytes(content)
    edit(checkpoint, "delta_sha256", hashlib.sha256(content).hexdigest())
    assert names(refusal(checkpoint), str(checkpoint / "delta.safetensors"), "safetensors file")
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "name",
    ["bert.encoder.layer.1.output.adapter.up.bias", "bert.embeddings.LayerNorm.weight", "classifier.weight"],
)
def test_weights_that_are_no_numbers(checkpoint, name, value):
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors[name].flat[-1] = value

    change_delta(checkpoint, spoil)
    message = refusal(checkpoint)
    for part in ("delta.safetensors", name, "NaN"):
        assert part in message


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.0.attention.output.adapter.down.weight",
        "bert.encoder.layer.2.output.LayerNorm.bias",  # else the base's would silently stand in
        "bert.embeddings.LayerNorm.weight",
        "classifier.bias",
    ],
)
def test_a_delta_that_lacks_a_tensor(checkpoint, name):
    change_delta(checkpoint, lambda tensors: tensors.pop(name))
    message = refusal(checkpoint)
    for part in ("delta.safetensors", name):
        assert part in message


def test_a_delta_with_a_tensor_too_many(checkpoint):
    change_delta(checkpoint, lambda tensors: tensors.update(extra=np.zeros(2, np.float32)))
    assert "extra" in refusal(checkpoint)


def test_a_delta_of_another_shape(checkpoint):
    def widen(tensors: dict[str, np.ndarray]) -> None:
        tensors["classifier.bias"] = np.zeros(3, np.float32)

    change_delta(checkpoint, widen)
    message = refusal(checkpoint)
    for part in ("delta.safetensors", "classifier.bias", "[3]", "[2]"):
        assert part in message


# --- the base


@pytest.mark.parametrize(
    ("difference", "named"),
    [
        ({"layers": 4}, ["4 layers", "3"]),
        ({"hidden": 16}, ["16 hidden", "32"]),
        ({"extra_words": 3}, ["38 vocabulary", "35"]),
        ({"pooler": False}, ["weights", "sha256"]),
        ({"seed": 1}, ["weights", "sha256"]),
    ],
)
def test_a_base_that_does_not_fit(bert_checkpoint, tiny_base, difference, named):
    other = tiny_base("bert", **difference)
    message = refusal(bert_checkpoint, other)
    for part in (str(other), *named):
        assert part in message


def test_a_base_of_another_family(bert_checkpoint, tiny_base):
    assert str(tiny_base("roberta")) in refusal(bert_checkpoint, tiny_base("roberta"))


@pytest.mark.parametrize("model_type", ["funnel", "t5", "no-such-family"])
def test_a_family_that_is_not_supported(bert_checkpoint, base, model_type):
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
    message = refusal(bert_checkpoint, base)
    for part in (str(base), model_type, "bert, roberta"):
        assert part in message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_base_with_weights_that_are_no_numbers(bert_checkpoint, base, value):
    file, name = base / "model.safetensors", "encoder.layer.1.attention.self.query.weight"
    tensors = load_file(file)
    tensors[name] = np.where(np.arange(32) == 5, np.float32(value), tensors[name])
    save_file(tensors, file, {"format": "pt"})
    message = refusal(bert_checkpoint, base)
    for part in (str(base), name, "NaN"):
        assert part in message


def test_a_base_with_nothing_but_a_pickle(bert_checkpoint, base, monkeypatch):
    tensors = {name: torch.from_numpy(t) for name, t in load_file(base / "model.safetensors").items()}
    torch.save(tensors, base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(torch, "load", read)
    message = refusal(bert_checkpoint, base)
    for part in (str(base), "safetensors"):
        assert part in message


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_the_folder_of_a_base_never_runs(bert_checkpoint, base, tmp_path, file):
    classes = ("AutoConfig", "AutoModelForSequenceClassification", "AutoTokenizer")
    fields = json.loads((base / file).read_text()) if (base / file).exists() else {}
    fields |= {"auto_map": dict.fromkeys(classes, "theirs.Class"), "tokenizer_class": "Class"}
    (base / file).write_text(json.dumps(fields))
    (base / "theirs.py").write_text(f"open({str(tmp_path / 'boom')!r}, 'w')\n")
    with contextlib.suppress(CheckpointError):  # it may open without the code, or be refused for lack of it
        open_checkpoint(bert_checkpoint, str(base))
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("kept", [0, 4, 1000, -1])
def test_a_truncated_base(bert_checkpoint, base, kept):
    file = base / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert str(base) in refusal(bert_checkpoint, base)


@pytest.mark.parametrize("shape", [None, (32, 8)])
def test_a_base_that_lost_a_tensor_or_its_shape(bert_checkpoint, base, shape):
    file, name = base / "model.safetensors", "encoder.layer.1.output.dense.weight"
    tensors = load_file(file)
    del tensors[name]
    if shape:
        tensors[name] = np.zeros(shape, np.float32)
    save_file(tensors, file, {"format": "pt"})
    message = refusal(bert_checkpoint, base)
    for part in (str(base), name):
        assert part in message


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, ("config.json",)),
        ("config.json", "{", ("config.json", "JSON")),
        ("config.json", {"hidden_size": "wide"}, ("hidden_size", "config.json", '"wide"', "at least 1")),
        ("config.json", {"num_attention_heads": 5}, ("weights", "hidden size (32)", "attention heads (5)")),
        ("config.json", {"hidden_act": "no-such-function"}, ("'no-such-function'",)),
        ("config.json", {"is_decoder": True}, ("bert", "decoder")),
        ("tokenizer.json", "{", ("tokenizer",)),
    ],
)
def test_a_base_with_a_bad_file(bert_checkpoint, base, name, content, words):
    file = base / name
    if content is None:
        file.unlink()
    elif isinstance(content, str):
        file.write_text(content)
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), **content}))
    message = refusal(bert_checkpoint, base)
    assert names(message, str(base), *words)


def test_a_base_without_a_tokenizer(bert_checkpoint, base):
    # transformers then makes up an empty one, to which every word is unknown
    for file in base.glob("tokenizer*"):
        file.unlink()
    message = refusal(bert_checkpoint, base)
    for part in (str(base), "tokenizer"):
        assert part in message
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_tokenizer(str(base))


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "~/no-such-folder", "a/b/c"])
def test_a_base_that_is_not_there(name):
    with pytest.raises(CheckpointError, match=re.escape(Path(name).name)):
        load_base(name, 2)


@pytest.mark.parametrize("name", ["no-such-model", "org/no-such-model", "not a name"])
def test_a_hub_name_offline(name):
    with pytest.raises(CheckpointError) as caught:
        load_base(name, 2)
    for part in (repr(name), "Hub", "folder"):
        assert part in str(caught.value)


@pytest.mark.parametrize("content", ["[]", "null", '"bert"', "3"])
def test_a_config_that_is_no_object(base, content):
    (base / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=naming("config.json")):
        load_base(str(base), 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_attention_heads": 0}, ("num_attention_heads", "config.json", "0")),
        ({"hidden_size": -4}, ("hidden_size", "config.json", "-4")),
        ({"dtype": "nonsense"}, ("dtype", "config.json", '"nonsense"')),
        ({"torch_dtype": 3}, ("torch_dtype", "config.json", "3")),
        ({"layer_norm_eps": float("nan")}, ("NaN", "infinite")),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, ("quantization_config", "--base")),
        ({"_attn_implementation": "flash_attention_2"}, ("FlashAttention2",)),
        ({"id2label": [1]}, ("configuration", "'list'")),
    ],
)
def test_a_config_that_transformers_would_trip_over(base, change, words):
    file = base / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CheckpointError, match=naming(str(base), *words)):
        load_base(str(base), 2)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["null", "[]", '{"model": null}'])
def test_a_tokenizer_file_of_something_else(base, name, content):
    (base / name).write_text(content)
    with pytest.raises(CheckpointError, match=naming(str(base), "tokenizer")):
        load_tokenizer(str(base))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_base_of_git_lfs_pointers(base, name):
    (base / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(CheckpointError, match=naming(name, "git lfs pull")):
        load_base(str(base), 2)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
@pytest.mark.timeout(60)  # reading one would wait for ever
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_a_pipe_in_place_of_a_file_of_the_base(checkpoint, base, name):
    (base / name).unlink(missing_ok=True)
    os.mkfifo(base / name)
    facts = str(base / name), "pipe", "regular file"
    assert names(refusal(checkpoint, base), *facts)
    with pytest.raises(CheckpointError, match=naming(*facts)):
        read_contents(checkpoint, str(base))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["delta.safetensors", "adapter_probe.json"])
def test_a_pipe_in_place_of_a_file_of_the_checkpoint(checkpoint, name):
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    message = refusal(checkpoint)
    assert names(message, str(checkpoint / name), "pipe") or names(message, str(checkpoint), name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("use_return_dict", True, ("configuration", "'use_return_dict'")),
        ("rope_scaling", 3, ("configuration",)),
        ("rope_parameters", {"x": 1}, ("rope_parameters.rope_type: absent -> default",)),
        ("num_labels", 10**30, ("num_labels", "config.json", f"{10**30}")),
        ("intermediate_size", 0, ("lacks 9", "encoder", "tensors")),
    ],
)
def test_other_libraries_print_nothing_before_the_line(field, value, words, checkpoint, base, tmp_path):
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, field: value}))
    command = ["ablate", checkpoint, "--base", base, "--out", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-m", "adapter_probe", *command], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("adapter-probe: ")
    assert names(line, str(base), *words)


@pytest.mark.parametrize("option", ["return_dict", "output_attentions", "output_hidden_states"])
def test_the_form_of_the_bases_outputs_changes_no_number(checkpoint, base, option):
    config = json.loads((base / "config.json").read_text())
    ids = torch.tensor([[2, 9, 14, 3]])
    with torch.no_grad():
        right = open_checkpoint(checkpoint, str(base)).model.base(input_ids=ids).logits
        (base / "config.json").write_text(json.dumps({**config, option: option != "return_dict"}))
        assert torch.equal(open_checkpoint(checkpoint, str(base)).model.base(input_ids=ids).logits, right)


@pytest.mark.parametrize("name", ["x" * 5000, "~nosuchuser/x", "a\0b"])
def test_a_name_that_no_folder_can_have(name):
    with pytest.raises(CheckpointError) as caught:
        load_base(name, 2)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("name", "words", "longest"),
    [
        ("a\nb", (r"'a\nb'", "folder", "Hub"), 200),
        ("/" + "x" * 300, ("…", "folder", os.strerror(errno.ENAMETOOLONG)), 120),
        ("a" * 250 + "/b", ("/b'", "folder", "Hub"), 450),
    ],
)
def test_a_name_that_nothing_has(name, words, longest):
    with pytest.raises(CheckpointError) as caught:
        load_base(name, 2)
    assert names(str(caught.value), *words)
    assert len(str(caught.value)) < longest


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.uint8])
def test_a_delta_of_other_numbers(checkpoint, dtype):
    change_delta(checkpoint, lambda tensors: tensors.update({"classifier.bias": np.zeros(2, dtype)}))
    kind = np.dtype(dtype).name
    assert names(refusal(checkpoint), "delta.safetensors", "classifier.bias", kind, "floating-point")
