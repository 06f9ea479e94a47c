"""Read checkpoints of AdapterHub's `adapters` library, and of `adapter-transformers` before it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import BottleneckSpec, Imported, InnerSpec

from .adapterhub_config import check_bottleneck, check_inner, parts_of
from .adapterhub_head import HEAD_CONFIG, HEAD_WEIGHTS, read_task, translate_head
from .foreign import (
    BaseShape,
    Survey,
    Translated,
    first_file,
    read_json_file,
    read_tensors,
    refuse,
    refuse_left,
)

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter.safetensors", "pytorch_adapter.bin")
REFUSED_FILES = {
    "adapter_fusion_config.json": "AdapterFusion",
    "adapter_interface.json": "a model interface",
    "adapter_setup.json": "a composition of several adapters",
}
_LEGACY = {
    "attention_text_task_adapters": "adapters",
    "attention_text_lang_adapters": "adapters",
    "layer_text_task_adapters": "adapters",
    "layer_text_lang_adapters": "adapters",
}
REFUSED_KEYS = {
    "invertible": "invertible adapters",
    "prefix_tunings": "prefix tuning",
    "prefix_gates": "prefix tuning",
    "prompt_tunings": "prompt tuning",
    "refts": "ReFT",
    "shared_parameters": "parameters that layers share (compacter or VeRA)",
    "adapter_fusion_layer": "AdapterFusion",
    "phm": "compacter layers",
}
_BOTTLENECK = {
    "adapter_up.weight": "up.weight",
    "adapter_up.bias": "up.bias",
    "adapter_norm_after.weight": "ln_after.weight",
    "adapter_norm_after.bias": "ln_after.bias",
    "scaling": "factor",
    "gate.weight": "gate.weight",
    "gate.bias": "gate.bias",
}
_MATRICES = ("q", "k", "v")


def survey(folder: Path) -> Survey:
    """Read the files.

    Raises:
        CheckpointError: a file is missing or damaged, or the checkpoint has parts that are not supported.
    """
    for name, what in REFUSED_FILES.items():
        if (folder / name).exists():
            raise refuse(folder, f"{what} ({name})")
    documents = {CONFIG: read_json_file(folder / CONFIG)}
    weights = first_file(folder, WEIGHTS)
    if weights is None:
        raise CheckpointError(f"checkpoint {folder} holds no weights: neither {' nor '.join(WEIGHTS)}")
    files, tensors, head = [folder / CONFIG, weights], read_tensors(weights), first_file(folder, HEAD_WEIGHTS)
    if head is not None:
        if not (folder / HEAD_CONFIG).is_file():
            raise CheckpointError(f"checkpoint {folder} holds {head.name} without {HEAD_CONFIG}")
        documents[HEAD_CONFIG] = read_json_file(folder / HEAD_CONFIG)
        files += [folder / HEAD_CONFIG, head]
        tensors |= read_tensors(head)
    config = documents[CONFIG]
    return Survey(
        folder=folder,
        library="adapters"
        if str(config.get("version", "")).startswith("adapters")
        else "adapter-transformers",
        base=config.get("model_name"),
        task=read_task(folder, documents[HEAD_CONFIG]) if head is not None else None,
        name=str(config.get("name") or folder.name),
        files=tuple(files),
        documents=documents,
        tensors=tensors,
    )


def translate(found: Survey, base: BaseShape) -> Translated:
    """Put a surveyed checkpoint into this project's terms.

    Raises:
        CheckpointError: it has parts that are not supported, or that do not fit the base.
    """
    tensors = _current_names(found)
    config = parts_of(found.documents[CONFIG], found.folder)
    _refuse_family(found, base)
    out: dict[str, Tensor] = {}
    head = None
    if found.task is not None:
        head = translate_head(found.folder, found.documents[HEAD_CONFIG], tensors, base, out)
    modules: dict[tuple[str, str], dict[str, Tensor]] = defaultdict(dict)
    for key in list(tensors):
        match = re.fullmatch(rf"(.+)\.(adapters|loras)\.{re.escape(found.name)}\.(.+)", key)
        if match:
            modules[match[1], match[2]][match[3]] = tensors.pop(key)
    refuse_left(found.folder, tensors)
    bottlenecks: list[BottleneckSpec] = []
    inner: list[InnerSpec] = []
    for (module, kind), parts in modules.items():
        if kind == "adapters":
            bottlenecks += _bottlenecks(found.folder, config, module, parts, base, out)
        else:
            inner.append(_inner(found.folder, config, module, parts, base, out))
    check_bottleneck(found.folder, config, bottlenecks, base)
    adapted = {n for spec in inner for n in layers_of(found.folder, spec.module, base)[0]}
    check_inner(found.folder, config, adapted, base)
    method = Imported(found.library, config.kinds, tuple(bottlenecks), tuple(inner), head)
    return Translated(method, out, _notes(config))


def _notes(config: Any) -> tuple[str, ...]:
    notes = [
        "The library does not save LayerNorms, nor a pooler: if these were trained along, what they were "
        "cannot be known, and the base's own are used."
    ]
    if config.bottleneck is not None and config.bottleneck["use_gating"]:
        notes.append("Gates average over an example's own tokens; the library averages over padding too.")
    return tuple(notes)


def _current_names(found: Survey) -> dict[str, Tensor]:
    """The tensors under the names of today's library.

    Raises:
        CheckpointError: some belong to what is not supported.
    """
    tensors = {}
    for key, tensor in found.tensors.items():
        for word, what in REFUSED_KEYS.items():
            if word in key and not key.startswith("heads."):
                raise refuse(found.folder, f"{what} ({key})")
        for old, new in _LEGACY.items():
            key = key.replace(f".{old}.", f".{new}.")
        tensors[key] = tensor
    return tensors


def _refuse_family(found: Survey, base: BaseShape) -> None:
    config = found.documents[CONFIG]
    family, hidden = config.get("model_type"), config.get("hidden_size")
    if family not in (None, base.config.model_type) or hidden not in (None, base.config.hidden_size):
        raise CheckpointError(
            f"checkpoint {found.folder} was trained on a {family} model of {hidden} hidden units, the base "
            f"is a {base.config.model_type} model of {base.config.hidden_size}"
        )


def layers_of(folder: Path, module: str, base: BaseShape) -> tuple[list[int], str]:
    """The layers that a module serves in (several where layers share it), and its name inside them.

    Raises:
        CheckpointError: it is in none.
    """
    inside = module.removeprefix(base.prefix)
    for name in dict.fromkeys(base.layer_names):
        if inside.startswith(f"{name}."):
            numbers = [number for number, other in enumerate(base.layer_names) if other == name]
            return numbers, inside.removeprefix(f"{name}.")
    raise CheckpointError(
        f"checkpoint {folder} has an adapter at {module}, which is in none of the base's "
        f"{len(base.layer_names)} layers"
    )


def _bottlenecks(
    folder: Path,
    config: Any,
    module: str,
    parts: Mapping[str, Tensor],
    base: BaseShape,
    out: dict[str, Tensor],
) -> list[BottleneckSpec]:
    """What one of the library's modules is, at each site it serves; its weights go into `out`."""
    numbers, inside = layers_of(folder, module, base)
    site = "attention" if inside.startswith("attention") else "ffn"
    if config.bottleneck is None:
        raise CheckpointError(f"checkpoint {folder} has a bottleneck at {module}, but {CONFIG} has none")
    down = "1" if config.bottleneck["ln_before"] else "0"
    names = {
        **_BOTTLENECK,
        f"adapter_down.{down}.weight": "down.weight",
        f"adapter_down.{down}.bias": "down.bias",
    }
    if config.bottleneck["ln_before"]:
        names |= {f"adapter_down.0.{part}": f"ln_before.{part}" for part in ("weight", "bias")}
    parts = {k: v for k, v in parts.items() if not k.startswith("adapter_norm_before.")}  # there twice
    refuse_left(folder, (f"{module}: {name}" for name in parts.keys() - names.keys()))
    if "down.weight" not in {names[name] for name in parts}:
        raise CheckpointError(f"checkpoint {folder} lacks the down-projection of {module}")
    size = len(parts[f"adapter_down.{down}.weight"])
    specs = []
    for number in numbers:
        specs.append(config.spec(number, site, size))
        shared = base.anatomy.layer_groups is not None
        holder = getattr(base.anatomy.layer, f"{site}_site")
        place = [base.layer_names[number], holder, "adapter", str(number) if shared else ""]
        prefix = base.prefix + ".".join(part for part in place if part)
        out.update({f"{prefix}.{names[name]}": tensor for name, tensor in parts.items()})
    return specs


