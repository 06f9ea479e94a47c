"""What is said about jobs that fail, wherever they ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter_probe.cli import jobs
from adapter_probe.errors import ModelError
from adapter_probe.jobs.worker_process import Failure

A = Failure(Path("trials/a"), "the worker was killed by SIGKILL", Path("logs/worker-0.txt"))
B = Failure(Path("trials/b"), "not today")


@pytest.mark.parametrize(
    ("failures", "lines"),
    [
        ([], []),
        ([A], []),  # the command's last line tells of it
        ([A, B], [f"a failed: {A.reason} (log: {A.log})", "b failed: not today"]),
    ],
)
def test_every_one_of_several_failures_is_named(failures, lines, monkeypatch, capsys, tmp_path):
    class Engine:
        def run(self, _jobs, _progress):
            return failures

    monkeypatch.setattr(jobs, "_local", lambda *_: Engine())
    steps = {failure.folder: 5 for failure in (A, B)}
    outcome = jobs.run_jobs(steps, 2, "trials", "steps", tmp_path, jobs.Place(1, 1, "cpu"))
    assert outcome.failures == failures
    assert [line for line in capsys.readouterr().err.splitlines() if " failed: " in line] == lines
    if failures:
        last = jobs.failed(failures, [A.folder], 2, "trials")
        assert last.startswith(f"1 of 2 trials failed, a first: {A.reason} (log: {A.log})")


def test_threads_cannot_be_negative():
    with pytest.raises(ModelError, match="--threads -1"):
        jobs.Place(1, -1, "cpu")
