"""A checkpoint or base that is damaged, contradicts itself or is not supported is refused in one line."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_files import LACKS, edit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusal_rows import HOULSBY, HUB, NATIVE, PEFT, PIPE, POINTER, ROWS
from refusals import names
from safetensors.torch import load_file, save_file

from adapter_probe import inspect
from adapter_probe.checkpoints import peft_fields
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.peft_rewriting import in_layers
from adapter_probe.errors import AdapterProbeError, CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"
BERT = str(FIXTURES / "bases" / "bert")
ABOUT, DELTA, CONFIG = "adapter_probe.json", "delta.safetensors", "adapter_config.json"


@pytest.fixture
def place(bert_checkpoint: Path, tiny_base: Callable[..., Path], tmp_path: Path) -> Callable[[str], Path]:
    """``place(case)``: a folder with copies of a checkpoint and of its base, in ``base``, to be changed."""

    def copied(case: str) -> Path:
        folder = tmp_path / case.replace("/", "-")
        shutil.copytree(bert_checkpoint if case == NATIVE else FIXTURES / case, folder)
        shutil.copytree(tiny_base("bert") if case == NATIVE else BERT, folder / "base")
        return folder

    return copied


def spoil(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change tensors in place, and the checksum with them, so that only the change shows."""
    if file.suffix == ".bin":
        tensors = torch.load(file, weights_only=True)
        change(tensors)
        torch.save(tensors, file)
        return
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    if file.name == DELTA:
        edit(file.parent / ABOUT, {"delta_sha256": hashlib.sha256(file.read_bytes()).hexdigest()})


def harm(file: Path, change: Any) -> None:
    """Make the change of a row."""
    if isinstance(change, dict):
        edit(file, change)
    elif isinstance(change, int):
        file.write_bytes(file.read_bytes()[:change])
    elif isinstance(change, (str, bytes)):
        file.write_bytes(change.encode() if isinstance(change, str) else change)
    elif callable(change):
        spoil(file, change)
    else:
        file.unlink(missing_ok=True)
        if change is PIPE:
            os.mkfifo(file)


def refusal(folder: Path, base: str | None = None) -> str:
    with pytest.raises(AdapterProbeError) as caught:
        open_any(folder, base)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert "__init__" not in message, f"speaks of the code, not of the file: {message}"
    return message


@pytest.mark.timeout(60)  # reading a pipe would wait for ever
@pytest.mark.parametrize(
    ("case", "file", "change", "facts"),
    [(case, file, change, facts) for case, file, change, *facts in ROWS],
    ids=[f"{case}-{file}-{number}" for number, (case, file, *_) in enumerate(ROWS)],
)
def test_a_refusal_names_the_fault(case, file, change, facts, place):
    folder = place(case)
    harm(folder / file, change)
    message = refusal(folder, str(folder / "base"))
    if case != NATIVE or change == POINTER:
        strict = case in (HUB, HOULSBY) or change == POINTER  # PEFT's it need not open for what it says
        with pytest.raises(AdapterProbeError) if strict else contextlib.suppress(AdapterProbeError):
            inspect(folder, base=folder / "base")
    assert str(folder) in message
    assert message.count(str(folder / file)) < 2
    assert names(message.replace(f"{folder}/", ""), *facts)  # pytest numbers its folders


def test_what_harms_does_no_harm_by_itself(place):
    for case, files in ((NATIVE, (DELTA, ABOUT)), (HOULSBY, ("pytorch_adapter.bin", CONFIG))):
        folder = place(case)
        spoil(folder / files[0], lambda _: None)
        edit(folder / files[1], {})
        open_any(folder, str(folder / "base"))


# --- what is no checkpoint, or no base


def test_a_folder_that_is_no_checkpoint(place, tmp_path):
    assert names(refusal(tmp_path / "none"), str(tmp_path / "none"), "folder")
    assert names(refusal(tmp_path), str(tmp_path), ABOUT)
    file = place(NATIVE) / DELTA
    assert str(file) in refusal(file)


@pytest.mark.parametrize(
    ("difference", "facts"),
    [
        ({"layers": 4}, ["4 layers", "3"]),
        ({"hidden": 16}, ["16 hidden", "32"]),
        ({"extra_words": 3}, ["38 vocabulary", "35"]),
        ({"pooler": False}, ["weights", "sha256"]),
        ({"seed": 1}, ["weights", "sha256"]),
    ],
)
def test_a_base_that_does_not_fit(bert_checkpoint, tiny_base, difference, facts):
    other = tiny_base("bert", **difference)
    assert names(refusal(bert_checkpoint, str(other)), str(other), *facts)


def test_a_base_of_another_family(bert_checkpoint, tiny_base):
    assert str(tiny_base("roberta")) in refusal(bert_checkpoint, str(tiny_base("roberta")))
    message = refusal(FIXTURES / HOULSBY, str(FIXTURES / "bases" / "roberta"))
    assert names(message, "bert", "roberta", "hidden size 16")


