"""The worker program, ``python -m adapter_probe.jobs.worker``, which runs jobs (trials or shards).

On this machine it reads one folder per line from stdin and answers each with JSON lines on stdout:
``{"step": 3}`` during the job, then ``{"done": true}`` or ``{"error": "one line"}``. When its stdin is
closed, for example because the parent process has ended, it saves its state and ends.

As a task of a SLURM array (``--notes FOLDER JOB``) it runs one folder and records its progress in a file, its
note. On preemption, or shortly before the time limit, it saves its state and requeues itself.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adapter_probe.errors import AdapterProbeError, TrainingError
from adapter_probe.startup import unneeded_libraries_hidden

Do = Callable[[Path, Callable[[int], None]], None]
"""Runs the job of a folder; calls back with the number of finished steps."""


def main(do: Do | None = None) -> None:
    """Run the program.

    Args:
        do: function that runs a job; by default a trial or a shard, depending on its folder.
    """
    parser = argparse.ArgumentParser(prog="adapter_probe.jobs.worker")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--notes", type=Path)
    parser.add_argument("job", type=Path, nargs="?")
    options = parser.parse_args()
    do = do or (lambda job, report: _do(job, report, options.device, options.threads))
    with unneeded_libraries_hidden():
        if options.job is None:
            _answer_stdin(do)
        else:
            _run_array_task(do, options.job, options.notes / f"{task_name()}.json")


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


class _Steps:
    """Reports a job's steps at intervals, and interrupts the job on request."""

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
    """Run the jobs from stdin, which a thread reads, so that its end is noticed during a job."""
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries goes to stderr
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
    """Run one job, until it is done or SLURM requests the node.

    Raises:
        AdapterProbeError: the job failed; SLURM then counts the task as failed.
        KeyboardInterrupt: it was stopped and its state saved.
    """
    stopped: list[int] = []
    # SIGTERM is sent on preemption and scancel, SIGUSR2 some time before the limit.
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda received, _: stopped.append(received))
    from adapter_probe.results.atomic import write_json

    from .slurm import DONE, FAILED, RUNNING, STOPPED, requeue, still_wanted

    def tell(step: int, state: str = RUNNING, reason: str | None = None) -> None:
        said = {"state": state, "step": step, "reason": reason, "node": socket.gethostname()}
        write_json(note, said)

    tell(0)
    steps = _Steps(tell, lambda: stopped, seconds=2.0)
    try:
        do(job, steps)
    except KeyboardInterrupt:
        if signal.SIGTERM not in stopped and not steps.done:
            reason = "its time limit ended before its first step; give a longer --sbatch time=LIMIT"
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
    """The usual name of this task, ``12_3``; the SLURM_JOB_ID of one task is that of the whole array."""
    return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"


if __name__ == "__main__":
    main()
