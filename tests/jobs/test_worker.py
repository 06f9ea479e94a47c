"""What a task asks SLURM when it has been told to end; the answers come from a squeue of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter_probe.jobs import slurm_queue
from adapter_probe.jobs.slurm_queue import still_wanted
from adapter_probe.jobs.worker import task_name

# It keeps what it was asked, fails as often as it is told to, and then answers.
SQUEUE = """#!/bin/sh
echo "$@" >> asked
[ $(wc -l < asked) -gt {failures} ] || exit 1
echo {state}
"""


@pytest.fixture(autouse=True)
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, value in {"JOB_ID": "12", "ARRAY_JOB_ID": "12", "ARRAY_TASK_ID": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(slurm_queue.time, "sleep", lambda _: None)


@pytest.mark.parametrize(
    ("state", "failures", "wanted"),
    [
        ("RUNNING", 0, True),
        ("SIGNALING", 0, True),
        ("COMPLETING", 0, False),
        ("CANCELLED", 0, False),
        ("RUNNING", 2, True),
        ("RUNNING", 9, False),
    ],
)
def test_whether_the_task_is_still_wanted(state, failures, wanted, tmp_path):
    squeue = tmp_path / "squeue"
    squeue.write_text(SQUEUE.format(state=state, failures=failures))
    squeue.chmod(0o755)
    assert still_wanted(task_name()) == wanted
    questions = Path("asked").read_text().splitlines()
    assert set(questions) == {"--noheader --jobs=12_3 --format=%T"}
    assert len(questions) == min(failures + 1, 3)
