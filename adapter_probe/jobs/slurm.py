"""Jobs as arrays of SLURM tasks, sent by sbatch.

What is known of the tasks lies beside the study, in one folder: ``submitted.json`` says which task has which
job, a note a job says how far it is, and each task has a log there. So the command that sent an array may
end, or be killed, and a later one goes on with the same array. A job's outcome is in the job's own folder.
"""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_probe.errors import ResultsError, TrainingError
from adapter_probe.results.atomic import make_folder, read_json, write_json

from .job import DONE, FAILED, STOPPED, Failure, OnStep
from .slurm_options import SlurmOptions, minutes
from .slurm_queue import ArrayTask, cancel, ending_of, longest_array, submit, tasks_called

SUBMITTED, NOTES = "submitted.json", "notes"
_USUAL_REASONS = {"None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Dependency"}


@dataclass(frozen=True)
class PollingTimes:
    """How often to look, and how long to wait before a task is given up, in seconds.

    Attributes:
        notes: between looks at the files that the tasks write.
        queue: between questions to SLURM.
        settle: from a task's leaving the queue to its being given up, for a file system over the network
            shows late what a node wrote.
    """

    notes: float = 2.0
    queue: float = 15.0
    settle: float = 20.0


@dataclass(frozen=True)
class Submission:
    """What came of asking for some jobs.

    Attributes:
        name: the tasks' name in the queue.
        adopted: jobs whose tasks an earlier command sent and which wait or run.
        sent: jobs sent now.
        failed: jobs whose earlier task failed; they are sent again.
    """

    name: str
    adopted: tuple[Path, ...]
    sent: tuple[Path, ...]
    failed: tuple[Failure, ...]


