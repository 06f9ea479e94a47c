"""Progress on stderr: a bar for a terminal, a few lines for a file, nothing where nobody wants it."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from adapter_probe import progress
from adapter_probe.progress import activity, print_message, printable, progress_bar, stage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


KINDS = pytest.mark.parametrize("kind", [io.StringIO, Terminal])


@KINDS
def test_a_bar(kind, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr := kind())
    with progress_bar("train", 200, "steps", done=50) as bar:
        for _ in range(150):
            bar.update(1)
    text = stderr.getvalue()
    assert "train: 100%" in text
    assert "200/200" in text
    assert ("\r" in text) == stderr.isatty()


def test_a_terminal_that_tells_no_size_has_a_bar(monkeypatch):
    """tqdm would fit its bar into the 0 columns of such a terminal."""
    terminal, program_end = pty.openpty()
    with os.fdopen(program_end, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress_bar("trials", 22, "steps") as bar:
            bar.set_postfix_str("3 of 22 trials done", refresh=False)
            bar.update(22)
        text = ""
        while "\n" not in text:  # which ends the bar
            text += os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert "22/22" in text
    assert "3 of 22 trials done" in text


def test_a_file_gets_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr := io.StringIO())
    now = [0.0]
    monkeypatch.setattr("tqdm.std.tqdm._time", lambda: now[0], raising=False)
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with progress_bar("train", 190, "steps") as bar:
        for _ in range(190):
            now[0] += 1.0
            bar.update(1)
    lines = stderr.getvalue().splitlines()
    assert all("train:" in line and "\r" not in line for line in lines)
    assert 5 <= len(lines) <= 190 / progress.SECONDS_BETWEEN_LINES + 3


@KINDS
def test_silence(kind, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr := kind())
    with progress_bar("train", 3, "steps", enabled=False) as bar:
        bar.update(3)
        bar.set_postfix_str("done")
    print_message("a word", enabled=False)
    assert stderr.getvalue() == ""


def test_a_word(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr := io.StringIO())
    print_message("2 of 3 jobs done, task \x1b[31m")
    assert stderr.getvalue() == "2 of 3 jobs done, task \\x1b[31m\n"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("plain, Grüße, 例, \U0001f600\n\tand more", "plain, Grüße, 例, \U0001f600\n\tand more"),
        ("\x1b[2Jred\r\x07", "\\x1b[2Jred\\r\\x07"),
        ("a\u202egpj.exe \udc80 \x9b31m", "a\\u202egpj.exe \\udc80 \\x9b31m"),
    ],
)
def test_no_text_steers_the_terminal(text: str, printed: str):
    assert printable(text) == printed


def test_work_is_named_at_once_and_the_line_is_taken_away(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr := Terminal())
    threads = threading.enumerate()
    with activity("ablate: loading"):
        assert stderr.getvalue() == "\rablate: loading ..."
        with stage("drawing figures"):
            assert stderr.getvalue().endswith("\rdrawing figures ...")
        print_message("a word")
    assert stderr.getvalue().rstrip("\r ").endswith("a word\n")
    assert threading.enumerate() == threads  # one that the process's end finds running is killed


@KINDS
def test_a_part_of_nothing_is_not_named(kind, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr := kind())
    with stage("drawing figures"), activity("ablate", enabled=False):
        pass
    assert stderr.getvalue() == ""


def test_there_is_a_sign_of_life_beside_a_bar_that_stands_still(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_SIGNS", 0.01)
    monkeypatch.setattr(sys, "stderr", stderr := Terminal())
    with activity("train: loading"):
        wait_for(lambda: stderr.getvalue().count("train: loading ...") > 2)
        with progress_bar("train", 10, "steps"):
            before = stderr.getvalue().count("0/10")
            wait_for(lambda: stderr.getvalue().count("0/10") > before + 2)
    ended = stderr.getvalue()
    time.sleep(0.05)
    assert stderr.getvalue() == ended


def test_a_file_hears_of_long_work_alone(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr := io.StringIO())
    with activity("ablate: loading"):
        pass
    assert stderr.getvalue() == ""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_WORDS", 0.01)
    with activity("ablate: loading"):
        wait_for(lambda: stderr.getvalue().count("\n") > 1)
    assert set(stderr.getvalue().splitlines()) == {"ablate: loading ..."}
    with activity("ablate: loading"):
        with progress_bar("ablate", 10, "tokens"):
            pass
        stderr.truncate(stderr.seek(0))
        wait_for(lambda: stderr.getvalue().count("\n") > 1)
    assert set(stderr.getvalue().splitlines()) == {"ablate: working ..."}


def test_few_units_are_whole_numbers_and_many_are_short(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for total, words in ((352, "88/352 "), (2_000_000, "500k/2.00M ")):
        with progress_bar("train", total, "steps") as bar:
            bar.update(total // 4)
            assert f"| {words}" in str(bar)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_notebook_without_widgets_has_bars_of_text_and_no_warning():
    """As in a kernel: tqdm finds a notebook's shell, and no ipywidgets."""
    code = """
import sys, types
shell = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell, __spec__=None)
sys.modules["IPython.display"] = types.ModuleType("IPython.display")
sys.modules["ipykernel.zmqshell"] = types.ModuleType("zmqshell")
sys.modules["ipywidgets"] = None
from adapter_probe.progress import progress_bar
with progress_bar("train", 2, "steps") as bar:
    bar.update(2)
import tqdm.auto
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "train: 100%" in done.stderr
    assert "IProgress" not in done.stderr
