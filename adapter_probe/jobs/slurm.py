"""Jobs as an array of SLURM tasks, sent by submitit.

What is known of the tasks lies beside the study, in one folder: ``submitted.json`` says which task has which
job, a note a job says how far it is, and submitit keeps its scripts and a log a task there. So the command
that sent an array may end, or be killed, and a later one goes on with the same array. Nothing is taken from
what submitit pickles: a job's outcome is in the job's own folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_probe.errors import ResultsError, TrainingError
from adapter_probe.results.atomic import make_folder, read_json, write_json

from .slurm_job import DONE, FAILED, STOPPED, SlurmJob
from .slurm_options import SlurmOptions, minutes
from .slurm_queue import Task, cancel, ending_of, longest_array, one_line, outside_of_a_job, tasks_called
from .worker_process import Failure, Progress

SUBMITTED, NOTES = "submitted.json", "notes"
_MOST_TURNS = 20  # times that a task may run into its time limit and go on
_USUAL_REASONS = {"None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Dependency"}


@dataclass(frozen=True)
class Patience:
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
    """An executor whose workers run on a cluster's nodes, see `adapter_probe.jobs.executor`.

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
        patience: Patience = Patience(),
    ):
        self._command, self._environment = tuple(command), dict(environment)
        self._folder, self._options, self._cpus = folder.resolve(), options, cpus_per_task
        self._patience = patience
        # The folder's path is the name, so that tasks are found again by whoever comes next.
        self.name = f"adapter-probe-{hashlib.sha256(os.fsencode(self._folder)).hexdigest()[:12]}"

    def run(self, jobs: Sequence[Path], progress: Progress) -> list[Failure]:
        """See `Executor.run`. On an interruption the tasks stay in the queue.

        Raises:
            TrainingError: SLURM refuses the array.
            KeyboardInterrupt: the person pressed Ctrl-C.
        """
        self.submit(jobs)
        return self.wait(jobs, progress)

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
        self, jobs: Sequence[Path], progress: Progress, watch: Callable[[str], None] = lambda _: None
    ) -> list[Failure]:
        """Wait until every job sent is done or has failed.

        Args:
            jobs: all of them sent by `submit`.
            progress: see `Executor.run`.
            watch: called with a line about the tasks' states when they have changed.
        """
        known, patience = self._submitted(), self._patience
        waiting = {job: known[job.resolve().name] for job in jobs}
        failures: list[Failure] = []
        gone: dict[Path, float] = {}
        pause, asked, alive = min(1.0, patience.queue), -math.inf, {}
        while waiting:
            for job, task in list(waiting.items()):
                note = self._read_note(job, task)
                progress(job, note["step"]) if note else None
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
        self, waiting: Mapping[Path, str], before: dict[str, Task] | None, watch: Callable[[str], None]
    ) -> dict[str, Task] | None:
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
        log = self._folder / f"{task}_0_log.err"
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
        executor = _submitit(self._folder)
        executor.update_parameters(**self._parameters(len(jobs), after))
        calls = [SlurmJob(self._command, self._environment, str(job), str(self._note(job))) for job in jobs]
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            # submitit prints what the error says as well
            with contextlib.redirect_stderr(io.StringIO()), outside_of_a_job():
                sent = executor.submit_array(calls)
        except (FailedJobError, FailedSubmissionError) as error:
            raise TrainingError(f"SLURM refuses the jobs: {one_line(str(error))}") from error
        return [task.job_id for task in sent]

    def _parameters(self, n: int, after: str | None) -> dict[str, Any]:
        """What submitit is told, under the names that it gives sbatch's options."""
        options = self._options
        # srun starts the task and, from SLURM 22.05, does not take this over from sbatch.
        n_cpus = options.sbatch.get("cpus-per-task", self._cpus)
        cpus = {"cpus_per_task": n_cpus, "srun_args": [f"--cpus-per-task={n_cpus}"]}
        gpus = {} if options.gpus_per_task is None else {"gpus_per_task": options.gpus_per_task}
        extra = {"mem": options.mem, "ntasks": 1, "requeue": True, **options.sbatch}
        extra = {name: value for name, value in extra.items() if value not in (None, False)}
        return {
            "job_name": self.name,
            "partition": options.partition,
            "time": minutes(options.time),
            # Of a short limit, half: with submitit's own a task of a minute would be told at once to save.
            "signal_delay_s": min(90, 30 * minutes(options.time)),
            "array_parallelism": options.max_parallel or n,
            "setup": list(options.setup) or None,
            "dependency": after and f"afterany:{after}",
            "wckey": None,  # submitit's own, which a cluster that keeps such keys refuses
            "additional_parameters": {
                name: value for name, value in extra.items() if value not in (None, False)
            },
            **cpus,
            **gpus,
        }


def _submitit(folder: Path) -> Any:
    try:
        import submitit
    except ModuleNotFoundError:
        raise TrainingError(
            "--slurm needs the package submitit: pip install 'adapter-probe[slurm]'"
        ) from None
    try:
        return submitit.SlurmExecutor(folder, max_num_timeout=_MOST_TURNS)
    except RuntimeError:
        raise TrainingError(
            "there is no srun on this machine; --slurm needs one from which SLURM jobs can be sent"
        ) from None


def _states(tasks: Sequence[Task]) -> str:
    """``3 running, 2 pending (QOSMaxJobs)``; a reason is given where waiting alone may not help."""
    counts: dict[str, int] = {}
    for task in tasks:
        unusual = task.state == "PENDING" and task.reason not in _USUAL_REASONS
        text = f"{task.state.lower()} ({task.reason})" if unusual else task.state.lower()
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(f"{n} {text}" for text, n in sorted(counts.items())) or "none in the queue"
