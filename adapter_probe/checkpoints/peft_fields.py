"""PEFT's `adapter_config.json` as PEFT itself reads it, with everything refused that it would pass over."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adapter_probe.errors import CheckpointError, one_line

from .adapter_folder import CHANGE_THE_BASE, plain_lora
from .files import CONFIG, MODULE_NAME, Unsupported, quote, refuse_unknown, unsupported
from .model_class import HEADS

if typing.TYPE_CHECKING:
    from peft import PeftConfig


# Types without a switch in the layers, and why.
UNSWITCHED = {
    **dict.fromkeys(
        ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "CPT"),
        "trained tokens before the text, which belong to no layer",
    ),
    **dict.fromkeys(
        ("PREFIX_TUNING", "CARTRIDGE"), "trained keys and values, which have no switch in the layers"
    ),
    "ADAPTION_PROMPT": "trained keys and values, which have no switch in the layers",
    "TRAINABLE_TOKENS": "trained tokens, which are outside the layers",
    "XLORA": "a mixture of other checkpoints",
    "POLY": "a mixture whose weights depend on a task id",
}
# Settings that read another checkpoint, import a module by name, or need arguments that a text does not give.
REFUSED_SETTINGS = {
    "megatron_config": "Megatron",
    "arrow_config": "Arrow routing, which reads other checkpoints",
    "alora_invocation_tokens": "activated LoRA, which is on after a token sequence only",
    "enable_lora": "merged LoRA of PEFT before 0.3",
}
_NEEDED = {"LORA": ("r", "lora_alpha")}  # which PEFT would make up
# Of other tools and versions, and without effect on a number.
_NO_EFFECT = ("unsloth_fixed", "merge_weights", "runtime_config", "megatron_core", "peft_version")
# Fields with patterns of module names.
_PATTERNS = (
    "target_modules",
    "exclude_modules",
    "layers_pattern",
    "feedforward_modules",
    "target_parameters",
)
_TRIAL_SECONDS = 3
_MATCHER = """
import json, re, sys
pattern, names, seconds = json.load(sys.stdin)
try:
    from resource import RLIMIT_CPU, setrlimit
    setrlimit(RLIMIT_CPU, (seconds, seconds))
except ImportError:
    pass
for name in names:
    re.match(pattern, name)
"""


def refuse_unswitched(folder: Path, document: Mapping[str, Any]) -> None:
    """Refuse PEFT types that have nothing to switch off in the layers, by name (without torch)."""
    kind = document.get("peft_type")
    if not isinstance(kind, str):
        raise CheckpointError(f"checkpoint {folder}: peft_type is {quote(kind)}, expected a string")
    if why := UNSWITCHED.get(kind):
        raise unsupported(folder, f"the PEFT type {quote(kind)}: {why}")
    task = document.get("task_type")
    if task is not None and (not isinstance(task, str) or task not in HEADS):
        raise CheckpointError(
            f"checkpoint {folder} has the task type {quote(task)}; supported are {', '.join(HEADS)}"
        )
    for name, what in REFUSED_SETTINGS.items():
        if document.get(name):
            raise unsupported(folder, f"{what} ({name})")
    for name in _NEEDED.get(kind, ()):
        if document.get(name) is None:
            raise CheckpointError(f"{folder / CONFIG} lacks {name}")
    start = document.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGE_THE_BASE):
        raise Unsupported(
            f"checkpoint {folder} has init_lora_weights {quote(start)}, which takes a part out of the base's "
            f"weights and is not supported{plain_lora(folder, start.lower())}"
        )


def read_fields(path: Path, document: Mapping[str, Any]) -> PeftConfig:
    """The configuration as an object of PEFT's class for it."""
    config = read_config(path, document)
    for name in getattr(config, "modules_to_save", None) or ():  # which PEFT puts into patterns unescaped
        if not isinstance(name, str) or not MODULE_NAME.fullmatch(name):
            raise CheckpointError(f"{path}: modules_to_save holds {quote(name)}, expected names of modules")
    config.inference_mode = True
    return config


