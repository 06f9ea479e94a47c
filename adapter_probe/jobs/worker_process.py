"""One worker process and how it is spoken to: the same on this machine and on a cluster's node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


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


class WorkerProcess:
    """A process that does one job after another.

    It reads one folder a line from stdin and answers each with JSON lines on stdout: ``{"step": 3}`` as it
    goes, then ``{"done": true}`` or ``{"error": "one line"}``. When its stdin ends, however this process
    ended, it saves its state and ends too. One that dies costs the job it had; the next job starts another.

    Args:
        command: the worker program.
        environment: variables for it, beside this process's own.
        log: where its stderr is kept; None for this process's own stderr.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path | None):
        self._command, self._log = list(command), log
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[str] | None = None

    def give(self, job: Path) -> None:
        """Hand over a job; `answers` tells what comes of it."""
        process = self._started()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{job}\n")
            process.stdin.flush()

    def answers(self, job: Path, progress: Progress) -> Failure | None:
        """Listen until the job given is done (None) or has failed."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
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

    def ask_to_end(self) -> None:
        """Close its stdin: it stops after the step it is at, saves its state and ends."""
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def stop(self) -> None:
        """End the process and wait until it has ended."""
        process = self._process
        if process is not None and process.poll() is None:
            self.ask_to_end()
            process.wait()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            with contextlib.ExitStack() as stack:
                log = None
                if self._log is not None:
                    self._log.parent.mkdir(parents=True, exist_ok=True)
                    log = stack.enter_context(self._log.open("a", encoding="utf-8"))
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


def _death(code: int) -> str:
    if code >= 0:
        return f"the worker ended with exit code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}{hint}"
    return f"the worker was killed by signal {-code}"
