"""What a worker notes of a job in a file, and what those who wait for the job read of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_probe.errors import ResultsError
from adapter_probe.results.atomic import read_json

RUNNING, DONE, FAILED, STOPPED = "running", "done", "failed", "stopped"
"""The states of a job."""
OnStep = Callable[[Path, int], None]
"""Callback with a job's folder, which describes the work and gets its results, and its finished steps."""


@dataclass(frozen=True)
class Failure:
    """A job that did not finish.

    Attributes:
        job: folder of the job.
        reason: the reason, in one line.
        log: file with the worker's output, or None if the reason is sufficient.
    """

    job: Path
    reason: str
    log: Path | None = None

    def __str__(self) -> str:
        return self.reason + (f" (log: {self.log})" if self.log else "")


def read_note(path: Path) -> dict[str, Any] | None:
    """Its state, finished steps, reason, node and process; None if there is none, or it is being replaced."""
    try:
        return read_json(path) if path.exists() else None
    except ResultsError:
        return None
