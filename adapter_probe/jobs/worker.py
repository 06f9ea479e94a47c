"""The worker program, ``python -m adapter_probe.jobs.worker``: it does jobs, which are trials or shards.

On this machine it reads one folder a line from stdin and answers each with JSON lines on stdout:
``{"step": 3}`` as it goes, then ``{"done": true}`` or ``{"error": "one line"}``. When its stdin ends, however
the process that started it ended, it saves its state and ends too.

As a task of a SLURM array (``--notes FOLDER JOB``) it does one folder and says in a file, its note, how far
it is. When SLURM wants the node back, or the time is nearly up, it saves its state and queues itself again.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapter_probe.errors import AdapterProbeError, TrainingError

from .job import DONE, FAILED, RUNNING, STOPPED

Do = Callable[[Path, Callable[[int], None]], None]
"""Does the job of a folder; calls back with its steps done so far."""


def main(do: Do | None = None) -> None:
    """Run the program.

    Args:
        do: what a job is; by default a trial or a shard, as its folder tells.
    """
    parser = argparse.ArgumentParser(prog="adapter_probe.jobs.worker")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--notes", type=Path)
    parser.add_argument("job", type=Path, nargs="?")
    options = parser.parse_args()
    do = do or (lambda job, report: _do(job, report, options.device, options.threads, options.workers))
    with needless_libraries_hidden():
        if options.job is None:
            _answer_stdin(do)
        else:
            _run_array_task(do, options.job, options.notes / f"{options.job.name}.json")


@contextmanager
def needless_libraries_hidden() -> Iterator[None]:
    """Import as if some libraries were not installed, in a program of ours.

    seaborn and transformers import them where they are there, for what nothing here asks of them, which takes
    half a second. What is imported already stays.
    """
    hidden = [name for name in ("scipy", "sklearn") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            if name in sys.modules and sys.modules[name] is None:
                del sys.modules[name]


def _do(job: Path, report: Callable[[int], None], device: str, threads: int, workers: int) -> None:
    from adapter_probe.models.device import choose_device, use_threads

    from .checkpoints import ORDER, run_order
    from .shards import SHARD, run_shard
    from .trials import run_trial

    use_threads(threads)
    if (job / SHARD).exists():
        run_shard(job, choose_device(device), report)
    elif (job / ORDER).exists():
        run_order(job, choose_device(device), report)
    else:
        run_trial(job, choose_device(device), lambda now: report(now.step), workers)


class _Steps:
    """Passes a job's steps on now and then, and interrupts the job when it has been told to stop."""

    def __init__(self, tell: Callable[[int], None], stopped: Callable[[], object], seconds: float):
        self._tell, self._stopped, self._seconds = tell, stopped, seconds
        self.done, self._told = 0, 0.0

    def __call__(self, step: int) -> None:
        if self._stopped():
            raise KeyboardInterrupt
        self.done = step
        if time.monotonic() - self._told > self._seconds:
            self._told = time.monotonic()
            self._tell(step)


def _answer_stdin(do: Do) -> None:
    """Do the jobs that come in on stdin, which a thread reads: so its end is noticed during a job."""
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print goes to stderr
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    ended = threading.Event()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line.rstrip("\n"))
        ended.set()
        lines.put(None)

    def answer(**words: Any) -> None:
        stdout.write(json.dumps(words) + "\n")
        stdout.flush()

    threading.Thread(target=read, daemon=True).start()
    while (line := lines.get()) is not None:
        steps = _Steps(lambda step: answer(step=step), ended.is_set, seconds=0.5)
        try:
            do(Path(line), steps)
        except AdapterProbeError as error:
            answer(error=str(error))
        else:
            answer(step=steps.done)
            answer(done=True)


def _run_array_task(do: Do, job: Path, note: Path) -> None:
    """Do one job, until it is done or SLURM asks for the node.

    Raises:
        AdapterProbeError: the job failed; SLURM then counts the task as failed.
        KeyboardInterrupt: it was stopped, its state saved.
    """
    stopped: list[int] = []
    # SIGTERM comes with a preemption and with scancel, SIGUSR2 a while before the time is up.
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda received, _: stopped.append(received))
    from adapter_probe.results.atomic import write_json

    from .slurm_queue import requeue, still_wanted

    def tell(step: int, state: str = RUNNING, reason: str | None = None) -> None:
        said = {"job": task_name(), "state": state, "step": step, "reason": reason}
        write_json(note, {**said, "node": socket.gethostname()})

    tell(0)
    steps = _Steps(tell, lambda: stopped, seconds=2.0)
    try:
        do(job, steps)
    except KeyboardInterrupt:
        if signal.SIGTERM not in stopped and not steps.done:
            reason = "its time was up before its first step; give it a longer --time"
            tell(0, FAILED, reason)
            raise TrainingError(reason) from None
        tell(steps.done, STOPPED)
        if still_wanted(task_name()):
            requeue(task_name())
        raise
    except AdapterProbeError as error:
        tell(steps.done, FAILED, str(error))
        raise
    tell(steps.done, DONE)


def task_name() -> str:
    """This task as SLURM's users call it, ``12_3``; SLURM_JOB_ID of one task is the whole array's."""
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


if __name__ == "__main__":
    main()
