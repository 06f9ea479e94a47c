"""Jobs on this machine and on a cluster: every job once, a death costs one job, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adapter_probe.jobs import slurm
from adapter_probe.jobs.local import LocalProcesses
from adapter_probe.jobs.resources import SlurmOptions
from adapter_probe.jobs.slurm import SlurmArray, still_wanted

# A worker whose job's name says what it does.
WORKER = """
import os, signal, time
from adapter_probe.errors import ResultsError
from adapter_probe.jobs.worker import main
def do(job, report):
    report(1)
    if job.name.startswith("kill"): os.kill(os.getpid(), signal.SIGKILL)
    if job.name.startswith("crash"): raise ValueError("a bug")
    if job.name.startswith("refuse"): raise ResultsError("not today")
    if job.name.startswith("print"): print("a library's word")
    if "stop" in job.name: os.kill(os.getpid(), signal.SIGTERM)
    if "late" not in job.name: report(2)
    with job.open("a") as file: file.write(os.environ["WORD"] + str(os.getpid()) + "\\n")
main(do)
"""


def local(folder: Path, workers: int) -> LocalProcesses:
    return LocalProcesses([sys.executable, "-c", WORKER], workers, {"WORD": "pid "}, folder / "logs")


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slow)])
def executor(request: pytest.FixtureRequest) -> Callable[[Path, int], LocalProcesses | SlurmArray]:
    """``executor(folder, workers)``: this machine's processes, and a cluster's."""
    if request.param == "local":
        return local
    request.getfixturevalue("cluster")

    def make(folder: Path, workers: int) -> SlurmArray:
        options = SlurmOptions({"time": "10"}, max_parallel=workers)
        command, environment = [sys.executable, "-c", WORKER], {"WORD": "pid "}
        slurm.POLL_NOTES, slurm.POLL_QUEUE, slurm.LOST_AFTER = 0.2, 1, 2
        return SlurmArray(command, environment, folder / "slurm", options)

    return make


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_job_is_done_once(workers, executor, tmp_path):
    jobs = [tmp_path / f"job-{n}" for n in range(4)]
    steps: list[tuple[Path, int]] = []
    assert executor(tmp_path, workers).run(jobs, lambda job, step: steps.append((job, step))) == []
    lines = [job.read_text().splitlines() for job in jobs]
    assert all(len(own) == 1 and own[0].startswith("pid ") for own in lines)
    assert {(job, 2) for job in jobs} <= set(steps) <= {(job, step) for job in jobs for step in (0, 1, 2)}


def test_a_death_or_a_refusal_costs_its_own_job(executor, tmp_path):
    names = ["a", "kill", "b", "crash", "c", "refuse", "d"]
    failures = executor(tmp_path, 2).run([tmp_path / name for name in names], lambda *_: None)
    reasons = {failure.job.name: failure for failure in failures}
    assert sorted(reasons) == ["crash", "kill", "refuse"]
    assert "SIGKILL" in reasons["kill"].reason
    assert "exit code 1" in reasons["crash"].reason
    assert "ValueError: a bug" in reasons["crash"].log.read_text()
    assert "not today" in reasons["refuse"].reason
    assert all(len((tmp_path / name).read_text().splitlines()) == 1 for name in "abcd")


def test_what_a_library_prints_is_no_answer(tmp_path):
    assert local(tmp_path, 1).run([tmp_path / "print"], lambda *_: None) == []
    assert "a library's word" in (tmp_path / "logs" / "worker-0.txt").read_text()


def test_no_jobs(executor, tmp_path):
    assert executor(tmp_path, 2).run([], lambda *_: None) == []


def test_a_worker_takes_one_job_after_another(tmp_path):
    jobs = [tmp_path / f"job-{n}" for n in range(4)]
    for workers in (1, 2):
        local(tmp_path, workers).run(jobs, lambda *_: None)
        assert 1 <= len({job.read_text().splitlines()[-1] for job in jobs}) <= workers


def test_a_worker_that_is_stopped_begins_no_other_job(tmp_path):
    jobs = [tmp_path / name for name in ("late-stop", "b", "stop", "c")]
    (failure,) = local(tmp_path, 1).run(jobs, lambda *_: None)
    assert failure.job == jobs[2]
    assert "was stopped" in failure.reason
    assert len({jobs[n].read_text() for n in (0, 1, 3)}) == 3


def test_a_worker_is_told_who_started_it(tmp_path):
    command = [sys.executable, "-c", WORKER, "--notes", str(tmp_path), str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--task --parent" in done.stderr
    assert not (tmp_path / "a").exists()


def test_an_interruption_ends_the_workers(tmp_path):
    code = f"""
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
from adapter_probe.jobs.local import LocalProcesses
worker = '''import os, time
from adapter_probe.jobs.worker import main
def do(job, report):
    while True:
        report(os.getpid())
        time.sleep(0.1)
main(do)
'''
told = set()
def tell(job, step):
    if step and step not in told:
        told.add(step)
        print(f"{{step}}\\n", end="", flush=True)
LocalProcesses([sys.executable, "-c", worker], 2, {{}}, Path({str(tmp_path)!r}) / "logs").run(
    [Path("a"), Path("b")], tell)
"""
    for ending in (signal.SIGINT, signal.SIGKILL):
        parent = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        parent.send_signal(ending)
        parent.wait(timeout=20)
        deadline = time.monotonic() + 20
        while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(alive(worker) for worker in workers)
        parent.stdout.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_it_leaves_no_threads(tmp_path):
    before = threading.active_count()
    local(tmp_path, 3).run([tmp_path / name for name in "abc"], lambda *_: None)
    assert threading.active_count() == before


# It keeps what it was asked, fails as often as it is told to, and then answers.
SQUEUE = """#!/bin/sh
echo "$@" >> asked
[ $(wc -l < asked) -gt {failures} ] || exit 1
echo {state}
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(slurm.time, "sleep", lambda _: None)


@pytest.mark.usefixtures("task")
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
    assert still_wanted("12_3") == wanted
    questions = Path("asked").read_text().splitlines()
    assert set(questions) == {"--noheader --jobs=12_3 --format=%T"}
    assert len(questions) == min(failures + 1, 3)
