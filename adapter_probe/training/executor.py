"""Where trials run: the one seam between a study and the processes, or machines, that do its work.

A job is a folder's path, nothing else: what is to be done stands in the folder, and so does what came of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Failure:
    """A job that did not finish.

    Attributes:
        folder: the job.
        reason: one line.
        log: what the worker wrote to stderr, or None if the reason says all.
    """

    folder: Path
    reason: str
    log: Path | None = None


Progress = Callable[[Path, int], None]
"""Called with a job's folder and its steps done so far."""


class Executor(Protocol):
    """Runs jobs, in any order, and comes back when none is left."""

    def run(self, jobs: Sequence[Path], progress: Progress) -> list[Failure]:
        """Run every job; a failure of one does not touch the others."""


class LocalProcesses:
    """Worker processes on this machine, each taking one job after another.

    A worker reads one folder a line from stdin and answers each with JSON lines on stdout: ``{"step": 3}`` as
    it goes, then ``{"done": true}`` or ``{"error": "one line"}``. When its stdin ends, however this process
    ended, it saves its state and ends too. A worker that dies costs the job it had; a new one takes its
    place.

    Args:
        command: the worker program.
        workers: how many at a time.
        environment: variables for the workers, beside this process's own.
        log_folder: where their stderr is kept.
    """

    def __init__(
        self, command: Sequence[str], workers: int, environment: Mapping[str, str], log_folder: Path
    ):
        self._command, self._workers = list(command), workers
        self._environment = {**os.environ, **environment}
        self._log_folder = log_folder

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
            _Worker(self._command, self._environment, self._log_folder / f"worker-{n}.txt")
            for n in range(min(self._workers, len(jobs)))
        ]
        threads = [
            threading.Thread(target=w.work, args=(waiting, progress, failures), daemon=True) for w in crew
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


class _Worker:
    """One process and the thread that feeds it."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path):
        self._command, self._environment, self._log = command, environment, log
        self._process: subprocess.Popen[str] | None = None

    def work(self, waiting: queue.SimpleQueue[Path], progress: Progress, failures: list[Failure]) -> None:
        """Take jobs until none is left."""
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                break
            if failure := self._do(job, progress):
                failures.append(failure)
        self.stop()

    def _do(self, job: Path, progress: Progress) -> Failure | None:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{job}\n")
            process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if "step" in answer:
                progress(job, answer["step"])
            elif "error" in answer:
                return Failure(job, answer["error"])
            else:
                return None
        self._process = None
        return Failure(job, _death(process.wait()), self._log)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    encoding="utf-8",
                    env=self._environment,
                    start_new_session=True,  # Ctrl-C reaches the workers through `stop` alone
                )
        return self._process

    def stop(self) -> None:
        """End the process: closing its stdin tells it to stop after the step it is at."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()


def _death(code: int) -> str:
    if code >= 0:
        return f"the worker ended with exit code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}{hint}"
    return f"the worker was killed by signal {-code}"
