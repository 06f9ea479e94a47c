"""Runs killed at random instants and started again leave the same files as runs that nobody disturbed.

``make test-all`` kills a few; ``ADAPTER_PROBE_KILLS=200`` as many as that over all kinds of runs together.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

KILLS = int(os.environ.get("ADAPTER_PROBE_KILLS", "12"))
KINDS = ("ablate", "mixed", "sweep", "train")
# Many parts and saved states, so that there is much to interrupt; figures have tests of their own.
BEFORE = """
import adapter_probe.figures.gallery, adapter_probe.probe.plan, adapter_probe.training.loop as loop
adapter_probe.probe.plan.TOKENS_PER_PART["cpu"] = 50
adapter_probe.figures.gallery.write_gallery = lambda *a, **k: []
loop.SECONDS_BETWEEN_SAVES = 0.0
"""
FILES = {
    "ablate": ("spans.csv", "layers.csv", "removable.csv", "predictions.npz", "summary.json"),
    "mixed": ("spans.csv", "layers.csv", "removable.csv", "predictions.npz", "summary.json"),
    "sweep": ("trials.csv", "sweep.csv"),
    "train": ("adapter_probe.json", "delta.safetensors"),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def arguments(
    kind: str, trained: Path, train_arguments: tuple, tiny_base: Callable, tiny_task: Path
) -> tuple:
    ablate = ("ablate", trained, "--tokens-per-pass", 100)
    return {
        "ablate": ablate,
        "mixed": (*ablate, "--precision", "mixed"),
        "sweep": ("init-sweep", "--base", tiny_base("bert"), "--task", tiny_task, "--stds", "1e-2:0.1",
                  "--size", 2, "--seeds", 1, "--epochs", 1, "--learning-rates", 0.01, "--workers", 2),
        "train": train_arguments,
    }[kind]  # fmt: skip


def files(kind: str, out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in FILES[kind]}


def time_a_run(program, arguments: tuple, out: Path) -> tuple[float, float]:
    """Seconds until a run has made its folder, and until it has ended; before that nothing can be lost."""
    start, made = time.monotonic(), 0.0
    command = program.start(*arguments, "--out", out, before=BEFORE)
    while not command.ended:
        made = made or (time.monotonic() - start if out.exists() else 0.0)
        time.sleep(0.005)
    ended = time.monotonic() - start
    outcome = command.result()
    assert outcome.code == 0, outcome
    return made, ended


def test_kills_change_nothing(kind, arguments, program, tmp_path):
    time_a_run(program, arguments, tmp_path / "cold")
    out = tmp_path / "undisturbed"
    made, ended = time_a_run(program, arguments, out)
    right = files(kind, out)
    assert right == files(kind, tmp_path / "cold"), "two undisturbed runs differ"
    generator, kills, attempt, finished = random.Random(kind), 0, 0, 0
    while kills < max(1, KILLS // len(KINDS)):
        # Some kills in one folder, then the run that goes through.
        out = tmp_path / str(attempt)
        attempt += 1
        for _ in range(generator.randint(1, 5)):
            command = program.start(*arguments, "--out", out, before=BEFORE)
            time.sleep(generator.uniform(0.9 * made, ended))
            if not command.ended:
                command.kill()
            kills += command.result().code == -signal.SIGKILL
        while (outcome := program.start(*arguments, "--out", out, before=BEFORE).result()).code == 2:
            # A worker that outlived its killed parent still holds its folder; it ends by itself.
            assert "in use" in outcome.stderr, outcome
            time.sleep(0.2)
        assert outcome.code == 0, outcome
        assert files(kind, out) == right, f"{kind}, folder {attempt}: files differ after kills"
        finished += 1
        assert not list(out.rglob("*.tmp"))
    words = f"{made:.1f} to {ended:.1f} s after the start"
    print(f"{kind}: {kills} kills in {finished} folders, {words}, 0 differences")
