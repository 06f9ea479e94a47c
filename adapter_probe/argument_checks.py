"""Arguments of the public functions: values of a wrong type are refused in one line, before anything runs."""

from __future__ import annotations

import builtins
import errno
import inspect
import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from os import PathLike, fspath
from pathlib import Path
from textwrap import fill
from types import NoneType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast, get_args, get_origin

from adapter_probe.errors import AdapterProbeError, must_be, one_line, reason_of, shown
from adapter_probe.python_words import in_words_of
from adapter_probe.settings import Names, annotations_of, evaluated, fields_of, is_required, types_of

P = ParamSpec("P")
Result = TypeVar("Result")
Arguments = TypeVar("Arguments")
StudyT = TypeVar("StudyT", covariant=True)
PlanT = TypeVar("PlanT", covariant=True)

_WORDS = {
    Mapping: "dict",
    int: "whole number",
    float: "number",
    str: "string",
    Path: "path",
    Callable: "function",
}
_UNKNOWN = object()
_CONTENT = "{[.-0123456789"  # how JSON or a list of numbers begins


def checked(function: Callable[P, Result]) -> Callable[P, Result]:
    """A function that first compares its arguments with their annotations, and names them in its errors.

    NumPy's numbers become Python's, so that they can be recorded as JSON, and a path given for a string
    becomes one. Annotations other than numbers, strings, paths, functions, classes and sequences of them are
    left to the function.

    Raises:
        AdapterProbeError: an argument has another type, or is no path of this system.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        signature, types = _annotated(function)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # a missing argument, which Python's own message names, or an unknown one
            if fault := _unknown_argument(call, kwargs):
                raise TypeError(fault) from None
            return function(*args, **kwargs)
        for name, value in bound.arguments.items():
            if name in types:
                bound.arguments[name] = _fitting(name, value, types[name])
        with in_words_of(signature, types):
            return function(*bound.args, **bound.kwargs)

    return call


def _unknown_argument(function: Callable[..., object], given: Mapping[str, object]) -> str:
    """What to say of a keyword that a function does not have; empty where it has all."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    name, unknown = function.__name__, [keyword for keyword in given if keyword not in known]
    if not unknown:
        return ""
    if unknown[0] == "dry_run" and hasattr(function, "plan"):
        return f"{name}() has no argument 'dry_run'; {name}.plan(...) takes the same arguments"
    return f"{name}() has no argument {unknown[0]!r}; it has: {', '.join(known)}"


def taking(
    arguments: Callable[P, Arguments],
) -> Callable[[Callable[[Arguments], Result]], Callable[P, Result]]:
    """A public function whose arguments are the fields of a dataclass; see `adapter_probe.settings.setting`.

    Its signature, the description of its arguments, and their types follow from the fields: those without a
    default, and those that are declared so, may be given by position, the others by name.
    """
    declared: Any = arguments

    def made(function: Callable[[Arguments], Result]) -> Callable[P, Result]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                fault = _unknown_argument(call, kwargs) or f"{function.__name__}() {error}"
                raise TypeError(fault) from None
            _, types = words_of(declared, function.__module__)
            values = {k: _fitting(k, v, types[k]) if k in types else v for k, v in bound.arguments.items()}
            with in_words_of(signature, types):
                return function(declared(**values))

        returned = inspect.signature(function).return_annotation
        signature = inspect.Signature(list(_parameters(declared)), return_annotation=returned)
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = _with_arguments(function.__doc__ or "", declared)
        return call

    return made


