"""Suggestions of an ablation for the next LoRA, as arguments of PEFT's `LoraConfig`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from adapter_probe.spans import Span


def layers_to_transform(layers: Iterable[int], removed: Span) -> str:
    """The layers that keep their adapters when a span is removed.

    Args:
        layers: numbers of the layers that have adapters.
        removed: the removed layers.
    """
    kept = [layer for layer in sorted(layers) if not removed.first <= layer <= removed.last]
    return f"layers_to_transform={kept}"


def rank_pattern(layers: Sequence[int], shares: Sequence[float], rank: int) -> str:
    """Ranks by layer, in proportion to the layers' shares of the drop, with the same sum as before.

    A layer without a share, or with a negative one, gets rank 1, the minimum of LoRA. The ranks
    that remain after rounding go to the layers with the largest remainders.

    Args:
        layers: numbers of the layers with adapters.
        shares: each layer's share of the drop, in points; losses are positive.
        rank: rank of the LoRA that was ablated, at least 1.
    """
    weights = np.clip(np.asarray(shares, dtype=float), 0, None)
    weights = weights / weights.sum() if weights.sum() > 0 else np.full(len(weights), 1 / len(weights))
    spare = (rank - 1) * len(weights)
    exact = 1 + spare * weights
    ranks = np.floor(exact).astype(int)
    order = np.argsort(ranks - exact, kind="stable")
    ranks[order[: rank * len(weights) - ranks.sum()]] += 1
    # PEFT matches a pattern against the end of a module's name, from a dot on.
    return "rank_pattern={" + ", ".join(rf'r"{n}\..*": {r}' for n, r in zip(layers, ranks)) + "}"