@pytest.mark.parametrize(
    ("name", "facts", "longest"),
    [
        *((name, (Path(name).name,), 300) for name in ("/no/such/folder", "./none", "~/none", "a/b/c")),
        *((name, (repr(name), "Hub", "folder"), 300) for name in ("none", "org/none", "not a name")),
        *((name, (), 300) for name in ("x" * 5000, "~nosuchuser/x", "a\0b")),
        ("a\nb", (r"'a\nb'", "folder", "Hub"), 300),
        ("/" + "x" * 300, ("…", "folder", os.strerror(errno.ENAMETOOLONG)), 300),
        ("a" * 250 + "/b", ("/b'", "folder", "Hub"), 450),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_base_that_is_not_there(name, facts, longest, bert_checkpoint):
    message = refusal(bert_checkpoint, name)
    assert names(message, *facts)
    assert len(message) < longest


@pytest.mark.parametrize("name", ["x" * 5000, "~nosuchuser/x", None, [], ""])
def test_a_checkpoint_that_names_no_base(name, place):
    for case, changes in (
        (NATIVE, (ABOUT, {"base.name": name})),
        (PEFT, (CONFIG, {"base_model_name_or_path": name})),
    ):
        folder = place(case)
        edit(folder / changes[0], changes[1])
        assert refusal(folder)


def test_a_base_that_is_named_and_not_there():
    assert names(refusal(FIXTURES / HOULSBY), '"tiny-random/bert"', "--base")
    assert "--base" in refusal(FIXTURES / PEFT)


def test_a_base_without_a_tokenizer(place):
    # transformers then makes up an empty one, to which every word is unknown
    folder = place(NATIVE)
    for file in (folder / "base").glob("tokenizer*"):
        file.unlink()
    assert names(refusal(folder, str(folder / "base")), str(folder / "base"), "tokenizer")


# --- nothing is run, unpacked or waited for


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_or_cut_shows(data, bert_checkpoint, tmp_path):
    folder = tmp_path / "flipped"
    shutil.copytree(bert_checkpoint, folder, dirs_exist_ok=True)
    file = folder / DELTA
    content = file.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    flipped = bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))])
    file.write_bytes(content[:at] + (b"" if data.draw(st.booleans()) else flipped + content[at + 1 :]))
    message = refusal(folder)
    assert message.startswith(str(file))
    assert names(message, "damaged", "sha256")


