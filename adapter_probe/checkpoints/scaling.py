"""Multiply what adapters change by a number, in the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.bottleneck import Bottleneck
from adapter_probe.models.adapters.configured import ConfiguredBottleneck
from adapter_probe.replay.layer_strengths import layer_strengths
from adapter_probe.replay.stacks import find_layers
from adapter_probe.replay.switches import Switches
from adapter_probe.results.atomic import make_folder, write_bytes, write_json

from .adapter_folder import WEIGHTS, read_adapter
from .files import CONFIG, read_json_file, refuse_full
from .opened_peft import OpenedPeft, OpenedPlaced
from .peft_pruning import PREFIX, switched_modules

# The one factor of each tuner's change that is multiplied, by the type in adapter_config.json.
_FACTORS = {
    "LORA": ("lora_B.weight", "lora_B.bias", "lora_embedding_B", "lora_B"),
    "ADALORA": ("lora_E",),
    "VERA": ("vera_lambda_b",),
    "LOHA": ("hada_w1_a",),
    "LOKR": ("lokr_w1", "lokr_w1_a"),
    "FOURIERFT": ("fourierft_spectrum",),
}
_UP = ("up.weight", "up.bias")


def scaled_bottlenecks(
    tensors: Mapping[str, Tensor], strengths: Mapping[nn.Module, float], model: nn.Module
) -> dict[str, Tensor]:
    """The tensors of this project's format with some bottlenecks scaled: their last map is multiplied.

    Args:
        tensors: all tensors, by name.
        strengths: what the change of each scaled adapter is multiplied by.
        model: the model, in which the adapters have the names of their tensors.

    Raises:
        CheckpointError: the change of an adapter is not proportional to its last map.
    """
    for module, strength in strengths.items():
        own = getattr(module, "bottleneck", module)
        plain = isinstance(own, ConfiguredBottleneck) and own.only_adds and own.ln_after is None
        if not (isinstance(own, Bottleneck) or plain):
            raise CheckpointError(
                f"a checkpoint with adapters scaled by {strength:g} cannot be written: only bottlenecks "
                "whose change is added as it is, and adapters in PEFT's format, can be scaled in their "
                "weights"
            )
    names = {name: strengths[module] for name, module in model.named_modules() if module in strengths}
    factors = {f"{name}.{part}": strength for name, strength in names.items() for part in _UP}
    return {n: factors[n] * tensor if n in factors else tensor for n, tensor in tensors.items()}


def in_layers(
    model: nn.Module, strengths: float | Sequence[float] | Mapping[str, float] = 0.0
) -> dict[nn.Module, float]:
    """The modules that an ablation switches, those in the layers, with their strengths.

    Raises:
        ModelError: see `layer_strengths`.
    """
    layers = find_layers(model, Switches())
    if isinstance(strengths, (int, float)):
        return {m: float(strengths) for layer in layers for part in layer.parts for m in part}
    return layer_strengths(strengths, layers)


def scaled(opened: OpenedPlaced, strengths: Mapping[nn.Module, float]) -> OpenedPlaced:
    """A checkpoint whose bottlenecks are scaled; see `scaled_bottlenecks`."""
    return replace(opened, tensors=scaled_bottlenecks(opened.tensors, strengths, opened.model))


def write_scaled(opened: OpenedPeft, strengths: Mapping[nn.Module, float], out: Path) -> None:
    """Write a folder that PEFT loads, in which what some modules change is multiplied by numbers.

    Args:
        opened: the checkpoint.
        strengths: modules of PEFT in its model, with their numbers.
        out: the new folder.

    Raises:
        CheckpointError: `out` contains a checkpoint, or no weights of this tuner give the scaled change.
        ResultsError: the folder cannot be written.
    """
    refuse_full(out)
    document = read_json_file(opened.folder / CONFIG)
    tensors = {name: t.contiguous() for name, t in read_adapter(opened.folder)[0].items()}
    base = opened.model.get_base_model()
    names = {f"{PREFIX}{name}.": module for name, module in switched_modules(base)}
    own: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if holders := [name for name in names if key.startswith(name)]:
            own.setdefault(max(holders, key=len), {})[key] = tensor
    for name, found in own.items():
        if (strength := strengths.get(names[name], 1.0)) != 1:
            tensors |= _scaled(opened.folder, document, names[name], name, found, strength)
    make_folder(out)
    if opened.own_tokenizer:
        opened.tokenizer.save_pretrained(out)
    write_bytes(out / WEIGHTS[0], safetensors.torch.save(tensors, metadata={"format": "pt"}))
    write_json(out / CONFIG, document)


def _scaled(
    folder: Path, document: Mapping[str, Any], module: Any, name: str, own: Mapping[str, Tensor], s: float
) -> dict[str, Tensor]:
    """One module's tensors with its change scaled, in at least float32."""
    kind = document.get("peft_type")
    wide = {key: t.to(torch.promote_types(t.dtype, torch.float32)) for key, t in own.items()}
    if isinstance(module, AuxiliaryTrainingWrapper) or kind == "LN_TUNING":
        whole = getattr(module, "original_module", None) or module.get_base_layer()
        base = dict(whole.state_dict())
        ends = {key: base.get(key.rpartition(".")[2]) for key in own}
        if all(end is not None for end in ends.values()):
            return {key: torch.lerp(ends[key].to(t), t, s) for key, t in wide.items()}  # type: ignore[union-attr]
    elif kind == "IA3":
        return {key: 1 + s * (t - 1) for key, t in wide.items()}
    elif not any("lora_magnitude_vector" in key for key in own):
        ends_of = tuple(f"{name}{factor}" for factor in _FACTORS.get(str(kind), ()))
        if found := {key: s * t for key, t in wide.items() if key in ends_of}:
            return found
    what = "DoRA" if kind == "LORA" else kind
    raise CheckpointError(
        f"checkpoint {folder} cannot be written with adapters scaled by {s:g}: PEFT's format holds no "
        f"weights of {what} that give them"
    )
