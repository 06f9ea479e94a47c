"""Arrays on a real cluster of two nodes: what was cancelled, lost, preempted or orphaned is done once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from refusals import refuses
from slurm_cluster import SlurmCluster

from adapter_probe.errors import TrainingError
from adapter_probe.jobs import slurm
from adapter_probe.jobs.resources import SlurmOptions
from adapter_probe.jobs.slurm import SlurmArray

pytestmark = pytest.mark.usefixtures("cluster")

# A job of 30 steps that saves its state when it is interrupted and goes on from there. What it did stands in
# its file, a line a step, so a step that is done twice shows. "quick" jobs have one step; "greedy" ones take
# 50 MB more at each.
WORKER = """
import os, time
from pathlib import Path
from adapter_probe.jobs.worker import main
def do(job, report):
    state = Path(f"{job}.state")
    done = int(state.read_text()) if state.exists() else 0
    total = 1 if job.name.startswith("quick") else 30
    hoard = []
    for step in range(done, total):
        if job.name.startswith("greedy"):
            hoard.append(bytearray(50_000_000))
        time.sleep(0.15)
        with open(job, "a") as file: file.write(f"{step} {os.environ['SLURMD_NODENAME']}\\n")
        try:
            report(step + 1)
        except KeyboardInterrupt:
            state.write_text(str(step + 1))
            raise
main(do)
"""


def array(folder: Path, sbatch: dict | None = None, **options) -> SlurmArray:
    chosen = SlurmOptions(**options, sbatch={"time": "10", **(sbatch or {})})
    command = [sys.executable, "-c", WORKER]
    slurm.POLL_NOTES, slurm.POLL_QUEUE, slurm.LOST_AFTER = 0.2, 1, 1
    return SlurmArray(command, {}, folder / "slurm", chosen)


def steps(job: Path) -> list[int]:
    return [int(line.split()[0]) for line in job.read_text().splitlines()] if job.exists() else []


def nodes(job: Path) -> list[str]:
    return list(dict.fromkeys(line.split()[1] for line in job.read_text().splitlines()))


@contextmanager
def running(executor: SlurmArray, jobs: list[Path]) -> Iterator[list]:
    """The executor at work in a thread; its failures are in the list given, at the block's end."""
    failures: list = []
    thread = threading.Thread(target=lambda: failures.extend(executor.run(jobs, lambda *_: None)))
    thread.start()
    try:
        yield failures
    finally:
        thread.join(90)
    assert not thread.is_alive()


def under_way(cluster: SlurmCluster, *jobs: Path) -> None:
    cluster.wait_until(lambda: all(len(steps(job)) > 2 for job in jobs))


def task_of(folder: Path, job: Path) -> str:
    tasks = json.loads((folder / "slurm" / "submitted.json").read_text())["tasks"]
    return tasks[str(job.relative_to(folder))]


def test_more_jobs_than_an_array_may_have(cluster, tmp_path):
    jobs = [tmp_path / f"quick-{n}" for n in range(7)]  # the cluster allows 5
    assert array(tmp_path, max_parallel=2).run(jobs, lambda *_: None) == []
    assert all(steps(job) == [0] for job in jobs)
    assert len({task_of(tmp_path, job).split("_")[0] for job in jobs}) == 2
    assert {node for job in jobs for node in nodes(job)} == {"n1", "n2"}


def test_jobs_of_one_name_in_different_folders(cluster, tmp_path):
    jobs = [tmp_path / folder / "quick-seed-0" for folder in ("cola", "mrpc")]
    for job in jobs:
        job.parent.mkdir()
    told = []
    assert array(tmp_path, max_parallel=1).run(jobs, lambda job, step: told.append((job, step))) == []
    assert [steps(job) for job in jobs] == [[0], [0]]
    assert set(told) >= {(job, 1) for job in jobs}
    assert task_of(tmp_path, jobs[0]) != task_of(tmp_path, jobs[1])


