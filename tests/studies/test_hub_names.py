"""Ablations of checkpoints by their name on the hub, without a network."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
from peft_folders import KV, saved
from refusals import naming, refuses

import adapter_probe as ap
from adapter_probe.checkpoints import adapter_folder as hub
from adapter_probe.errors import CheckpointError
from adapter_probe.hub_names import is_hub_name, name_of_base, name_of_folder

OLD, NEW = "a" * 40, "b" * 40
TEXTS = ["ab", "cd ab ba"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache of two revisions of user/my-lora, which differ in the number of layers."""
    tmp_path = tmp_path_factory.mktemp("hub")
    kept = tmp_path / "cache" / "models--user--my-lora"
    for commit, settings in ((OLD, {"num_hidden_layers": 2}), (NEW, {})):
        lora = saved(tmp_path / commit, "llama", KV | settings, "CAUSAL_LM", ["v_proj"])
        shutil.copytree(lora, kept / "snapshots" / commit)
    shutil.copytree(lora, kept / "snapshots" / NEW / "task" / "lora")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(NEW)
    (kept / "refs" / "v1").write_text(OLD)
    return tmp_path


@pytest.fixture
def cached(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in a working directory of the test's own, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache / "cache"))
    monkeypatch.setattr(hub, "ask_hub", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    return cache


@pytest.mark.slow
def test_a_name_is_ablated_from_the_cache_and_the_cache_stays_as_it_was(cached, tmp_path):
    before = sorted(path for path in (cached / "cache").rglob("*"))
    study = ap.ablate("user/my-lora", data=TEXTS, metric="kl", spans="single", progress=False)
    assert study.folder.parent == tmp_path
    assert re.fullmatch(r"my-lora-ablation-single-data-rows-\w+-kl", study.folder.name)
    assert sorted(path for path in (cached / "cache").rglob("*")) == before
    assert study.summary.task == "my-lora"
    assert study.summary.n_layers == KV["num_hidden_layers"]
    assert (tmp_path / "data").is_dir()
    again = ap.ablate(cached / NEW / "lora", data=TEXTS, metric="kl", spans="single", progress=False)
    assert np.array_equal(again.results.outputs, study.results.outputs)
    older = ap.ablate("user/my-lora@v1", data=TEXTS, metric="kl", out=tmp_path / "old", progress=False)
    assert older.summary.n_layers == 2


def test_of_one_of_several_adapters_only_its_folder_is_downloaded(cached, monkeypatch):
    asked = []
    cache_only = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: asked.append(k) or cache_only(*a, **k)
    )
    folder = cached / "cache" / "models--user--my-lora" / "snapshots" / NEW
    assert hub.fetch_checkpoint("user/my-lora", adapter="task/lora") == folder
    assert hub.name_of_checkpoint(folder / "task" / "lora") == "my-lora-task-lora"
    there = ["adapter_model.safetensors", "tokenizer.json", "adapter_config.json", "other/tokenizer.json"]
    there += [f"{place}/{name}" for place in ("task/lora", "task/other") for name in there[:3]]
    for call in asked:
        given = call["allow_patterns"]
        taken = {name for name in there if any(fnmatch.fnmatch(name, pattern) for pattern in given)}
        assert (
            taken
            == {
                "tokenizer.json",
                "adapter_config.json",
                "task/other/adapter_config.json",  # small, and shows what it is
                *(f"task/lora/{name}" for name in there[:3]),
            }
        )


@pytest.mark.slow
def test_one_of_several_adapters_is_ablated_by_its_name(cached, tmp_path):
    given = {"data": TEXTS, "metric": "kl", "spans": "single", "progress": False}
    study = ap.ablate("user/my-lora", adapter="task/lora", **given)
    assert study.folder.name.startswith("my-lora-task-lora-ablation")
    alone = ap.ablate(cached / NEW / "lora", out=tmp_path / "alone", **given)
    assert np.array_equal(alone.results.outputs, study.results.outputs)
    with pytest.raises(CheckpointError, match=naming("adapter='ref'", "user--my-lora", "'task/lora'")):
        ap.ablate("user/my-lora", adapter="ref", **given)


def test_revisions_and_places(cached, tmp_path):
    folder = cached / "cache" / "models--user--my-lora" / "snapshots"
    assert hub.fetch_checkpoint("user/my-lora") == folder / NEW
    assert hub.fetch_checkpoint("user/my-lora", "v1") == folder / OLD
    assert hub.fetch_checkpoint("user/my-lora", OLD) == folder / OLD
    assert hub.name_of_checkpoint(folder / OLD) == "my-lora"
    assert hub.name_of_checkpoint(tmp_path) == tmp_path.name
    (tmp_path / "user" / "my-lora").mkdir(parents=True)
    assert not is_hub_name("user/my-lora")  # a folder of that name comes first


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ("user/other", ("checkpoint user/other", "folder", "Hub")),
        ("user/my-lora@v9", ("checkpoint user/my-lora", "Hub", "'v9'")),
        (f"user/my-lora@{'c' * 40}", ("checkpoint user/my-lora", "Hub", f"'{'c' * 40}'")),
        ("no-such-folder@v1", ("checkpoint no-such-folder@v1",)),
        ("no-such-folder", ("checkpoint no-such-folder",)),
        ("a/b/c", ("checkpoint a/b/c", "folder")),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(cached, checkpoint, said, tmp_path):
    refuses(CheckpointError, said, ap.ablate, checkpoint, data=TEXTS, metric="kl", progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("base", "name"),
    [("gte-small", "gte-small"), ("thenlper/gte-small", "gte-small"), ("/a/minilm/model", "minilm"),
     ("model", "model")],
)  # fmt: skip
def test_a_base_is_called_by_its_folder_unless_that_says_nothing(base, name):
    assert name_of_folder(base) == name


@pytest.mark.parametrize(
    ("place", "config", "card", "said"),
    [
        ("gte-small", "thenlper/gte-small", "", "thenlper/gte-small"),
        ("mine", "thenlper/gte-small", "", "folder mine from thenlper/gte-small"),
        ("mine", "", "---\nlicense: mit\nbase_model: org/other\n---\n", "folder mine from org/other"),
        ("mine", "", "---\nbase_model:\n- 'org/other'\n---\n", "folder mine from org/other"),
        ("mine", "", "---\nlicense: mit\n---\nbase_model: org/other\n", "folder mine"),
        ("mine", "", "---\nbase_model:\nlicense: mit\n---\n", "folder mine"),
        ("mine", "/home/somebody/base", "", "folder mine"),
        ("mine", "", "", "folder mine"),
        ("models--org--tiny/snapshots/0123", "", "", "org/tiny"),
    ],
)
def test_captions_say_of_a_base_in_a_folder_what_it_says_of_itself(place, config, card, said, tmp_path):
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"_name_or_path": config} if config else {}))
    (folder / "README.md").write_text(card)
    assert name_of_base(str(folder)) == said
    assert name_of_base("thenlper/gte-small") == "thenlper/gte-small"
    assert name_of_base("bert-base-uncased") == "bert-base-uncased"
