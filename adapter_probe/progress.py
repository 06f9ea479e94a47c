"""Progress on stderr: a bar in a terminal or a notebook, a line now and then in a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
SECONDS_BETWEEN_LINES = 30.0  # where stderr is a file


@contextmanager
def progress_bar(title: str, total: int, unit: str, done: int = 0, enabled: bool = True) -> Iterator[tqdm]:
    """A bar with the time left; the estimate counts only what this process does itself.

    Args:
        title: what is going on.
        total: units of work.
        unit: what they are called.
        done: units done before.
        enabled: False to show nothing.
    """
    from tqdm.auto import tqdm

    watched = sys.stderr.isatty()
    pause = 0.5 if watched else SECONDS_BETWEEN_LINES
    with tqdm(
        desc=title,
        total=total,
        initial=done,
        unit=f" {unit}",
        unit_scale=True,
        file=sys.stderr if watched else _Lines(sys.stderr),
        dynamic_ncols=True,
        mininterval=pause,
        maxinterval=max(10.0, pause),
        smoothing=0.05,
        disable=not enabled,
    ) as bar:
        yield bar


def say(message: str, enabled: bool = True) -> None:
    """A line on stderr, above any bar."""
    from tqdm import tqdm

    if enabled:
        tqdm.write(printable(message), file=sys.stderr)


def printable(text: str) -> str:
    """Text that a terminal only prints, whatever names of tasks, labels and files hold.

    Control characters, the marks that turn the direction of text, and lone surrogates are written as escapes;
    line breaks and tabs stay.
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class _Lines:
    """A file in which each state of a bar is a line of its own."""

    def __init__(self, file: TextIO):
        self._file = file

    def write(self, text: str) -> None:
        """Write what is more than spaces and control characters, as a line."""
        if line := text.replace("\r", "").strip():
            self._file.write(f"{line}\n")

    def flush(self) -> None:
        """See `TextIO.flush`."""
        self._file.flush()
