"""Write a LoRA of PEFT in MLX-LM's format; see `adapter_probe.checkpoints.mlx` for the format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from adapter_probe.errors import CheckpointError
from adapter_probe.results.atomic import make_folder, write_bytes, write_json

from .adapter_folder import WEIGHTS as PEFT_WEIGHTS
from .files import CONFIG, read_json_file, read_tensors
from .mlx import LAYER, WEIGHTS, layer_of

_PREFIX = "base_model.model."
_PARTS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")
_INSIDE = ("model.layers.", "model.embed_tokens", "lm_head")


def write_mlx(source: Path, n_layers: int, base: str, out: Path) -> None:
    """Write a folder that MLX-LM loads.

    MLX-LM has one rank and one scale for all modules. Smaller ranks are filled up with zeros, and other
    scales are multiplied into ``lora_b``, in float32.

    Args:
        source: a LoRA or DoRA in PEFT's format.
        n_layers: number of layers of its base.
        base: name of the base.
        out: the new folder.

    Raises:
        CheckpointError: the format cannot express the adapter.
        ResultsError: the folder cannot be written.
    """
    document = read_json_file(source / CONFIG)
    if document.get("peft_type") != "LORA" or document.get("task_type") != "CAUSAL_LM":
        raise CheckpointError(
            "MLX-LM's format can represent LoRA and DoRA of language models, not "
            f"{document.get('peft_type')} for {document.get('task_type')}; keep it in PEFT's format"
        )
    parts = _parts(read_tensors(source / PEFT_WEIGHTS[0], as_stored=True))
    scales = {module: _scale_of(module, document) for module in parts}
    rank = max(len(own["lora_A"]) for own in parts.values())
    scale = Counter(scales.values()).most_common(1)[0][0]
    tensors: dict[str, Tensor] = {}
    for module, own in parts.items():
        a, b = own["lora_A"].T, own["lora_B"].T
        if scales[module] != scale:
            b = b.float() * (scales[module] / scale)
        more = rank - len(b)
        tensors[f"{module}.lora_a"] = torch.nn.functional.pad(a, (0, more)).contiguous()
        tensors[f"{module}.lora_b"] = torch.nn.functional.pad(b, (0, 0, 0, more)).contiguous()
        if "lora_magnitude_vector" in own:
            tensors[f"{module}.m"] = own["lora_magnitude_vector"].contiguous()
    layers = [number for module in parts if (number := layer_of(module)) is not None]
    keys = sorted({re.sub(rf".*{LAYER.pattern}", "", module) for module in parts})
    make_folder(out)
    write_bytes(out / WEIGHTS, safetensors.torch.save(tensors, metadata={"format": "mlx"}))
    write_json(out / CONFIG, {
        "model": document.get("base_model_name_or_path") or base,
        "fine_tune_type": "dora" if document.get("use_dora") else "lora",
        "num_layers": n_layers - min(layers, default=0),
        "lora_parameters": {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys},
    })  # fmt: skip


def _scale_of(module: str, document: Mapping[str, Any]) -> float:
    """The scale of the change to a module, by patterns as PEFT matches them."""
    from peft.utils.other import get_pattern_key  # which takes seconds

    rank, alpha = (
        patterns.get(get_pattern_key(patterns.keys(), module), document[name])
        for name, patterns in (
            ("r", document.get("rank_pattern") or {}), ("lora_alpha", document.get("alpha_pattern") or {}),
        )
    )  # fmt: skip
    return float(alpha / rank**0.5 if document.get("use_rslora") else alpha / rank)


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of every module.

    Raises:
        CheckpointError: one is not of a LoRA, or of a module that MLX-LM may call otherwise.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        module, _, part = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if part not in _PARTS:
            raise CheckpointError(
                f"MLX-LM's format can represent LoRA and DoRA alone, not {name.removeprefix(_PREFIX)}; keep "
                "the checkpoint in PEFT's format"
            )
        if not module.startswith(_INSIDE):
            raise CheckpointError(
                f"MLX-LM may have another name for the module {module}; only modules under model.layers, "
                "model.embed_tokens and lm_head, as in Llama, can be written in its format"
            )
        found.setdefault(module, {})[part.replace("embedding_", "")] = tensor
    return found
