"""Output shared by all commands: results on stdout, messages on stderr, one line for a user's error."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_type_hints

import typer

from adapter_probe.analysis.summary_text import aligned_columns, file_lists
from adapter_probe.errors import AdapterProbeError, AdapterProbeWarning, JobsDetached, cut
from adapter_probe.progress import activity, clear_status, print_message, printable
from adapter_probe.python_words import of_a_command

from .declared import Declared

Command = TypeVar("Command", bound=Callable[..., None])
USER_ERROR, INTERRUPTED = 2, 130
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
_LONGEST_PATH, _LONGEST_SHOWN = 250, 60  # characters; what is longer is no sensible path


def command(function: Command) -> Command:
    """Wrap a command so that a user's error is one line and exit code 2, and a bug keeps its traceback.

    A parameter annotated with a dataclass of settings is replaced by the options that its fields declare.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: Declared(hint) for name, hint in hints.items() if is_dataclass(hint)}

    @functools.wraps(function)
    def polite(**kwargs: Any) -> None:
        try:
            with (
                of_a_command(),
                _warnings_in_one_line(),
                activity(f"{function.__name__.replace('_', '-')}: loading"),
            ):
                given = {name: group.settings(kwargs) for name, group in groups.items()}
                function(**kwargs, **given)
        except JobsDetached as jobs:
            show_json(jobs.report) if kwargs.get("json") else show(aligned_columns(_detached(jobs.report)))
        except AdapterProbeError as error:
            fail(str(error), USER_ERROR)
        except OSError as error:
            if error.errno not in _DISK_ERRORS:
                raise
            fail(f"{error.filename or 'disk'}: {error.strerror}", USER_ERROR)
        except KeyboardInterrupt:
            fail("interrupted; finished work is kept, and the same command resumes it", INTERRUPTED)

    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        group = groups.get(parameter.name)
        own = parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY)
        options += [own] if group is None else group.options
    polite.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    polite.__annotations__ = {option.name: option.annotation for option in options}
    return polite  # type: ignore[return-value]


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Show this package's warnings in the form of its errors, and others as Python does."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def shown(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if issubclass(category, AdapterProbeWarning):
                print_message(f"adapter-probe: warning: {message}".replace("\n", "\\n"))
            else:
                others(message, category, *place, **options)

        warnings.showwarning = shown
        yield


def fail(message: str, code: int) -> NoReturn:
    """Print one line to stderr and exit."""
    print_message(f"adapter-probe: {brief(message)}")
    raise typer.Exit(code)


def brief(message: str) -> str:
    """A message on one line, with the values from the command line cut that would fill several."""
    for given in sys.argv[1:]:
        value = given.partition("=")[2] if given.startswith("--") and "=" in given else given
        for text in (value, repr(value)[1:-1]) if len(value) > _LONGEST_PATH else ():
            message = message.replace(text, cut(text, _LONGEST_SHOWN))
    return message.replace("\n", "\\n")


def show(text: str) -> None:
    """Print a result to stdout."""
    clear_status()
    typer.echo(printable(text))


def show_json(value: object) -> None:
    """Print a machine-readable result (JSON) to stdout."""
    clear_status()
    typer.echo(json.dumps(value, indent=2, default=_plain))


def show_study(study: Any, report: dict[str, Any], json: bool) -> None:
    """Print the main results of a study and the paths of its files."""
    if json:
        show_json(report)
    else:
        show(f"{aligned_columns(study.rows())}\n\n{file_lists([report['files'].values()])}")


def show_plan(plan: Any, json: bool) -> None:
    """Print the plan of a study."""
    show_json(plan.to_dict()) if json else show(repr(plan))


def _plain(value: Any) -> Any:
    """A table as a list of rows, with null for missing values; a path as text."""
    if hasattr(value, "to_json"):
        return json.loads(value.to_json(orient="records", double_precision=15))
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _detached(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The state of a study whose jobs were submitted with ``--detach``."""
    return [
        ("jobs", f"{report['jobs']}, {report['done']} done"),
        ("in the queue", f"{report['sent_now']} submitted now, {report['sent_earlier']} earlier"),
        ("watch with", f"squeue --name={report['job_name']}"),
        ("collect with", "the same command, with or without --detach"),
        ("folder", report["folder"]),
    ]
