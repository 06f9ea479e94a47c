"""PEFT's `adapter_config.json`: every field is read, known to have no effect, or refused by name.

Checked against the configuration classes of PEFT 0.3 to 0.19 and 0.21.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from adapter_probe.errors import CheckpointError
from adapter_probe.metrics import Kind

from .files import (
    Unsupported,
    flag_field,
    number_field,
    quote,
    refuse_unknown,
    text_list_field,
    unsupported,
    whole_number_field,
)
from .kinds import kind_of_class

SUPPORTED_TYPES = ("LORA", "IA3", "LN_TUNING")
TASK_TYPES: dict[str, Kind] = {
    "SEQ_CLS": "classification",
    "QUESTION_ANS": "extractive",
    "CAUSAL_LM": "causal",
}
# Fields that turn LoRA into another method if they are set.
REFUSED_FIELDS = {
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "alora_invocation_tokens": "activated LoRA",
    "layer_replication": "replicated layers",
    "target_parameters": "LoRA on bare parameters",
    "trainable_token_indices": "trained tokens",
    "arrow_config": "Arrow routing",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "velora_config": "VeLoRA",
    "megatron_config": "Megatron",
    "enable_lora": "merged LoRA of PEFT before 0.3",
}
_READ = (
    "peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "r", "lora_alpha",
    "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "lora_bias", "bias", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save", "feedforward_modules",
    "init_lora_weights", "ensure_weight_tying",
)  # fmt: skip
# Initialisation, training and storage of the weights, and settings of features that are off.
_NO_EFFECT = (
    "peft_version", "inference_mode", "lora_dropout", "fan_in_fan_out", "megatron_core", "loftq_config",
    "eva_config", "corda_config", "lora_ga_config", "runtime_config", "qalora_group_size", "init_ia3_weights",
    "merge_weights", "unsloth_fixed",
)  # fmt: skip
_OBJECTS = ("eva_config", "corda_config", "lora_ga_config")  # of these, which PEFT takes as objects alone
# Other initialisations also change the base's weights.
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
_BIASES = ("none", "all", "lora_only")
_MATCH_SECONDS = 1.0


@dataclass(frozen=True)
class PeftConfig:
    """A configuration, every field of the right type.

    Attributes:
        path: path of the file.
        type: LORA, IA3 or LN_TUNING.
        kind: kind of the task, or None if not recorded.
        base, revision: name and revision of the model on which it was trained, or None.
        rank, alpha: rank and alpha of LoRA, unless a pattern overrides them.
        ranks, alphas: ranks and alphas by pattern of the modules' names.
        rslora: whether LoRA is scaled by alpha / sqrt(rank) instead of alpha / rank.
        dora: whether LoRA is weight-decomposed.
        lora_bias: whether B has a bias.
        bias: the biases of the base that were trained as well.
        target, exclude: a pattern, names (or endings of names after a dot), or None for the family's default.
        layers: numbers of the layers with adapters, or None for all.
        layers_pattern: names of the lists of layers; empty for any.
        saved: names of fully trained modules.
        feedforward: modules whose input is scaled by (IA)^3, like `target`.
        ties: whether trained input and output embeddings are tied.
    """

    path: Path
    type: str
    kind: Kind | None
    base: str | None
    revision: str | None
    rank: int
    alpha: float
    ranks: dict[str, int]
    alphas: dict[str, float]
    rslora: bool
    dora: bool
    lora_bias: bool
    bias: str
    target: str | tuple[str, ...] | None
    exclude: str | tuple[str, ...] | None
    layers: tuple[int, ...] | None
    layers_pattern: tuple[str, ...]
    saved: tuple[str, ...]
    feedforward: str | tuple[str, ...] | None
    ties: bool

    def rank_of(self, module: str) -> int:
        """The rank that a module's LoRA should have."""
        return self._by_pattern(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """The scale of LoRA's change to a module."""
        rank = self.rank_of(module)
        alpha = float(self._by_pattern(self.alphas, module, self.alpha))
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def targets(self, module: str) -> bool | None:
        """Whether a module should have an adapter; None if the file leaves this to PEFT's tables."""
        if self.target is None or self.target in ("all-linear", "dummy-target-modules"):
            return None
        if self._named(self.exclude, module) or self.saves(module):
            return False
        if isinstance(self.target, str):
            return self._matches(self.target, module)
        if module in self.target:
            return True
        return self._named(self.target, module) and self._in_layers(module)

    def saves(self, module: str) -> bool:
        """Whether a module, or one that contains it, was fully trained."""
        return any(f".{name}." in f".{module}." for name in self.saved)

    def scales_input(self, module: str) -> bool:
        """Whether (IA)^3 scales the input of a module instead of its output."""
        return self._named(self.feedforward, module)

    def _named(self, names: str | tuple[str, ...] | None, module: str) -> bool:
        if isinstance(names, str):
            return self._matches(names, module)
        return any(module == name or module.endswith(f".{name}") for name in names or ())

    def _in_layers(self, module: str) -> bool:
        if self.layers is None:
            return True
        if not self.layers_pattern:
            found = re.match(r".*?\.[^.]*\.(\d+)\.", module)
        else:
            patterns = (rf"(?:^|.*?\.){pattern}\.(\d+)\." for pattern in self.layers_pattern)
            found = next((match for p in patterns if (match := self._match(p, module))), None)
        return found is not None and int(found[1]) in self.layers

    def _by_pattern(self, patterns: Mapping[str, Any], module: str, default: Any) -> Any:
        """The value of the first pattern that matches a module's name or its ending after a dot."""
        for pattern, value in patterns.items():
            if self._match(rf"(.*\.)?({pattern})$", module):
                return value
        return default

    def _matches(self, pattern: str, module: str) -> bool:
        return self._match(rf"(?:{pattern})\Z", module) is not None

    def _match(self, pattern: str, module: str) -> Any:
        """Match from the start in bounded time, because patterns may take exponential time.

        Raises:
            CheckpointError: the pattern is invalid, or takes too long.
        """
        try:
            re.compile(pattern)
            return regex.match(pattern, module, timeout=_MATCH_SECONDS)
        except TimeoutError as error:
            said = f"{self.path}: matching {quote(pattern)} takes too long; simplify the pattern"
            raise CheckpointError(said) from error
        except (re.error, regex.error, OverflowError, RecursionError) as error:
            raise CheckpointError(
                f"{self.path}: {quote(pattern)} is not a regular expression: {error}"
            ) from error


def read_config(path: Path, document: Mapping[str, Any]) -> PeftConfig:
    """Check a parsed ``adapter_config.json``.

    Raises:
        CheckpointError: a kind of adapter, a field or a value that is not supported, or not known.
    """
    kind = document.get("peft_type")
    if kind not in SUPPORTED_TYPES:
        raise unsupported(path.parent, f"the PEFT type {quote(kind)}", SUPPORTED_TYPES)
    _refuse_fields(path, document)
    is_lora = kind == "LORA"
    for name in ("r", "lora_alpha"):
        if is_lora and name not in document:
            raise CheckpointError(f"{path} lacks {name}")
    ranks = _pattern(path, "rank_pattern", document.get("rank_pattern"))
    alphas = _pattern(path, "alpha_pattern", document.get("alpha_pattern"))
    bias = document.get("bias", "none")
    if bias not in _BIASES:
        raise CheckpointError(f"{path}: bias is {quote(bias)}, expected one of {', '.join(_BIASES)}")
    return PeftConfig(
        path=path,
        type=kind,
        kind=_task_kind(path, document),
        base=_text(path, document, "base_model_name_or_path"),
        revision=_text(path, document, "revision"),
        rank=whole_number_field(path, "r", document["r"], 1) if is_lora else 0,
        alpha=number_field(path, "lora_alpha", document["lora_alpha"]) if is_lora else 0.0,
        ranks={k: whole_number_field(path, f"rank_pattern of {k!r}", v, 1) for k, v in ranks.items()},
        alphas={k: number_field(path, f"alpha_pattern of {k!r}", v) for k, v in alphas.items()},
        rslora=flag_field(path, "use_rslora", document.get("use_rslora")),
        dora=flag_field(path, "use_dora", document.get("use_dora")),
        lora_bias=flag_field(path, "lora_bias", document.get("lora_bias")),
        bias=bias,
        target=_names(path, document, "target_modules"),
        exclude=_names(path, document, "exclude_modules"),
        layers=_layers(path, document.get("layers_to_transform")),
        layers_pattern=_one_or_more(path, document, "layers_pattern"),
        saved=_modules(path, text_list_field(path, "modules_to_save", document.get("modules_to_save"))),
        feedforward=_names(path, document, "feedforward_modules"),
        ties=flag_field(path, "ensure_weight_tying", document.get("ensure_weight_tying")),
    )


def _refuse_fields(path: Path, document: Mapping[str, Any]) -> None:
    for name, what in REFUSED_FIELDS.items():
        if document.get(name):
            raise unsupported(path.parent, f"{what} ({name})")
    refuse_unknown(path, document, (*_READ, *_NO_EFFECT, *REFUSED_FIELDS), "PEFT 0.21")
    for name in _OBJECTS:
        if not isinstance(document.get(name), (dict, type(None))):
            raise CheckpointError(f"{path}: {name} is {quote(document[name])}, expected an object or null")
    start = document.get("init_lora_weights")
    if not any(start is known or start == known for known in _STARTS):
        raise unsupported(path.parent, f"init_lora_weights {quote(start)}, which changes the base's weights")


def _task_kind(path: Path, document: Mapping[str, Any]) -> Kind | None:
    task, mapping = document.get("task_type"), document.get("auto_mapping")
    if task is not None:
        if not isinstance(task, str) or task not in TASK_TYPES:
            raise Unsupported(
                f"checkpoint {path.parent} has the task type {quote(task)}; supported are "
                f"{', '.join(TASK_TYPES)}"
            )
        return TASK_TYPES[task]
    cls = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    return kind_of_class(cls)


def _text(path: Path, document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{path}: {name} is {quote(value)}, expected a string")
    return value or None


def _names(path: Path, document: Mapping[str, Any], name: str) -> str | tuple[str, ...] | None:
    value = document.get(name)
    return value if value is None or isinstance(value, str) else text_list_field(path, name, value)


def _modules(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of modules, which PEFT inserts into patterns unescaped."""
    if wrong := [name for name in names if not re.fullmatch(r"\w+(\.\w+)*", name)]:
        raise CheckpointError(f"{path}: modules_to_save holds {quote(wrong[0])}, expected names of modules")
    return names


def _one_or_more(path: Path, document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    names = _names(path, document, name)
    return (names,) if names and isinstance(names, str) else tuple(names or ())


def _layers(path: Path, value: object) -> tuple[int, ...] | None:
    numbers = [value] if isinstance(value, int) else value
    if numbers is None or numbers == []:
        return None
    if not isinstance(numbers, list):
        raise CheckpointError(f"{path}: layers_to_transform is {quote(value)}, expected whole numbers")
    return tuple(whole_number_field(path, "layers_to_transform", number) for number in numbers)


def _pattern(path: Path, name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: {name} is {quote(value)}, expected an object")
    return value
