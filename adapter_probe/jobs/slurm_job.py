"""What one task of a SLURM array does, on its node: it runs a worker process and notes what the worker says.

A task is pickled by submitit as nothing but strings, by reference to the class below. That, and not
submitit's ready-made call of a command, because such a call keeps all output in memory, ends its command
without a chance to save, and is not queued again when its time is up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_probe.errors import TrainingError
from adapter_probe.results.atomic import write_json

from .slurm_queue import state_of
from .worker_process import Failure, WorkerProcess

RUNNING, DONE, FAILED, STOPPED = "running", "done", "failed", "stopped"
_SECONDS_BETWEEN_NOTES = 2.0
_QUESTIONS = 3  # to a controller that does not answer


@dataclass(frozen=True)
class SlurmJob:
    """One job of a study, ready to be sent to a node.

    Attributes:
        command: the worker program.
        environment: variables for it.
        job: the job's folder.
        note: file in which the task says how far it is.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    job: str
    note: str

    def __call__(self) -> None:
        """Do the job.

        When SLURM wants the node back, or the time is nearly up, the worker saves its state, and the task
        puts itself back into the queue.

        Raises:
            TrainingError: the job failed, or was stopped for good; SLURM then counts the task as failed.
        """
        job, note = Path(self.job), _Note(Path(self.note))
        worker = WorkerProcess(self.command, self.environment, log=None)
        with _Signals(worker.ask_to_end) as signals:
            worker.give(job)
            # The worker was born with these signals blocked: it hears of them through its stdin alone.
            signals.listen()
            note.write(RUNNING)
            failure = worker.answers(job, lambda _, step: note.tell(step))
            worker.stop()
            if failure is None:
                note.write(DONE)
            elif signals.received:
                note.write(STOPPED)
                signals.pass_on()
                raise TrainingError(f"stopped by {signals.received[0].name}; its state is saved")
            else:
                note.write(FAILED, failure)
                raise TrainingError(failure.reason)

    def checkpoint(self) -> Any:
        """What submitit queues again: the same, since the state lies in the job's folder."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Note:
    """The file that tells the waiting command how far this task is."""

    def __init__(self, path: Path):
        self._path, self._step, self._told = path, 0, 0.0

    def tell(self, step: int) -> None:
        """Note a step, now and then."""
        self._step = step
        if time.monotonic() - self._told > _SECONDS_BETWEEN_NOTES:
            self._told = time.monotonic()
            self.write(RUNNING)

    def write(self, state: str, failure: Failure | None = None) -> None:
        """Note a state."""
        reason = None if failure is None else failure.reason
        told = {"job": task_name(), "state": state, "step": self._step, "reason": reason}
        write_json(self._path, {**told, "node": socket.gethostname()})


def task_name() -> str:
    """This task as SLURM's users call it: ``12_3``, or ``12`` outside an array."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


class _Signals:
    """The two ways in which SLURM asks a task to end, held back until `listen`.

    SIGTERM comes with a preemption and with ``scancel``; the other one, which submitit chooses, a while
    before the time is up.
    """

    def __init__(self, on_signal: Callable[[], None]):
        from submitit import JobEnvironment

        self._warning = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
        self._on_signal = on_signal
        self.received: list[signal.Signals] = []

    def __enter__(self) -> _Signals:
        self._both = (signal.SIGTERM, self._warning)
        signal.pthread_sigmask(signal.SIG_BLOCK, self._both)
        self._before = {number: signal.signal(number, self._note) for number in self._both}
        return self

    def listen(self) -> None:
        """Act on them from now on, and on those that came meanwhile."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._both)

    def _note(self, number: int, _: object) -> None:
        self.received.append(signal.Signals(number))
        self._on_signal()

    def pass_on(self) -> None:
        """Let submitit queue the task again, unless SLURM is ending it for good."""
        handler = self._before[self._warning]
        if callable(handler) and _still_wanted():
            handler(self._warning, None)

    def __exit__(self, *_: object) -> None:
        self.listen()
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _still_wanted() -> bool:
    """Whether SLURM holds this task for a running one.

    One that was cancelled is completing by now, and so is one that somebody put back into the queue. One
    that ends by itself during the grace of a preemption would not be queued again by SLURM.
    """
    for _ in range(_QUESTIONS):
        with contextlib.suppress(TrainingError):
            # Not by SLURM_JOB_ID: that of one task is the whole array's, and all of it would be told.
            return state_of(task_name()) in ("RUNNING", "SIGNALING")  # the latter until the signal's receipt
        time.sleep(1)
    return False
