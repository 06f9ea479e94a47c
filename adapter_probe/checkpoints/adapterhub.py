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
from adapter_probe.models.adapters.imported import BottleneckSpec, ImportedMethod, InnerSpec

from .adapterhub_config import check_bottleneck, check_inner, parts_of
from .adapterhub_head import HEAD_CONFIG, HEAD_WEIGHTS, head_of_class, read_head, translate_head
from .files import first_file, read_json_file, read_tensors, refuse_unknown, shown
from .foreign import BaseShape, ForeignCheckpoint, TranslatedCheckpoint, refuse, refuse_left

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter.safetensors", "pytorch_adapter.bin")
REFUSED_FILES = {
    "adapter_fusion_config.json": "AdapterFusion",
    "adapter_interface.json": "a model interface",
    "adapter_setup.json": "a composition of several adapters",
}
_FUSION, _SETUP = "adapter_fusion_config.json", "adapter_setup.json"
_FIELDS = (
    "config", "config_id", "hidden_size", "label2id", "model_class", "model_name", "model_type", "name",
    "type", "version",
)  # fmt: skip
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


def read(folder: Path) -> ForeignCheckpoint:
    """Read the files.

    Raises:
        CheckpointError: a file is missing or damaged, or the checkpoint has parts that are not supported.
    """
    for name, what in REFUSED_FILES.items():
        if (folder / name).exists():
            raise refuse(folder, f"{what} ({name})")
    documents = {CONFIG: _read_config(folder)}
    refuse_composed(folder, documents[CONFIG].get("name"))
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
    told = read_head(folder, documents[HEAD_CONFIG]) if head is not None else head_of_class(config)
    return ForeignCheckpoint(
        folder=folder,
        library="adapters"
        if str(config.get("version", "")).startswith("adapters")
        else "adapter-transformers",
        name=config.get("name") or folder.resolve().name,
        files=tuple(files),
        documents=documents,
        tensors=tensors,
        base=config.get("model_name"),
        kind=told.kind,
        n_outputs=told.n_outputs,
        label_names=told.label_names,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    document = read_json_file(path)
    refuse_unknown(path, document, _FIELDS, "adapters 1.3")
    for name in ("name", "model_name", "model_type", "version", "type"):
        if not isinstance(document.get(name), str | None):
            raise CheckpointError(f"{path}: {name} is {shown(document[name])}, expected a string")
    return document


def refuse_composed(folder: Path, name: str | None) -> None:
    """Refuse an adapter that its library saved as a part of a composition: alone it computes something else.

    Args:
        folder: of the adapter.
        name: the adapter's; None for all that the folder's own folders hold.

    Raises:
        CheckpointError: a setup stands above it, or a fusion that names it beside it.
    """
    above = folder.resolve().parent
    setup = above / _SETUP
    parts = [setup] if setup.is_file() else []
    for fusion in sorted(above.glob(f"*/{_FUSION}")):
        fused = read_json_file(fusion).get("name")
        if name is not None and isinstance(fused, str) and name in fused.split(","):
            parts.append(fusion)
    if parts:
        what = REFUSED_FILES[parts[0].name]
        raise CheckpointError(
            f"checkpoint {folder} is a part of {what} ({parts[0]}), which is not supported; to open the "
            "adapter alone, copy its folder elsewhere"
        )


def translate(source: ForeignCheckpoint, base: BaseShape) -> TranslatedCheckpoint:
    """Put a checkpoint into this project's terms.

    Raises:
        CheckpointError: it has parts that are not supported, or that do not fit the base.
    """
    tensors = _current_names(source)
    config = parts_of(source.documents[CONFIG], source.folder)
    _refuse_family(source, base)
    out: dict[str, Tensor] = {}
    head = None
    if HEAD_CONFIG in source.documents:
        head = translate_head(source.folder, source.documents[HEAD_CONFIG], tensors, base, out)
    modules: dict[tuple[str, str], dict[str, Tensor]] = defaultdict(dict)
    for key in list(tensors):
        match = re.fullmatch(rf"(.+)\.(adapters|loras)\.{re.escape(source.name)}\.(.+)", key)
        if match:
            modules[match[1], match[2]][match[3]] = tensors.pop(key)
    refuse_left(source.folder, tensors)
    bottlenecks: list[BottleneckSpec] = []
    inner: list[InnerSpec] = []
    for (module, kind), parts in modules.items():
        if kind == "adapters":
            bottlenecks += _bottlenecks(source.folder, config, module, parts, base, out)
        else:
            inner.append(_inner(source.folder, config, module, parts, base, out))
    check_bottleneck(source.folder, config, bottlenecks, base)
    held: dict[int, set[str]] = defaultdict(set)
    for spec in inner:
        numbers, inside = layers_of(source.folder, spec.module, base)
        for n in numbers:
            held[n].add(inside)
    check_inner(source.folder, config, held, base)
    method = ImportedMethod(source.library, config.kinds, tuple(bottlenecks), tuple(inner), head)
    # A head that is tied to the input embedding is saved with the adapter all the same.
    frozen = frozenset(name for name in base.tied if name in out)
    return TranslatedCheckpoint(method, out, _notes(config, base), frozen)


def _notes(config: Any, base: BaseShape) -> tuple[str, ...]:
    notes = [
        "The library does not save LayerNorms, nor a pooler: if these were trained along, what they were "
        "cannot be known, and the base's own are used."
    ]
    if base.config.model_type == "deberta":
        notes.append(
            "The library adds random biases to the attention of DeBERTa that it does not save: its own "
            "logits differ from run to run, and here these biases are left out."
        )
    if config.bottleneck is not None and config.bottleneck["use_gating"]:
        notes.append("Gates average over an example's own tokens; the library averages over padding too.")
    return tuple(notes)


def _current_names(source: ForeignCheckpoint) -> dict[str, Tensor]:
    """The tensors under the names of today's library.

    Raises:
        CheckpointError: some belong to what is not supported.
    """
    tensors = {}
    for key, tensor in source.tensors.items():
        for word, what in REFUSED_KEYS.items():
            if word in key and not key.startswith("heads."):
                raise refuse(source.folder, f"{what} ({key})")
        for old, new in _LEGACY.items():
            key = key.replace(f".{old}.", f".{new}.")
        tensors[key] = tensor
    return tensors


def _refuse_family(source: ForeignCheckpoint, base: BaseShape) -> None:
    config = source.documents[CONFIG]
    family, hidden = config.get("model_type"), config.get("hidden_size")
    if family not in (None, base.config.model_type) or hidden not in (None, base.config.hidden_size):
        raise CheckpointError(
            f"checkpoint {source.folder} was trained on a {family} model of {hidden} hidden units, the base "
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
    r = int(lora["r"])
    wanted = {"lora_B"} if scales else {"lora_A", "lora_B"}
    refuse_left(folder, (f"{module}: {part}" for part in parts.keys() - wanted))
    if lacking := wanted - parts.keys():
        raise CheckpointError(f"checkpoint {folder} lacks {min(lacking)} of {module}")
    merged = base.anatomy.layer.qkv is not None and name.endswith(f".{base.anatomy.layer.qkv}")
    enabled = [matrix in lora["attn_matrices"] for matrix in _MATRICES]
    lost = config.lost_scaling and not merged  # what wraps three maps in one never lost it
    if scales:
        factor = parts["lora_B"].flatten()
        out[f"{name}.adapter.factor"] = _spread(factor, enabled) if merged else factor
        return InnerSpec(name, "scale_output", scale=1.0 if lost else float(lora["alpha"]))
    up, down = parts["lora_B"], parts["lora_A"]
    wanted_rank = r * sum(enabled) if merged else r
    if down.dim() != 2 or up.dim() != 2 or (len(down), up.shape[1]) != (wanted_rank, r):
        raise CheckpointError(
            f"checkpoint {folder}: lora_A and lora_B of {module} have shapes {list(down.shape)} and "
            f"{list(up.shape)}, which do not fit the r {r} of {CONFIG}"
        )
    if merged:
        up = _block_diagonal(up, enabled)
    out |= {f"{name}.adapter.down.weight": down, f"{name}.adapter.up.weight": up}
    return InnerSpec(name, "low_rank", rank=len(down), scale=1.0 if lost else float(lora["alpha"]) / r)


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
