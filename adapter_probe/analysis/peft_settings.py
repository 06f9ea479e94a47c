"""Suggestions of an ablation for the next LoRA, as arguments of PEFT's `LoraConfig`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.deltas import last_layers
from adapter_probe.errors import ResultsError, must_be
from adapter_probe.spans import Span


def kept_layers(layers: Iterable[int], removed: Span) -> list[int]:
    """The layers that keep their adapters when a span is removed, of those that have some; ascending."""
    return [layer for layer in sorted(layers) if not removed.first <= layer <= removed.last]


def rank_pattern(layers: Sequence[int], shares: Sequence[float], rank: int) -> str:
    """The ranks of `ranks_by_share` as an argument of `LoraConfig`."""
    pairs = zip(layers, ranks_by_share(shares, rank))
    return "rank_pattern={" + ", ".join(f'r"{pattern_of(n)}": {r}' for n, r in pairs) + "}"


def pattern_of(layer: int) -> str:
    """The key of a layer in PEFT's patterns: the layer's is the first number in a module's name.

    Others may follow, such as an expert's.
    """
    return rf"^\D*\.{layer}\..*"


def ranks_by_share(shares: Sequence[float], rank: int) -> list[int]:
    """Ranks by layer, in proportion to the layers' shares of the drop, with the same sum as before.

    A layer without a share, or with a negative one, gets rank 1, the minimum of LoRA. The ranks
    that remain after rounding go to the layers with the largest remainders.

    Args:
        shares: each layer's share of the drop, in points; losses are positive.
        rank: mean of the ranks, at least 1.
    """
    weights = np.clip(np.asarray(shares, dtype=float), 0, None)
    weights = weights / weights.sum() if weights.sum() > 0 else np.full(len(weights), 1 / len(weights))
    spare = (rank - 1) * len(weights)
    exact = 1 + spare * weights
    ranks = np.floor(exact).astype(int)
    order = np.argsort(ranks - exact, kind="stable")
    ranks[order[: rank * len(weights) - ranks.sum()]] += 1
    return ranks.tolist()


def next_lora(results: AblationResults, layers: pd.DataFrame, spans: Mapping[str, Any]) -> dict[str, str]:
    """Suggestions of an ablation of PEFT's LoRA for the next one, as arguments of `LoraConfig`.

    There are none where the study switched only one of a layer's two adapters, as both arguments are for
    whole layers. Layers that it did not study keep their adapters and their rank.

    Args:
        results: the ablation, whose settings give the rank of the LoRA and the parameters at every site.
        spans: its notable spans, see `adapter_probe.analysis.notable_spans`.
    """
    removable, studied = spans.get("longest_removable", {}).get("1"), studied_lora(results)
    if studied is None:
        return {}
    rank, with_adapters, ranked = studied
    lines = {}
    if removable and (kept := kept_layers(with_adapters, Span(removable.first, removable.last))):
        lines["layers_to_transform"] = f"layers_to_transform={kept}"
    shares = shares_by_layer(layers).reindex(ranked)
    if shares.notna().all():
        lines["rank_pattern"] = rank_pattern(ranked, shares.tolist(), rank)
    return lines


def studied_lora(results: AblationResults) -> tuple[int, list[int], list[int]] | None:
    """Of an ablation of PEFT's LoRA, its rank, the layers with adapters, and those that were studied.

    None of anything else, of a map by module, and where the study switched only a part of a layer's adapters.
    """
    rank, counts = results.settings.get("lora_rank"), results.settings.get("site_parameters")
    if not isinstance(rank, int) or not counts or results.modules is not None:
        return None
    off = results.switched
    there = np.reshape(counts, off.shape) > 0
    studied = (there & off).any(axis=1)  # [layers]
    if (there & ~off)[studied].any():
        return None
    return rank, np.flatnonzero(there.any(axis=1)).tolist(), np.flatnonzero(studied).tolist()


def shares_by_layer(layers: pd.DataFrame) -> pd.Series:
    """Shares in points by layer; the share of a group is divided equally among its layers."""
    shares = {
        layer: share / (end - first + 1)
        for first, end, share in zip(layers["layer"], last_layers(layers), layers["share_points"])
        for layer in range(first, end + 1)
    }
    return pd.Series(shares, dtype=float)


def _alpha(config: Mapping[str, Any], alpha: float, old: int, new: int) -> float:
    """The alpha with which a rank is scaled as in the trained LoRA: alpha / r, or alpha / sqrt(r)."""
    ratio = new / old
    value = round(alpha * (math.sqrt(ratio) if config.get("use_rslora") else ratio), 9)
    return int(value) if float(value).is_integer() else value


def of_layers(
    path: Path,
    config: Mapping[str, Any],
    layers: Sequence[int],
    adapted: Sequence[int],
    rank: int | None,
    shares: Mapping[int, float] | None,
) -> dict[str, Any]:
    """PEFT's configuration, from `path`, with adapters in some layers; every layer keeps its scale.

    Args:
        rank: the mean rank, which follows the layers' shares; None keeps the ranks.
        shares: of each layer, in points.

    Raises:
        ResultsError: PEFT's configuration cannot say so.
    """
    changed = {**config, "inference_mode": False}
    changed |= {name: dict(config.get(name) or {}) for name in ("rank_pattern", "alpha_pattern")}
    if list(layers) != list(adapted):
        if not isinstance(config.get("target_modules"), list):
            raise ResultsError(
                f"{path}: PEFT allows layers_to_transform only with a list of target_modules, and no pattern"
            )
        changed["layers_to_transform"] = list(layers)
    if rank is None or shares is None:
        return changed
    if rank < 1:
        raise ResultsError(must_be("rank", "at least 1", rank))
    if changed["rank_pattern"] or changed["alpha_pattern"]:
        raise ResultsError(f"{path} has a rank_pattern or alpha_pattern of its own; omit rank")
    ranks = ranks_by_share([shares[layer] for layer in layers], rank)

    alphas = {own: _alpha(config, config["lora_alpha"], config["r"], own) for own in (rank, *ranks)}
    changed |= {"r": rank, "lora_alpha": alphas[rank]}
    changed["rank_pattern"] = {pattern_of(n): own for n, own in zip(layers, ranks) if own != rank}
    changed["alpha_pattern"] = {pattern_of(n): alphas[own] for n, own in zip(layers, ranks) if own != rank}
    return changed


def of_rank(config: Mapping[str, Any], needed: int) -> dict[str, Any]:
    """PEFT's configuration in which no map has a rank of more than `needed`; every map keeps its scale."""
    ranks, alphas = (dict(config.get(name) or {}) for name in ("rank_pattern", "alpha_pattern"))
    r, alpha = config.get("r", 8), config.get("lora_alpha", 8)
    maps: dict[str, tuple[int, float]] = {}  # in this order, since the first key that matches counts
    same = list(ranks) == list(alphas)
    for one, other in zip(ranks, alphas) if same else product(ranks, alphas):
        if key := _of_both(one, other):
            maps.setdefault(key, (ranks[one], alphas[other]))
    for key in (*ranks, *alphas):
        maps.setdefault(key, (ranks.get(key, r), alphas.get(key, alpha)))
    fewer = {key: min(rank, needed) for key, (rank, _) in maps.items()}
    return {
        **config, "inference_mode": False, "r": min(r, needed),
        "lora_alpha": _alpha(config, alpha, r, min(r, needed)),
        "rank_pattern": fewer if set(fewer.values()) - {min(r, needed)} else {},
        "alpha_pattern": {key: _alpha(config, own, n, fewer[key]) for key, (n, own) in maps.items()},
    }  # fmt: skip


def _of_both(one: str, other: str) -> str | None:
    """A key of PEFT's patterns for what two keys match; None for names of different modules."""
    if one == other:
        return one
    if not all(re.fullmatch(r"\w+(\.\w+)*", key) for key in (one, other)):
        return rf"(?=(?:.*\.)?(?:{one})$)(?:.*\.)?(?:{other})"
    short, long = sorted((one, other), key=len)
    return long if long.endswith(f".{short}") else None
