"""What a command can set, a keyword of the public function can, with the same default."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Literal, get_args, get_origin

import pytest

import adapter_probe as ap
from adapter_probe.cli.compare import compare
from adapter_probe.cli.convert import convert
from adapter_probe.cli.inspect import inspect as show
from adapter_probe.cli.prune import prune

PRINTED = {"json"}  # how it is printed


def parameters(function: Callable) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def choices_of(parameter: inspect.Parameter, function: Callable) -> set[object]:
    """The texts that the annotation of a parameter allows; empty if it allows any text."""
    annotation, found = parameter.annotation, set()
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, vars(sys.modules[function.__module__]))
        except NameError:  # imported for type checkers only
            return found
    parts = [annotation]
    while parts:
        part = parts.pop()
        inner = get_args(part)
        if get_origin(part) is Literal:
            found.update(inner)
        else:
            parts += inner[:1] if get_origin(part) is Annotated else inner
    return found


@pytest.mark.parametrize(
    ("command", "functions", "otherwise"),
    [
        (prune, (ap.prune,), set()),
        (convert, (ap.convert,), set()),
        (show, (ap.inspect,), set()),
        (compare, (ap.compare, ap.Comparison.save), {"out"}),  # the folder of `save`
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_option_is_a_keyword(command, functions, otherwise):
    wanted = parameters(command)
    known = {name: found for function in functions[::-1] for name, found in parameters(function).items()}
    for name, option in wanted.items():
        if name in PRINTED | otherwise:
            continue
        assert name in known, f"--{name} has no keyword"
        owner = next(function for function in functions if name in parameters(function))
        allowed = choices_of(known[name], owner)
        assert allowed in (set(), choices_of(option, command)), name
        theirs, ours = known[name].default, option.default
        if inspect.Parameter.empty in (theirs, ours) or theirs is None:
            assert ours in (inspect.Parameter.empty, None)
        elif name == "formats":
            assert tuple(ours.split(",")) == theirs
        else:
            assert str(ours or theirs if not theirs else ours) == str(theirs), name
