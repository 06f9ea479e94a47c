"""Settings: frozen dataclasses whose fields are the one declaration of what a user can choose.

From a field follow the keyword of the public function and the check of its value, the option of the command
with its help, the key of a suite's file, the place in an identity, and how it reads in a folder's name and in
a figure's note. Imports nothing heavy: ``adapter-probe --help`` reads every declaration.
"""

from __future__ import annotations

import builtins
import hashlib
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import adapter_probe

from .errors import AdapterProbeError, ResultsError, must_be
from .records import to_record

SettingsT = TypeVar("SettingsT", bound="Settings")
SiteChoice = Literal["both", "attention", "ffn"]
NormChoice = Literal["trained", "pretrained"]
"""LayerNorm weights after a switched-off site: trained or pretrained."""
OutsideChoice = Literal["finetuned", "base"]
"""Whose tensors a fine-tuned model has outside its layers."""
Precision = Literal["float32", "float64", "bfloat16", "float16", "mixed"]
Dtype = Literal["float32", "bfloat16"]
Axis = Literal["parameters", "memory", "seconds", "bytes"]
"""What a trade-off's score is drawn against."""
Split = Literal["train", "validation", "test"]
Style = Literal["paper", "icml", "neurips", "acl", "aaai", "jmlr", "tmlr", "talk"]
Column = Literal["half", "full"]
Basis = Literal["estimate", "interval"]
"""What is held against a tolerance: the drop itself, or its lower 95% confidence bound."""
KAIMING = "kaiming"
"""PEFT's default initialisation of a LoRA: A uniform after He et al. 2015, B zero."""
_LONGEST_SLUG = 64
_IN_NAMES = str.maketrans(
    {",": "+", "*": "x", "/": "_", "\\": "_", ":": "=", " ": None, '"': None, "{": None, "}": None}
)
"""What stands in a folder's name for signs that shells and file systems give a meaning."""
FIGURE_FORMATS = ("pdf", "svg", "png", "pgf")
DEFAULT_FORMATS = ("pdf", "svg", "png")


def setting(
    default: Any,
    help: str,
    *,
    panel: str = "",
    metavar: str = "",
    shell: Any = None,
    text: str = "",
    least: int | None = None,
    slug: str = "",
    note: str = "",
    flags: Sequence[str] = (),
    place: str = "",
    positional: bool = False,
) -> Any:
    """A field of a dataclass with a default, and everything that follows from it.

    Args:
        default: the default value.
        help: what it is, for the documentation and the command's help.
        panel: heading of the command's help that the option stands under; by default the dataclass's.
        metavar: name of the value in the command's help; by default that of its type.
        shell: type in a shell, where the annotation has none; `Path` for files, `NoneType` for no option.
        text: the default as a shell shows it, where it is not the value itself.
        least: the least allowed number.
        slug: how a value other than the default reads in a folder's name, with ``{}`` for the value.
        note: how it reads in a figure's note.
        flags: names of the option, where they are not that of the keyword.
        place: as of `required`.
        positional: whether the function also takes it by position.
    """
    about = {"help": help, "panel": panel, "metavar": metavar, "shell": shell, "text": text, "least": least}
    named = {"flags": tuple(flags), "place": place, "positional": positional}
    return field(default=default, metadata={**about, **named, "slug": slug, "note": note})


def required(
    help: str,
    *,
    panel: str = "",
    metavar: str = "",
    shell: Any = None,
    argument: bool = False,
    place: str = "",
) -> dict[str, Any]:
    """Metadata of a field without a default; see `setting`.

    Args:
        help: what it is.
        panel: heading of the command's help that the option stands under; by default the dataclass's.
        metavar: name of the value in the command's help.
        shell: type in a shell, where the annotation has none.
        argument: whether the command takes it as an argument instead of as an option.
        place: ``checkpoint``, ``checkpoint or name`` (on the hub), ``results`` or ``file`` for a path that
            has to exist, which the command checks before it loads anything.
    """
    about = {"help": help, "panel": panel, "metavar": metavar, "shell": shell}
    return {**about, "argument": argument, "place": place}


