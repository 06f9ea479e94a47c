"""Read checkpoints of PEFT: LoRA, DoRA, (IA)^3 and tuned LayerNorms, with fully trained modules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import ImportedMethod, InnerSpec

from .files import CONFIG, first_file, read_json_file, read_tensors
from .foreign import BaseShape, ForeignCheckpoint, TranslatedCheckpoint, refuse_left
from .hub import name_of_checkpoint
from .peft_config import PeftConfig, read_config

LIBRARY = "peft"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_HEADS = ("classifier", "score", "qa_outputs")
_PART = re.compile(r"(.+?)\.((?:lora_|ia3_l|ln_tuning_layers).*)")
_LORA = {
    "lora_A.weight": "down.weight",
    "lora_B.weight": "up.weight",
    "lora_B.bias": "up.bias",
    "lora_magnitude_vector.weight": "magnitude",
    "lora_magnitude_vector": "magnitude",  # before PEFT 0.11
}
_NORM = {"ln_tuning_layers.weight": "weight", "ln_tuning_layers.bias": "bias"}


def is_peft(folder: Path) -> bool:
    """Whether PEFT wrote the checkpoint in a folder."""
    path = folder / CONFIG
    return path.is_file() and "peft_type" in read_json_file(path)


def read(folder: Path) -> ForeignCheckpoint:
    """Read the files.

    Raises:
        CheckpointError: a file is missing or damaged, or the checkpoint is of a kind that is not supported.
    """
    document = read_json_file(folder / CONFIG)
    config = read_config(folder / CONFIG, document)
    weights = first_file(folder, WEIGHTS)
    if weights is None:
        raise CheckpointError(f"checkpoint {folder} contains no weights: neither {' nor '.join(WEIGHTS)}")
    tensors = {_plain(key): tensor for key, tensor in read_tensors(weights).items()}
    outputs = _outputs(tensors)
    kind = config.kind or ("classification" if outputs else None)
    return ForeignCheckpoint(
        folder=folder,
        library=LIBRARY,
        name=name_of_checkpoint(folder),
        files=(folder / CONFIG, weights),
        documents={CONFIG: document},
        tensors=tensors,
        base=config.base,
        revision=config.revision,
        kind="regression" if kind == "classification" and outputs == 1 else kind,
        n_outputs=None if kind == "causal" else outputs,
    )


def _plain(key: str) -> str:
    """A tensor's name in the model that PEFT wrapped."""
    key = key.removeprefix("base_model.model.").replace(".base_layer.", ".")
    return re.sub(r"\.modules_to_save(\.default)?\.", ".", key)


def _outputs(tensors: Mapping[str, Tensor]) -> int | None:
    """Number of logits, from the last matrix of a trained head."""
    found = [name for name in tensors if name.startswith(_HEADS) and name.endswith("weight")]
    if any(name.endswith("out_proj.weight") for name in found):
        found = [name for name in found if name.endswith("out_proj.weight")]
    return len(tensors[found[-1]]) if found and tensors[found[-1]].dim() else None


def translate(source: ForeignCheckpoint, base: BaseShape) -> TranslatedCheckpoint:
    """Translate a checkpoint into this project's representation.

    Raises:
        CheckpointError: it has parts that are not supported, that contradict its configuration, or that do
            not fit the base.
    """
    folder = source.folder
    config = read_config(folder / CONFIG, source.documents[CONFIG])
    out: dict[str, Tensor] = {}
    modules: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in source.tensors.items():
        if match := _PART.fullmatch(key):
            modules[match[1]][match[2]] = tensor
        elif ".original_module." not in key:  # the original module, next to the trained one that replaces it
            module, _, parameter = key.rpartition(".")
            out[f"{base.full_name(module)}.{parameter}"] = tensor
    _refuse_other_modules(config, modules, base)
    _refuse_other_heads(config, out, base)
    _share_embeddings(config, out, base)
    notes = _notes(config, [base.full_name(module) for module in modules], out, base)
    read = {"LORA": _low_rank, "IA3": _rescale, "LN_TUNING": _norm}[config.type]
    inner = (read(config, name, base.full_name(name), parts, out) for name, parts in modules.items())
    return TranslatedCheckpoint(
        ImportedMethod(source.library, (_kind(config),), inner=tuple(inner)), out, notes
    )


def _kind(config: PeftConfig) -> str:
    return "dora" if config.dora else config.type.lower()


def _refuse_other_modules(config: PeftConfig, modules: Iterable[str], base: BaseShape) -> None:
    """Refuse modules with adapters that are not configured, and configured modules without."""
    folder = config.path.parent
    found = {base.full_name(module): module for module in modules}
    if not found:
        raise CheckpointError(f"checkpoint {folder} contains no {config.type} weights")
    for name, module in found.items():
        if name not in base.modules:
            raise CheckpointError(
                f"checkpoint {folder} has an adapter in {module}, which the base does not have"
            )
        if config.targets(module) is False:
            raise CheckpointError(
                f"checkpoint {folder} has an adapter in {module}, which is none of the modules that "
                f"{CONFIG} names"
            )
    prefix = "" if all(name == module for name, module in found.items()) else base.prefix
    inside = tuple(f"{base.prefix}{layer}." for layer in base.layer_names)
    for name in sorted(base.modules - found.keys()):
        if name.startswith(inside) and config.targets(name.removeprefix(prefix)):
            raise CheckpointError(
                f"checkpoint {folder} lacks the {config.type} weights of {name}, which {CONFIG} names"
            )


