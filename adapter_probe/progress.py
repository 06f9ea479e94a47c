"""Progress on stderr: a bar or a status line in a terminal, occasional lines in a file or a notebook."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

from adapter_probe.python_words import in_callers_words

if TYPE_CHECKING:
    from tqdm import tqdm

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
SECONDS_BETWEEN_LINES = 30.0  # seconds between lines if stderr is a file
SECONDS_BETWEEN_WORDS = 30.0  # in a file, for work without a bar
SECONDS_BETWEEN_SIGNS = 1.0  # in a terminal, to show that the program is running
_LOADING = "loading"
_LONGEST_END = 1.0  # seconds that are waited for the thread, which may be writing
_MANY = 10_000  # units that are shortened, as 1.2M; fewer are whole numbers
# In a notebook without ipywidgets the bars are text, of which tqdm would warn wherever a library imports it.
warnings.filterwarnings("ignore", message="IProgress not found")


@contextmanager
def progress_bar(title: str, total: int, unit: str, done: int = 0, enabled: bool = True) -> Iterator[tqdm]:
    """A bar with the time left; the estimate counts only what this process does itself."""
    from tqdm.auto import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # its thread would print additional lines into a file

    watched = sys.stderr.isatty()
    if enabled:
        _STATUS.clear()
    with Bar(
        desc=title,
        total=total,
        initial=done,
        unit=f" {unit}",
        unit_scale=total >= _MANY,
        file=sys.stderr if watched else _Lines(sys.stderr),
        **_room(watched),
        mininterval=0.5 if watched else SECONDS_BETWEEN_LINES,
        miniters=1,
        smoothing=0.05,
        disable=not enabled,
    ) as bar:
        outer, _STATUS.bar = _STATUS.bar, bar if enabled else _STATUS.bar
        try:
            yield bar
        finally:
            _STATUS.bar = outer
            _STATUS.move_on()


def _room(watched: bool) -> dict[str, int | bool | None]:
    """The size of the bar: the terminal's, or a usual one if it tells none, where tqdm would draw nothing."""
    try:
        unknown = watched and min(os.get_terminal_size(sys.stderr.fileno())) == 0
    except (OSError, ValueError, AttributeError):  # no file of the system
        unknown = False
    return {"ncols": 80, "nrows": 24} if unknown else {"dynamic_ncols": True}


@contextmanager
def activity(what: str, enabled: bool = True) -> Iterator[None]:
    """Show the current activity with the elapsed time until the block ends.

    In a terminal this is a separate line that changes every second; while there is a bar, the bar is drawn
    again instead. In a file it is a line every half minute. Inside another such block, this names a part.
    """
    with _STATUS.showing(what) if enabled else nullcontext():
        yield


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Name a part of the current activity, if `activity` shows one."""
    with activity(what, bool(_STATUS.what)):
        yield


def print_message(message: str, enabled: bool = True) -> None:
    """Print a line on stderr, above any bar, in the words of the caller."""
    if not enabled:
        return
    clear_status()
    message = in_callers_words(message)
    if _STATUS.bar is None:
        _write(sys.stderr, f"{printable(message)}\n")
    else:
        _STATUS.bar.write(printable(message), file=sys.stderr)


def clear_status() -> None:
    """Clear the status line before something else is printed; it reappears while work continues."""
    _STATUS.clear()


def printable(text: str) -> str:
    """Text with escaped control characters, safe to print for any names of tasks, labels and files.

    Control characters, the marks that turn the direction of text, and lone surrogates are written as escapes;
    line breaks and tabs stay.
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class _Status:
    """The status line of this process, and the thread that updates it or the bar."""

    def __init__(self) -> None:
        self.bar: tqdm | None = None
        self.what, self._since = "", 0.0
        self._shown = 0  # number of characters in the terminal's line
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._ended.set()
        self._thread = threading.Thread()  # of no activity yet

    @contextmanager
    def showing(self, what: str) -> Iterator[None]:
        """Show a text, and when the block ends the previous one again, or nothing."""
        outer = self.what, self._since
        self.what, self._since = what, time.monotonic()
        if self._ended.is_set():
            self._ended = ended = threading.Event()
            self._thread = threading.Thread(target=self._keep, args=(ended, sys.stderr), daemon=True)
            self._thread.start()
        if sys.stderr.isatty():
            self._show(sys.stderr)
        try:
            yield
        finally:
            self.clear()
            self.what, self._since = outer
            self.move_on()
            if not self.what:
                self._ended.set()
                # Python kills a thread that is still ending when the process does, within what it runs.
                self._thread.join(_LONGEST_END)

    def move_on(self) -> None:
        """What follows the first part of an activity is no longer loading."""
        if self.what.endswith(_LOADING):
            self.what, self._since = self.what.removesuffix(_LOADING) + "working", time.monotonic()

    def clear(self) -> None:
        """Clear the line."""
        with self._lock:
            if self._shown:
                _write(sys.stderr, f"\r{' ' * self._shown}\r")
                self._shown = 0

    def _keep(self, ended: threading.Event, file: TextIO) -> None:
        watched = file.isatty()
        while not ended.wait(SECONDS_BETWEEN_SIGNS if watched else SECONDS_BETWEEN_WORDS):
            if self.bar is None:
                self._show(file)
            elif watched:
                self.bar.refresh()

    def _show(self, file: TextIO) -> None:
        with self._lock:
            seconds = int(time.monotonic() - self._since)
            text = printable(f"{self.what} ..." + (f" {seconds} s" if seconds else ""))
            if file.isatty():
                _write(file, f"\r{text.ljust(self._shown)}")
                self._shown = len(text)
            else:
                _write(file, f"{text}\n")


def _write(file: TextIO, text: str) -> None:
    try:
        file.write(text)
        file.flush()
    except (OSError, ValueError):  # the reader has closed the stream
        return


_STATUS = _Status()


class _Lines:
    """A file in which each state of a bar is a separate line."""

    def __init__(self, file: TextIO):
        self._file = file

    def write(self, text: str) -> None:
        """Write text other than spaces and control characters as a line."""
        if line := text.replace("\r", "").strip():
            self._file.write(f"{line}\n")

    def flush(self) -> None:
        """See `TextIO.flush`."""
        self._file.flush()