def test_what_was_cancelled_is_reported_and_done_the_next_time(cluster, tmp_path):
    jobs = [tmp_path / name for name in ("a", "b", "c")]
    with running(array(tmp_path), jobs) as failures:
        under_way(cluster, *jobs[:2])
        cluster.call("scancel", task_of(tmp_path, jobs[0]), task_of(tmp_path, jobs[2]))  # one had not begun
    assert sorted(f.job.name for f in failures) == ["a", "c"]
    for failure in failures:
        assert "CANCELLED" in failure.reason
        assert task_of(tmp_path, failure.job) in failure.reason
        assert (failure.log is None) == (failure.job.name == "c")
    executor = array(tmp_path)
    again = [jobs[0], jobs[2]]
    submission = executor.submit(again)
    assert [job.name for job in submission.sent] == ["a", "c"]
    assert [failure.job.name for failure in submission.failed] == ["a", "c"]
    assert executor.wait(again, lambda *_: None) == []
    assert all(steps(job) == list(range(30)) for job in jobs)  # none lost, none twice


def test_a_node_set_down(cluster, tmp_path):
    jobs = [tmp_path / name for name in ("a", "b")]
    with running(array(tmp_path), jobs) as failures:
        under_way(cluster, *jobs)
        lost = next(job for job in jobs if nodes(job) == ["n2"])
        cluster.set_node("n2", "down")
    assert failures == []
    assert nodes(lost) == ["n2", "n1"]
    assert set(steps(lost)) == set(range(30))  # what was not saved is done again
    assert [steps(job) for job in jobs if job != lost] == [list(range(30))]


def test_a_preempted_task_goes_on_where_it_was(cluster, tmp_path):
    jobs = [tmp_path / name for name in ("a", "b")]
    with running(array(tmp_path), jobs) as failures:
        under_way(cluster, *jobs)
        cluster.call("sbatch", "--partition=urgent", "--output=/dev/null", "--wrap", "sleep 2")
        cluster.wait_until(lambda: list(tmp_path.glob("*.state")), 20)
    assert failures == []
    assert all(steps(job) == list(range(30)) for job in jobs)
    assert len(list(tmp_path.glob("*.state"))) == 1


def test_all_tasks_of_an_array_preempted(cluster, tmp_path):
    """The last task of an array goes by the whole array's id."""
    jobs = [tmp_path / name for name in ("a", "b")]
    with running(array(tmp_path), jobs) as failures:
        under_way(cluster, *jobs)
        cluster.call("sbatch", "--partition=urgent", "--nodes=2", "--output=/dev/null", "--wrap", "sleep 1")
        cluster.wait_until(lambda: len(list(tmp_path.glob("*.state"))) == 2, 20)
    assert failures == []
    assert all(steps(job) == list(range(30)) for job in jobs)


def test_sent_from_within_a_job(tmp_path, monkeypatch):
    """What the job round about was given says nothing about the tasks'."""
    given = {"SLURM_JOB_ID": "99", "SLURM_GPUS": "2", "SLURM_MEM_PER_CPU": "100"}
    with monkeypatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        assert array(tmp_path, {"mem": "200M"}).run([tmp_path / "quick-a"], lambda *_: None) == []
        assert {name: os.environ[name] for name in given} == given


def test_the_time_is_nearly_up(cluster, tmp_path):
    job = tmp_path / "a"
    with running(array(tmp_path), [job]) as failures:
        under_way(cluster, job)
        cluster.call("scancel", "--signal=USR2", cluster.queue().popitem()[0])
    assert failures == []
    assert steps(job) == list(range(30))
    assert (tmp_path / "a.state").exists()


