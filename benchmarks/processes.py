"""Contenders as processes that wait for their turn: see contenders/protocol.py for what is said."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from environments import CONTENDERS, variables

LOG_LINES = 15


class Process:
    """One contender, alive within a ``with`` block.

    Args:
        name: for messages.
        python: the interpreter of its environment.
        script: a file of contenders/.
        threads: processor threads that it may use.
        log: file for all that it prints.
    """

    def __init__(self, name: str, python: Path, script: str, threads: int, log: Path):
        self.name, self._log_path = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [str(python), str(CONTENDERS / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=variables(threads),
            text=True,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def ask(self, do: str, **settings: Any) -> dict[str, Any]:
        """One request and its reply.

        Raises:
            RuntimeError: the process ended; the message has the end of what it printed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **settings}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            tail = "\n".join(self._log_path.read_text(encoding="utf-8").splitlines()[-LOG_LINES:])
            raise RuntimeError(f"contender {self.name} ended in the middle of {do!r}:\n{tail}")
        return json.loads(line)
