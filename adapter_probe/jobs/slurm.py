"""Jobs as SLURM job arrays, submitted with sbatch.

The state of the tasks is stored in one folder next to the study: ``submitted.json`` maps tasks to jobs, one
note per task records its progress, and each task has a log. The command that submitted an array may therefore
end or be killed, and a later one continues with the same array. Results are in the folders of the jobs.

Only ``sbatch``, ``squeue``, ``scancel`` and ``scontrol`` are required; ``sacct`` is used if available,
because many clusters have no accounting. A question without an answer is a `TrainingError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_probe.errors import TrainingError
from adapter_probe.results.atomic import make_folder, read_json, write_json

from .notes import DONE, FAILED, STOPPED, Failure, OnStep, read_note
from .resources import SlurmOptions, minutes

SUBMITTED, NOTES = "submitted.json", "notes"
# Seconds between reads of the notes, between queries to SLURM, and from a task's leaving the queue until it
# counts as lost, because a network file system may show files late.
POLL_NOTES, POLL_QUEUE, LOST_AFTER = 2.0, 15.0, 20.0


@dataclass(frozen=True)
class Submission:
    """The outcome of submitting jobs.

    Attributes:
        adopted: jobs with queued or running tasks of an earlier command.
        sent: jobs submitted now.
        failed: jobs whose earlier task failed; they are submitted again.
    """

    adopted: tuple[Path, ...]
    sent: tuple[Path, ...]
    failed: tuple[Failure, ...]


class SlurmArray:
    """Runs jobs on the nodes of a cluster, one task per job, see `adapter_probe.jobs.worker`.

    Only one command at a time may use a folder; the caller holds a claim on the study.

    Args:
        command: command line of the worker program on a node.
        environment: variables for the workers.
        folder: folder for tasks, notes and logs, visible to every node under the same path.
        options: SLURM options of a task.
        cpus_per_task: number of CPUs per task.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        options: SlurmOptions,
        *,
        cpus_per_task: int = 1,
    ):
        self._command, self._environment = tuple(command), dict(environment)
        self._folder, self._options, self._cpus = folder.resolve(), options, cpus_per_task
        # The name is derived from the folder's path, so that later commands find the tasks.
        self.name = f"adapter-probe-{hashlib.sha256(os.fsencode(self._folder)).hexdigest()[:12]}"

    def run(self, jobs: Sequence[Path], on_step: OnStep) -> list[Failure]:
        """Run every job; the failure of one does not affect the others. On interruption they stay queued."""
        self.submit(jobs)
        return self.wait(jobs, on_step)

    def submit(self, jobs: Sequence[Path]) -> Submission:
        """Submit the jobs without a queued or running task.

        Raises:
            TrainingError: SLURM refuses the array, or does not answer.
        """
        jobs = [job.resolve() for job in jobs]
        names = {job: self._name_of(job) for job in jobs}
        known, alive = self._submitted(), tasks_called(self.name)
        # Tasks of a command that was killed before it recorded their jobs.
        if strays := sorted(set(alive) - set(known.values())):
            self._remove(strays)
        adopted = [job for job in jobs if known.get(names[job]) in alive]
        missing = [job for job in jobs if known.get(names[job]) not in alive]
        failed = [f for job in missing if names[job] in known if (f := self._failure(job, known[names[job]]))]
        for note in make_folder(self._folder / NOTES).glob("*.json"):
            if note.stem not in alive:
                note.unlink(missing_ok=True)
        length = 1
        if missing:
            most = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config"), re.MULTILINE)
            length = max(1, int(most[1])) if most else 1000
        previous = None
        for start in range(0, len(missing), length):
            part = missing[start : start + length]
            # The limit of parallel tasks is per array, so with a limit, arrays run one after another.
            after = previous if self._options.max_parallel else None
            previous = submit(self._arguments(len(part), after), self._script(part))
            known |= {names[job]: f"{previous}_{index}" for index, job in enumerate(part)}
            write_json(self._folder / SUBMITTED, {"name": self.name, "tasks": known})
        return Submission(tuple(adopted), tuple(missing), tuple(failed))

    def wait(
        self, jobs: Sequence[Path], on_step: OnStep, watch: Callable[[str], None] = lambda _: None
    ) -> list[Failure]:
        """Wait until every submitted job is done or has failed.

        Args:
            jobs: jobs submitted by `submit`.
            watch: called with a line about the tasks' states whenever it changes.
        """
        known = self._submitted()
        waiting = {job: known[self._name_of(job)] for job in jobs}
        failures: list[Failure] = []
        gone: dict[Path, float] = {}
        pause, asked = min(1.0, POLL_QUEUE), -math.inf
        alive: dict[str, str] | None = {}
        while waiting:
            for job, task in list(waiting.items()):
                note = self._read_note(task)
                if note:
                    on_step(job, note["step"])
                late = job in gone and time.monotonic() - gone[job] > LOST_AFTER
                if note and note["state"] == DONE:
                    del waiting[job]
                elif late or (note and note["state"] == FAILED):
                    failures += filter(None, [self._failure(job, task)])
                    del waiting[job]
            if waiting and time.monotonic() - asked > pause:
                alive, pause = self._tasks_in_queue(waiting, alive, watch), min(2 * pause, POLL_QUEUE)
                asked = time.monotonic()
                if alive is not None:
                    gone = {j: gone.get(j, asked) for j, task in waiting.items() if task not in alive}
            if waiting:
                time.sleep(min(POLL_NOTES, pause))
        return failures

    def _tasks_in_queue(
        self, waiting: Mapping[Path, str], before: dict[str, str] | None, watch: Callable[[str], None]
    ) -> dict[str, str] | None:
        """The tasks in the queue; None if SLURM does not answer, so that nothing is known."""
        os.listdir(self._folder / NOTES)  # makes a network file system refresh it
        try:
            alive = tasks_called(self.name)
        except TrainingError as error:
            watch(str(error))
            return None
        if alive != before:
            counts = Counter(alive[task] for task in waiting.values() if task in alive)
            states = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))
            watch(states or "none in the queue")
        return alive

    def _failure(self, job: Path, task: str) -> Failure | None:
        """The failure of a job whose task has left the queue; None if the job is done."""
        note = self._read_note(task)
        if note and note["state"] == DONE:
            return None
        log = self._folder / f"{task}.txt"
        if note and note["state"] == FAILED:
            reason = f"{note['reason']} (on {note['node']})"
        else:
            when = " before it started" if note is None else ""
            saved = ", its state saved" if note and note["state"] == STOPPED else ""
            reason = f"its SLURM task {task} ended{when}{saved}: {ending_of(task)}"
        return Failure(job, reason, log if log.exists() else None)

    def _submitted(self) -> dict[str, str]:
        """The task of each job, see `_name_of`."""
        path = self._folder / SUBMITTED
        if not path.exists():
            return {}
        document = read_json(path)
        # In a copied or moved folder, the tasks belong to the original folder.
        return dict(document["tasks"]) if document.get("name") == self.name else {}

    def _name_of(self, job: Path) -> str:
        """A job's folder, relative to that of the study: jobs in different folders may have one name."""
        return os.path.relpath(job.resolve(), self._folder.parent)

    def _read_note(self, task: str) -> dict[str, Any] | None:
        return read_note(self._folder / NOTES / f"{task}.json")

    def _remove(self, tasks: list[str]) -> None:
        _ask("scancel", *tasks)
        deadline = time.monotonic() + 120
        while set(tasks) & set(tasks_called(self.name)):
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"SLURM tasks {', '.join(tasks)} do not end; run the command again when they have ended"
                )
            time.sleep(1)

    def _arguments(self, n: int, after: str | None) -> list[str]:
        options = self._options
        most = options.max_parallel or n
        log = str(self._folder).replace("%", "%%") + "/%A_%a.txt"
        # For short limits, half of the limit; otherwise a task of a minute would have to save at once.
        warning = min(90, 30 * minutes(options.time))
        asked: dict[str, Any] = {
            "job-name": self.name, "array": f"0-{n - 1}%{most}", "output": log, "open-mode": "append",
            "signal": f"USR2@{warning}", "time": options.time, "ntasks": 1, "requeue": True,
            "cpus-per-task": self._cpus, "dependency": after and f"afterany:{after}", **options.sbatch,
        }  # fmt: skip
        return [
            f"--{name}" if value is True else f"--{name}={value}"
            for name, value in asked.items()
            if value is not None and value is not False
        ]

    def _script(self, jobs: Sequence[Path]) -> str:
        # Since SLURM 22.05, srun does not inherit the number of CPUs from sbatch.
        n_cpus = str(self._options.sbatch.get("cpus-per-task", self._cpus))
        worker = shlex.join(
            ["srun", f"--cpus-per-task={n_cpus}", *self._command, "--notes", str(self._folder / NOTES)]
        )  # the SLURM_JOB_ID of one task is that of the whole array
        task = '--task "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"'
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"export {name}={shlex.quote(value)}" for name, value in self._environment.items()),
                *self._options.setup,
                f"jobs=({shlex.join(map(str, jobs))})",
                f'{worker} {task} "${{jobs[SLURM_ARRAY_TASK_ID]}}"',
                "",
            ]
        )


