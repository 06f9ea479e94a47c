"""Read checkpoints of PEFT: LoRA, (IA)^3 and tuned LayerNorms, with the modules that were trained whole."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from adapter_probe.errors import CheckpointError
from adapter_probe.metrics import Kind
from adapter_probe.models.adapters.imported import Imported, InnerSpec

from .foreign import (
    BaseShape,
    Survey,
    Task,
    Translated,
    first_file,
    read_json_file,
    read_tensors,
    refuse,
    refuse_left,
)

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
SUPPORTED_TYPES = ("LORA", "IA3", "LN_TUNING")
TASK_TYPES: dict[str | None, Kind] = {
    "SEQ_CLS": "classification",
    "QUESTION_ANS": "extractive",
    None: "classification",
}
# Fields that make LoRA another method where they are set.
REFUSED_FIELDS = {
    "use_dora": "DoRA",
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
}
# With other starts the base's own weights were changed along.
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
_HEADS = ("classifier", "score", "qa_outputs")


def survey(folder: Path) -> Survey:
    """Read the files.

    Raises:
        CheckpointError: a file is missing or damaged, or the checkpoint is of a kind that is not supported.
    """
    config = read_json_file(folder / CONFIG)
    kind, task_type = config.get("peft_type"), config.get("task_type")
    if kind not in SUPPORTED_TYPES:
        raise CheckpointError(
            f"checkpoint {folder} is of the PEFT type {kind!r}, which is not supported; supported are "
            f"{', '.join(SUPPORTED_TYPES)}"
        )
    if task_type not in TASK_TYPES:
        allowed = ", ".join(name for name in TASK_TYPES if name)
        raise CheckpointError(f"checkpoint {folder} has the task type {task_type!r}; supported are {allowed}")
    for name, what in REFUSED_FIELDS.items():
        if config.get(name):
            raise refuse(folder, f"{what} ({name})")
    if config.get("init_lora_weights") not in _STARTS:
        raise refuse(
            folder, f"init_lora_weights {config['init_lora_weights']!r}, which changes the base's weights"
        )
    weights = first_file(folder, WEIGHTS)
    if weights is None:
        raise CheckpointError(f"checkpoint {folder} holds no weights: neither {' nor '.join(WEIGHTS)}")
    tensors = {_plain(key): tensor for key, tensor in read_tensors(weights).items()}
    return Survey(
        folder=folder,
        library="peft",
        base=config.get("base_model_name_or_path"),
        task=_task(TASK_TYPES[task_type], tensors),
        name=folder.resolve().name,
        files=(folder / CONFIG, weights),
        documents={CONFIG: config},
        tensors=tensors,
    )


def _plain(key: str) -> str:
    """A tensor's name in the model that PEFT wrapped."""
    key = key.removeprefix("base_model.model.").replace(".base_layer.", ".")
    return re.sub(r"\.modules_to_save(\.default)?\.", ".", key)


def _task(kind: Kind, tensors: Mapping[str, Tensor]) -> Task | None:
    """Told by the last matrix of a head that was trained."""
    found = [t for name, t in tensors.items() if name.startswith(_HEADS) and name.endswith("weight")]
    heads = [t for name, t in tensors.items() if name.startswith(_HEADS) and name.endswith("out_proj.weight")]
    if not found:
        return None
    outputs = len((heads or found)[-1])
    if kind == "extractive":
        return Task(kind, 2)
    return Task("regression", 1) if outputs == 1 else Task(kind, outputs)


