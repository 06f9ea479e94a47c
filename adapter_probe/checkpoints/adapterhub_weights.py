"""Weights of AdapterHub's libraries: translated, and compared with the configuration."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import BottleneckSpec, HeadSpec, InnerSpec

from .adapterhub_config import AdapterHubConfig
from .files import CONFIG
from .foreign import BaseShape, refuse_left

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


def layers_of_module(folder: Path, module: str, base: BaseShape) -> tuple[list[int], str]:
    """The layers that a module belongs to (several if they share it), and its name inside them.

    Raises:
        CheckpointError: it belongs to none.
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


def translate_head(
    folder: Path,
    document: dict[str, Any],
    tensors: dict[str, Tensor],
    base: BaseShape,
    out: dict[str, Tensor],
) -> HeadSpec | None:
    """Move the head's weights from `tensors` into `out`, under the names of this project's model.

    Returns:
        the module that replaces the family's head; None if it is the family's head.

    Raises:
        CheckpointError: the weights do not match the head's configuration.
    """
    config = document.get("config")
    if config is None:
        for key in [k for k in tensors if ".adapters." not in k and ".loras." not in k]:
            out[key] = tensors.pop(key)
        return None
    pattern = re.compile(rf"heads\.{re.escape(str(document.get('name')))}\.(\d+)\.(weight|bias)")
    found: dict[int, dict[str, Tensor]] = {}
    for key in list(tensors):
        if match := pattern.fullmatch(key):
            found.setdefault(int(match[1]), {})[match[2]] = tensors.pop(key)
    if config["head_type"] == "causal_lm":
        return _output_embedding(folder, found, base, out)
    extractive = config["head_type"] == "question_answering"
    layers = int(config.get("layers", 1 if extractive else 2))
    if len(found) != layers:
        raise CheckpointError(f"checkpoint {folder}: the head has {len(found)} linear maps, not {layers}")
    if extractive and layers != 1:
        raise CheckpointError(
            f"checkpoint {folder} has a question answering head of {layers} layers; only 1 is supported"
        )
    last = base.places.span_head if extractive else base.places.head
    for number, (_, parts) in enumerate(sorted(found.items())):
        name = last if extractive else f"{last}.{number}"
        out.update({f"{name}.{part}": tensor for part, tensor in parts.items()})
    if extractive:
        return None
    activation = config.get("activation_function", "tanh")
    return HeadSpec(layers, activation, bool(config.get("use_pooler")), bool(config.get("bias", True)))


def _output_embedding(
    folder: Path, found: dict[int, dict[str, Tensor]], base: BaseShape, out: dict[str, Tensor]
) -> None:
    """Check a causal head of the library; only the output embedding is supported."""
    if [set(parts) for parts in found.values()] != [{"weight"}]:
        raise CheckpointError(
            f"checkpoint {folder} has a causal head with a bias or several layers; only the output "
            "embedding is supported"
        )
    name = next(name for name in ("lm_head", "embed_out") if name in base.modules)
    out[f"{name}.weight"] = next(iter(found.values()))["weight"]


def translate_bottlenecks(
    folder: Path,
    config: AdapterHubConfig,
    module: str,
    parts: Mapping[str, Tensor],
    base: BaseShape,
    out: dict[str, Tensor],
) -> list[BottleneckSpec]:
    """One of the library's bottlenecks at each of its sites; its weights are added to `out`."""
    numbers, inside = layers_of_module(folder, module, base)
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
    parts = {k: v for k, v in parts.items() if not k.startswith("adapter_norm_before.")}  # present twice
    refuse_left(folder, (f"{module}: {name}" for name in parts.keys() - names.keys()))
    if "down.weight" not in {names[name] for name in parts}:
        raise CheckpointError(f"checkpoint {folder} lacks the down-projection of {module}")
    size = len(parts[f"adapter_down.{down}.weight"])
    specs = []
    for number in numbers:
        specs.append(config.spec(number, site, size))
        holder = getattr(base.places, site).holder
        place = [base.layer_names[number], holder, "adapter", str(number) if base.shared else ""]
        prefix = base.prefix + ".".join(part for part in place if part)
        out.update({f"{prefix}.{names[name]}": tensor for name, tensor in parts.items()})
    return specs


