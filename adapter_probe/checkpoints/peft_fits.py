"""Whether a LoRA's configuration fits the names and shapes of its tensors, without the import of PEFT.

That import takes seconds. What is unexpected here is left to PEFT, which also says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import regex

from adapter_probe.errors import CheckpointError

from .files import MODULE_NAME, flag_field, number_field, text_list_field, whole_number_field
from .patterns import match_in_time

_FLAGS = ("use_rslora", "use_dora", "lora_bias", "inference_mode", "fan_in_fan_out", "ensure_weight_tying")
_LISTS = ("modules_to_save", "layers_to_transform", "layers_pattern", "exclude_modules", "target_modules")
# Of any value: what the tensors and the base show, and what has no effect on a number.
_OTHERS = (
    "peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "bias", "peft_version",
    "lora_dropout", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    "init_lora_weights", "runtime_config", "qalora_group_size", "merge_weights", "unsloth_fixed",
)  # fmt: skip
_OBJECTS = ("eva_config", "corda_config", "lora_ga_config", "rank_pattern", "alpha_pattern")
_ALL = ("all-linear", "dummy-target-modules")
Shapes = Mapping[str, tuple[int, ...]]


def fits_tensors(document: Mapping[str, Any], tuned: Mapping[str, Shapes], inside: Iterable[str]) -> bool:
    """Whether a LoRA's configuration names exactly the modules with tensors, with their ranks and parts.

    Args:
        document: the configuration; one of another type fits.
        tuned: the modules with tensors, by their names in the whole model, with the shapes of the tensors.
        inside: names of the base's modules in lists of layers, which may lack a prefix.

    Returns:
        False also where it cannot be told: a field that is unknown here, of another type than expected, or a
        pattern that takes long.
    """
    if document.get("peft_type") != "LORA":
        return True
    try:
        return _are_known(document) and LoraTargets(document).fits(tuned, inside)
    except (CheckpointError, TimeoutError, regex.error, OverflowError, RecursionError, AttributeError):
        return False


def _are_known(document: Mapping[str, Any]) -> bool:
    numbers = ("r", "lora_alpha", "rank_pattern", "alpha_pattern")
    known = {*numbers, *_FLAGS, *_LISTS, *_OTHERS}
    for name in _FLAGS:
        flag_field("", name, document.get(name))
    if document.get("bias", "none") not in ("none", "all", "lora_only"):
        return False
    if not all(isinstance(document.get(name), dict | None) for name in _OBJECTS):
        return False
    return all(name in known or value in (None, False, [], {}) for name, value in document.items())


class LoraTargets:
    """A LoRA's configuration, matched as PEFT matches it.

    Attributes:
        dora: whether it is weight-decomposed.
    """

    def __init__(self, document: Mapping[str, Any]):
        self._rank = whole_number_field("", "r", document.get("r"), 1)
        self._alpha = number_field("", "lora_alpha", document.get("lora_alpha"))
        self._rslora, self.dora = bool(document.get("use_rslora")), bool(document.get("use_dora"))
        self._ranks = dict(document.get("rank_pattern") or {})
        self._alphas = dict(document.get("alpha_pattern") or {})
        self._saved = text_list_field("", "modules_to_save", document.get("modules_to_save"))
        self._target = _names(document.get("target_modules"))
        self._exclude = _names(document.get("exclude_modules"))
        layers, pattern = document.get("layers_to_transform"), _names(document.get("layers_pattern"))
        self._layers = [layers] if isinstance(layers, int) else layers or None
        self._pattern = [pattern] if isinstance(pattern, str) else list(pattern or ())
        self._parts = {
            "lora_B.bias": bool(document.get("lora_bias")),
            "lora_magnitude_vector": self.dora,
        }

    def fits(self, tuned: Mapping[str, Shapes], inside: Iterable[str]) -> bool:
        """See `fits_tensors`."""
        if not all(map(MODULE_NAME.fullmatch, self._saved)):
            return False
        for pattern, alpha in self._alphas.items():
            number_field("", pattern, alpha)
        for pattern in {*self._ranks, *self._alphas}:  # of which opening says that PEFT ignores it
            if not any(match_in_time(rf"(.*\.)?({pattern})$", name) for name in tuned):
                return False
        for name, parts in tuned.items():
            shape = parts.get("lora_A.weight")  # None of an embedding and of bare parameters
            held = {part.removesuffix(".weight") for part in parts}
            if self.targets(name) is False or (shape and shape[0] != self._rank_of(name)):
                return False
            if shape and any((part in held) != wanted for part, wanted in self._parts.items()):
                return False
        ends = {".".join(parts[start:]) for name in tuned for parts in [name.split(".")] for start in (0, 1)}
        return not any(self.targets(name) and name not in ends for name in inside)

    def scale_of(self, module: str) -> float:
        """The scale of the change to a module."""
        rank = self._rank_of(module)
        return float(_by_pattern(self._alphas, module, self._alpha)) / (rank**0.5 if self._rslora else rank)

    def _rank_of(self, module: str) -> int:
        return int(_by_pattern(self._ranks, module, self._rank))

    def targets(self, module: str) -> bool | None:
        """Whether a module should have an adapter; None if the file leaves this to PEFT's tables."""
        if self._target is None or self._target in _ALL:
            return None
        if _named(self._exclude, module) or any(f".{name}." in f".{module}." for name in self._saved):
            return False
        if isinstance(self._target, str):
            return _named(self._target, module)
        if module in self._target:
            return True
        return _named(self._target, module) and self._in_layers(module)

    def _in_layers(self, module: str) -> bool:
        if self._layers is None:
            return True
        patterns = [rf"(?:^|.*?\.){p}\.(\d+)\." for p in self._pattern] or [r".*?\.[^.]*\.(\d+)\."]
        found = next((match for pattern in patterns if (match := match_in_time(pattern, module))), None)
        return found is not None and int(found[1]) in self._layers


def _names(value: object) -> str | tuple[str, ...] | None:
    return value if value is None or isinstance(value, str) else text_list_field("", "", value)


def _named(names: str | tuple[str, ...] | None, module: str) -> bool:
    if isinstance(names, str):
        return bool(match_in_time(rf"(?:{names})\Z", module))
    return any(module == name or module.endswith(f".{name}") for name in names or ())


def _by_pattern(values: Mapping[str, Any], module: str, default: float) -> float:
    """The value of the first pattern that matches a module's name or its ending after a dot."""
    found = (value for pattern, value in values.items() if match_in_time(rf"(.*\.)?({pattern})$", module))
    return next(found, default)
