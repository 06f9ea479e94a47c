"""The reference of what is declared as settings: arguments and fields as they are in the running package."""

from __future__ import annotations

import inspect
from dataclasses import fields
from importlib import import_module
from typing import Any

import griffe


class Declared(griffe.Extension):
    """Gives such functions the signature and docstring that they have at run time, and such fields theirs."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """A function that takes a dataclass has the dataclass's fields as its parameters."""
        if not any(str(one.value).startswith("taking(") for one in func.decorators):
            return
        found = _running(func)
        parameters = inspect.signature(found).parameters.values()
        func.parameters = griffe.Parameters(*map(_parameter, parameters))
        func.docstring = griffe.Docstring(found.__doc__ or "", parent=func)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """A declared field has its description as docstring, and its default as value."""
        if not any(str(base) == "Settings" for base in cls.bases):
            return
        for one in fields(_running(cls)):
            member = cls.members.get(one.name)
            if isinstance(member, griffe.Attribute) and "help" in one.metadata:
                member.docstring = griffe.Docstring(_sentence(one.metadata["help"]), parent=member)
                member.value = repr(one.default) if one.metadata.get("text") is not None else None


def _running(member: griffe.Object) -> Any:
    return getattr(import_module(member.module.path), member.name)


def _parameter(one: inspect.Parameter) -> griffe.Parameter:
    kinds = {
        inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
        inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    }
    default = None if one.default is one.empty else repr(one.default)
    return griffe.Parameter(one.name, annotation=str(one.annotation), kind=kinds[one.kind], default=default)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
