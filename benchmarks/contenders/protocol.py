"""What every contender speaks: one JSON request a line on standard input, one JSON reply a line on output.

It runs in each contender's own environment, so that it needs no more than the standard library. Requests:

    {"do": "open", ...settings}             loads and warms up; replies with what `open` returns
    {"do": "run", "share": 0, "shares": 4}  computes; replies with ``seconds`` and what `run` returns
    {"do": "close", "out": PATH or null}    replies with memory; the outputs go to the file
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("adapter-probe", "adapters", "peft", "torch", "transformers")
MIB = 2**20


class Contender:
    """One of those that are measured."""

    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Load everything that is not to be timed; what the driver should know of it."""
        raise NotImplementedError

    def warm_up(self) -> None:
        """Let the first run's set-up happen, after the memory of what was loaded has been noted."""

    def run(self, share: int, shares: int) -> dict[str, Any]:
        """Do one share of the work, from 0, of so many; what the driver should know of it."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Write the outputs of all shares."""


def serve(contender: Contender) -> None:
    """Answer requests until told to close."""
    # Whatever libraries print must not come between the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    loaded = 0.0
    for line in sys.stdin:
        request = json.loads(line)
        kind = request.pop("do")
        if kind == "open":
            reply = {**contender.open(request), "versions": _versions()}
            loaded = _memory("VmRSS")
            forget_peak()
            contender.warm_up()
        elif kind == "run":
            start = time.perf_counter()
            told = contender.run(request["share"], request["shares"])
            reply = {"seconds": time.perf_counter() - start, **told}
        else:
            reply = {"loaded_mib": loaded, "peak_mib": _memory("VmHWM")}
            if request["out"] is not None:
                contender.save(Path(request["out"]))
        print(json.dumps(reply), file=replies, flush=True)
        if kind == "close":
            return


def forget_peak() -> None:
    """Let the process's peak memory count from now on, where the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _memory(field: str) -> float:
    """Resident memory now (``VmRSS``) or at its peak (``VmHWM``), in MiB."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))
    except OSError:  # no Linux: the peak of all time is what there is
        import resource

        return (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            * (1 if sys.platform == "darwin" else 1024)
            / MIB
        )


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