def translate(found: Survey, base: BaseShape) -> Translated:
    """Put a surveyed checkpoint into this project's terms.

    Raises:
        CheckpointError: it has parts that are not supported, or that do not fit the base.
    """
    config, folder = found.documents[CONFIG], found.folder
    kind = str(config["peft_type"])
    out: dict[str, Tensor] = {}
    modules: dict[str, dict[str, Tensor]] = defaultdict(dict)
    pattern = re.compile(r"(.+?)\.((?:lora_|ia3_l|ln_tuning_layers).*)")
    for key, tensor in found.tensors.items():
        if match := pattern.fullmatch(key):
            modules[match[1]][match[2]] = tensor
        elif not _is_original(key):
            out[key] = tensor
    read = {"LORA": _low_rank, "IA3": _rescale, "LN_TUNING": _norm}[kind]
    inner = []
    for module, parts in modules.items():
        name = base.full_name(module)
        if name not in base.modules:
            raise CheckpointError(
                f"checkpoint {folder} has an adapter in {module}, which the base does not have"
            )
        inner.append(read(folder, config, name, parts, out))
    if not inner:
        raise CheckpointError(f"checkpoint {folder} holds no {kind} weights")
    method = Imported(found.library, (kind.lower(),), inner=tuple(inner))
    return Translated(method, out, _notes(config, inner, base))


def _is_original(key: str) -> bool:
    """Whether a tensor is the base's, kept beside the one that was trained in its place."""
    return ".original_module." in key


def _notes(config: dict[str, Any], inner: list[InnerSpec], base: BaseShape) -> tuple[str, ...]:
    notes = []
    outside = [
        spec.module
        for spec in inner
        if not any(f".{spec.module}".startswith(f".{base.prefix}{layer}.") for layer in base.layer_names)
    ]
    if outside:
        notes.append(
            f"What changes {', '.join(outside)} lies outside the layers and stays on, whatever is switched "
            "off."
        )
    if config.get("bias", "none") != "none":
        notes.append("Biases of the base that were trained along stay, whatever is switched off.")
    if config["peft_type"] == "LORA" and not config.get("modules_to_save"):
        notes.append("The checkpoint names no modules that were trained whole; the head is the base's own.")
    return tuple(notes)


def _low_rank(
    folder: Path, config: dict[str, Any], module: str, parts: dict[str, Tensor], out: dict[str, Tensor]
) -> InnerSpec:
    names = {"lora_A.weight": "down.weight", "lora_B.weight": "up.weight", "lora_B.bias": "up.bias"}
    refuse_left(folder, (f"{module}.{part}" for part in parts.keys() - names.keys()))
    _need(folder, module, parts, ("lora_A.weight", "lora_B.weight"))
    out.update({f"{module}.adapter.{names[part]}": tensor for part, tensor in parts.items()})
    rank = len(parts["lora_A.weight"])
    alpha = float(_by_pattern(config.get("alpha_pattern") or {}, module, config["lora_alpha"]))
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return InnerSpec(module, "low_rank", rank=rank, scale=scale, bias="lora_B.bias" in parts)


def _rescale(
    folder: Path, config: dict[str, Any], module: str, parts: dict[str, Tensor], out: dict[str, Tensor]
) -> InnerSpec:
    refuse_left(folder, (f"{module}.{part}" for part in parts.keys() - {"ia3_l"}))
    factor = parts["ia3_l"]  # [outputs, 1], or [1, inputs] of what the configuration calls feed-forward
    out[f"{module}.adapter.factor"] = factor.flatten()
    return InnerSpec(module, "scale_input" if len(factor) == 1 else "scale_output")


def _norm(
    folder: Path, config: dict[str, Any], module: str, parts: dict[str, Tensor], out: dict[str, Tensor]
) -> InnerSpec:
    names = {"ln_tuning_layers.weight": "weight", "ln_tuning_layers.bias": "bias"}
    refuse_left(folder, (f"{module}.{part}" for part in parts.keys() - names.keys()))
    _need(folder, module, parts, ("ln_tuning_layers.weight",))
    out.update({f"{module}.adapter.{names[part]}": tensor for part, tensor in parts.items()})
    return InnerSpec(module, "norm", bias="ln_tuning_layers.bias" in parts)


def _need(folder: Path, module: str, parts: Mapping[str, Tensor], names: tuple[str, ...]) -> None:
    for name in names:
        if name not in parts:
            raise CheckpointError(f"checkpoint {folder} lacks {module}.{name}")


def _by_pattern(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first pattern that a module's name, or the end of it from a dot on, is."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
