"""TensorFlow checkpoints of the paper's own code, against the logits that this code computed.

Where TensorFlow is not installed, its part is done by ``variables.npz``, which it has written.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from changed_files import edit
from exact import assert_close_in_float32
from peft_cases import texts
from refusals import names, refused
from safetensors.torch import load_file, save_file
from tiers import slow_unless

from adapter_probe.checkpoints import adapter_bert
from adapter_probe.checkpoints.converting import to_native
from adapter_probe.checkpoints.opened_peft import role_of
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.task_of_files import given_task
from adapter_probe.errors import CheckpointError
from adapter_probe.replay.replay import Replay

FIXTURES = Path(__file__).parent / "fixtures"
CASES = {"one-file": 4, "two-files": 6}  # with their adapters' size
LAYERS = 3
LAYER = "bert.encoder.layer.2"
HAS_TENSORFLOW = find_spec("tensorflow") is not None
needs_tensorflow = pytest.mark.skipif(not HAS_TENSORFLOW, reason="the extra tensorflow is not installed")


def variables(case: str) -> dict[str, np.ndarray]:
    """As TensorFlow has read them."""
    with np.load(FIXTURES / "adapter_bert" / case / "variables.npz") as archive:
        return dict(archive)


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, np.ndarray]], Path]:
    """A checkpoint in which TensorFlow finds the given variables."""

    def make(found: dict[str, np.ndarray]) -> Path:
        monkeypatch.setattr(adapter_bert, "read_variables", lambda _: found)
        return FIXTURES / "adapter_bert" / "one-file"

    return make


@pytest.fixture(autouse=True)
def converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The converted variables, unless TensorFlow is there to read the checkpoint itself."""
    if not HAS_TENSORFLOW:
        case = {path.name: variables(path.name) for path in (FIXTURES / "adapter_bert").iterdir()}
        monkeypatch.setattr(adapter_bert, "read_variables", lambda index: case[index.parent.name])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Other weights than the checkpoints hold, and the authors' GELU."""
    folder = tmp_path / "base"
    shutil.copytree(FIXTURES / "bases" / "bert", folder)
    edit(folder / "config.json", hidden_act="gelu_new")
    return folder


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    return lambda case: Path(shutil.copytree(FIXTURES / "adapter_bert" / case, tmp_path / case))


def own_logits(model: torch.nn.Module) -> torch.Tensor:
    """By the transformers model's own forward."""
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.from_numpy(ids)[None]).logits for ids in texts().input_ids])


def refusal(folder: Path, base: Path | None) -> str:
    message = refused(open_any, folder, base and str(base), error=CheckpointError)
    assert str(folder) in message
    return message


@pytest.mark.parametrize("case", slow_unless("one-file".__eq__, CASES))
def test_logits_are_the_authors_own(case: str, base: Path):
    folder = FIXTURES / "adapter_bert" / case
    opened = open_any(folder, str(base))
    summary, task = opened.description.method.summary(), opened.description.task
    assert (summary["bottlenecks"], summary["sizes"]) == (6, [CASES[case]])
    assert (task.kind, task.label_names) == ("classification", ("0", "1", "2"))
    expected = np.load(folder / "logits.npz")
    masks = np.repeat(~expected["skipped"], 2, axis=1)
    wanted = expected["logits"]
    assert len(masks) == 7, "the intact model and six spans"
    assert np.abs(wanted[1:] - wanted[0]).max(axis=(1, 2)).min() > 1e-2, "every span moves the logits"
    inputs = [{"input_ids": torch.from_numpy(ids)[None]} for ids in texts().input_ids]
    for most, order in ((10_000, slice(None)), (30, slice(None, None, -1))):
        found = [Replay(opened.model, one).outputs(one, masks[order], rows=most) for one in inputs]
        assert_close_in_float32(torch.cat(found, dim=1), wanted[order], LAYERS)
    assert_close_in_float32(own_logits(opened.model), wanted[0], LAYERS)


def test_another_base_is_told(base: Path):
    opened = open_any(FIXTURES / "adapter_bert" / "one-file", str(base))
    n_frozen = 3 + 3 * 12 + 2  # embeddings; six linear maps a layer; the pooler
    assert any(note.startswith(f"{n_frozen} of the {n_frozen} untrained tensors") for note in opened.notes)


def test_on_its_own_base_only_what_was_trained_counts(base: Path):
    folder = FIXTURES / "adapter_bert" / "one-file"
    whole = open_any(folder, str(base)).model.state_dict()
    names = load_file(base / "model.safetensors")
    save_file({n: whole[f"bert.{n}"].clone() for n in names}, base / "model.safetensors", {"format": "pt"})
    opened = open_any(folder, str(base))
    assert opened.notes == ()
    groups = {role_of(name, "bert.", opened.shapes) for name in opened.trained}
    assert groups == {"adapters", "layernorms", "head"}
    n_adapters, n_norms, n_head = 3 * 2 * 4, (1 + 3 * 2) * 2, 2
    assert len(opened.trained) == n_adapters + n_norms + n_head


def test_differences_of_the_base_are_told(base: Path):
    edit(base / "config.json", hidden_act="gelu", layer_norm_eps=1e-6)
    notes = open_any(FIXTURES / "adapter_bert" / "one-file", str(base)).notes
    assert any(names(note, "'gelu'", "'gelu_new'", "config.json") for note in notes)
    assert any("1e-12" in note and "1e-06" in note for note in notes)


