"""Ablations of checkpoints by their name on the hub, without a network."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
from peft_folders import KV, saved
from refusals import naming

import adapter_probe as ap
from adapter_probe.checkpoints import hub
from adapter_probe.errors import CheckpointError
from adapter_probe.hub_names import is_hub_name

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
    older = ap.ablate(
        "user/my-lora", revision="v1", data=TEXTS, metric="kl", out=tmp_path / "old", progress=False
    )
    assert older.summary.n_layers == 2


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
    ("checkpoint", "revision", "said"),
    [
        ("user/other", None, ("checkpoint user/other", "folder", "Hub")),
        ("user/my-lora", "v9", ("checkpoint user/my-lora", "Hub", "'v9'")),
        ("user/my-lora", "c" * 40, ("checkpoint user/my-lora", "Hub", f"'{'c' * 40}'")),
        (".", "v1", ("--revision v1", "Hub", "path")),
        ("no-such-folder", None, ("checkpoint no-such-folder",)),
        ("a/b/c", None, ("checkpoint a/b/c", "folder")),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(cached, checkpoint, revision, said, tmp_path):
    with pytest.raises(CheckpointError, match=naming(*said)):
        ap.ablate(checkpoint, revision=revision, data=TEXTS, metric="kl", progress=False)
    assert not list(tmp_path.iterdir())