def _refuse_other_heads(config: PeftConfig, out: Iterable[str], base: BaseShape) -> None:
    """Refuse a file without the weights of a module that its configuration lists as fully trained."""
    for name in config.saved:
        there = next((module for module in base.modules if f".{module}".endswith(f".{name}")), None)
        if there is not None and not any(f".{name}." in f".{key}" for key in out):
            raise CheckpointError(
                f"checkpoint {config.path.parent} lacks the weights of {there}, which {CONFIG} lists in "
                "modules_to_save"
            )


def _share_embeddings(config: PeftConfig, out: dict[str, Tensor], base: BaseShape) -> None:
    """Complete the tensors of tied input and output embeddings.

    PEFT unties an embedding that was fully trained; one that was saved because of a changed vocabulary stays
    tied.

    Raises:
        CheckpointError: the two differ, and neither was fully trained.
    """
    held = [name for name in base.tied if name in out]
    if not held:
        return
    trained = any(config.saves(name.rpartition(".")[0]) for name in held)
    if not trained and len(held) > 1 and not torch.equal(out[held[0]], out[held[1]]):
        raise CheckpointError(
            f"checkpoint {config.path.parent} contains two different tensors for {' and '.join(held)}, which "
            "are tied in the base"
        )
    if len(held) == 1 and (config.ties or not trained):
        out.update(dict.fromkeys(base.tied, out[held[0]]))


def _notes(
    config: PeftConfig, modules: list[str], out: Mapping[str, Tensor], base: BaseShape
) -> tuple[str, ...]:
    notes = []
    inside = tuple(f"{base.prefix}{layer}." for layer in base.layer_names)
    outside = [module for module in modules if not f"{module}.".startswith(inside)]
    if outside:
        notes.append(f"Changes to {', '.join(outside)} are outside the layers and always stay on.")
    if config.bias != "none":
        notes.append("Trained biases of the base always stay on.")
    if config.kind != "causal" and not any(key.startswith(_HEADS) for key in out):
        notes.append("The checkpoint contains no head, so the head of the base is used.")
    return tuple(notes)


def _low_rank(
    config: PeftConfig, module: str, name: str, parts: dict[str, Tensor], out: dict[str, Tensor]
) -> InnerSpec:
    folder, rank = config.path.parent, config.rank_of(module)
    refuse_left(folder, (f"{module}.{part}" for part in parts.keys() - _LORA.keys()))
    ours = {_LORA[part]: tensor for part, tensor in parts.items()}
    for theirs, part, wanted in (
        ("lora_A.weight", "down.weight", True),
        ("lora_B.weight", "up.weight", True),
        ("lora_B.bias", "up.bias", config.lora_bias),
        ("lora_magnitude_vector", "magnitude", config.dora),
    ):
        if wanted != (part in ours):
            held = "lacks" if wanted else "contains"
            end = "" if wanted else f", which {CONFIG} does not have"
            raise CheckpointError(f"checkpoint {folder} {held} {module}.{theirs}{end}")
    if len(ours["down.weight"]) != rank:
        raise CheckpointError(
            f"checkpoint {folder}: {module}.lora_A.weight has rank {len(ours['down.weight'])}, but {CONFIG} "
            f"says {rank}"
        )
    out.update({f"{name}.adapter.{part}": tensor for part, tensor in ours.items()})
    kind = "decomposed" if config.dora else "low_rank"
    return InnerSpec(name, kind, rank=rank, scale=config.scale_of(module), bias=config.lora_bias)


def _rescale(
    config: PeftConfig, module: str, name: str, parts: dict[str, Tensor], out: dict[str, Tensor]
) -> InnerSpec:
    folder = config.path.parent
    refuse_left(folder, (f"{module}.{part}" for part in parts.keys() - {"ia3_l"}))
    factor = parts["ia3_l"]  # [outputs, 1], or [1, inputs] of what the configuration calls feed-forward
    scales_input = config.scales_input(module)
    if factor.dim() != 2 or factor.shape[0 if scales_input else 1] != 1:
        wanted = "[1, inputs]" if scales_input else "[outputs, 1]"
        raise CheckpointError(
            f"checkpoint {folder}: {module}.ia3_l has shape {list(factor.shape)}, but {CONFIG} requires "
            f"{wanted}"
        )
    out[f"{name}.adapter.factor"] = factor.flatten()
    return InnerSpec(name, "scale_input" if scales_input else "scale_output")


def _norm(
    config: PeftConfig, module: str, name: str, parts: dict[str, Tensor], out: dict[str, Tensor]
) -> InnerSpec:
    folder = config.path.parent
    refuse_left(folder, (f"{module}.{part}" for part in parts.keys() - _NORM.keys()))
    if "ln_tuning_layers.weight" not in parts:
        raise CheckpointError(f"checkpoint {folder} lacks {module}.ln_tuning_layers.weight")
    out.update({f"{name}.adapter.{_NORM[part]}": tensor for part, tensor in parts.items()})
    return InnerSpec(name, "norm", bias="ln_tuning_layers.bias" in parts)
