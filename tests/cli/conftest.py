"""The program: in this process where it is only called, in one of its own where it is killed or patched.

Processes come cheap: they are forked from this one, which has the libraries.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import pytest
import typer
from trainings import tree  # noqa: F401 (fixture)

from adapter_probe import progress
from adapter_probe.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a finished command left: its exit code (minus the signal, if one killed it) and its output."""

    code: int
    stdout: str
    stderr: str

    @property
    def refusal(self) -> str:
        """The one line of an error that is the user's, without the program's name."""
        assert (self.code, self.stdout) == (2, ""), f"{self.code}\n{self.stdout}\n{self.stderr}"
        lines = [line for line in self.stderr.replace("\r", "\n").split("\n") if line.strip()]
        assert len(lines) == 1, f"expected one line on stderr, got {len(lines)}:\n{self.stderr}"
        assert lines[0].startswith("adapter-probe: ")
        return lines[0].removeprefix("adapter-probe: ")


@dataclass
class Command:
    """A command that runs."""

    pid: int
    stdout: Path
    stderr: Path
    waited: bool = False

    def kill(self) -> None:
        """Kill it, without a chance to tidy up."""
        os.kill(self.pid, signal.SIGKILL)

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself or otherwise."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def result(self, seconds: float = 300) -> Outcome:
        """Wait for its end; kill it where that does not come."""
        deadline = time.monotonic() + seconds
        while not (in_time := self.ended) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not in_time:
            self.kill()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.waited = True
        outcome = Outcome(code, self.stdout.read_text("utf-8"), self.stderr.read_text("utf-8"))
        assert in_time, f"not ended within {seconds} s: {outcome}"
        return outcome


_parser = cache(typer.main.get_command)  # it does not change between commands


class Program:
    """`adapter-probe`."""

    def __init__(self, folder: Path):
        self._folder, self._started = folder, []

    def start(self, *arguments: object, before: str = "", folder: Path | None = None, **env: str) -> Command:
        """Start a command in `folder`; `before` is Python to run in its process first."""
        out, err = (self._folder / f"{len(self._started)}.{name}" for name in ("stdout", "stderr"))
        pid = os.fork()
        if pid == 0:
            _child(arguments, before, folder or self._folder, (out, err), env)
        self._started.append(Command(pid, out, err))
        return self._started[-1]

    def __call__(
        self, *arguments: object, before: str = "", folder: Path | None = None, **env: str
    ) -> Outcome:
        """Run a command to its end: in this process, unless Python is to run `before`."""
        if before:
            return self.start(*arguments, before=before, folder=folder, **env).result()
        out, err, code, here = io.StringIO(), io.StringIO(), 0, Path.cwd()
        words = ["adapter-probe", *map(str, arguments)]
        patches = (
            patch.object(sys, "argv", words),
            patch.dict(os.environ, env),
            patch("adapter_probe.progress.SECONDS_BETWEEN_WORDS", 3600.0),
            patch("typer.main.get_command", _parser),
        )
        with ExitStack() as stack:
            for context in (*patches, redirect_stdout(out), redirect_stderr(err)):
                stack.enter_context(context)
            stack.callback(os.chdir, here)
            os.chdir(folder or self._folder)
            try:
                main()
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            except Exception:
                traceback.print_exc()
                code = 1
        return Outcome(code, out.getvalue(), err.getvalue())

    def undrawn(self, *arguments: object, **options: object) -> Outcome:
        """Run a command whose figures nobody looks at, without drawing them."""
        with patch("adapter_probe.figures.gallery.write_gallery", lambda *_: []):
            return self(*arguments, **options)

    def close(self) -> None:
        """End the server, and what a failed test left running."""
        for command in self._started:
            if not command.waited:
                command.kill()
                command.result()


def _child(
    arguments: tuple[object, ...], before: str, folder: Path, streams: tuple[Path, Path], env: dict[str, str]
) -> NoReturn:
    """Run the program as a process of its own would, and end."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        for number, name in ((1, "stdout"), (2, "stderr")):
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        progress.SECONDS_BETWEEN_WORDS = 3600.0  # a slow machine says no more than a fast one
        os.environ.update(env, MPLBACKEND="agg")
        os.chdir(folder)
        sys.argv = ["adapter-probe", *map(str, arguments)]
        exec(before, {})
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """`program("inspect", folder) -> Outcome`; `program.start(...)` does not wait."""
    if not hasattr(os, "fork"):
        pytest.skip("needs POSIX")
    made = Program(tmp_path_factory.mktemp("program"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def train_arguments(tiny_base: Callable[..., Path], tiny_task: Path) -> tuple[object, ...]:
    """A training of two short epochs; add ``--out``."""
    return ("train", "--base", tiny_base("bert"), "--task", tiny_task, "--size", 4, "--epochs", 2,
            "--init-std", 0.2, "--learning-rate", 0.01)  # fmt: skip


@pytest.fixture(scope="session")
def trained(program: Program, train_arguments: tuple, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that the program trained, for all tests: copy it before changing or writing into it."""
    folder = tmp_path_factory.mktemp("trained") / "checkpoint"
    outcome = program(*train_arguments, "--out", folder)
    assert outcome.code == 0, outcome.stderr
    return folder
