"""Where jobs run: the one seam between a study and the processes, or machines, that do its work.

A job is a folder's path, nothing else: what is to be done stands in the folder, and so does what came of it.
`LocalProcesses` runs jobs on this machine; `adapter_probe.jobs.slurm` runs them on a cluster.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from .worker_process import Failure, Progress, WorkerProcess


class Executor(Protocol):
    """Runs jobs, in any order, and comes back when none is left."""

    def run(self, jobs: Sequence[Path], progress: Progress) -> list[Failure]:
        """Run every job; a failure of one does not touch the others."""


class LocalProcesses:
    """Worker processes on this machine, each taking one job after another, see `WorkerProcess`.

    Args:
        command: the worker program.
        workers: how many at a time.
        environment: variables for the workers, beside this process's own.
        log_folder: where their stderr is kept.
    """

    def __init__(
        self, command: Sequence[str], workers: int, environment: Mapping[str, str], log_folder: Path
    ):
        self._command, self._environment = command, environment
        self._workers, self._log_folder = workers, log_folder

    def run(self, jobs: Sequence[Path], progress: Progress) -> list[Failure]:
        """See `Executor.run`. On an interruption the workers save their state and end.

        Raises:
            KeyboardInterrupt: the person pressed Ctrl-C.
        """
        waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        failures: list[Failure] = []
        crew = [
            WorkerProcess(self._command, self._environment, self._log_folder / f"worker-{n}.txt")
            for n in range(min(self._workers, len(jobs)))
        ]
        threads = [
            threading.Thread(target=_feed, args=(w, waiting, progress, failures), daemon=True) for w in crew
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)  # a plain join would not hear Ctrl-C on every system
        finally:
            while not waiting.empty():
                with contextlib.suppress(queue.Empty):
                    waiting.get_nowait()
            for worker in crew:
                worker.stop()
        return failures


def _feed(
    worker: WorkerProcess,
    waiting: queue.SimpleQueue[Path],
    progress: Progress,
    failures: list[Failure],
) -> None:
    """Give a worker one job after another until none is left."""
    while True:
        try:
            job = waiting.get_nowait()
        except queue.Empty:
            break
        worker.give(job)
        if failure := worker.answers(job, progress):
            failures.append(failure)
    worker.stop()
