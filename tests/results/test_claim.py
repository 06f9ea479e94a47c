from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import pytest

from adapter_probe.errors import ResultsError
from adapter_probe.results.atomic import claim_folder

HOLD = """
import sys
from adapter_probe.results.atomic import claim_folder
with claim_folder(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """Another program that holds the folder until its stdin closes."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_told_who_holds_the_folder(
    tmp_path: Path, holder: subprocess.Popen, refused: Callable
):
    out = tmp_path / "out"
    for _ in range(2):  # being refused must not disturb what the next one is told
        with refused(out, "in use", f"pid {holder.pid}", "--out"), claim_folder(out):
            pass
    holder.communicate()
    with claim_folder(out):
        pass


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX")
def test_kill_9_lets_go_of_the_folder(tmp_path: Path, holder: subprocess.Popen, refused: Callable):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with (
        claim_folder(tmp_path / "out"),
        refused(tmp_path / "out", f"pid {os.getpid()}"),
        claim_folder(tmp_path / "out"),
    ):
        pass


@pytest.mark.parametrize("text", [None, b"", b"pid 12", b"pid 12 on host", b"\xff\xfe", b"pid 12 on a\nb\n"])
def test_an_unreadable_holder_is_left_out(tmp_path: Path, refused: Callable, text: bytes | None):
    with claim_folder(tmp_path):
        signature = tmp_path / ".lock-holder"
        signature.unlink() if text is None else signature.write_bytes(text)
        with refused(tmp_path, "in use", "wait") as caught, claim_folder(tmp_path):
            pass
        assert "pid" not in str(caught.value)


def test_an_error_inside_lets_go_and_passes_through(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), claim_folder(tmp_path):
        raise ZeroDivisionError
    with claim_folder(tmp_path):
        pass


def test_leftovers_of_killed_writers_go_and_nothing_else(tmp_path: Path):
    (tmp_path / ".adapter-probe-0123456789abcdef.tmp").write_bytes(b"half")
    for name in ("notes.tmp", ".adapter-probe-notes", "spans.csv"):
        (tmp_path / name).write_bytes(b"kept")
    with claim_folder(tmp_path):
        left = set(os.listdir(tmp_path)) - {".lock", ".lock-holder"}
    assert left == {"notes.tmp", ".adapter-probe-notes", "spans.csv"}
    assert ".lock-holder" not in os.listdir(tmp_path)


def test_folders_that_cannot_be_made(tmp_path: Path, refused: Callable):
    (tmp_path / "file").write_text("a file, not a folder")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with refused(out, "folder"), claim_folder(out):
            pass


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
        OSError(errno.EROFS, os.strerror(errno.EROFS)),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        NotImplementedError("no locks\nhere"),
    ],
)
def test_folders_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", fail)
    reason = getattr(error, "strerror", None) or "no locks here"
    with pytest.raises(ResultsError) as caught, claim_folder(tmp_path):
        pass
    assert str(caught.value) == f"cannot lock {tmp_path}: {reason}"
