"""Methods of PEFT as a user names them: ``lora:r=8``, JSON, a folder with a configuration, an object."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapter_probe.checkpoints.files import CONFIG, quote, read_json_file
from adapter_probe.checkpoints.peft_fields import REFUSED_SETTINGS, read_config
from adapter_probe.errors import AdapterProbeError, ModelError, must_be
from adapter_probe.models.methods import (
    LISTS,
    METHOD_NAMES,
    SIZES,
    STD_RANGE,
    VARIANTS_OF_LORA,
    Method,
    PeftConfig,
    PeftMethod,
    TopLayers,
    method_from_json,
)
from adapter_probe.settings import KAIMING

NAMED = tuple(name for name in METHOD_NAMES if name != PeftMethod.name)
"""The methods that are not PEFT's."""

_PREFIX = "peft:"
_HEADS = ("classifier", "score", "qa_outputs")  # which train anyway
# Of one training, or without effect on what is trained.
_NOT_OF_METHOD = (
    "base_model_name_or_path", "revision", "task_type", "inference_mode", "auto_mapping", "peft_version",
    "runtime_config",
)  # fmt: skip
# Types that need more than a loss: a schedule of their own, other checkpoints, an id with every text.
_UNTRAINABLE = {
    "ADALORA": "it changes its ranks during training by a schedule of its own",
    "XLORA": "it mixes other checkpoints",
    "POLY": "it needs the id of a task with every text",
    "MULTITASK_PROMPT_TUNING": "it needs the id of a task with every text",
    "CPT": "it changes its loss and its tokens by a schedule of its own",
    "CARTRIDGE": "it is trained by distillation",
}
_STD, _TOKENS, _INIT = "init_std", "num_virtual_tokens", "init_lora_weights"
INITS: dict[str, Any] = {KAIMING: True, **{n: n for n in ("gaussian", "orthogonal", "olora", "pissa")}}
"""PEFT's initialisations of a LoRA that need no data, by name, as its configuration has them."""
_FAST_PISSA = re.compile(r"pissa_niter_[1-9]\d?")


def method_of(given: object, flag: str = "--method", **fields: Any) -> Method:
    """A method by its name, with its fields, or of PEFT; see `peft_method`."""
    if isinstance(given, str) and given in NAMED:
        if given == TopLayers.name and not fields:
            raise ModelError(f"{flag} {given} does not say how many layers train; give --top-k")
        return method_from_json({"name": given, **fields})
    return peft_method(given, flag)


def peft_method(given: object, flag: str = "--method") -> PeftMethod:
    """The method that a text, a mapping, a folder or a configuration of PEFT describes.

    Args:
        given: ``lora:r=8,target_modules=query+value``, any type of PEFT in this way; ``peft:`` with JSON; a
            folder with adapter_config.json, whose weights are not read; a mapping; or a `PeftConfig`.

    Raises:
        ModelError: there is no such type or field, a value is not allowed, or the type cannot be trained.
    """
    place = f"{flag} {given if isinstance(given, str) else type(given).__name__}"
    try:
        document = _document(given, flag)
        std = document.pop(_STD, None)
        return PeftMethod(_canonical(place, document), _std(place, std, document))
    except ModelError:
        raise
    except AdapterProbeError as error:
        raise ModelError(str(error)) from error


def initialised(method: object, stds: Sequence[float], inits: Sequence[str] | None) -> list[PeftMethod]:
    """A LoRA with every standard deviation of its matrix A, and with every initialisation of PEFT by name.

    Args:
        inits: names of `INITS`, or ``pissa_niter_N``; None for all that fit the rank.

    Raises:
        ModelError: the method is no LoRA or has an initialisation of its own, or there is no such name.
    """
    own = peft_method(method)
    fields = own.fields
    if fields["peft_type"] != "LORA":
        raise ModelError(
            f"--method {own.text}: only adapters and LoRA have an initialisation to compare; give lora:r=8, "
            "say"
        )
    if own.init_std is not None or _INIT in fields:
        raise ModelError(
            f"--method {own.text}: the initialisation is what is compared; leave out init_std and {_INIT}"
        )
    if inits is None:  # PEFT's orthogonal one halves the rank
        inits = [name for name in INITS if name != "orthogonal" or own.size is None or own.size % 2 == 0]
    for name in inits:
        if name not in INITS and not _FAST_PISSA.fullmatch(str(name)):
            raise ModelError(must_be("--inits", f"of {', '.join(INITS)}, pissa_niter_4, ...", name))
    drawn = [peft_method({**fields, _STD: std}) for std in stds]
    return drawn + [
        own if name == KAIMING else peft_method({**fields, _INIT: INITS.get(name, name)}) for name in inits
    ]


