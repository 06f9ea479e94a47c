"""What every command shares: results on stdout, everything else on stderr, one line for a user's error."""

from __future__ import annotations

import errno
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer

from adapter_probe.errors import AdapterProbeError, JobsDetached
from adapter_probe.progress import printable

from .slurm import detached_text

Command = TypeVar("Command", bound=Callable[..., None])
USER_ERROR, INTERRUPTED = 2, 130
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def command(function: Command) -> Command:
    """Give a command its manners: a user's error is one line and exit code 2, a bug keeps its traceback."""

    @functools.wraps(function)
    def polite(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except JobsDetached as jobs:
            show_json(jobs.report) if kwargs.get("json") else show(detached_text(jobs.report))
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
    typer.echo(printable(f"adapter-probe: {message}").replace("\n", "\\n"), err=True)
    raise typer.Exit(code)


def say(message: str) -> None:
    """A message for the person watching, on stderr."""
    typer.echo(printable(message), err=True)


def show(text: str) -> None:
    """A result, on stdout."""
    typer.echo(printable(text))


def show_json(value: object) -> None:
    """A result for a machine, on stdout."""
    typer.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    """A table as its rows, with null for an empty field, and a path as text."""
    if hasattr(value, "to_json"):
        return json.loads(value.to_json(orient="records", double_precision=15))
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