_SECONDS = 60  # limit for a busy controller
_QUESTIONS = 3  # for a controller that does not answer
_USUAL_REASONS = {"None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Dependency"}
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_")


def submit(options: Sequence[str], script: str) -> str:
    """Submit a batch script; returns the job's id.

    Raises:
        TrainingError: SLURM refuses it.
    """
    answer = _ask("sbatch", "--parsable", *options, stdin=script, complaint="SLURM refused the jobs")
    return answer.strip().split(";")[0]


def tasks_called(name: str) -> dict[str, str]:
    """The states of all queued or running tasks with a job name, by ``job_index``.

    A state is a word such as ``running``, with a reason that waiting alone may not resolve:
    ``pending (QOSMaxJobs)``.
    """
    answer = _ask("squeue", "--noheader", "--array", f"--name={name}", "--format=%i|%T|%r")
    states = {}
    for line in filter(None, map(str.strip, answer.splitlines())):
        task, state, reason = line.split("|", 2)
        unusual = state == "PENDING" and reason not in _USUAL_REASONS
        states[task] = state.lower() + (f" ({reason})" if unusual else "")
    return states


def still_wanted(task: str) -> bool:
    """Whether SLURM still considers a task as running that has received a signal to end.

    A cancelled or requeued task is already completing. A task that ends voluntarily in the grace period of a
    preemption would not be requeued by SLURM.
    """
    for _ in range(_QUESTIONS):
        with contextlib.suppress(TrainingError):
            state = _ask("squeue", "--noheader", f"--jobs={task}", "--format=%T").strip()
            return state in ("RUNNING", "SIGNALING")  # the latter until the signal's receipt
        time.sleep(1)
    return False