def _document(given: object, flag: str) -> dict[str, Any]:
    if isinstance(given, PeftConfig):
        given = given.to_dict()
    if isinstance(given, Mapping):
        return dict(given)
    text = str(given)
    if text and (folder := Path(text).expanduser()).is_dir():
        return read_json_file(folder / CONFIG)
    if text.startswith(_PREFIX):
        try:
            document = json.loads(text.removeprefix(_PREFIX))
        except ValueError as error:
            raise ModelError(f"{flag} {text}: {text.removeprefix(_PREFIX)!r} is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise ModelError(f"{flag} {text}: expected an object of PEFT's settings")
        return document
    return _in_short(text, flag)


def _in_short(text: str, flag: str) -> dict[str, Any]:
    """The settings in ``type:name=value,name=value``."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    name, _, rest = text.partition(":")
    document: dict[str, Any] = {"peft_type": name.upper()}
    for field, variant in VARIANTS_OF_LORA.items():
        if name.lower() == variant:
            document = {"peft_type": "LORA", field: True}
    if text in NAMED:
        raise ModelError(f"{flag} {text} is not possible here; give a method of PEFT, such as lora:r=8")
    if document["peft_type"] not in PEFT_TYPE_TO_CONFIG_MAPPING:
        types = sorted(one.value.lower() for one in PEFT_TYPE_TO_CONFIG_MAPPING if one not in _UNTRAINABLE)
        raise ModelError(
            f"{flag} {text!r} is not one of {', '.join(NAMED)}, no folder with {CONFIG}, no type of PEFT: "
            f"{', '.join([*VARIANTS_OF_LORA.values(), *types])}"
        )
    for part in filter(None, rest.split(",")):
        field, equals, value = part.partition("=")
        if not equals or not field.strip():
            raise ModelError(f"{flag} {text}: {part!r} is not a setting; write it as name=value, such as r=8")
        document[field.strip()] = _value(field.strip(), value.strip())
    return document


def _value(field: str, text: str) -> Any:
    """A setting's value: JSON, or words; several of them are joined by +."""
    if "+" in text and field in LISTS:
        return [_value("", part) for part in text.split("+")]
    try:
        value = json.loads(text)
    except ValueError:
        value = {"True": True, "False": False, "None": None}.get(text, text)
    # PEFT takes one word for a pattern that the whole name of a module has to match.
    one = field in LISTS and isinstance(value, str | int) and re.fullmatch(r"[\w.]+", str(value))
    return [value] if one else value


def _canonical(place: str, document: dict[str, Any]) -> str:
    """The configuration with its size and without PEFT's defaults, as JSON; checked by PEFT's own class."""
    own = {name: plain(v) for name, v in document.items() if name not in _NOT_OF_METHOD and v is not None}
    kind = own.get("peft_type")
    if why := _UNTRAINABLE.get(str(kind)):
        raise ModelError(f"{place}: {kind} cannot be trained here, because {why}")
    for name, what in REFUSED_SETTINGS.items():
        if own.get(name):
            raise ModelError(f"{place}: {what} ({name}) cannot be trained here")
    if whole := [name for name in own.get("modules_to_save") or () if name not in _HEADS]:
        own["modules_to_save"] = whole
    else:
        own.pop("modules_to_save", None)
    config = read_config(place, own)
    defaults = {
        one.name: one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
        for one in dataclasses.fields(config)
    }
    if unknown := [name for name in own if name not in defaults]:
        raise ModelError(
            f"{place}: {kind} has no setting {unknown[0]!r}; it has {', '.join(sorted(defaults))}"
        )
    if _TOKENS in defaults and not own.get(_TOKENS):
        raise ModelError(f"{place}: {kind} needs the number of its trained tokens; add {_TOKENS}=20")
    size = next((name for name in SIZES if defaults.get(name) or own.get(name)), None)
    if size is not None:
        own.setdefault(size, defaults[size])
        if not isinstance(own[size], int) or own[size] < 1:
            raise ModelError(f"{place}: {size} is {quote(own[size])}, expected a whole number of at least 1")
    kept = ("peft_type", size)
    return json.dumps({k: v for k, v in own.items() if k in kept or v != defaults[k]}, sort_keys=True)


def plain(value: Any) -> Any:
    """A value of a configuration as JSON; PEFT keeps names in sets, so their order means nothing."""
    if isinstance(value, set | frozenset | tuple | list):
        items = [plain(one) for one in value]
        return sorted(items) if all(isinstance(one, str) for one in items) else items
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    return getattr(value, "value", value)


def _std(place: str, std: Any, document: Mapping[str, Any]) -> float | None:
    if std is None:
        return None
    if plain(document.get("peft_type")) != "LORA" or document.get("init_lora_weights", True) is not True:
        raise ModelError(f"{place}: {_STD} is of the matrix A of LoRA with PEFT's default initialisation")
    real = isinstance(std, int | float) and not isinstance(std, bool) and math.isfinite(std)
    if not real or not STD_RANGE[0] <= std <= STD_RANGE[1]:
        raise ModelError(
            f"{place}: {_STD} is {quote(std)}, expected a number from {STD_RANGE[0]:g} to {STD_RANGE[1]:g}"
        )
    return float(std)