class Settings:
    """Base class of dataclasses that declare settings.

    Attributes:
        panel: heading of the command's help that the options stand under.
        error: the error for a value that is not allowed.
        recorded_always: the fields of the first version, which every record names. A later field is left out
            of records and identities at its default, so that adding one changes no hash and no older folder.
    """

    panel: ClassVar[str] = ""
    error: ClassVar[type[AdapterProbeError]] = AdapterProbeError
    recorded_always: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        """Compare the values with the declared ones.

        Raises:
            AdapterProbeError: one is not allowed.
        """
        types = annotations_of(type(self))
        for one in fields(self):  # type: ignore[arg-type]
            value, flag = getattr(self, one.name), flag_of(one.name)
            error: type[AdapterProbeError] = declared_with(type(self), one.name, "error")
            choices = [choice for wanted in types_of(types[one.name]) for choice in choices_of(wanted)]
            if choices and isinstance(value, str) and value not in choices:
                raise error(must_be(flag, f"one of {', '.join(choices)}", value))
            least = one.metadata.get("least")
            for number in value if isinstance(value, (list, tuple)) else (value,):
                if least is not None and number is not None and number < least:
                    raise error(must_be(flag, f"at least {least}", number))

    @classmethod
    def of(cls: type[SettingsT], given: object, **others: Any) -> SettingsT:
        """The settings among the attributes of another object, and other values for some of the fields."""
        names = [f.name for f in fields_of(cls) if f.name not in others and hasattr(given, f.name)]
        return cls(**{name: getattr(given, name) for name in names}, **others)

    def to_json(self) -> dict[str, Any]:
        """The settings as plain JSON: part of an identity, and of what a study records."""
        later = {f.name: f.default for f in fields(self) if f.name not in self.recorded_always}  # type: ignore[arg-type]
        record = to_record(self)
        return {k: v for k, v in record.items() if k not in later or later[k] != getattr(self, k)}

    def slugs(self) -> dict[str, str]:
        """The values other than defaults as parts of a folder's name, by field."""
        texts = texts_of(type(self), vars(self), "slug").items()
        return {k: _in_name(text.replace("..", "to").translate(_IN_NAMES)) for k, text in texts}


def _in_name(text: str) -> str:
    """A value in a folder's name, of bounded length."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text if len(text) <= _LONGEST_SLUG else f"{text[: _LONGEST_SLUG - 9]}-{digest[:8]}"


def texts_of(kind: type[Settings], values: Mapping[str, Any], how: str) -> dict[str, str]:
    """The values other than defaults as text, by field.

    Args:
        kind: the settings that declare them.
        values: the values by name; those that are missing are at their default.
        how: ``slug`` or ``note``.
    """
    declared = [f for f in fields(kind) if f.metadata.get(how)]  # type: ignore[arg-type]
    chosen = [(f, values[f.name]) for f in declared if values.get(f.name, f.default) != f.default]
    shown = [(f, f"{value:g}" if isinstance(value, float) else value) for f, value in chosen]
    return {f.name: f.metadata[how].format(value) for f, value in shown}


def fields_of(kind: type) -> list[Field[Any]]:
    """The fields of a dataclass that a user may set: not those that it takes over with a fixed value."""
    return [one for one in fields(kind) if one.init]


def fixed(value: Any) -> Any:
    """A field that a dataclass has from another one, and that nobody sets in this one."""
    return field(default=value, init=False, metadata={"help": ""})


def flag_of(name: str) -> str:
    """The command's option of a keyword."""
    return f"--{name.replace('_', '-')}"


def as_points(name: str, value: Any, most: float = math.inf) -> float:
    """A tolerance in points as a float, which NumPy compares whatever its size.

    Args:
        value: a number of at least 0.

    Raises:
        ResultsError: it is none.
    """
    try:
        points = float(value)
    except (TypeError, ValueError, OverflowError):
        points = math.nan
    if not 0 <= points <= most:
        raise ResultsError(
            must_be(name, "0 or more points" if most == math.inf else f"from 0 to {most:g} points", value)
        )
    return points


def declared_with(kind: type, name: str, what: str) -> Any:
    """The panel or the error of the dataclass that declares a field."""
    owner = next(one for one in kind.__mro__ if name in vars(one).get("__annotations__", {}))
    return getattr(owner, what)


