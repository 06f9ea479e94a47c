"""The program killed at chosen calls and started again leaves the same bytes as if it had not been.

`test_kill_at_random.py` kills it at any instant.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# Many parts, so that there is much to interrupt; the figure takes long and has tests of its own.
SMALL_PARTS = """
import adapter_probe.figures.gallery, adapter_probe.probe.plan
adapter_probe.probe.plan.TOKENS_PER_PART["cpu"] = 50
adapter_probe.figures.gallery.write_gallery = lambda *_: []
"""
# Dies at the given call of a function (counting those whose last argument ends so), having done it or not.
DIE = """
import os, signal
name, number, after, ending = {!r}, {}, {}, {!r}
original, calls = getattr(os, name), []
def deadly(*arguments):
    calls.extend([None] * str(arguments[-1]).endswith(ending))
    if len(calls) == number and not after: os.kill(os.getpid(), signal.SIGKILL)
    result = original(*arguments)
    if len(calls) == number: os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(os, name, deadly)
"""
RESULTS = ("spans.csv", "predictions.npz", "summary.json")


@pytest.fixture(scope="module")
def ablation(trained: Path) -> tuple[object, ...]:
    return ("ablate", trained, "--tokens-per-pass", 100)


@pytest.fixture(scope="module")
def undisturbed(program, ablation, tmp_path_factory) -> dict[str, bytes]:
    """What an undisturbed ablation leaves."""
    out = tmp_path_factory.mktemp("undisturbed")
    assert program(*ablation, "--out", out, before=SMALL_PARTS).code == 0
    return results(out)


def results(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in RESULTS}


def parts(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (out / "parts").glob("part-*.npz")}


@pytest.mark.parametrize(
    ("name", "number", "after", "ending"),
    [
        ("write", 1, True, ""),
        ("replace", 1, False, ".npz"),
        ("fsync", 9, False, ""),
        ("replace", 1, False, "spans.csv"),
        ("replace", 1, True, "spans.csv"),
        ("replace", 1, False, "summary.json"),
    ],
)
def test_killed_at_a_system_call(name, number, after, ending, program, ablation, undisturbed, tmp_path):
    deadly = SMALL_PARTS + DIE.format(name, number, after, ending)
    killed = program(*ablation, "--out", tmp_path, before=deadly)
    assert killed.code == -signal.SIGKILL
    kept = parts(tmp_path)
    assert program(*ablation, "--out", tmp_path, before=SMALL_PARTS).code == 0
    assert results(tmp_path) == undisturbed
    assert kept.items() <= parts(tmp_path).items()  # finished parts were used, not written anew
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_damaged_part_is_computed_again(program, ablation, undisturbed, tmp_path):
    assert program(*ablation, "--out", tmp_path, before=SMALL_PARTS).code == 0
    part = tmp_path / "parts" / "part-00003.npz"
    part.write_bytes(part.read_bytes()[:100])
    outcome = program(*ablation, "--out", tmp_path, before=SMALL_PARTS)
    assert outcome.code == 0
    assert f"{part} is damaged" in outcome.stderr
    assert results(tmp_path) == undisturbed


def test_ctrl_c(program, ablation, undisturbed, tmp_path):
    before = (
        SMALL_PARTS
        + """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
import adapter_probe.probe.runners as general
original, calls = general.ModelRunner.outputs, []
def interrupted(*arguments, **options):
    calls.append(None)
    if len(calls) == 9: os.kill(os.getpid(), signal.SIGINT)
    return original(*arguments, **options)
general.ModelRunner.outputs = interrupted
"""
    )
    outcome = program(*ablation, "--out", tmp_path, before=before)
    assert (outcome.code, outcome.stdout) == (130, "")
    assert outcome.stderr.replace("\r", "\n").strip().split("\n")[-1].startswith("adapter-probe: interrupted")
    assert "Traceback" not in outcome.stderr
    assert parts(tmp_path)
    assert program(*ablation, "--out", tmp_path, before=SMALL_PARTS).code == 0
    assert results(tmp_path) == undisturbed


@pytest.mark.parametrize(
    ("name", "number", "after", "ending"),
    [
        ("replace", 2, False, ".npz"),
        ("replace", 1, False, "delta.safetensors"),
        ("replace", 1, False, "adapter_probe.json"),
        ("replace", 1, True, "adapter_probe.json"),
    ],
)
def test_a_training_killed_at_a_system_call(
    name, number, after, ending, program, train_arguments, trained, tmp_path
):
    killed = program(*train_arguments, "--out", tmp_path, before=DIE.format(name, number, after, ending))
    assert killed.code == -signal.SIGKILL
    assert (tmp_path / "adapter_probe.json").exists() == after
    assert program(*train_arguments, "--out", tmp_path).code == 0
    for file in ("adapter_probe.json", "delta.safetensors"):
        assert (tmp_path / file).read_bytes() == (trained / file).read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))
    assert not (after and list(tmp_path.rglob("*.npz")))  # the state is of no more use
