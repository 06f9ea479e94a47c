"""Jobs on this machine, in worker processes that each run one job after another."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

OnStep = Callable[[Path, int], None]
"""Callback with a job's folder, which describes the work and gets its results, and its finished steps."""


@dataclass(frozen=True)
class Failure:
    """A job that did not finish.

    Attributes:
        job: folder of the job.
        reason: the reason, in one line.
        log: file with the worker's stderr, or None if the reason is sufficient.
    """

    job: Path
    reason: str
    log: Path | None = None

    def __str__(self) -> str:
        return self.reason + (f" (log: {self.log})" if self.log else "")


class LocalProcesses:
    """Runs jobs in worker processes on this machine, see `adapter_probe.jobs.worker`.

    If a worker dies, only its current job is lost; the next job starts a new worker.

    Args:
        command: the worker program.
        workers: number of parallel workers.
        environment: variables for the workers, in addition to those of this process.
        log_folder: folder for their stderr.
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
        workers = [
            _Worker(self._command, self._environment, self._log_folder / f"worker-{number}.txt")
            for number in range(min(self._workers, len(jobs)))
        ]
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in workers:
            idle.put(worker)

        def do(job: Path) -> Failure | None:
            worker = idle.get()
            try:
                return worker.do(job, on_step)
            finally:
                idle.put(worker)

        with ThreadPoolExecutor(max(1, len(workers))) as pool:
            try:
                running = [pool.submit(do, job) for job in jobs]
                while wait(running, timeout=0.2).not_done:  # on some systems, Ctrl-C needs a timeout here
                    pass
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.stop()
        return [failure for done in running if (failure := done.result()) is not None]


class _Worker:
    """One worker process, started with its first job."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path):
        self._command, self._environment, self._log = command, environment, log
        self._process: subprocess.Popen[str] | None = None
        self._stopped, self._lock = False, threading.Lock()

    def do(self, job: Path, on_step: OnStep) -> Failure | None:
        """Send a job and wait until it is done (None) or has failed."""
        with self._lock:
            if self._stopped:
                return None
            self._process = process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has died, or has been stopped
            process.stdin.write(f"{job}\n")
            process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if "step" in answer:
                on_step(job, answer["step"])
            else:
                return Failure(job, answer["error"]) if "error" in answer else None
        self._process = None
        return Failure(job, _death(process.wait()), self._log)

    def stop(self) -> None:
        """Close its stdin, which makes it save its state and end, and wait for it."""
        with self._lock:
            self._stopped, process = True, self._process
        if process is not None:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.wait()

    def _start(self) -> subprocess.Popen[str]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env=self._environment,
                start_new_session=True,  # Ctrl-C reaches the workers only through `stop`
            )


def _death(code: int) -> str:
    if code >= 0:
        return f"the worker ended with exit code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}{hint}"
    return f"the worker was killed by signal {-code}"