def translate_inner(
    folder: Path,
    config: AdapterHubConfig,
    module: str,
    parts: Mapping[str, Tensor],
    base: BaseShape,
    out: dict[str, Tensor],
) -> InnerSpec:
    """One of the library's modules inside a sublayer; its weights are added to `out`."""
    name = base.full_name(module)
    layers_of_module(folder, name, base)
    if name not in base.modules:
        raise CheckpointError(f"checkpoint {folder} has an adapter in {module}, which the base does not have")
    if config.inner is None:
        raise CheckpointError(f"checkpoint {folder} has an adapter in {module}, but {CONFIG} configures none")
    lora, scales = config.inner, config.inner["composition_mode"] == "scale"
    r = int(lora["r"])
    wanted = {"lora_B"} if scales else {"lora_A", "lora_B"}
    refuse_left(folder, (f"{module}: {part}" for part in parts.keys() - wanted))
    if lacking := wanted - parts.keys():
        raise CheckpointError(f"checkpoint {folder} lacks {min(lacking)} of {module}")
    projections = base.places.projections
    merged = len(projections) == 1 and name.endswith(f".{projections[0]}")
    enabled = [matrix in lora["attn_matrices"] for matrix in _MATRICES]
    lost = config.lost_scaling and not merged  # modules that wrap three maps in one were never affected
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
    """A vector over the enabled ones of q, k, v, extended to all three with ones."""
    pieces = iter(values.chunk(sum(enabled)))
    width = len(values) // sum(enabled)
    return torch.cat([next(pieces) if on else torch.ones(width) for on in enabled])


def _block_diagonal(up: Tensor, enabled: list[bool]) -> Tensor:
    """``[enabled * width, rank]``, one matrix each for q, k and v, as ``[3 * width, enabled * rank]``."""
    rank, blocks = up.shape[1], up.chunk(sum(enabled))
    width, out, block = len(blocks[0]), [], 0
    for on in enabled:
        rows = torch.zeros(width, rank * len(blocks))
        if on:
            rows[:, rank * block : rank * (block + 1)] = blocks[block]
            block += 1
        out.append(rows)
    return torch.cat(out)


def check_bottleneck(
    folder: Path, config: AdapterHubConfig, found: Sequence[BottleneckSpec], base: BaseShape
) -> None:
    """Refuse a file whose bottlenecks differ from its configuration."""
    if config.bottleneck is None:
        return
    layers = base.layers_but(config.bottleneck["leave_out"])
    sites = {"attention": "mh_adapter", "ffn": "output_adapter"}
    wanted = {(layer, site) for layer in layers for site, name in sites.items() if config.bottleneck[name]}
    held = {(spec.layer, spec.site) for spec in found}
    if lacking := sorted(wanted - held):
        layer, site = lacking[0]
        raise CheckpointError(
            f"checkpoint {folder} lacks {len(lacking)} of the adapters in its configuration, the "
            f"first in layer {layer} after the {site} sublayer; the base has {len(base.layer_names)} layers"
        )
    if others := sorted(held - wanted):
        layer, site = others[0]
        raise CheckpointError(
            f"checkpoint {folder} has {len(others)} adapters that are not in its configuration, the first "
            f"in layer {layer} after the {site} sublayer"
        )
    factors = config.bottleneck["reduction_factor"]
    for spec in found:
        module = list(dict.fromkeys(base.layer_names)).index(base.layer_names[spec.layer])
        factor = factors
        if isinstance(factors, Mapping):
            factor = factors.get(str(module), factors.get("default"))
        size = int(base.config.hidden_size // factor) if factor else 0
        if spec.size != size:
            raise CheckpointError(
                f"checkpoint {folder}: the adapter of layer {spec.layer} after the {spec.site} sublayer has "
                f"size {spec.size}, but the reduction_factor of its configuration gives {size}"
            )


def check_inner(folder: Path, config: AdapterHubConfig, found: Sequence[InnerSpec], base: BaseShape) -> None:
    """Refuse a file whose LoRA modules differ from its configuration."""
    if config.inner is None:
        return
    lora, names, kind = config.inner, base.places.projections, config.kinds[-1]
    layers = base.layers_but(lora["leave_out"])
    inside_layers: dict[int, set[str]] = defaultdict(set)  # the modules with LoRA in each layer
    for spec in found:
        numbers, module = layers_of_module(folder, spec.module, base)
        for number in numbers:
            inside_layers[number].add(module)
    if lacking := sorted(set(layers) - inside_layers.keys()):
        raise CheckpointError(
            f"checkpoint {folder} lacks the {kind} weights of layer {lacking[0]}; the base has "
            f"{len(base.layer_names)} layers"
        )
    wanted = set(names)  # one map, or those that are chosen of three
    if len(names) > 1:
        wanted = {name for name, matrix in zip(names, _MATRICES) if matrix in lora["attn_matrices"]}
    attention = wanted if lora["selfattn_lora"] and lora["attn_matrices"] else set()
    n_others = lora["intermediate_lora"] + lora["output_lora"]
    for layer, held in sorted(inside_layers.items()):
        inside = {name for name in held if name in names}
        if layer not in layers or inside != attention or len(held - inside) != n_others:
            raise CheckpointError(
                f"checkpoint {folder} contains {kind} weights in {', '.join(sorted(held))} of layer {layer}, "
                "which are not the modules in its configuration"
            )
