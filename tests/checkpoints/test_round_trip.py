"""What is saved is what is opened: the same logits, from the difference to the base and the base alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from changed_files import edit, retensor
from refusals import naming, refuses
from safetensors.numpy import load_file
from training_models import load_plain
from transformers import AutoModelForSequenceClassification

from adapter_probe.checkpoints.native import read_description
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.tasks import find_task
from adapter_probe.errors import CheckpointError
from adapter_probe.models.methods import Adapters

IDS = torch.tensor([[2, 9, 14, 21, 7, 3], [2, 30, 11, 8, 26, 3]])
FAMILIES = ("bert", "roberta", "electra")


def logits(model: torch.nn.Module) -> torch.Tensor:
    """By the transformers model's own forward."""
    with torch.no_grad():
        return getattr(model, "base", model)(input_ids=IDS).logits


def base_tensors(folder: Path, prefix: str) -> dict[str, np.ndarray]:
    """The base's tensors straight from its file, under their names in a model for classification."""
    return {f"{prefix}.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_survive_the_round_trip_bit_for_bit(family, tiny_base, write_checkpoint, tmp_path):
    saved = write_checkpoint(tiny_base(family), tmp_path / "c")
    opened = open_any(tmp_path / "c")
    assert not opened.model.training
    assert logits(opened.model).equal(logits(saved))
    fresh = load_plain(tiny_base(family)).model
    assert (logits(opened.model) - logits(fresh)).abs().max() > 0.1  # the delta matters


def test_a_relative_path_and_a_text_open_too(bert_checkpoint, monkeypatch):
    monkeypatch.chdir(bert_checkpoint.parent)
    wanted = logits(open_any(bert_checkpoint).model)
    assert logits(open_any(bert_checkpoint.name).model).equal(wanted)


@pytest.fixture(scope="module")
def few_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of a single training step."""
    folder = tmp_path_factory.mktemp("few")
    rows = [("the cat saw a fine bird", "positive"), ("a cold dog", "negative")] * 4
    for split in ("train", "validation"):
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("train_pooler", [False, True])
@pytest.mark.parametrize(
    ("family", "prefix", "pooler"),
    [
        ("bert", "bert", True),
        ("bert", "bert", False),
        pytest.param("roberta", "roberta", True, marks=pytest.mark.slow),
        pytest.param("electra", "electra", True, marks=pytest.mark.slow),
    ],
)
def test_the_delta_is_what_differs_from_the_base(
    family, prefix, pooler, train_pooler, tiny_base, few_rows, train, tmp_path
):
    folder = tiny_base(family) if pooler else tiny_base(family, pooler=False)
    train(folder, few_rows, tmp_path / "c", method=Adapters(size=2, train_pooler=train_pooler), epochs=1)
    delta = load_file(tmp_path / "c" / "delta.safetensors")
    model = open_any(tmp_path / "c").model
    # An adapter is a part of the module that places it.
    named = {name.replace(".adapter.bottleneck.", ".adapter."): t for name, t in model.state_dict().items()}
    state = {name: tensor.numpy() for name, tensor in named.items()}
    base = base_tensors(folder, prefix)

    differs = {name for name in state if name not in base or not np.array_equal(state[name], base[name])}
    assert delta.keys() == differs
    assert all(np.array_equal(delta[name], state[name]) for name in delta)
    assert {tensor.dtype for tensor in delta.values()} == {np.dtype("float32")}
    plain = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    assert {name for name in delta if ".adapter." not in name} <= plain.state_dict().keys()
    saves_pooler = family == "bert" and (train_pooler or not pooler)
    assert any("pooler" in name for name in delta) == saves_pooler


def test_a_float16_base_is_used_in_float32(tiny_base, write_checkpoint, tmp_path):
    half = tiny_base("bert", dtype="float16")
    saved = write_checkpoint(half, tmp_path / "c")
    opened = open_any(tmp_path / "c")
    assert {p.dtype for p in opened.model.parameters()} == {torch.float32}
    assert logits(opened.model).equal(logits(saved))

    stored = load_file(half / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {np.dtype("float16")}  # or the test tests nothing
    word = "embeddings.word_embeddings.weight"
    loaded = opened.model.state_dict()[f"bert.{word}"].numpy()
    assert np.array_equal(loaded, stored[word].astype(np.float32))

    whole = shutil.copytree(half, tmp_path / "float32")
    retensor(whole / "model.safetensors", lambda found: {name: t.float() for name, t in found.items()})
    assert logits(open_any(tmp_path / "c", str(whole)).model).equal(logits(saved))


def test_the_base_may_move(bert_checkpoint, tiny_base, tmp_path):
    folder = shutil.copytree(bert_checkpoint, tmp_path / "c")
    moved = shutil.copytree(tiny_base("bert"), tmp_path / "moved")
    gone = tmp_path / "gone"
    edit(folder / "adapter_probe.json", {"base.name": str(gone)})
    refuses(CheckpointError, (str(gone),), open_any, folder)
    opened = open_any(folder, str(moved))
    assert opened.description.base.name == str(moved)
    assert logits(opened.model).equal(logits(open_any(bert_checkpoint).model))


def test_one_changed_weight_makes_another_base(bert_checkpoint, tiny_base, tmp_path):
    folder = shutil.copytree(tiny_base("bert"), tmp_path / "base")
    name, more = "encoder.layer.1.output.dense.bias", torch.tensor([1e-6] + [0] * 31)
    retensor(folder / "model.safetensors", lambda tensors: {**tensors, name: tensors[name] + more})
    refuses(CheckpointError, (str(folder),), open_any, bert_checkpoint, str(folder))


def test_the_identity_is_of_the_weights_not_of_the_place(tiny_base, tmp_path):
    folder = tiny_base("bert")
    first = load_plain(folder).identity
    copied = load_plain(shutil.copytree(folder, tmp_path / "copy"), 3, seed=9).identity
    other = load_plain(tiny_base("bert", seed=1)).identity
    assert first.weights_sha256 == copied.weights_sha256 != other.weights_sha256
    assert first.config == copied.config == other.config
    assert (first.name, first.revision) == (str(folder.resolve()), None)
    assert (first.n_layers, first.hidden_size, first.vocab_size) == (3, 32, 35)


def test_the_description_remembers_how_it_came_about(bert_checkpoint, tiny_base, tiny_task):
    description = read_description(bert_checkpoint)
    assert description.method == Adapters(size=4, init_std=0.3, activation="tanh")
    assert description.base == load_plain(tiny_base("bert")).identity
    assert description.task == find_task(tiny_task)
    assert {"adapter_probe", "torch", "transformers"} <= description.versions.keys()


def hub_cache(cache: Path, commit: str, source: Path) -> None:
    """What huggingface_hub leaves after a download of org/tiny; `commit` is then the newest."""
    repository = cache / "models--org--tiny"
    shutil.copytree(source, repository / "snapshots" / commit)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(commit)


def test_a_base_of_the_hub_is_remembered_by_its_revision(tiny_base, write_checkpoint, tmp_path, monkeypatch):
    import huggingface_hub.constants

    cache = tmp_path / "cache"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    hub_cache(cache, "a" * 40, tiny_base("bert"))
    saved = write_checkpoint("org/tiny", tmp_path / "c")
    base = read_description(tmp_path / "c").base
    assert (base.name, base.revision) == ("org/tiny", "a" * 40)

    hub_cache(cache, "b" * 40, tiny_base("bert", seed=1))
    assert logits(open_any(tmp_path / "c").model).equal(logits(saved))
    with pytest.raises(CheckpointError, match=naming("org/tiny")):
        open_any(tmp_path / "c", "org/tiny")  # its newest revision


def test_saving_again_replaces_the_checkpoint(tiny_base, write_checkpoint, tmp_path):
    write_checkpoint(tiny_base("roberta"), tmp_path / "c")
    saved = write_checkpoint(tiny_base("bert"), tmp_path / "c")
    assert logits(open_any(tmp_path / "c").model).equal(logits(saved))
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "adapter_probe.json",
        "delta.safetensors",
    ]


def test_a_save_that_stops_half_way_leaves_no_checkpoint(tiny_base, write_checkpoint, tmp_path, monkeypatch):
    import adapter_probe.checkpoints.native as native

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    write_checkpoint(tiny_base("bert"), tmp_path / "c")
    monkeypatch.setattr(native, "write_description", stop)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tiny_base("bert"), tmp_path / "c")
    refuses(CheckpointError, (str(tmp_path / "c"),), open_any, tmp_path / "c")
