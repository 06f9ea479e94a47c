"""What every command shares: results on stdout, everything else on stderr, one line for a user's error."""

from __future__ import annotations

import errno
import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from adapter_probe.errors import AdapterProbeError

if TYPE_CHECKING:
    import torch
    from tqdm import tqdm

Command = TypeVar("Command", bound=Callable[..., None])
USER_ERROR, INTERRUPTED = 2, 130
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def command(function: Command) -> Command:
    """Give a command its manners: a user's error is one line and exit code 2, a bug keeps its traceback."""

    @functools.wraps(function)
    def polite(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except AdapterProbeError as error:
            fail(str(error), USER_ERROR)
        except OSError as error:
            if error.errno not in _DISK_ERRORS:
                raise
            fail(f"{error.filename or 'disk'}: {error.strerror}", USER_ERROR)
        except KeyboardInterrupt:
            fail("interrupted; what was finished is kept, the same command goes on from there", INTERRUPTED)

    return polite  # type: ignore[return-value]


def fail(message: str, code: int) -> NoReturn:
    """Print one line to stderr and exit."""
    typer.echo(f"adapter-probe: {message}", err=True)
    raise typer.Exit(code)


def say(message: str) -> None:
    """A message for the person watching, on stderr."""
    typer.echo(message, err=True)


def show(text: str) -> None:
    """A result, on stdout."""
    typer.echo(text)


def show_json(value: object) -> None:
    """A result for a machine, on stdout."""
    typer.echo(json.dumps(value, indent=2))


@contextmanager
def progress_bar(title: str, total: int, unit: str, done: int = 0) -> Iterator[tqdm]:
    """A bar with an ETA on stderr; the ETA counts only what this run does itself."""
    from tqdm import tqdm

    with tqdm(
        desc=title,
        total=total,
        initial=done,
        unit=f" {unit}",
        unit_scale=True,
        file=sys.stderr,
        dynamic_ncols=True,
        mininterval=0.5,
        smoothing=0.05,
    ) as bar:
        yield bar


def choose_device(name: str) -> torch.device:
    """The device to run on; ``auto`` is the accelerator if there is one.

    Raises:
        ModelError: no such device on this machine.
    """
    import torch

    from adapter_probe.errors import ModelError

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if kind not in count or not (index == "" or index.isdigit()) or int(index or 0) >= count[kind]:
        here = ", ".join(kind for kind, n in count.items() if n)
        raise ModelError(f"device {name!r} is not on this machine; allowed are auto, {here}")
    return torch.device(name)
