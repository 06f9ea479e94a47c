"""Write a LoRA of PEFT with the largest directions of its change only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from adapter_probe.errors import CheckpointError
from adapter_probe.replay.directions import rank_of
from adapter_probe.replay.singular import of_product
from adapter_probe.results.atomic import make_folder, write_bytes, write_json

from .adapter_folder import WEIGHTS, read_adapter
from .files import CONFIG, read_json_file, refuse_full
from .opened_peft import OpenedPeft
from .peft_pruning import PREFIX, switched_modules
from .peft_writing import pattern_of, whole_number

_FACTORS = (("lora_A.weight", "lora_B.weight"), ("lora_embedding_A", "lora_embedding_B"))


def write_truncated(opened: OpenedPeft, modules: Collection[nn.Module], rank: int, out: Path) -> None:
    """Write a folder that PEFT loads, in which some modules keep their largest directions.

    Their factors get smaller, and the ranks and scales of all modules are written down by their names.

    Args:
        opened: the checkpoint.
        modules: modules of PEFT in its model.
        rank: how many directions each of them keeps, at most.
        out: the new folder.

    Raises:
        CheckpointError: `out` contains a checkpoint, or the adapter is no LoRA of single maps.
        ResultsError: the folder cannot be written.
    """
    refuse_full(out)
    document = read_json_file(opened.folder / CONFIG)
    if document.get("peft_type") != "LORA" or document.get("target_parameters"):
        what = "LoRA of experts" if document.get("target_parameters") else document.get("peft_type")
        raise CheckpointError(
            f"checkpoint {opened.folder} cannot be written with a rank of {rank}: PEFT's format has ranks by "
            f"module of LoRA, and this is {what}"
        )
    tensors = {name: t.contiguous() for name, t in read_adapter(opened.folder)[0].items()}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    for name, module in switched_modules(opened.model.get_base_model()):
        if not (own := rank_of(module)):
            continue
        kept = min(own, rank) if module in modules else own
        if kept < own:
            tensors |= _truncated(tensors, f"{PREFIX}{name}.", kept)
        (scale,) = module.scaling.values()  # type: ignore[union-attr, operator]
        ranks[name] = kept
        alphas[name] = whole_number(float(scale) * (math.sqrt(kept) if document.get("use_rslora") else kept))
    make_folder(out)
    if opened.own_tokenizer:
        opened.tokenizer.save_pretrained(out)
    write_bytes(out / WEIGHTS[0], safetensors.torch.save(tensors, metadata={"format": "pt"}))
    write_json(out / CONFIG, {**document, **_settings(ranks, alphas)})


def _truncated(tensors: dict[str, Tensor], prefix: str, rank: int) -> dict[str, Tensor]:
    """Smaller factors of one module, under their names in the file."""
    first, second = next(names for names in _FACTORS if prefix + names[0] in tensors)
    a, b = tensors[prefix + first], tensors[prefix + second]
    new_b, new_a = of_product(b.flatten(1), a.flatten(1)).factors(rank)
    new_b, new_a = new_b[:, :rank].to(b.dtype), new_a[:rank].to(a.dtype)
    return {
        prefix + first: new_a.reshape(rank, *a.shape[1:]).contiguous(),
        prefix + second: new_b.reshape(len(b), rank, *b.shape[2:]).contiguous(),
    }


def _settings(ranks: dict[str, int], alphas: dict[str, float]) -> dict[str, Any]:
    """Ranks and scales: the most frequent ones, and the others by module."""
    rank, alpha = (Counter(found.values()).most_common(1)[0][0] for found in (ranks, alphas))
    return {
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {pattern_of(name): one for name, one in ranks.items() if one != rank},
        "alpha_pattern": {pattern_of(name): one for name, one in alphas.items() if one != alpha},
    }