def is_required(one: Field[Any]) -> bool:
    """Whether a field has no default."""
    return one.default is MISSING and one.default_factory is MISSING


@cache
def annotations_of(kind: type, user: str = "") -> dict[str, Any]:
    """The types of a dataclass's fields; names that are imported for type checkers only are `Any`.

    Args:
        user: name of a module that may have imported them. Without it, nothing is loaded to resolve a name.
    """
    found: dict[str, Any] = {}
    imported = vars(sys.modules[user]) if user else {}
    for owner in reversed(kind.__mro__):
        known = {**vars(builtins), **imported, **vars(sys.modules[owner.__module__])}
        names = Names(known) if user else defaultdict(lambda: Any, known)
        for name, annotation in vars(owner).get("__annotations__", {}).items():
            found[name] = evaluated(annotation, names)
    return found


def evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    """The type that an annotation names; `Any` where it is of a module for type checkers only."""
    try:
        while isinstance(annotation, str):
            annotation = eval(annotation, {}, names)
    except (AttributeError, SyntaxError, TypeError):
        return Any
    return annotation


class Names(dict[str, Any]):
    """The names in annotations; some are imported for type checkers only."""

    def __missing__(self, name: str) -> Any:
        return getattr(adapter_probe, name) if name in adapter_probe.__all__ else Any


def types_of(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a type."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def choices_of(kind: Any) -> Iterator[str]:
    """The texts that a type allows, if it lists them."""
    return iter(get_args(kind) if get_origin(kind) is Literal else ())


def is_list(kind: Any) -> bool:
    """Whether a type is that of several values."""
    return get_origin(kind) in (Sequence, tuple)


# What several functions take, each declared once.


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OnBase(Settings):
    """Where a checkpoint's base is."""

    panel = "Data"

    base: str | Path | None = setting(
        None, "base model, if it differs from the recorded one: a folder or a Hugging Face Hub name.",
        metavar="BASE", shell=str,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OneOfSeveral(Settings):
    """Which adapter of a folder with several."""

    panel = "Data"

    adapter: str | None = setting(
        None, "adapter to use where the checkpoint holds several: its subfolder, such as ref or task/lora. "
        "Of a name on the Hub, only this subfolder is downloaded.", metavar="NAME",
        flags=("--adapter", "--subfolder"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Dequantised(Settings):
    """In which precision a quantised base is loaded."""

    panel = "Data"

    dequantise: bool = setting(
        False, "dequantise the weights of a base that is stored quantised, while loading them; these are the "
        "weights that a QLoRA is trained against.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Labelled(Settings):
    """How the outputs of a head are named in the data."""

    panel = "Data"

    label_names: Sequence[str] = setting(
        (), "name of an output of the head, as the labels are written in the data, in the outputs' order; "
        "for a checkpoint that does not name them.", metavar="NAME", shell=list[str],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Encoded(Settings):
    """How files of data are read."""

    panel = "Data"

    encoding: str = setting("utf-8", "text encoding of the data files, such as latin-1.", metavar="NAME")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Columned(Settings):
    """Which columns of files are meant."""

    panel = "Data"

    columns: str | Sequence[str] = setting(
        "", "the columns of the data that are meant, separated by commas; all others are left out. "
        "NEW=NAME reads the column NAME as NEW: text=review,label=stars, or prompt=instruction.",
        metavar="NAME,NEW=NAME", shell=str,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sampled(Settings):
    """How many examples are evaluated."""

    panel = "Data"

    max_examples: int | None = setting(
        None, "evaluate on a fixed random subset of this many examples.", least=1, slug="n{}"
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OnDevice(Settings):
    """The device that computes, with how many threads, and whether it shows how far it is."""

    panel = "Running"

    device: str = setting("auto", "compute device: auto, cpu, cuda, cuda:1, mps, xpu, ...", metavar="DEVICE")
    threads: int = setting(0, "number of CPU threads, for the whole process; 0 uses PyTorch's default.")
    progress: bool = setting(True, "whether to show a progress bar.", shell=NoneType)