def test_a_step_killed_with_its_worker(cluster, tmp_path):
    """As when memory runs out: nobody is left to write a note."""
    job = tmp_path / "a"
    with running(array(tmp_path), [job]) as failures:
        under_way(cluster, job)
        for pid in pids_of_tasks(tmp_path):
            os.kill(pid, signal.SIGKILL)
    assert [f.job for f in failures] == [job]
    assert "FAILED" in failures[0].reason
    assert failures[0].log.exists()
    assert array(tmp_path).run([job], lambda *_: None) == []
    assert set(steps(job)) == set(range(30))


def test_out_of_memory(tmp_path):
    jobs = [tmp_path / name for name in ("greedy-a", "b")]
    (failure,) = array(tmp_path, {"mem": "250M"}).run(jobs, lambda *_: None)
    assert failure.job == jobs[0]
    assert "memory" in failure.reason
    assert "memory limit" in failure.log.read_text()  # SLURM's words
    assert steps(jobs[1]) == list(range(30))
    assert array(tmp_path, {"mem": "4000M"}).run(jobs[:1], lambda *_: None) == []
    assert set(steps(jobs[0])) == set(range(30))


def pids_of_tasks(folder: Path) -> list[int]:
    """The workers that SLURM started on the nodes for tasks of a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_text().split("\0")
            if words[0] == sys.executable and str(folder / "slurm" / "notes") in words:
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def submitter(tmp_path) -> Callable[[list[Path]], subprocess.Popen]:
    """``submitter(jobs)``: another process that sends jobs and waits for them."""
    started = []

    def start(jobs: list[Path]) -> subprocess.Popen:
        code = (
            f"import sys; from pathlib import Path; sys.path[:0] = [{str(Path(__file__).parent)!r}]\n"
            f"from test_slurm import array\n"
            f"array(Path({str(tmp_path)!r})).run([Path(p) for p in {list(map(str, jobs))}], lambda *_: None)"
        )
        fixtures = str(Path(__file__).parents[1] / "fixtures")
        environment = {**os.environ, "PYTHONPATH": fixtures}
        started.append(subprocess.Popen([sys.executable, "-c", code], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_submitter_killed(cluster, submitter, tmp_path):
    jobs = [tmp_path / name for name in ("a", "quick-b", "quick-c")]
    process = submitter(jobs)
    under_way(cluster, jobs[0])
    process.send_signal(signal.SIGKILL)
    process.wait()
    tasks = [task_of(tmp_path, job) for job in jobs]
    executor = array(tmp_path)
    submission = executor.submit(jobs)
    assert jobs[0] in submission.adopted
    assert jobs[0] not in submission.sent
    assert submission.failed == ()
    assert executor.wait(jobs, lambda *_: None) == []
    assert task_of(tmp_path, jobs[0]) == tasks[0]
    assert steps(jobs[0]) == list(range(30))


def test_a_submitter_killed_before_it_noted_its_tasks(cluster, tmp_path):
    job = tmp_path / "a"
    executor = array(tmp_path)
    executor.submit([job])
    under_way(cluster, job)
    (stray,) = cluster.queue()
    (tmp_path / "slurm" / "submitted.json").unlink()
    assert executor.run([job], lambda *_: None) == []
    assert task_of(tmp_path, job) != stray
    assert steps(job) == list(range(30))  # the stray one was stopped, its state taken over


def test_a_copied_folder_has_no_tasks(cluster, tmp_path):
    jobs = [tmp_path / "one" / "a"]
    jobs[0].parent.mkdir()
    array(jobs[0].parent).submit(jobs)
    under_way(cluster, jobs[0])
    copied = shutil.copytree(tmp_path / "one", tmp_path / "two")
    submission = array(copied).submit([copied / "a"])
    assert (submission.adopted, len(submission.sent)) == ((), 1)
    assert len(cluster.queue()) == 2


def test_a_controller_that_does_not_answer_loses_nothing(tmp_path, monkeypatch):
    original, asked, said = slurm.tasks_called, [], []

    def sometimes(name):
        asked.append(name)
        if len(asked) in (2, 3, 4):
            raise TrainingError("SLURM does not answer: timeout")
        return original(name)

    monkeypatch.setattr(slurm, "tasks_called", sometimes)
    job = tmp_path / "a"
    executor = array(tmp_path)
    executor.submit([job])
    assert executor.wait([job], lambda *_: None, said.append) == []
    assert steps(job) == list(range(30))
    assert said[0] == "SLURM does not answer: timeout"
    assert "1 running" in said


def test_what_a_task_gets(cluster, tmp_path):
    job = tmp_path / "quick-a"
    executor = array(
        tmp_path, max_parallel=1, setup=("export WORD=hello", "echo set up as $WORD >&2"),
        sbatch={"partition": "urgent", "gpus-per-task": 1, "mem": "300M", "time": "1:30:00",
                "comment": "a lab's words"},
    )  # fmt: skip
    assert executor.run([job], lambda *_: None) == []
    task = task_of(tmp_path, job)
    shown = cluster.call("scontrol", "show", "job", task)
    for words in ("Partition=urgent", "TimeLimit=01:30:00", "MinMemoryNode=300M", "gres:gpu:1", "Requeue=1",
                  f"JobName={executor.name}", "Comment=a lab's words", "NumCPUs=1 "):  # fmt: skip
        assert words in shown
    assert "set up as hello" in (tmp_path / "slurm" / f"{task}.txt").read_text()


def test_nothing_that_a_shell_would_run(cluster, tmp_path):
    """Folders, variables and arguments reach the worker as they are, whatever stands in them."""
    folder = tmp_path / "it's $(touch stolen); a `folder` 100%A"
    folder.mkdir()
    job = folder / "quick $HOME\n'b'"
    executor = array(folder)
    executor._environment["WORD"] = "$(touch stolen)"
    assert executor.run([job], lambda *_: None) == []
    assert steps(job) == [0]
    assert (folder / "slurm" / f"{task_of(folder, job)}.txt").exists()
    assert not list(tmp_path.rglob("stolen"))


def test_time_that_is_up_before_the_first_step(cluster, tmp_path):
    """It would be up again in the next turn, for ever."""
    job = tmp_path / "a"
    executor = array(tmp_path)
    executor._command = (sys.executable, "-c", WORKER.replace("time.sleep(0.15)", "time.sleep(6)"))
    with running(executor, [job]) as failures:
        cluster.wait_until(lambda: list(tmp_path.glob("slurm/notes/*.json")))
        cluster.call("scancel", "--signal=USR2", cluster.queue().popitem()[0])
    assert [f.job for f in failures] == [job]
    assert "time=" in failures[0].reason


@pytest.mark.parametrize(
    ("sbatch", "words"),
    [
        ({"partition": "nowhere"}, ["nowhere"]),
        ({"mem": "much"}, ["mem"]),
        ({"qos-of-mine": 3}, ["qos-of-mine"]),
    ],
)
def test_a_refusal_is_one_line(sbatch, words, tmp_path, capfd):
    with pytest.raises(TrainingError, match="SLURM") as caught:
        array(tmp_path, sbatch).submit([tmp_path / "quick-a"])
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_machine_without_slurm(tmp_path, monkeypatch):
    executor = array(tmp_path)
    with monkeypatch.context() as patch:  # over before the cluster is emptied
        patch.setenv("PATH", str(tmp_path))
        refuses(TrainingError, ("squeue", "--slurm"), executor.submit, [tmp_path / "a"])


def test_waiting_shows_what_hinders(cluster, tmp_path):
    job, said = tmp_path / "quick-a", []
    executor = array(tmp_path, sbatch={"hold": True})
    executor.submit([job])
    release = threading.Timer(2.0, lambda: cluster.call("scontrol", "release", cluster.queue().popitem()[0]))
    release.start()
    assert executor.wait([job], lambda *_: None, said.append) == []
    assert "1 pending (JobHeldUser)" in said
