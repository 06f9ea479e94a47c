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
ABLATED = ("spans.csv", "predictions.npz", "summary.json")
TRAINED = ("adapter_probe.json", "delta.safetensors")


@pytest.fixture(scope="module")
def ablation(trained: Path) -> tuple[object, ...]:
    return ("ablate", trained, "--tokens-per-pass", 100)


@pytest.fixture(scope="module")
def undisturbed(program, ablation, trained, tmp_path_factory) -> dict[str, bytes]:
    """What an undisturbed ablation and an undisturbed training leave."""
    out = tmp_path_factory.mktemp("undisturbed")
    assert program(*ablation, "--out", out, before=SMALL_PARTS).code == 0
    return results(out, ABLATED) | results(trained, TRAINED)


def results(out: Path, names: tuple[str, ...] = ABLATED) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in names}


def parts(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (out / "parts").glob("part-*.npz")}


@pytest.mark.parametrize(
    ("name", "number", "after", "ending", "left"),
    [
        ("write", 1, True, "", ABLATED),
        ("replace", 1, False, ".npz", ABLATED),
        ("fsync", 9, False, "", ABLATED),
        ("replace", 1, False, "spans.csv", ABLATED),
        ("replace", 1, True, "spans.csv", ABLATED),
        ("replace", 1, False, "summary.json", ABLATED),
        ("replace", 2, False, ".npz", TRAINED),
        ("replace", 1, False, "delta.safetensors", TRAINED),
        ("replace", 1, False, "adapter_probe.json", TRAINED),
        ("replace", 1, True, "adapter_probe.json", TRAINED),
    ],
)
def test_killed_at_a_system_call(
    name, number, after, ending, left, program, ablation, train_arguments, undisturbed, tmp_path
):
    arguments = (*(ablation if left is ABLATED else train_arguments), "--out", tmp_path)
    killed = program(*arguments, before=SMALL_PARTS + DIE.format(name, number, after, ending))
    assert killed.code == -signal.SIGKILL
    kept = parts(tmp_path)
    is_trained = (tmp_path / "adapter_probe.json").exists()
    assert is_trained == (after and left is TRAINED)
    assert program(*arguments, before=SMALL_PARTS).code == 0
    assert results(tmp_path, left).items() <= undisturbed.items()
    assert kept.items() <= parts(tmp_path).items()  # finished parts were used, not written anew
    assert not list(tmp_path.rglob("*.tmp"))
    assert not (is_trained and list(tmp_path.rglob("*.npz")))  # the state is of no more use


def test_ctrl_c_and_a_damaged_part(program, ablation, undisturbed, tmp_path):
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
    part = tmp_path / "parts" / min(parts(tmp_path))
    part.write_bytes(part.read_bytes()[:100])
    outcome = program(*ablation, "--out", tmp_path, before=SMALL_PARTS)
    assert outcome.code == 0
    assert f"{part} is damaged" in outcome.stderr
    assert results(tmp_path).items() <= undisturbed.items()
