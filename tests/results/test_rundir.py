from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from adapter_probe.errors import ResultsError
from adapter_probe.results import rundir
from adapter_probe.results.rundir import RunDirectory

IDENTITY = {"data": {"fingerprint": "3f" * 32, "split": "validation"}, "dtype": "float32", "spans": (0, 1)}


def part(index: int) -> dict[str, np.ndarray]:
    return {"logits": np.full((2, 3), index, dtype=np.float32), "examples": np.arange(index)}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a run with parts 0, 1 and 7."""
    folder = tmp_path / "out"
    with RunDirectory(folder, IDENTITY, {"per_part": 3}) as run:
        for index in (0, 1, 7):
            run.write_part(index, part(index))
    return folder


def test_a_new_run(tmp_path: Path):
    with RunDirectory(tmp_path / "deep" / "out", IDENTITY, {"cuts": (0, 3)}) as run:
        assert (run.finished(), run.damaged) == (set(), [])
        assert run.plan == {"cuts": [0, 3]}  # as a resumed run will see it
        run.write_part(123_456, part(1))
    manifest = json.loads((tmp_path / "deep" / "out" / "manifest.json").read_text())
    assert list(manifest) == ["schema", "created_with", "identity", "plan", "checksum"]
    assert (manifest["schema"], manifest["plan"]) == (1, {"cuts": [0, 3]})
    assert manifest["identity"] == {**IDENTITY, "spans": [0, 1]}
    assert manifest["created_with"]["numpy"] == np.__version__
    assert manifest["created_with"]["peft"] == version("peft")
    assert os.listdir(tmp_path / "deep" / "out" / "parts") == ["part-123456.npz"]
    with RunDirectory(tmp_path / "deep" / "out", IDENTITY, {}) as run:
        assert run.finished() == {123_456}


def test_a_resumed_run_finds_its_parts_and_its_plan(out: Path):
    manifest = (out / "manifest.json").read_bytes()
    with RunDirectory(out, IDENTITY, {"per_part": 99}) as run:
        assert run.plan == {"per_part": 3}
        assert run.finished() == {0, 1, 7}
        for index in (0, 1, 7):
            read = run.read_part(index)
            assert read.keys() == part(index).keys()
            assert all(np.array_equal(read[name], array) for name, array in part(index).items())
        run.finished().clear()
        assert run.finished() == {0, 1, 7}
    assert (out / "manifest.json").read_bytes() == manifest


def test_a_changed_identity_is_refused_by_its_keys(out: Path):
    before = {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
    new = {
        "data": {"fingerprint": "9b" * 32, "split": "validation"},
        "dtype": "bfloat16",
        "spans": [0, 1],
        "base": {"revision": "main"},
    }
    changes = "base.revision: absent -> main", "data.fingerprint: 3f3f3f3f… -> 9b9b9b9b…"
    facts = (out, "--out", "remove", *changes, "dtype: float32 -> bfloat16")
    said = refuses(ResultsError, facts, RunDirectory(out, new, {}).__enter__)
    assert said.count(" -> ") == 3
    assert {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()} == before
    with RunDirectory(out, IDENTITY, {}) as run:  # the refusal let go of the claim
        assert run.finished() == {0, 1, 7}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def take_the_neighbour(path: Path) -> None:
    path.write_bytes(path.with_name("part-00000.npz").read_bytes())


def take_another_runs(path: Path) -> None:
    with RunDirectory(path.parents[2] / "another", {**IDENTITY, "dtype": "bfloat16"}, {"per_part": 3}) as run:
        run.write_part(1, part(1))
        path.write_bytes((run.path / "parts" / path.name).read_bytes())


def take_another_plans(path: Path) -> None:
    with RunDirectory(path.parents[2] / "another", IDENTITY, {"per_part": 4}) as run:
        run.write_part(1, part(1))
        path.write_bytes((run.path / "parts" / path.name).read_bytes())


# Every cut and every flipped byte, and files of other programs, are in test_atomic.
DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "of another number": take_the_neighbour,
    "of another run": take_another_runs,
    "of another plan": take_another_plans,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_part_counts_as_missing(out: Path, damage: Callable):
    path = out / "parts" / "part-00001.npz"
    whole = path.read_bytes()
    damage(path)
    for _ in range(2):  # a run that is killed before it gets to the part leaves it for the next one
        with RunDirectory(out, IDENTITY, {}) as run:
            assert run.finished() == {0, 7}
            assert run.damaged == [path]
    with RunDirectory(out, IDENTITY, {}) as run:
        run.write_part(1, part(1))
        assert run.finished() == {0, 1, 7}
    assert path.read_bytes() == whole
    with RunDirectory(out, IDENTITY, {}) as run:
        assert run.damaged == []


def test_a_part_damaged_while_the_run_goes_on(out: Path):
    path = out / "parts" / "part-00001.npz"
    with RunDirectory(out, IDENTITY, {}) as run:
        flip(path)
        refuses(ResultsError, (path, "damaged", "again"), run.read_part, 1)
        assert run.damaged == [path]
        assert run.finished() == {0, 7}
        refuses(ResultsError, (out / "parts" / "part-00002.npz", "missing"), run.read_part, 2)


def test_only_parts_count_as_parts(out: Path):
    for name in ("part-1.npz", "part-000002.npz", "part-00003.npz.bak", ".adapter-probe-0a.tmp", "notes.npz"):
        (out / "parts" / name).write_bytes((out / "parts" / "part-00001.npz").read_bytes())
    with RunDirectory(out, IDENTITY, {}) as run:
        assert run.finished() == {0, 1, 7}
        assert run.damaged == []
    assert ".adapter-probe-0a.tmp" not in os.listdir(out / "parts")


def test_every_truncated_or_altered_manifest_is_refused(out: Path):
    path = out / "manifest.json"
    whole = path.read_bytes()
    for at in range(0, len(whole.rstrip()), 3):  # without the last newline it is still whole
        bit = 1 << at % 8
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :]):
            path.write_bytes(data)
            refuses(ResultsError, (path,), rundir.read_manifest, path)
    refuses(ResultsError, (path,), RunDirectory(out, IDENTITY, {}).__enter__)
    path.write_bytes(whole.replace(b'"per_part": 3', b'"per_part": 4'))
    refuses(ResultsError, (path, "edited", "remove"), RunDirectory(out, IDENTITY, {}).__enter__)
    path.write_bytes(whole)
    with RunDirectory(out, IDENTITY, {}) as run:
        assert run.finished() == {0, 1, 7}


def test_a_newer_manifest_is_refused(out: Path, monkeypatch: pytest.MonkeyPatch):
    newer = out.parent / "newer"
    with monkeypatch.context() as patch:
        patch.setattr(rundir, "SCHEMA", 2)
        with RunDirectory(newer, IDENTITY, {}):
            pass
    facts = (newer / "manifest.json", "newer", "2", "1")
    refuses(ResultsError, facts, RunDirectory(newer, IDENTITY, {}).__enter__)


def test_parts_of_nobody_are_refused(out: Path):
    (out / "manifest.json").unlink()
    refuses(ResultsError, (out, "manifest.json", "--out"), RunDirectory(out, IDENTITY, {}).__enter__)
    assert not (out / "manifest.json").exists()


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_costs_no_finished_part(out, monkeypatch, call):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunDirectory(out, IDENTITY, {}) as run:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            facts = ("part-00002.npz", os.strerror(errno.ENOSPC))
            refuses(ResultsError, facts, run.write_part, 2, part(2))
        assert run.finished() == {0, 1, 7}
    with RunDirectory(out, IDENTITY, {}) as run:
        assert run.finished() == {0, 1, 7}
        assert sorted(os.listdir(out / "parts")) == ["part-00000.npz", "part-00001.npz", "part-00007.npz"]


def test_a_file_in_the_place_of_the_parts(tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "parts").write_text("a file, not a folder")
    refuses(ResultsError, (out / "parts", "folder"), RunDirectory(out, IDENTITY, {}).__enter__)


def test_parts_are_written_only_inside_the_block(out: Path):
    run = RunDirectory(out, IDENTITY, {})
    with pytest.raises(RuntimeError, match="with RunDirectory"):
        run.write_part(2, part(2))
    with run:
        run.write_part(2, part(2))
    with pytest.raises(RuntimeError, match="with RunDirectory"):
        run.write_part(2, part(2))


def test_an_error_inside_passes_through_and_lets_go(out: Path):
    with pytest.raises(ZeroDivisionError), RunDirectory(out, IDENTITY, {}):
        raise ZeroDivisionError
    facts = (out, f"pid {os.getpid()}", "--out")
    with RunDirectory(out, IDENTITY, {}):
        refuses(ResultsError, facts, RunDirectory(out, IDENTITY, {}).__enter__)
