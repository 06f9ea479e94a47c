"""A job as whoever runs it sees it: a folder that says what is to be done, and in which it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RUNNING, DONE, FAILED, STOPPED = "running", "done", "failed", "stopped"
"""What a worker notes of its job."""

OnStep = Callable[[Path, int], None]
"""Called with a job's folder and its steps done so far."""


@dataclass(frozen=True)
class Failure:
    """A job that did not finish.

    Attributes:
        job: its folder.
        reason: one line.
        log: what the worker wrote to stderr, or None if the reason says all.
    """

    job: Path
    reason: str
    log: Path | None = None

    def __str__(self) -> str:
        return self.reason + (f" (log: {self.log})" if self.log else "")
