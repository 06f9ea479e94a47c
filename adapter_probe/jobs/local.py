"""Jobs on this machine, in worker processes that each run one job after another."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .notes import DONE, FAILED, RUNNING, STOPPED, Failure, OnStep, read_note

_PAUSE = 0.1  # seconds between reads of the notes


class LocalProcesses:
    """Runs jobs in worker processes on this machine, see `adapter_probe.jobs.worker`.

    If a worker dies, only its current job is lost, and a new worker takes its place.

    Args:
        command: the worker program.
        workers: number of parallel workers.
        environment: variables for the workers, in addition to those of this process.
        log_folder: folder for their output.
    """

    def __init__(
        self, command: Sequence[str], workers: int, environment: Mapping[str, str], log_folder: Path
    ):
        self._command, self._environment = list(command), {**os.environ, **environment}
        self._workers, self._log_folder = workers, log_folder

    def run(self, jobs: Sequence[Path], on_step: OnStep) -> list[Failure]:
        """Run every job; the failure of one does not affect the others.

        Raises:
            KeyboardInterrupt: the user pressed Ctrl-C; the workers have saved their state and ended.
        """
        with tempfile.TemporaryDirectory() as folder:
            notes = {job: Path(folder) / f"{number}.json" for number, job in enumerate(jobs)}
            asked = ["--notes", folder, "--parent", str(os.getpid()), *map(str, jobs)]
            command = [*self._command, *asked]
            workers: list[subprocess.Popen[bytes]] = []
            failures: dict[Path, Failure] = {}
            able: set[int] = set()  # the processes that have begun a job
            waiting = bool(jobs)
            try:
                for number in range(min(self._workers, len(jobs))):
                    workers.append(self._start(command, number))
                while waiting:
                    time.sleep(_PAUSE)
                    ended = {n: worker for n, worker in enumerate(workers) if worker.poll() is not None}
                    begun = _read(notes, failures, able, on_step)
                    for number, worker in ended.items():
                        for job, note in begun.items():
                            if note["process"] == worker.pid:
                                failures[job] = self._death(job, number, worker, note["state"])
                        # One that ended before a job began would end so again.
                        if worker.pid in able and not all(path.exists() for path in notes.values()):
                            workers[number] = self._start(command, number)
                    waiting = any(worker not in ended.values() for worker in workers)
            finally:
                for worker in workers:
                    worker.terminate()
                for worker in workers:
                    worker.wait()
        for job in notes.keys() - failures.keys():  # which no worker lived to begin
            number = next((n for n, worker in enumerate(workers) if worker.returncode), 0)
            failures[job] = self._death(job, number, workers[number])
        return [failures[job] for job in jobs if job in failures]

    def _start(self, command: Sequence[str], number: int) -> subprocess.Popen[bytes]:
        with self._log(number).open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C reaches the workers only through `run`
            )

    def _log(self, number: int) -> Path:
        self._log_folder.mkdir(parents=True, exist_ok=True)
        return self._log_folder / f"worker-{number}.txt"

    def _death(
        self, job: Path, number: int, worker: subprocess.Popen[bytes], state: str = RUNNING
    ) -> Failure:
        said = f"ended with exit code {worker.returncode}"
        if state == STOPPED:
            said = "was stopped, and the job's state is saved"
        elif worker.returncode < 0:
            said = f"was killed by signal {-worker.returncode}"
            with contextlib.suppress(ValueError):
                name = signal.Signals(-worker.returncode).name
                said = f"was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
        return Failure(job, f"the worker {said}", self._log(number))


def _read(
    notes: dict[Path, Path], failures: dict[Path, Failure], able: set[int], on_step: OnStep
) -> dict[Path, dict[str, Any]]:
    """What has come of the jobs; those that are over leave `notes`. The note of each that has begun."""
    begun = {}
    for job, path in list(notes.items()):
        if (note := read_note(path)) is None:
            continue
        on_step(job, note["step"])
        able.add(note["process"])
        if note["state"] == FAILED:
            failures[job] = Failure(job, note["reason"])
        if note["state"] in (DONE, FAILED):
            del notes[job]
        else:
            begun[job] = note
    return begun