class SlurmArray:
    """Runs jobs on a cluster's nodes, each in a task of its own, see `adapter_probe.jobs.worker`.

    Only one command at a time may use a folder; the caller holds a claim on the study.

    Args:
        command: the worker program, as it is called on a node.
        environment: variables for the workers.
        folder: where tasks, notes and logs are kept; every node must see it under the same path.
        options: what a task gets.
        cpus_per_task: processors of a task.
        patience: how often to look.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        options: SlurmOptions,
        *,
        cpus_per_task: int = 1,
        patience: PollingTimes = PollingTimes(),
    ):
        self._command, self._environment = tuple(command), dict(environment)
        self._folder, self._options, self._cpus = folder.resolve(), options, cpus_per_task
        self._patience = patience
        # The folder's path is the name, so that tasks are found again by whoever comes next.
        self.name = f"adapter-probe-{hashlib.sha256(os.fsencode(self._folder)).hexdigest()[:12]}"

    def run(self, jobs: Sequence[Path], on_step: OnStep) -> list[Failure]:
        """Run every job; a failure of one does not touch the others. On an interruption they stay queued.

        Raises:
            TrainingError: SLURM refuses the array.
            KeyboardInterrupt: the person pressed Ctrl-C.
        """
        self.submit(jobs)
        return self.wait(jobs, on_step)

    def submit(self, jobs: Sequence[Path]) -> Submission:
        """Send those jobs that have no task that waits or runs.

        Raises:
            TrainingError: SLURM refuses the array, or does not answer.
        """
        jobs = [job.resolve() for job in jobs]
        known, alive = self._submitted(), tasks_called(self.name)
        # Tasks of a command that was killed before it could note which jobs they have.
        if strays := sorted(set(alive) - set(known.values())):
            self._remove(strays)
        adopted = [job for job in jobs if known.get(job.name) in alive]
        missing = [job for job in jobs if known.get(job.name) not in alive]
        failed = [f for job in missing if job.name in known if (f := self._failure(job, known[job.name]))]
        length = longest_array() if missing else 1
        previous = None
        for start in range(0, len(missing), length):
            part = missing[start : start + length]
            for job in part:
                self._note(job).unlink(missing_ok=True)
            # Arrays count their tasks apart, so where only so many may run, one follows the other.
            tasks = self._send(part, after=previous if self._options.max_parallel else None)
            previous = tasks[-1].split("_")[0]
            known |= zip((job.name for job in part), tasks)
            write_json(self._folder / SUBMITTED, {"name": self.name, "tasks": known})
        return Submission(self.name, tuple(adopted), tuple(missing), tuple(failed))

    def wait(
        self, jobs: Sequence[Path], on_step: OnStep, watch: Callable[[str], None] = lambda _: None
    ) -> list[Failure]:
        """Wait until every job sent is done or has failed.

        Args:
            jobs: all of them sent by `submit`.
            on_step: see `run`.
            watch: called with a line about the tasks' states when they have changed.
        """
        known, patience = self._submitted(), self._patience
        waiting = {job: known[job.resolve().name] for job in jobs}
        failures: list[Failure] = []
        gone: dict[Path, float] = {}
        pause, asked = min(1.0, patience.queue), -math.inf
        alive: dict[str, ArrayTask] | None = {}
        while waiting:
            for job, task in list(waiting.items()):
                note = self._read_note(job, task)
                if note:
                    on_step(job, note["step"])
                late = job in gone and time.monotonic() - gone[job] > patience.settle
                if note and note["state"] == DONE:
                    del waiting[job]
                elif late or (note and note["state"] == FAILED):
                    failures += filter(None, [self._failure(job, task)])
                    del waiting[job]
            if waiting and time.monotonic() - asked > pause:
                alive, pause = self._look(waiting, alive, watch), min(2 * pause, patience.queue)
                asked = time.monotonic()
                if alive is not None:
                    gone = {j: gone.get(j, asked) for j, task in waiting.items() if task not in alive}
            if waiting:
                time.sleep(min(patience.notes, pause))
        return failures

    def _look(
        self, waiting: Mapping[Path, str], before: dict[str, ArrayTask] | None, watch: Callable[[str], None]
    ) -> dict[str, ArrayTask] | None:
        """The tasks in the queue; None where SLURM does not answer, which says nothing about the tasks."""
        os.listdir(self._folder / NOTES)  # so that a file system over the network looks at it anew
        try:
            alive = tasks_called(self.name)
        except TrainingError as error:
            watch(str(error))
            return None
        if alive != before:
            watch(_states([alive[task] for task in waiting.values() if task in alive]))
        return alive

    def _failure(self, job: Path, task: str) -> Failure | None:
        """How a job's task failed that is no longer in the queue; None if it is done."""
        note = self._read_note(job, task)
        if note and note["state"] == DONE:
            return None
        log = self._folder / f"{task}.txt"
        if note and note["state"] == FAILED:
            reason = f"{note['reason']} (on {note['node']})"
        else:
            when = " before it began" if note is None else ""
            saved = ", its state saved" if note and note["state"] == STOPPED else ""
            reason = f"its SLURM task {task} ended{when}{saved}: {ending_of(task)}"
        return Failure(job, reason, log if log.exists() else None)

    def _submitted(self) -> dict[str, str]:
        """Which task has which job, by the job's name."""
        path = self._folder / SUBMITTED
        if not path.exists():
            return {}
        document = read_json(path)
        # In a folder that was copied or moved, the tasks are those of the old place.
        return dict(document["tasks"]) if document.get("name") == self.name else {}

    def _note(self, job: Path) -> Path:
        return self._folder / NOTES / f"{job.name}.json"

    def _read_note(self, job: Path, task: str) -> dict[str, Any] | None:
        path = self._note(job)
        try:
            note = read_json(path) if path.exists() else None
        except ResultsError:  # removed or replaced at this moment
            return None
        return note if note and note.get("job") == task else None

    def _remove(self, tasks: list[str]) -> None:
        cancel(tasks)
        deadline = time.monotonic() + 120
        while set(tasks) & set(tasks_called(self.name)):
            if time.monotonic() > deadline:
                raise TrainingError(f"SLURM tasks {', '.join(tasks)} do not end; try again when they have")
            time.sleep(1)

    def _send(self, jobs: Sequence[Path], after: str | None) -> list[str]:
        """Send one array; the tasks' names."""
        make_folder(self._folder / NOTES)
        number = submit(self._arguments(len(jobs), after), self._script(jobs))
        return [f"{number}_{index}" for index in range(len(jobs))]

    def _arguments(self, n: int, after: str | None) -> list[str]:
        """What sbatch is asked for."""
        options = self._options
        most = options.max_parallel or n
        log = str(self._folder).replace("%", "%%") + "/%A_%a.txt"
        # Of a short limit, half: with more a task of a minute would be told at once to save.
        warning = min(90, 30 * minutes(options.time))
        asked: dict[str, Any] = {
            "job-name": self.name, "array": f"0-{n - 1}%{most}", "output": log, "open-mode": "append",
            "signal": f"USR2@{warning}", "time": options.time, "partition": options.partition,
            "gpus-per-task": options.gpus_per_task, "mem": options.mem, "ntasks": 1, "requeue": True,
            "cpus-per-task": self._cpus, "dependency": after and f"afterany:{after}", **options.sbatch,
        }  # fmt: skip
        return [
            f"--{name}" if value is True else f"--{name}={value}"
            for name, value in asked.items()
            if value is not None and value is not False
        ]

    def _script(self, jobs: Sequence[Path]) -> str:
        """What a task runs on its node."""
        # srun starts the task and, from SLURM 22.05, does not take the number of processors over from sbatch.
        n_cpus = str(self._options.sbatch.get("cpus-per-task", self._cpus))
        worker = shlex.join(
            ["srun", f"--cpus-per-task={n_cpus}", *self._command, "--notes", str(self._folder / NOTES)]
        )
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"export {name}={shlex.quote(value)}" for name, value in self._environment.items()),
                *self._options.setup,
                f"jobs=({shlex.join(map(str, jobs))})",
                f'{worker} "${{jobs[SLURM_ARRAY_TASK_ID]}}"',
                "",
            ]
        )


def _states(tasks: Sequence[ArrayTask]) -> str:
    """``3 running, 2 pending (QOSMaxJobs)``; a reason is given where waiting alone may not help."""
    counts: dict[str, int] = {}
    for task in tasks:
        unusual = task.state == "PENDING" and task.reason not in _USUAL_REASONS
        text = f"{task.state.lower()} ({task.reason})" if unusual else task.state.lower()
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(f"{n} {text}" for text, n in sorted(counts.items())) or "none in the queue"