def read_config(path: Path | str, document: Mapping[str, Any]) -> PeftConfig:
    """A configuration of any type, as an object of PEFT's class for it.

    Args:
        path: the file, or what else a message should name.

    Raises:
        CheckpointError: a type or a field that this PEFT does not know, or a value that it refuses.
    """
    import peft
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    version = f"PEFT {peft.__version__}"
    kind = document.get("peft_type")
    cls = PEFT_TYPE_TO_CONFIG_MAPPING.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise CheckpointError(
            f"{path}: peft_type is {quote(kind)}, which {version} does not know; another version of PEFT may"
        )
    known = {field.name for field in dataclasses.fields(cls)}
    if document.get("peft_version"):
        refuse_unknown(path, document, (*known, *_NO_EFFECT), version)
    hints = typing.get_type_hints(cls)
    for name, value in document.items():  # which PEFT would take for something else, as a string for true
        try:
            json.dumps(value, allow_nan=False, default=str, skipkeys=True)
        except ValueError:
            raise CheckpointError(f"{path}: {name} is {quote(value)}, expected a finite number") from None
        if name in hints and value is not None and not _fits(value, hints[name]):
            raise CheckpointError(f"{path}: {name} is {quote(value)}, expected {_words(hints[name])}")
    values = {name: value for name, value in document.items() if name in known and name not in _NO_EFFECT}
    try:
        config: PeftConfig = cls(**values)
    except Exception as error:  # whatever the class checks
        raise CheckpointError(f"{path}: {version} refuses it: {one_line(error)}") from error
    return config


def note_on_fields(document: Mapping[str, Any], config: PeftConfig) -> str:
    """What to say of set fields that are none of PEFT's; empty if there are none.

    PEFT 0.18 and later record their version, and a field that such a version may know is refused. Without a
    version, what this PEFT does not know was written by hand or by another program, and PEFT ignores it.
    """
    known = {field.name for field in dataclasses.fields(config)} | set(_NO_EFFECT)
    foreign = [name for name, value in document.items() if name not in known and value]
    if not foreign:
        return ""
    fields = "field" if len(foreign) == 1 else "fields"
    return f"PEFT ignores the {fields} {', '.join(foreign)} of the configuration, which it does not know."


def _fits(value: object, hint: Any) -> bool:
    """Whether a JSON value fits an annotation; annotations are loose, so a number fits any number."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return isinstance(value, str | bool)  # the class checks which, and some allow more than is written
    if origin in (list, set):
        return isinstance(value, list) and all(_fits(one, arguments[0]) for one in value)
    if origin is tuple:
        return isinstance(value, list)
    if origin is dict or hint is dict or dataclasses.is_dataclass(hint):
        held = value.values() if isinstance(value, dict) and len(arguments) == 2 else ()
        return isinstance(value, dict) and all(_fits(one, arguments[1]) for one in held)
    if hint in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is bool:
        return isinstance(value, bool)
    if isinstance(hint, type) and issubclass(hint, str):
        return isinstance(value, str)
    return True


def _words(hint: Any) -> str:
    arguments = (
        typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    )
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", dict: "an object"}
    said = [
        names.get(one, "a list" if typing.get_origin(one) in (list, tuple, set) else "") for one in arguments
    ]
    return " or ".join(dict.fromkeys(word for word in said if word)) or "another value"


def refuse_slow_patterns(path: Path, document: Mapping[str, Any], modules: Iterable[str]) -> None:
    """Refuse a configuration of PEFT whose patterns take long on names of modules, where PEFT would hang.

    A pattern may take exponential time, or time that grows with a high power of a name's length. Only what is
    repeated twice, or a repeated group, can take long. Such a pattern is tried in a process of its own, which
    can be stopped, as PEFT matches it: a text has to match the whole name, and what stands in a list or
    chooses ranks the end of it.
    """
    given = [document.get(name) or () for name in _PATTERNS]
    ends = [one for value in given if isinstance(value, list) for one in value if isinstance(one, str)]
    ends += [key for name in ("rank_pattern", "alpha_pattern") for key in document.get(name) or ()]
    tried = {text: rf"({text})\Z" for text in given if isinstance(text, str)}
    names = list(modules)
    for pattern, whole in {**tried, **{end: rf"(.*\.)?({end})$" for end in ends}}.items():
        try:
            re.compile(whole)
        except (re.error, OverflowError, RecursionError) as error:
            said = f"{path}: {quote(pattern)} is not a regular expression: {one_line(error)}"
            raise CheckpointError(said) from error
        several = len(re.findall(r"[*+{]", pattern)) > 1 or re.search(r"\)[*+{]", pattern)
        if several and _takes_long(whole, names):
            raise CheckpointError(f"{path}: matching {quote(pattern)} takes too long; simplify the pattern")


def _takes_long(pattern: str, names: list[str]) -> bool:
    # The system ends it after so many seconds of processor time: also where the processor is busy with other
    # things, and where this process was killed meanwhile. Windows can only wait.
    wait = _TRIAL_SECONDS if sys.platform == "win32" else None
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _MATCHER],
            input=json.dumps([pattern, names, _TRIAL_SECONDS]), text=True, timeout=wait, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    return done.returncode < 0
