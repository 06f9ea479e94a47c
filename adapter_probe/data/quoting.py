"""Formatting of values in error messages: short and on one line."""

from __future__ import annotations

_LONGEST_SHOWN = 60
_MOST_SHOWN = 12


def shown(value: object) -> str:
    """A value on one line, shortened: for error messages."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def listed(values: object) -> str:
    """Several values on one line, the first dozen: for error messages."""
    values = list(values)
    more = f", … ({len(values)} in all)" if len(values) > _MOST_SHOWN else ""
    return ", ".join(map(shown, values[:_MOST_SHOWN])) + more
