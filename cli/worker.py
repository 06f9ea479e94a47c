"""`adapter-probe worker`: do the jobs whose folders come in on stdin. Hidden: other commands start it."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapter_probe.errors import AdapterProbeError
from adapter_probe.models.device import choose_device, use_threads

from .console import command

if TYPE_CHECKING:
    import torch

_SECONDS_BETWEEN_REPORTS = 0.5


@command
def worker(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads of this process; 0 for torch's own choice.")] = 0,
) -> None:
    """Train trials and compute shards: one folder a line on stdin, answers as JSON lines on stdout."""
    use_threads(threads)
    where, answers = choose_device(device), _Answers()
    jobs = _Jobs()
    while (folder := jobs.next()) is not None:
        report = jobs.watch(answers)
        try:
            _do(folder, where, report)
        except AdapterProbeError as error:
            answers.write(error=str(error))
        else:
            report.tell()
            answers.write(done=True)


def _do(folder: Path, device: torch.device, report: Callable[[int], None]) -> None:
    """Do a job; what kind it is, its folder tells."""
    from adapter_probe.jobs.shards import SHARD, run_shard
    from adapter_probe.jobs.trials import run_trial

    if (folder / SHARD).exists():
        run_shard(folder, device, report)
    else:
        run_trial(folder, device, lambda now: report(now.step))


class _Answers:
    """The protocol's own stdout; whatever libraries print goes to stderr."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def write(self, **answer: Any) -> None:
        """One JSON line."""
        self._file.write(json.dumps(answer) + "\n")
        self._file.flush()


class _Jobs:
    """Folders from stdin, read by a thread, so that the end of stdin is noticed during a training."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line.rstrip("\n"))
        self._ended.set()
        self._lines.put(None)

    def next(self) -> Path | None:
        """The next folder; None at the end."""
        line = self._lines.get()
        return None if line is None else Path(line)

    def watch(self, answers: _Answers) -> _Report:
        """What a job reports its steps to."""
        return _Report(self, answers)

    @property
    def ended(self) -> bool:
        """Whether whoever gave the jobs has gone, or wants no more."""
        return self._ended.is_set()


class _Report:
    """Passes a job's steps on now and then, and stops the job when stdin has ended."""

    def __init__(self, jobs: _Jobs, answers: _Answers):
        self._jobs, self._answers = jobs, answers
        self._step, self._told = 0, 0.0

    def __call__(self, step: int) -> None:
        """Called after every step."""
        if self._jobs.ended:
            raise KeyboardInterrupt
        self._step = step
        if time.monotonic() - self._told > _SECONDS_BETWEEN_REPORTS:
            self.tell()

    def tell(self) -> None:
        """Pass the last step on now."""
        self._told = time.monotonic()
        self._answers.write(step=self._step)
