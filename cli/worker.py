"""`adapter-probe worker`: train the trials whose folders come in on stdin. Hidden: the sweeps start it."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapter_probe.errors import AdapterProbeError

from .console import choose_device, command

if TYPE_CHECKING:
    from adapter_probe.training.loop import Progress

_SECONDS_BETWEEN_REPORTS = 0.5


@command
def worker(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads of this process; 0 for torch's own choice.")] = 0,
) -> None:
    """Train trials: one folder a line on stdin, answers as JSON lines on stdout."""
    import torch

    from adapter_probe.training.trials import run_trial

    if threads:
        torch.set_num_threads(threads)
    where, answers = choose_device(device), _Answers()
    jobs = _Jobs()
    while (folder := jobs.next()) is not None:
        try:
            run_trial(folder, where, jobs.watch(answers))
        except AdapterProbeError as error:
            answers.write(error=str(error))
        else:
            answers.write(done=True)


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

    def watch(self, answers: _Answers) -> Any:
        """What a training reports to: passes steps on now and then, and stops it when stdin has ended."""
        told = 0.0

        def report(now: Progress) -> None:
            nonlocal told
            if self._ended.is_set():
                raise KeyboardInterrupt
            if time.monotonic() - told > _SECONDS_BETWEEN_REPORTS or now.step == now.n_steps:
                told = time.monotonic()
                answers.write(step=now.step)

        return report
