"""The worker program, ``python -m adapter_probe.jobs.worker --notes FOLDER JOB...``.

It runs those of the jobs (trials or shards, each a folder) that no other worker has begun, one after the
other, and records the state and the progress of each in a file, its note. On SIGTERM, or when the process
that started it has ended (``--parent PID``), it saves its state and ends.

As a task of a SLURM array (``--task NAME``) it runs one job. On preemption, or shortly before the time limit,
it saves its state and requeues itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from adapter_probe.errors import AdapterProbeError, TrainingError
from adapter_probe.progress import print_message
from adapter_probe.results.atomic import write_json
from adapter_probe.startup import unneeded_libraries_hidden

from .notes import DONE, FAILED, RUNNING, STOPPED

Do = Callable[[Path, Callable[[int], None]], None]
"""Runs the job of a folder; calls back with the number of finished steps."""


def main(do: Do | None = None) -> None:
    """Run the program.

    Args:
        do: function that runs a job; by default a trial or a shard, depending on its folder.

    Raises:
        AdapterProbeError: the job of a task failed; SLURM then counts the task as failed.
        KeyboardInterrupt: a job was stopped and its state saved.
    """
    parser = argparse.ArgumentParser(prog="adapter_probe.jobs.worker")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--notes", type=Path, required=True)
    started_by = parser.add_mutually_exclusive_group(required=True)
    started_by.add_argument("--task")
    started_by.add_argument("--parent", type=int)
    parser.add_argument("jobs", type=Path, nargs="+")
    options = parser.parse_args()
    do = do or (lambda job, report: _do(job, report, options.device, options.threads))
    received: list[int] = []
    # SIGTERM is sent on preemption, on scancel and by `LocalProcesses`, SIGUSR2 before SLURM's limit.
    for name in ("SIGTERM", "SIGUSR2"):
        with suppress(AttributeError):  # of another system
            signal.signal(getattr(signal, name), lambda number, _: received.append(number))
    with unneeded_libraries_hidden():
        if options.task:
            _run_task(do, options.jobs[0], options.notes, options.task, received)
        else:
            _run_those_left(
                do, options.jobs, options.notes, lambda: received or os.getppid() != options.parent
            )


def _do(job: Path, report: Callable[[int], None], device: str, threads: int) -> None:
    from adapter_probe.device import choose_device, use_threads
    from adapter_probe.training.checkpoint import train_checkpoint
    from adapter_probe.training.request import read_request

    from .shards import SHARD, run_shard
    from .trial_run import run_trial
    from .trials import CHECKPOINT_REQUEST

    use_threads(threads)
    place = choose_device(device)
    if (job / SHARD).exists():
        run_shard(job, place, report)
    elif (job / CHECKPOINT_REQUEST).exists():
        train_checkpoint(read_request(job / CHECKPOINT_REQUEST), job, place, lambda now: report(now.step))
    else:
        run_trial(job, place, lambda now: report(now.step))


class _Noted:
    """Notes a job's steps at intervals, and interrupts the job when it is to stop."""

    def __init__(self, note: Path, stopped: Callable[[], object], seconds: float):
        self._note, self._stopped, self._seconds = note, stopped, seconds
        self.steps, self._told = 0, 0.0

    def __call__(self, step: int) -> None:
        if self._stopped():
            raise KeyboardInterrupt
        self.steps = step
        if time.monotonic() - self._told > self._seconds:
            self.tell()

    def tell(self, state: str = RUNNING, reason: str | None = None) -> None:
        """Write the note."""
        self._told = time.monotonic()
        said = {"state": state, "step": self.steps, "reason": reason}
        write_json(self._note, {**said, "node": socket.gethostname(), "process": os.getpid()})

    def run(self, do: Do, job: Path) -> None:
        """Run the job from its first note to its last."""
        self.tell()
        try:
            do(job, self)
        except KeyboardInterrupt:
            self.tell(STOPPED)
            raise
        except AdapterProbeError as error:
            self.tell(FAILED, str(error))
            raise
        self.tell(DONE)


def _run_those_left(do: Do, jobs: list[Path], notes: Path, stopped: Callable[[], object]) -> None:
    """Run the jobs that no other worker has begun; the failure of one does not affect the others."""
    for number, job in enumerate(jobs):
        note = notes / f"{number}.json"
        if stopped():
            return
        try:
            note.touch(exist_ok=False)
            _Noted(note, stopped, seconds=0.5).run(do, job)
        except FileExistsError:
            pass
        except AdapterProbeError as error:
            print_message(str(error))


def _run_task(do: Do, job: Path, notes: Path, task: str, received: list[int]) -> None:
    """Run one job, until it is done or SLURM requests the node."""
    from .slurm import requeue, still_wanted

    noted = _Noted(notes / f"{task}.json", lambda: received, seconds=2.0)
    try:
        noted.run(do, job)
    except KeyboardInterrupt:
        if signal.SIGTERM not in received and not noted.steps:
            reason = "its time limit ended before its first step; give a longer --sbatch time=LIMIT"
            noted.tell(FAILED, reason)
            raise TrainingError(reason) from None
        if still_wanted(task):
            requeue(task)
        raise


if __name__ == "__main__":
    main()