def requeue(task: str) -> None:
    """Requeue a running task, which ends it."""
    _ask("scontrol", "requeue", task)


def ending_of(task: str) -> str:
    """How a task that has left the queue ended, as a short text."""
    for question, pattern in (
        (("scontrol", "show", "job", task), r"JobState=(\w+).*?ExitCode=(\d+):(\d+)"),
        (("sacct", "-n", "-P", "-X", "-j", task, "-o", "State,ExitCode"), r"(\w+)[^|]*\|(\d+):(\d+)"),
    ):
        with contextlib.suppress(TrainingError):
            if found := re.search(pattern, _ask(*question), re.DOTALL):
                # Killed: by SLURM itself, or, as srun tells it, its process.
                hint = " (SIGKILL: out of memory?)" if found[2] == "137" or found[3] == "9" else ""
                return f"SLURM reports {found[1]}, exit code {found[2]}:{found[3]}{hint}"
    return "SLURM does not report how"


def _ask(*command: str, stdin: str = "", complaint: str = "SLURM does not answer") -> str:
    # As outside of a job in which this process may run: sbatch would hand on what that was given.
    hidden = _OF_A_JOB if "SLURM_JOB_ID" in os.environ else ()
    environment = {n: v for n, v in os.environ.items() if not n.startswith(hidden) or n == "SLURM_CONF"}
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, errors="surrogateescape", timeout=_SECONDS,
            env=environment,
        )  # fmt: skip
    except FileNotFoundError:
        raise TrainingError(
            f"{command[0]} was not found; run --slurm on a machine from which SLURM jobs can be submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise TrainingError(f"SLURM does not answer: {command[0]} took longer than {_SECONDS} s") from None
    if done.returncode != 0:
        raise TrainingError(f"{complaint}: {' '.join(done.stderr.split()) or 'no message'}")
    return done.stdout
