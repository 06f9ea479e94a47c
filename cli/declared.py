"""The options of a command from declared settings, and their values as settings again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass
from functools import cache, cached_property
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import typer

from adapter_probe.jobs.resources import SlurmOptions
from adapter_probe.settings import (
    annotations_of,
    choices_of,
    declared_with,
    fields_of,
    flag_of,
    is_list,
    is_required,
    types_of,
)

from . import options

_SHELL = (Path, str, int, float, bool)
_METAVARS = {int: "N", float: "NUMBER", str: "TEXT", Path: "FILE"}


@dataclass(frozen=True)
class _Option:
    """One option or argument of a command.

    Attributes:
        parameter: the option as a parameter of the command's function, from which Typer makes it.
        read: the setting's value from what the shell gave.
    """

    parameter: inspect.Parameter
    read: Callable[[Any], Any] = lambda value: value


class Declared:
    """The options of a command that the fields of a dataclass declare; see `adapter_probe.settings`."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @property
    def options(self) -> list[inspect.Parameter]:
        """The options as parameters of the command's function."""
        shown = [option.parameter for option in self._own.values()]
        return [*shown, *(option.parameter for option in _slurm().values())] if self._takes_cluster else shown

    def settings(self, given: dict[str, Any]) -> Any:
        """The settings that a command line gives; its options are taken out of `given`.

        Raises:
            AdapterProbeError: an option is not allowed, or names a place where nothing is.
        """
        chosen = {}
        for name, option in self._own.items():
            value = given.pop(name)
            if value != option.parameter.default:  # of what is not given, the declaration has the default
                chosen[name] = option.read(value)
        if self._takes_cluster:
            chosen["cluster"] = _cluster({name: given.pop(name) for name in _slurm()})
        for one in fields_of(self._kind):
            if one.name in chosen and (place := one.metadata.get("place")):
                options.refuse_missing(place, chosen[one.name])
        return self._kind(**chosen)

    @property
    def _takes_cluster(self) -> bool:
        return any(one.name == "cluster" for one in fields_of(self._kind))

    @cached_property
    def _own(self) -> dict[str, _Option]:
        kinds = annotations_of(self._kind)
        declared = sorted(fields_of(self._kind), key=lambda one: not is_required(one))
        made = {
            one.name: _option(one, kinds[one.name], declared_with(self._kind, one.name, "panel"))
            for one in declared
        }
        return {name: option for name, option in made.items() if option is not None}


def _option(one: Field[Any], annotation: Any, panel: str) -> _Option | None:
    """The option that a field declares; None where a shell cannot say its value."""
    about = one.metadata
    kind = about.get("shell") or _in_shell(annotation)
    if kind is NoneType or kind is None:
        return None
    default = inspect.Parameter.empty if is_required(one) else one.default
    shown: bool | str = True
    read: Callable[[Any], Any] = lambda value: value  # noqa: E731
    metavar = about.get("metavar") or _METAVARS.get(kind)
    if get_origin(kind) is list:
        metavar, read = about.get("metavar") or "FILE", tuple
        default = default if is_required(one) else None
    elif kind in (options.numbers, options.whole_numbers, options.texts):
        parse, metavar = kind, about.get("metavar") or "LIST"
        read = lambda texts: parse(",".join(texts), flag_of(one.name))  # noqa: E731
        written = (one if isinstance(one, str) else f"{one:g}" for one in default or ())
        shown = about.get("text") or ",".join(written) or True
        # What is given counts as given, also where it equals the default; given twice, both count.
        default, kind = None, list[str]
    elif kind is options.pairs:
        read = lambda texts: options.pairs(texts, flag_of(one.name))  # noqa: E731
        default, kind = None, list[str]
    elif default is None or default == "":
        default, kind = None, kind | None
    repeatable = get_origin(kind) is list and metavar != "LIST" and not about.get("argument")
    told = about["help"].partition(" In Python")[0].replace("`", "")  # without what only Python can say
    told = told[:1].upper() + told[1:] + (" Repeatable." if repeatable else "")
    words = {"help": told, "metavar": metavar}
    if about.get("argument"):
        made: Any = typer.Argument(**words)
    else:
        named = metavar or (kind is bool and not default)  # typer 0.27 would name it by its metavar
        flags = about.get("flags") or ([flag_of(one.name)] if named else [])
        made = typer.Option(
            *flags, **words, show_default=shown, rich_help_panel=about.get("panel") or panel or None
        )
    return _Option(_parameter(one.name, default, kind, made), read)


def _parameter(name: str, default: Any, kind: Any, made: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made]
    )


def _in_shell(annotation: Any) -> Any:
    """The type of a shell's value for an annotation: a list of numbers is one text."""
    types = types_of(annotation)
    for wanted in types:
        if is_list(wanted):
            return {int: options.whole_numbers, float: options.numbers}.get(
                get_args(wanted)[0], options.texts
            )
        if get_origin(wanted) is Mapping:
            return options.pairs
        if any(choices_of(wanted)):
            return wanted
    return next((wanted for wanted in _SHELL if wanted in types), None)


@cache
def _slurm() -> dict[str, _Option]:
    """The options that describe a cluster: the choice of one, and those of `SlurmOptions`."""
    flag = typer.Option(
        "--slurm", rich_help_panel=SlurmOptions.panel,
        help="Submit the work to a SLURM cluster as a job array; --device is then that of each node.",
    )  # fmt: skip
    return {"slurm": _Option(_parameter("slurm", False, bool, flag)), **Declared(SlurmOptions)._own}


def _cluster(given: dict[str, Any]) -> SlurmOptions | None:
    """The cluster that the options describe; None without ``--slurm``."""
    known = _slurm()
    chosen = {k: known[k].read(v) for k, v in given.items() if v != known[k].parameter.default}
    if chosen.pop("slurm", False):
        return SlurmOptions(**chosen)
    if chosen:
        raise SlurmOptions.error(f"{flag_of(next(iter(chosen)))} applies only to SLURM jobs; add --slurm")
    return None