def _parameters(declared: type) -> Iterator[inspect.Parameter]:
    """The parameters of a function that takes a dataclass: its fields, those without a default first."""
    required = {one.name: is_required(one) for one in fields_of(declared)}
    by_name = {
        one.name: not (required[one.name] or one.metadata.get("positional")) for one in fields_of(declared)
    }
    for one in sorted(fields_of(declared), key=lambda one: (not required[one.name], by_name[one.name])):
        kind = (
            inspect.Parameter.KEYWORD_ONLY if by_name[one.name] else inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        default = inspect.Parameter.empty if required[one.name] else one.default
        yield inspect.Parameter(one.name, kind, default=default, annotation=one.type)


def _with_arguments(text: str, declared: type) -> str:
    """A docstring with the descriptions of the fields as its section of arguments."""
    about = sorted(fields_of(declared), key=lambda one: not is_required(one))
    entries = (f"{one.name}: {one.metadata['help']}" for one in about)
    lines = "".join(
        fill(text, 105, initial_indent=" " * 4, subsequent_indent=" " * 8) + "\n" for text in entries
    )
    head, raises, rest = inspect.cleandoc(text).partition("\nRaises:")
    return f"{head.rstrip()}\n\nArgs:\n{lines}{raises}{rest}"


@cache
def words_of(declared: type, user: str) -> tuple[inspect.Signature, dict[str, tuple[Any, ...]]]:
    """The words of a function that takes a dataclass, see `adapter_probe.python_words.in_python`."""
    types = {name: types_of(wanted) for name, wanted in annotations_of(declared, user).items()}
    return inspect.Signature(list(_parameters(declared))), _comparables(types)


class Plannable(Protocol[P, StudyT, PlanT]):
    """A function that runs a study, with `plan`, which takes the same arguments and only estimates it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> StudyT:
        """Run the study."""

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> PlanT:
        """Estimate the cost of the study; nothing is written."""


def planned_by(
    plan: Callable[P, PlanT],
) -> Callable[[Callable[P, StudyT]], Plannable[P, StudyT, PlanT]]:
    """A study's function with the function that plans it as its attribute `plan`."""

    def made(function: Callable[P, StudyT]) -> Plannable[P, StudyT, PlanT]:
        function.plan = plan  # type: ignore[attr-defined]
        plan.__name__ = "plan"
        return cast("Plannable[P, StudyT, PlanT]", function)

    return made


@cache
def _annotated(function: Callable[..., object]) -> tuple[inspect.Signature, dict[str, tuple[Any, ...]]]:
    """The signature of a function, and the allowed types of its arguments, where they can be compared."""
    names = Names({**vars(builtins), **vars(sys.modules[function.__module__])})
    signature = inspect.signature(function)
    found = {}
    for name, parameter in signature.parameters.items():
        if parameter.annotation is not inspect.Parameter.empty:
            found[name] = types_of(evaluated(parameter.annotation, names))
    return signature, _comparables(found)


def _comparables(types: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    return {name: some for name, some in types.items() if all(map(_comparable, some))}


def _of_many(wanted: Any) -> bool:
    """Whether it is a sequence of other types."""
    return get_origin(wanted) is Sequence


def _comparable(wanted: Any) -> bool:
    if _of_many(wanted):
        return all(map(_comparable, types_of(get_args(wanted)[0])))
    origin = get_origin(wanted)  # on Python 3.10, `dict[str, int]` is an instance of `type`, too
    return origin in (Literal, Callable, Mapping) or (
        origin is None and isinstance(wanted, type) and wanted not in (Any, object)
    )


def _fitting(name: str, value: Any, types: tuple[Any, ...]) -> Any:
    if (
        isinstance(value, str)
        and value.startswith("~/")
        and any(Path in types_of(wanted) for wanted in types)
    ):
        value = str(Path(value).expanduser())  # as a shell does for the commands
    if (fitted := _fitted_one(value, types)) is not _UNKNOWN:
        if isinstance(value, str) and value[:1] in _CONTENT and any(get_origin(k) is Mapping for k in types):
            return fitted  # the content in place of a file
        named = any(Path in types_of(get_args(wanted)[0]) for wanted in types if _of_many(wanted))
        if named or Path in types:
            several = fitted if named and isinstance(fitted, (tuple, list)) else (fitted,)
            for path in several:
                refuse_no_path(name, path)
        return fitted
    allowed = _alternatives(_described(wanted, types) for wanted in types)
    raise AdapterProbeError(must_be(name, allowed, value))


def refuse_no_path(name: str, value: Any) -> None:
    """Refuse a name that no file of this system can have, or that cannot be printed; other values pass."""
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


def _fitted_one(value: Any, types: Sequence[Any]) -> Any:
    return next((one for wanted in types if (one := _fitted(value, wanted)) is not _UNKNOWN), _UNKNOWN)


def _fitted(value: Any, wanted: Any) -> Any:
    """The value as this type; `_UNKNOWN` if it is of another one."""
    if _of_many(wanted):
        return _fitted_list(value, types_of(get_args(wanted)[0]))
    truth = isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")  # NumPy's, by its two names
    if wanted is bool:
        return bool(value) if truth or (isinstance(value, int) and value in (0, 1)) else _UNKNOWN
    if wanted is int:
        return int(value) if isinstance(value, numbers.Integral) and not truth else _UNKNOWN
    if wanted is float:
        try:  # 1 is recorded as a shell's 1.0
            return float(value) if isinstance(value, numbers.Real) and not truth else _UNKNOWN
        except OverflowError:
            return _UNKNOWN
    if get_origin(wanted) is Mapping:
        return value if isinstance(value, Mapping) else _UNKNOWN
    if get_origin(wanted) is Callable:
        return value if callable(value) else _UNKNOWN
    if get_origin(wanted) is Literal:
        return value if isinstance(value, str) else _UNKNOWN  # the function refuses other strings
    if wanted in (str, Path) and isinstance(value, PathLike):
        value = fspath(value)  # of a path of bytes, bytes, which are of neither type
        wanted = str
    return value if isinstance(value, wanted) else _UNKNOWN


def _fitted_list(value: Any, types: Sequence[Any]) -> Any:
    """Several values, or one in place of several, as a tuple."""
    whole = _fitted_one(value, types)
    if whole is not _UNKNOWN:
        return (whole,)
    if isinstance(value, str) or not isinstance(value, Iterable):
        return _UNKNOWN
    try:
        items = tuple(_fitted_one(one, types) for one in value)
    except TypeError:  # an array without axes, which says that it can be iterated
        return _UNKNOWN
    return _UNKNOWN if any(one is _UNKNOWN for one in items) else items


def _described(wanted: Any, types: Sequence[Any]) -> str:
    """One of several types in words."""
    if _of_many(wanted):
        items = types_of(get_args(wanted)[0])
        if len(items) > 1 and set(items) < set(types):
            return "a list of these"
        return "a list of " + _alternatives(f"{_word(one)}s".replace("ys", "ies") for one in items)
    if get_origin(wanted) is Literal:
        return "one of " + ", ".join(map(repr, get_args(wanted)))
    if wanted is bool:
        return "True or False"
    if wanted is NoneType:
        return "None"
    return f"{'an' if _word(wanted)[0] in 'AEIO' else 'a'} {_word(wanted)}"


def _alternatives(words: Iterable[str]) -> str:
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)}{',' if len(others) > 1 else ''} or {last}" if others else last


def _word(wanted: Any) -> str:
    wanted = get_origin(wanted) or wanted
    return _WORDS.get(wanted, wanted.__name__).replace("DrawnStudy", "study")  # its base class is not public


def as_tuple(value: Any) -> tuple[Any, ...]:
    """One name, path or number, or a sequence of them, as a tuple."""
    return (value,) if isinstance(value, (str, Path)) or not hasattr(value, "__iter__") else tuple(value)
