"""Suggestions of an ablation for the next LoRA, as arguments of PEFT's `LoraConfig`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.deltas import last_layers
from adapter_probe.spans import Span


def layers_to_transform(layers: Iterable[int], removed: Span) -> str:
    """The layers that keep their adapters when a span is removed.

    Args:
        layers: numbers of the layers that have adapters.
    """
    return f"layers_to_transform={kept_layers(layers, removed)}"


def kept_layers(layers: Iterable[int], removed: Span) -> list[int]:
    """The layers outside a span, ascending."""
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
    found: list[int] = ranks.tolist()
    return found


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
    if removable:
        span = Span(removable.first, removable.last)
        if kept_layers(with_adapters, span):  # else nothing is left
            lines["layers_to_transform"] = layers_to_transform(with_adapters, span)
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