def test_one_output_is_a_regression(holds, base: Path):
    changed = variables("one-file")
    changed |= {"output_weights": changed["output_weights"][:1], "output_bias": changed["output_bias"][:1]}
    opened = open_any(holds(changed), str(base))
    assert opened.description.task.kind == "regression"
    assert any("regression" in note for note in opened.notes)


INSIDE = "bert/encoder/layer_1/output/adapters/biases2"
KERNEL = "bert/encoder/layer_2/intermediate/dense/kernel"
BIASES = "bert/encoder/layer_2/output/adapters/biases1"
POOLER, WORDS = "bert/pooler/dense/kernel", "bert/embeddings/word_embeddings"
WRONG = [  # a part of the names of variables, None where they are missing or the value, and the facts
    ("output_bias", None, ("output_bias", "head")),
    (INSIDE, None, ("lacks", INSIDE)),
    (POOLER, None, ("lacks", POOLER)),
    ("/adapters/", None, ("no adapters", "google-research/adapter-bert")),
    ("layer_2", None, ("2 layers", "3")),
    ("output_weights", np.ones((3, 15)), ("classifier.weight", "[3, 15]")),
    (KERNEL, np.ones((24, 16)), (f"{LAYER}.intermediate.dense.weight", "[16, 24]")),
    (POOLER, np.ones(16), (POOLER, "[16]", "two")),
    (BIASES, np.ones((2, 4)), (f"{LAYER}.output.adapter.down.bias", "[4, 2]")),
    (WORDS, np.full((53, 16), np.nan), (WORDS, "NaN")),
    ("bert/encoder/prompt", np.ones(3), ("unknown", "bert/encoder/prompt")),
]


@pytest.mark.parametrize(("name", "value", "facts"), WRONG)
def test_a_variable_that_is_missing_or_does_not_fit_is_named(holds, base, name, value, facts):
    changed = variables("one-file")
    if value is None:
        folder = holds({own: kept for own, kept in changed.items() if name not in own})
        facts = str(folder / "model.ckpt-2.index"), *facts
    else:
        folder = holds({**changed, name: value.astype(np.float32)})
    assert names(refusal(folder, base), *facts)


def test_values_that_are_missing_are_named(copied: Callable[[str], Path], base: Path):
    folder = copied("one-file")
    (folder / "model.ckpt-2.data-00000-of-00001").unlink()
    assert names(refusal(folder, base), "model.ckpt-2.data-*-of-*", "model.ckpt-2.index")


@needs_tensorflow
@pytest.mark.parametrize("case", CASES)
def test_tensorflow_reads_what_was_converted(case: str):
    found = adapter_bert.read_variables(FIXTURES / "adapter_bert" / case / "model.ckpt-2.index")
    expected = variables(case)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, strict=True)


@needs_tensorflow
def test_damaged_files(copied: Callable[[str], Path], base: Path):
    folder = copied("two-files")
    index, shard = folder / "model.ckpt-2.index", folder / "model.ckpt-2.data-00001-of-00002"
    whole, data = index.read_bytes(), shard.read_bytes()
    for damaged in (data[:-100], data[:1000] + b"\xff" + data[1001:]):
        shard.write_bytes(damaged)
        assert names(refusal(folder, base), str(index), "damaged")
    shard.unlink()
    assert names(refusal(folder, base), str(index), "damaged")
    shard.write_bytes(data)
    for damaged in (whole[:200] + b"\xff" + whole[201:], whole[:-20], b""):
        index.write_bytes(damaged)
        assert names(refusal(folder, base), str(index), "damaged")
    index.write_bytes(whole)
    open_any(folder, str(base))


def test_without_tensorflow_one_line_names_the_extra(base: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()  # the converted variables
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    message = refusal(FIXTURES / "adapter_bert" / "one-file", base)
    assert "adapter-probe[tensorflow]" in message


def test_which_of_several_is_told_by_the_file_that_tensorflow_writes(copied, base):
    folder = copied("one-file")
    shutil.copy(folder / "model.ckpt-2.index", folder / "model.ckpt-1.index")
    assert open_any(folder, str(base)).description.task.name == "one-file"
    (folder / "checkpoint").write_text('model_checkpoint_path: "C:\\\\out\\\\model.ckpt-7"\n')
    assert names(refusal(folder, base), str(folder / "checkpoint"), "model.ckpt-7.index")
    (folder / "checkpoint").write_text("nothing\n")
    assert names(refusal(folder, base), str(folder / "checkpoint"), "model_checkpoint_path")
    (folder / "checkpoint").unlink()
    assert names(refusal(folder, base), "2", "model.ckpt-1.index, model.ckpt-2.index")
    (folder / "model.ckpt-1.index").unlink()
    assert len(open_any(folder, str(base)).trained) > 0


def test_bases_that_do_not_fit():
    folder = FIXTURES / "adapter_bert" / "one-file"
    assert names(refusal(folder, None), str(folder), "--base")
    assert names(refusal(folder, FIXTURES / "bases" / "roberta"), "bert", "roberta")


def test_this_projects_format_holds_all_of_it(base: Path, tmp_path: Path):
    folder, data = FIXTURES / "adapter_bert" / "two-files", tmp_path / "validation.tsv"
    data.write_text("sentence\tlabel\n" + "".join(f"w{n} w{n + 1}\t{n % 3}\n" for n in range(6)))
    opened = open_any(folder, str(base))
    opened = opened.with_task(given_task(opened.description.task, [data], "validation", folder))
    to_native(opened, tmp_path / "native")
    assert own_logits(open_any(tmp_path / "native").model).equal(own_logits(opened.model))
