"""Messages in the words of Python: arguments where a command has options, and no files that are gone.

Errors and notes are written for the command line. A public function says them in the words of its own
arguments; inside `of_a_command`, where the commands call the same functions, they stay as they were written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import Signature
from typing import Any, get_args

from adapter_probe.errors import AdapterProbeError
from adapter_probe.settings import SiteChoice, choices_of

_VALUE = r"'[^']*'|[A-Z][A-Z_]+\b|[\w.-]+(?:[,=/:][\w.-]*\w)+|[\w.-]*\w"
_OPTION = re.compile(rf"--(?P<name>[a-z](?:[a-z-]*[a-z])?)(?: (?P<value>{_VALUE}))?")
_LITERAL = re.compile(r"\d+-\d+|.*[,=/:].*")  # layers, several names, or one with a folder or a library
_ROWS = re.compile(r"[^\s:;,()]*rows-[0-9a-f]{12}\.jsonl")
_OTHER = {"slurm": "cluster", "subfolder": "adapter"}  # options that have another name in Python


_Words = tuple[Signature, Mapping[str, tuple[Any, ...]]]
_COMMAND: ContextVar[bool] = ContextVar("command", default=False)
_FUNCTION: ContextVar[_Words | None] = ContextVar("function", default=None)
"""The public function that runs: its signature, and the types of its arguments."""


@contextmanager
def of_a_command() -> Iterator[None]:
    """Errors and notes in the words of options."""
    token = _COMMAND.set(True)
    try:
        yield
    finally:
        _COMMAND.reset(token)


@contextmanager
def in_words_of(signature: Signature, types: Mapping[str, tuple[Any, ...]]) -> Iterator[None]:
    """Errors and notes of a function in the words of its arguments; what an inner function has put so stays.

    Args:
        signature: the function's.
        types: the types of its arguments.
    """
    token = _FUNCTION.set((signature, types))
    try:
        yield
    except AdapterProbeError as error:
        error.args = (in_callers_words(str(error)), *error.args[1:])
        raise
    finally:
        _FUNCTION.reset(token)


def in_callers_words(message: str) -> str:
    """A message as it is said to whoever called: a command, or a public function that runs."""
    words = None if _COMMAND.get() else _FUNCTION.get()
    return message if words is None else in_python(message, *words)


def in_python(message: str, signature: Signature, types: Mapping[str, tuple[Any, ...]]) -> str:
    """A message of a command for a caller of the function: ``metric='kl'`` in place of ``--metric kl``."""

    def argument(found: re.Match[str]) -> str:
        name, value = found["name"].replace("-", "_"), found["value"] or ""
        name = _OTHER.get(name, name)
        if name not in signature.parameters:
            return found[0]
        default = signature.parameters[name].default
        if isinstance(default, bool):
            return f"{name}=True" + (f" {value}" if value else "")
        if value.isupper() or value[:1] == "'" or re.fullmatch(r"-?[\d.]+", value):
            return f"{name}={value}"
        if name == "columns" or value in (*_choices(name, types), "off") or _LITERAL.fullmatch(value):
            return f"{name}={value!r}"
        if value in ("must", "has", "scales"):
            return f"{name} {value}"
        if not value and found.string[found.end() :].startswith(":"):
            return name
        return f"{name}=" + (f" {value}" if value else "")

    return _OPTION.sub(argument, _ROWS.sub("data", message))


def _choices(name: str, types: Mapping[str, tuple[Any, ...]]) -> tuple[str, ...]:
    """The names among which a user chooses the value of an argument."""
    if name == "metric":
        from adapter_probe.metrics import BY_NAME  # loads NumPy

        return tuple(BY_NAME)
    if name == "sites":
        return get_args(SiteChoice)
    if name == "device":
        return ("cpu",)  # the only one that errors name
    return tuple(choice for wanted in types.get(name, ()) for choice in choices_of(wanted))