def _inner(
    folder: Path,
    config: Any,
    module: str,
    parts: Mapping[str, Tensor],
    base: BaseShape,
    out: dict[str, Tensor],
) -> InnerSpec:
    """What one of the library's modules is inside a sublayer; its weights go into `out`."""
    name = base.full_name(module)
    layers_of(folder, name, base)
    if name not in base.modules:
        raise CheckpointError(f"checkpoint {folder} has an adapter in {module}, which the base does not have")
    if config.inner is None:
        raise CheckpointError(f"checkpoint {folder} has an adapter in {module}, but {CONFIG} says of none")
    lora, scales = config.inner, config.inner["composition_mode"] == "scale"
    wanted = {"lora_B"} if scales else {"lora_A", "lora_B"}
    refuse_left(folder, (f"{module}: {part}" for part in parts.keys() - wanted))
    if lacking := wanted - parts.keys():
        raise CheckpointError(f"checkpoint {folder} lacks {min(lacking)} of {module}")
    merged = base.anatomy.layer.qkv is not None and name.endswith(f".{base.anatomy.layer.qkv}")
    enabled = [matrix in lora["attn_matrices"] for matrix in _MATRICES]
    if scales:
        factor = parts["lora_B"].flatten()
        out[f"{name}.adapter.factor"] = _spread(factor, enabled) if merged else factor
        return InnerSpec(name, "scale_output", scale=float(lora["alpha"]))
    up, down = parts["lora_B"], parts["lora_A"]
    if merged:
        up = _block_diagonal(up, enabled)
    out |= {f"{name}.adapter.down.weight": down, f"{name}.adapter.up.weight": up}
    return InnerSpec(name, "low_rank", rank=len(down), scale=float(lora["alpha"]) / float(lora["r"]))


def _spread(values: Tensor, enabled: list[bool]) -> Tensor:
    """A vector over the enabled ones of q, k, v, over all three; ones for the others."""
    pieces = iter(values.chunk(sum(enabled)))
    width = len(values) // sum(enabled)
    return torch.cat([next(pieces) if on else torch.ones(width) for on in enabled])


def _block_diagonal(up: Tensor, enabled: list[bool]) -> Tensor:
    """``[enabled * width, rank]``, a matrix each for q, k and v, as one ``[3 * width, enabled * rank]``."""
    rank, blocks = up.shape[1], up.chunk(sum(enabled))
    width, out, block = len(blocks[0]), [], 0
    for on in enabled:
        rows = torch.zeros(width, rank * len(blocks))
        if on:
            rows[:, rank * block : rank * (block + 1)] = blocks[block]
            block += 1
        out.append(rows)
    return torch.cat(out)
