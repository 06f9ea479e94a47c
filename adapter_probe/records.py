"""JSON records as frozen dataclasses: written by field name, read with every name and type checked.

For a file that was edited, truncated or written by another version, the error names the field.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from adapter_probe.errors import AdapterProbeError, quote

RecordType = TypeVar("RecordType")
_WORDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}
_OPTION = re.compile(r"(?<!\S)--([a-z][a-z-]*)")


class RecordError(AdapterProbeError):
    """A record lacks a field, has an unknown one, or contains a value of the wrong type."""


def to_record(value: Any) -> dict[str, Any]:
    """A dataclass as a plain dict, tuples as lists; `from_record` reads it back."""
    return json.loads(json.dumps(dataclasses.asdict(value)))


def from_record(
    kind: type[RecordType],
    record: object,
    where: str = "",
    readers: Mapping[str, Callable[[object], Any]] | None = None,
) -> RecordType:
    """Read a dataclass from parsed JSON.

    Fields may be strings, whole numbers, numbers, booleans, None, dataclasses, tuples and dicts of these, and
    unions with None. A whole number is taken for a number; true is no number; NaN and infinities are refused.

    Args:
        where: dotted name of the record within its file, for the message.
        readers: functions, by name, for fields that are not described by their type alone.

    Raises:
        RecordError: the message gives the field's dotted name, its value and what is allowed.
        AdapterProbeError: raised by the dataclass itself.
    """
    if not isinstance(record, Mapping):
        raise _unfit(where, record, "an object")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(record.keys() - fields.keys()):
        raise RecordError(
            f"unknown field {_join(where, unknown[0])!r}; allowed fields are {', '.join(fields)}"
        )
    values = {}
    for name, field in fields.items():
        if name in record:
            own = (readers or {}).get(name)
            values[name] = own(record[name]) if own else _read(hints[name], record[name], _join(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"the field {_join(where, name)!r} is missing")
    try:
        return kind(**values)
    except AdapterProbeError as error:
        raise type(error)(by_field(str(error), kind, where)) from None


def by_field(message: str, kind: type, where: str) -> str:
    """A message with the dotted names of a dataclass's fields in place of the options of the same names."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return _OPTION.sub(
        lambda one: _join(where, name) if (name := one[1].replace("-", "_")) in names else one[0], message
    )


def _read(hint: Any, value: object, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        first = next(kind for kind in arguments if kind is not type(None))
        return _read(str if isinstance(value, str) and str in arguments else first, value, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise _unfit(where, value, f"one of {', '.join(map(str, arguments))}")
        return value
    if origin in (tuple, Sequence):
        if not isinstance(value, list):
            raise _unfit(where, value, "a list")
        return tuple(_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _unfit(where, value, "an object")
        return {name: _read(arguments[1], item, _join(where, name)) for name, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return from_record(typing.cast(type, hint), value, where)
    return value if hint is Any else _read_scalar(hint, value, where)


def _read_scalar(kind: type, value: object, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        raise _unfit(where, value, _WORDS.get(kind, kind.__name__))
    return value


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _unfit(where: str, value: object, allowed: str) -> RecordError:
    return RecordError(f"{where or 'the record'} is {quote(value)}, expected {allowed}")