@pytest.mark.parametrize(
    ("case", "name"), [(NATIVE, DELTA), (HOULSBY, "pytorch_adapter.bin"), (PEFT, "adapter_model.bin")]
)
def test_a_pickle_that_runs_code_does_not(case, name, place, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "boom"), "w"))

    folder = place(case)
    (folder / "adapter_model.safetensors").unlink(missing_ok=True)
    if case == NATIVE:
        (folder / name).write_bytes(pickle.dumps(Bomb()))
        edit(folder / ABOUT, {"delta_sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()})
    else:
        torch.save({"bert.encoder.layer.0.output.adapters.task.x": Bomb()}, folder / name)
    message = refusal(folder, str(folder / "base"))
    assert names(message, str(folder / name), "safetensors file" if case == NATIVE else "tensors")
    assert not (tmp_path / "boom").exists()


def test_a_base_with_nothing_but_a_pickle(place, monkeypatch):
    folder = place(NATIVE)
    file = folder / "base" / "model.safetensors"
    torch.save(load_file(file), file.with_name("pytorch_model.bin"))
    file.unlink()

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(torch, "load", read)
    assert names(refusal(folder, str(file.parent)), str(file.parent), "safetensors")


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_the_folder_of_a_base_never_runs(place, tmp_path, file):
    base = place(NATIVE) / "base"
    classes = ("AutoConfig", "AutoModelForSequenceClassification", "AutoTokenizer")
    edit(base / file, {"auto_map": dict.fromkeys(classes, "theirs.Class"), "tokenizer_class": "Class"})
    (base / "theirs.py").write_text(f"open({str(tmp_path / 'boom')!r}, 'w')\n")
    with contextlib.suppress(CheckpointError):  # it may open without the code, or be refused for lack of it
        open_any(base.parent, str(base))
    assert not (tmp_path / "boom").exists()


def test_a_file_that_unpacks_to_more_is_not_unpacked(place):
    folder = place(HOULSBY)
    file = folder / "pytorch_adapter.bin"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    assert names(refusal(folder, BERT), str(file), "compressed")
    wide = torch.ones(1).expand(100_000, 100_000)
    torch.save({"bert.encoder.layer.0.output.adapters.task.adapter_up.weight": wide}, file)
    assert names(refusal(folder, BERT), str(file), "[100000, 100000]", "more")


@pytest.mark.parametrize("harm", [lambda b: b.replace(b"\n", b"\r\n"), lambda b: b[:-60] + b"\0\0" + b[-60:]])
def test_a_damaged_archive_of_tensors(harm, place):
    file = place(HOULSBY) / "pytorch_adapter.bin"
    file.write_bytes(harm(file.read_bytes()))
    assert str(file) in refusal(file.parent, BERT)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"alpha_pattern": {"([a-z.0-9_]+)*X": 9}}, marks=pytest.mark.slow),
        pytest.param({"target_modules": "(([a-z._]|[a-z0-9._])+)+X"}, marks=pytest.mark.slow),
        {"target_modules": 7 * "(.*)" + "x"},  # no group is repeated
    ],
)
def test_a_pattern_that_backtracks_for_ever_is_refused(place, change, monkeypatch):
    monkeypatch.setattr(peft_fields, "_TRIAL_SECONDS", 1)
    folder = place(PEFT)
    edit(folder / CONFIG, change)
    assert names(refusal(folder, BERT), "too long")


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
def test_other_libraries_print_nothing_before_the_line(field, value, words, place, tmp_path):
    folder = place(NATIVE)
    edit(folder / "base" / "config.json", {field: value})
    command = ["ablate", folder, "--base", folder / "base", "--out", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-m", "adapter_probe", *command], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("adapter-probe: ")
    assert names(line, str(folder / "base"), *words)


# --- folders of other libraries


def test_a_folder_of_several_adapters_lists_them(tmp_path):
    for name in ("first", "second"):
        shutil.copytree(FIXTURES / HOULSBY, tmp_path / "all" / name)
    assert names(refusal(tmp_path / "all"), "2 below", "'first', 'second'", "--adapter first")
    shutil.rmtree(tmp_path / "all" / "first")
    assert open_any(tmp_path / "all", BERT).description.task.label_names == ("bad", "fair", "good")


def test_a_part_of_a_composition_is_refused(tmp_path):
    for name in ("task", "other"):
        shutil.copytree(FIXTURES / HOULSBY, tmp_path / "all" / name)
    folder, setup = tmp_path / "all" / "task", tmp_path / "all" / "adapter_setup.json"
    open_any(folder, BERT)
    setup.write_text("{}")
    assert names(refusal(folder, BERT), str(setup), "composition")
    setup.unlink()
    fusion = tmp_path / "all" / "task,other" / "adapter_fusion_config.json"
    fusion.parent.mkdir()
    fusion.write_text(json.dumps({"config": {}, "name": "task,other"}))
    assert names(refusal(folder, BERT), str(fusion), "AdapterFusion")
    shutil.rmtree(tmp_path / "all" / "other")
    assert names(refusal(tmp_path / "all", BERT), str(fusion), "AdapterFusion")
    fusion.write_text(json.dumps({"config": {}, "name": "a,b"}))
    open_any(folder, BERT)


# --- what looks like a fault and is none


def test_old_names_of_tensors_and_activations(place):
    """Files of adapter-transformers 1: other module names, no version, gelu meaning the tanh form."""
    folder = place(HOULSBY)
    edit(folder / CONFIG, {"version": LACKS, "config.non_linearity": "gelu"})
    old = {
        ".attention.output.adapters.": ".attention.output.attention_text_task_adapters.",
        ".output.adapters.": ".output.layer_text_task_adapters.",
    }

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            place = next(new for new in old if new in name)
            tensors[name.replace(place, old[place])] = tensors.pop(name)

    spoil(folder / "pytorch_adapter.bin", rename)
    opened = open_any(folder, BERT)
    assert len(in_layers(opened.model)) == 6
    assert {spec.activation for spec in opened.description.method.bottlenecks} == {"gelu_new"}
    assert opened.description.method.library == "adapter-transformers"


def test_lora_of_versions_that_lost_the_scaling(place):
    # Their logits are held in test_foreign; here that nothing but the version decides.
    folder = place(HUB)
    now = {spec.scale for spec in open_any(folder, BERT).description.method.inner}
    assert now == {3.0}
    scales = {"adapters.1.0.1": 1.0, "adapters.0.2.0": 1.0, "adapters.1.0.0rc1": 1.0, "adapters.1.1.0": 3.0,
              "adapters.main": 3.0, "3.2.1": 3.0}  # fmt: skip
    for version, scale in scales.items():
        edit(folder / CONFIG, {"version": version})
        assert {spec.scale for spec in open_any(folder, BERT).description.method.inner} == {scale}


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        (PEFT, {"lora_dropout": 0.4, "inference_mode": False, "new_way": None, "newer": [], "newest": False}),
        (HUB, {"config.dropout": 0.3, "config.init_weights": "bert", "config.new_way": None}),
        (HOULSBY, {"config.phm_dim": 8, "config.dropout": 0.1, "config.stochastic_depth": 0.2}),
    ],
)
def test_what_is_known_to_change_nothing_changes_nothing(place, case, changes):
    folder = place(case)
    scales = {spec.scale for spec in open_any(folder, BERT).description.method.inner}
    edit(folder / CONFIG, changes)
    assert {spec.scale for spec in open_any(folder, BERT).description.method.inner} == scales


@pytest.mark.parametrize("option", ["return_dict", "output_attentions", "output_hidden_states"])
def test_the_form_of_the_bases_outputs_changes_no_number(place, option):
    folder, ids = place(NATIVE), torch.tensor([[2, 9, 14, 3]])
    base = str(folder / "base")
    with torch.no_grad():
        right = open_any(folder, base).model(input_ids=ids).logits
        edit(folder / "base" / "config.json", {option: option != "return_dict"})
        assert torch.equal(open_any(folder, base).model(input_ids=ids).logits, right)
