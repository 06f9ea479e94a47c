"""Arguments of the public functions: values of a wrong type are refused in one line, before anything runs."""

from __future__ import annotations

import builtins
import errno
import inspect
import numbers
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from os import PathLike, fspath
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import adapter_probe
from adapter_probe.errors import AdapterProbeError, one_line, reason_of, shown

P = ParamSpec("P")
Result = TypeVar("Result")

_WORDS = {int: "whole number", float: "number", str: "string", Path: "path", Callable: "function"}
_UNKNOWN = object()


def checked(function: Callable[P, Result]) -> Callable[P, Result]:
    """A function that first compares its arguments with their annotations.

    NumPy's numbers become Python's, so that they can be recorded as JSON, and a path given for a string
    becomes one. Annotations other than numbers, strings, paths, functions, classes and sequences of them are
    left to the function.

    Raises:
        AdapterProbeError: an argument has another type, or is no path of this system.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        signature, kinds = _annotated(function)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # a missing argument, which Python's own message names, or an unknown one
            known = [name for name in signature.parameters if name != "self"]
            if unknown := [name for name in kwargs if name not in known]:
                has = f"it has: {', '.join(known)}"
                raise TypeError(f"{function.__name__}() has no argument {unknown[0]!r}; {has}") from None
            return function(*args, **kwargs)
        for name, value in bound.arguments.items():
            if name in kinds:
                bound.arguments[name] = _fitting(name, value, kinds[name])
        return function(*bound.args, **bound.kwargs)

    return call


@cache
def _annotated(function: Callable[..., object]) -> tuple[inspect.Signature, dict[str, tuple[Any, ...]]]:
    """The signature of a function, and the allowed kinds of its arguments, where they can be compared."""
    names = _Names({**vars(builtins), **vars(sys.modules[function.__module__])})
    signature = inspect.signature(function)
    found = {}
    for name, parameter in signature.parameters.items():
        try:
            annotation = eval(str(parameter.annotation), {}, names)
            kinds = _kinds(eval(annotation, {}, names) if isinstance(annotation, str) else annotation)
        except (AttributeError, SyntaxError, TypeError):  # none, or of a module for type checkers only
            continue
        if all(map(_comparable, kinds)):
            found[name] = kinds
    return signature, found


class _Names(dict[str, Any]):
    """The names in annotations; some are imported for type checkers only."""

    def __missing__(self, name: str) -> Any:
        return getattr(adapter_probe, name) if name in adapter_probe.__all__ else Any


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _of_many(kind: Any) -> bool:
    """Whether it is a sequence of other kinds."""
    return get_origin(kind) is Sequence


def _comparable(kind: Any) -> bool:
    if _of_many(kind):
        return all(map(_comparable, _kinds(get_args(kind)[0])))
    return get_origin(kind) in (Literal, Callable) or (isinstance(kind, type) and kind not in (Any, object))


def _fitting(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    if (fitted := _fitted_one(value, kinds)) is not _UNKNOWN:
        if Path in kinds or any(Path in _kinds(get_args(kind)[0]) for kind in kinds if _of_many(kind)):
            for path in fitted if isinstance(fitted, (tuple, list)) else (fitted,):
                _refuse_no_path(name, path)
        return fitted
    allowed = _alternatives(_described(kind, kinds) for kind in kinds)
    raise AdapterProbeError(f"{name}={shown(value)} is not allowed; give {allowed}")


def _refuse_no_path(name: str, value: Any) -> None:
    """Refuse a name that no file of this system can have, or that cannot be printed; other values pass.

    Raises:
        AdapterProbeError: it is too long, contains a NUL, or is not UTF-8.
    """
    if not isinstance(value, (str, PathLike)):
        return
    fault = ""
    try:
        str(value).encode()
        Path(value).lstat()
    except UnicodeEncodeError:
        fault = "it is not UTF-8"
    except ValueError as error:  # a NUL
        fault = one_line(error)
    except OSError as error:
        fault = reason_of(error) if error.errno == errno.ENAMETOOLONG else ""
    if fault:
        raise AdapterProbeError(f"{name}={shown(str(value))} is not a valid path: {fault}")


def _fitted_one(value: Any, kinds: Sequence[Any]) -> Any:
    return next((one for kind in kinds if (one := _fitted(value, kind)) is not _UNKNOWN), _UNKNOWN)


def _fitted(value: Any, kind: Any) -> Any:
    """The value as this kind; `_UNKNOWN` if it is of another one."""
    if _of_many(kind):
        return _fitted_list(value, _kinds(get_args(kind)[0]))
    truth = isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")  # NumPy's, by its two names
    if kind is bool:
        return bool(value) if truth or (isinstance(value, int) and value in (0, 1)) else _UNKNOWN
    if kind is int:
        return int(value) if isinstance(value, numbers.Integral) and not truth else _UNKNOWN
    if kind is float:
        if not isinstance(value, numbers.Real) or truth:
            return _UNKNOWN
        return value if type(value) in (int, float) else float(value)
    if get_origin(kind) is Callable:
        return value if callable(value) else _UNKNOWN
    if get_origin(kind) is Literal:
        return value if isinstance(value, str) else _UNKNOWN  # the function refuses other strings
    if kind in (str, Path) and isinstance(value, PathLike):
        value = fspath(value)  # of a path of bytes, bytes, which are of neither kind
        kind = str
    return value if isinstance(value, kind) else _UNKNOWN


def _fitted_list(value: Any, kinds: Sequence[Any]) -> Any:
    """Several values, or one in place of several, as a tuple."""
    whole = _fitted_one(value, kinds)
    if whole is not _UNKNOWN:
        return (whole,)
    if isinstance(value, str) or not isinstance(value, Iterable):
        return _UNKNOWN
    items = tuple(_fitted_one(one, kinds) for one in value)
    return _UNKNOWN if any(one is _UNKNOWN for one in items) else items


def _described(kind: Any, kinds: Sequence[Any]) -> str:
    """One of several kinds in words."""
    if _of_many(kind):
        items = _kinds(get_args(kind)[0])
        if len(items) > 1 and set(items) < set(kinds):
            return "a list of these"
        return "a list of " + _alternatives(f"{_word(one)}s".replace("ys", "ies") for one in items)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    if kind is bool:
        return "True or False"
    if kind is NoneType:
        return "None"
    return f"{'an' if _word(kind)[0] in 'AEIO' else 'a'} {_word(kind)}"


def _alternatives(words: Iterable[str]) -> str:
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)}{',' if len(others) > 1 else ''} or {last}" if others else last


def _word(kind: Any) -> str:
    kind = get_origin(kind) or kind
    return _WORDS.get(kind, kind.__name__).replace("DrawnStudy", "study")  # its base class is not public
