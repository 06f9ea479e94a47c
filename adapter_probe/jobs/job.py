"""The interface of jobs: a folder that describes the work and receives its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RUNNING, DONE, FAILED, STOPPED = "running", "done", "failed", "stopped"
"""The record that a worker writes about its job."""

OnStep = Callable[[Path, int], None]
"""Callback with a job's folder and its number of finished steps."""


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
