"""How an ablation's work is cut up, and what it will cost. Decided before any weight is touched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adapter_probe.data.packing import cut_by_tokens
from adapter_probe.errors import ResultsError

# Numbers in the widest states that go through a sublayer together, those inside the feed-forward network.
# More gain nothing on a processor, whose matrix products are at full rate by then, and cost memory: from
# 32 MiB on, C's allocator takes every tensor from the system and gives it back at once, which is slow. An
# accelerator needs many more to be busy.
WIDEST_STATES = {"cpu": 3 << 20, "cuda": 400 << 20}
# A part is what an interruption can lose: seconds of work on a processor, less on an accelerator.
TOKENS_PER_PART = {"cpu": 1024, "cuda": 16384}
# Tokens of the batch on which the cost of a run is measured, and how often they pass through a layer at most:
# all spans of 12 layers take 300 passes, of 30 layers 5,000.
MEASURED_TOKENS = {"cpu": 256, "cuda": 16384}
MEASURED_LAYERS = 500


@dataclass(frozen=True)
class Workload:
    """What an ablation has to compute.

    Attributes:
        n_variants: rows of the mask matrix.
        n_distinct: rows that differ.
        n_examples, n_tokens: of the data.
        layer_evaluations: layer passes a batch, with every shared prefix computed once: (attention sublayers,
            feed-forward sublayers).
        separate_layer_evaluations: layer passes a batch of one run a variant.
    """

    n_variants: int
    n_distinct: int
    n_examples: int
    n_tokens: int
    layer_evaluations: tuple[int, int]
    separate_layer_evaluations: int


def nodes_by_site(masks: np.ndarray, forks_early: np.ndarray | None = None) -> list[int]:
    """How many times each site's sublayer runs a batch, in site order, for masks ``[variants, sites]``.

    The states that enter a site's sublayer differ only between variants that differ at an earlier site, so
    each sublayer runs once for every distinct prefix; where `forks_early`, bool ``[sites]``, once for every
    distinct prefix with the site itself.
    """
    early = np.zeros(masks.shape[1], dtype=int) if forks_early is None else forks_early.astype(int)
    read = [site + int(early[site]) for site in range(masks.shape[1])]
    return [len(np.unique(masks[:, :n], axis=0)) if n else 1 for n in read]


def count_work(masks: np.ndarray, lengths: np.ndarray, forks_early: np.ndarray | None = None) -> Workload:
    """Count from the masks ``[variants, sites]`` and the examples' lengths alone; see `nodes_by_site`."""
    masks = np.asarray(masks, dtype=bool)
    nodes = nodes_by_site(masks, forks_early)
    return Workload(
        n_variants=len(masks),
        n_distinct=len(np.unique(masks, axis=0)),
        n_examples=len(lengths),
        n_tokens=int(lengths.sum()),
        layer_evaluations=(sum(nodes[0::2]), sum(nodes[1::2])),
        separate_layer_evaluations=len(masks) * masks.shape[1] // 2,
    )


def choose_tokens_per_pass(asked: int | None, device_type: str, inner_size: int) -> int:
    """`asked`, or what suits the device.

    Args:
        asked: rows (nodes x tokens) that go through a sublayer together.
        device_type: "cpu", "cuda", ...
        inner_size: width inside the feed-forward network.

    Raises:
        ResultsError: `asked` is below 1.
    """
    if asked is None:
        return max(1, WIDEST_STATES.get(device_type, WIDEST_STATES["cpu"]) // inner_size)
    if asked < 1:
        raise ResultsError(f"tokens_per_pass {asked} is not allowed; give at least 1")
    return asked


def cut_parts(lengths: np.ndarray, tokens_per_part: int) -> list[np.ndarray]:
    """Example numbers of each part: sorted by length, so that neighbours share a length, then cut."""
    return cut_by_tokens(lengths, np.argsort(lengths, kind="stable"), tokens_per_part)


def cut_batches(
    lengths: np.ndarray, part: np.ndarray, tokens_per_pass: int, lanes: int = 1
) -> list[np.ndarray]:
    """A part's batches: a fourth of the pass each, so that the tree can grow before it has to be split.

    Where several are computed side by side, a sixth, so that the lanes end at about the same time.
    """
    return cut_by_tokens(lengths, part, max(1, tokens_per_pass // (4 if lanes == 1 else 6)))
