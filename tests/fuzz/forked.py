"""The program in a child process a call, forked from one that has everything loaded, with a limit on time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SERVER = """
import json, os, sys, traceback
import adapter_probe.cli.main as cli
import peft, torch, tqdm, transformers

tqdm.tqdm.monitor_interval = 0  # a thread would not survive the fork
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

def call(request):
    os.chdir(request["folder"])
    sys.argv = ["adapter-probe", *request["arguments"]]
    try:
        exec(request["before"], {})
        cli.main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1

def child(request):
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = call(request)
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)

for line in sys.stdin:
    request = json.loads(line)
    if "warm" in request:
        answer = call(request)
    elif "wait" in request:
        pid, status = os.waitpid(request["wait"], os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if pid else None
    else:
        answer = os.fork()
        if answer == 0:
            child(request)
    print(json.dumps(answer), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Outcome:
    """Exit code (minus the signal, if one killed it; None where it had to be ended) and output."""

    code: int | None
    stdout: str
    stderr: str


class ForkedProgram:
    """`adapter-probe`; what it says goes to files of `folder`."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, request: dict) -> int | None:
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def warm(self, arguments: list[object]) -> None:
        """Run a command in the process itself: what it loads, every later call has."""
        folder = str(self._folder)
        self._ask({"warm": 1, "arguments": list(map(str, arguments)), "before": "", "folder": folder})

    def __call__(
        self, arguments: list[object], *, folder: Path, before: str = "", seconds: float = 300
    ) -> Outcome:
        """Run a command in `folder`, with Python to run first; it is killed after some seconds."""
        names = {name: str(self._folder / name) for name in ("stdout", "stderr")}
        words = list(map(str, arguments))
        pid = self._ask({"arguments": words, "before": before, "folder": str(folder), **names})
        deadline = time.monotonic() + seconds
        while (code := self._ask({"wait": pid})) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            while self._ask({"wait": pid}) is None:
                time.sleep(0.005)
        said = (Path(names[name]).read_text("utf-8", errors="replace") for name in ("stdout", "stderr"))
        return Outcome(code, *said)

    def close(self) -> None:
        """End the server."""
        self._server.stdin.close()
        self._server.wait()
