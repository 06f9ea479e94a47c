"""What is said about jobs that fail, wherever they ran."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from refusals import refuses

from adapter_probe.errors import ModelError, TrainingError
from adapter_probe.jobs import running
from adapter_probe.jobs.notes import Failure
from adapter_probe.jobs.resources import SlurmOptions
from adapter_probe.jobs.running import Jobs, Resources, run_jobs

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
def test_every_one_of_several_failures_is_named(failures, lines, monkeypatch, capsys):
    jobs = Jobs(Path(), {failure.job: 5 for failure in (A, B)}, "trial.json", "trials", "steps")
    run(monkeypatch, jobs, failures, [], progress=True)
    assert [line for line in capsys.readouterr().err.splitlines() if " failed: " in line] == lines
    if failures:
        said = re.escape(f"1 of 2 trials failed, a first: {A.reason} (log: {A.log})")
        with pytest.raises(TrainingError, match=rf"\A{said}"):
            run(monkeypatch, jobs, failures, [A.job])


def run(monkeypatch, jobs: Jobs, failures: list[Failure], lost: list[Path], progress: bool = False) -> None:
    monkeypatch.setattr(running.LocalProcesses, "run", lambda *_: failures)
    left = iter([list(jobs.steps), lost])  # before and after they ran
    monkeypatch.setattr(Jobs, "left", lambda _: next(left))
    run_jobs(jobs, Resources(workers=1, device="cpu", progress=progress))


def test_a_job_with_a_result_is_skipped(tmp_path, monkeypatch):
    done, left = tmp_path / "done", tmp_path / "left"
    done.mkdir()
    (done / "trial.json").write_text("{}")
    jobs = Jobs(tmp_path, {done: 5, left: 5}, "trial.json", "trials", "steps")
    ran: list[Path] = []
    monkeypatch.setattr(running.LocalProcesses, "run", lambda _, given, *more: ran.extend(given) or [])
    with pytest.raises(TrainingError, match=r"\A1 of 2 trials failed, left first: it finished, but"):
        run_jobs(jobs, Resources(workers=1, device="cpu", progress=False))
    assert ran == [left]


def test_silence(monkeypatch, capsys):
    run(monkeypatch, Jobs(Path(), {A.job: 5, B.job: 5}, "trial.json", "trials", "steps"), [A, B], [])
    assert capsys.readouterr() == ("", "")


def test_a_result_that_is_not_to_be_seen_yet(monkeypatch):
    jobs = Jobs(Path(), {A.job: 5}, "trial.json", "trials", "steps")
    with pytest.raises(TrainingError, match=r"\A1 of 1 trials failed, a first: it finished, but"):
        run(monkeypatch, jobs, [], [A.job])


def test_checkpoints_of_several_tasks_are_told_apart(tmp_path, monkeypatch):
    lost = [tmp_path / "out" / task / "seed-0" for task in ("cola", "mrpc")]
    jobs = Jobs(tmp_path / "out", dict.fromkeys(lost, 5), "adapter_probe.json", "checkpoints", "steps")
    with pytest.raises(TrainingError, match=r"\A2 of 2 checkpoints failed, mrpc/seed-0 first: why"):
        run(monkeypatch, jobs, [Failure(lost[1], "why")], lost)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"threads": -1}, ModelError, ("--threads", "from 1", "0", "-1")),
        ({"threads": 100_000}, ModelError, ("--threads", "from 1", "0", "100000")),
        ({"threads": -1, "cluster": SlurmOptions()}, ModelError, ("--threads", "from 1", "0", "-1")),
        ({"workers": -2}, TrainingError, ("--workers", "at least 0", "-2")),
        (
            {"workers": 2, "cluster": SlurmOptions()},
            TrainingError,
            ("--workers", "--slurm", "--max-parallel"),
        ),
    ],
)
def test_resources_that_cannot_be(arguments, error, words):
    refuses(error, words, Resources, **arguments)


def test_a_node_may_have_more_processors_than_this_machine():
    assert Resources(threads=1000, cluster=SlurmOptions(max_parallel=3)).at_a_time(7) == 3


@pytest.mark.parametrize(("threads", "expected"), [(2, "2"), (0, None)])
def test_the_threads_of_a_worker(threads, expected):
    command, variables = running._worker("cpu", threads)
    assert command[-2:] == ["--threads", str(threads)]
    assert variables.get("OMP_NUM_THREADS") == expected
