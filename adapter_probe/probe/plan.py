"""The division of an ablation into parts, and the amount of work, computed without the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adapter_probe.data.packing import cut_by_tokens
from adapter_probe.device import size_for
from adapter_probe.errors import ResultsError, must_be

# Bytes of the largest states in a pass, which are those inside the feed-forward network. Larger sizes do not
# speed up a CPU, whose matrix products are already at full rate, and they cost memory: from 32 MiB on, the C
# allocator maps and unmaps every tensor separately, which is slow. An accelerator needs larger sizes for full
# use.
WIDEST_STATES = {"cpu": 12 << 20, "accelerator": 1600 << 20}
# An interruption loses at most one part: seconds of work on a CPU, less on an accelerator.
TOKENS_PER_PART = {"cpu": 1024, "accelerator": 16384}
# Maximum number of tokens in the batches on which the cost of a run is measured, and of times that they pass
# through a layer. All spans of 12 layers take 300 passes, all spans of 30 layers take 5,000.
MEASURED_TOKENS = {"cpu": 512, "accelerator": 16384}
MEASURED_LAYERS = 500
# On a slow or busy machine, fewer variants are measured, so that it takes at most about this long.
MEASURED_SECONDS = 20.0
# The embedded examples of a share of pairs wait in memory together.
PASSES_PER_SHARE = 8


@dataclass(frozen=True)
class Workload:
    """The amount of work of an ablation; the attributes are those of `adapter_probe.AblationPlan`."""

    n_variants: int
    n_distinct: int
    n_examples: int
    n_tokens: int
    layer_evaluations: tuple[int, int]
    separate_layer_evaluations: int


def nodes_by_site(masks: np.ndarray, forks_early: np.ndarray | None = None) -> list[int]:
    """Number of runs of each site's sublayer per batch, in site order, for masks ``[variants, sites]``.

    The states that enter a site's sublayer differ only between variants that differ at an earlier site, so
    each sublayer runs once for every distinct prefix. Where `forks_early`, bool ``[sites]``, is true, the
    prefix includes the site itself.
    """
    early = np.zeros(masks.shape[1], dtype=int) if forks_early is None else forks_early.astype(int)
    read = [site + int(early[site]) for site in range(masks.shape[1])]
    return [len(np.unique(masks[:, :n], axis=0)) if n else 1 for n in read]


def count_work(
    masks: np.ndarray, lengths: np.ndarray, forks_early: np.ndarray | None = None, sites_of_layer: int = 2
) -> Workload:
    """The amount of work for masks ``[variants, sites]`` and example lengths; see `nodes_by_site`.

    Where layers have other sites than their two sublayers, those count by the first and by the last site.
    """
    masks = np.asarray(masks, dtype=bool)
    nodes = nodes_by_site(masks, forks_early)
    first, last = nodes[::sites_of_layer], nodes[sites_of_layer - 1 :: sites_of_layer]
    return Workload(
        n_variants=len(masks),
        n_distinct=len(np.unique(masks, axis=0)),
        n_examples=len(lengths),
        n_tokens=int(lengths.sum()),
        layer_evaluations=(sum(first), sum(last)),
        separate_layer_evaluations=len(masks) * masks.shape[1] // sites_of_layer,
    )


def choose_tokens_per_pass(asked: int | None, device_type: str, inner_size: int, itemsize: int = 4) -> int:
    """The requested number of rows per pass, or a default for the device.

    Args:
        asked: maximum number of rows (nodes x tokens) per pass through a sublayer, or None.
        inner_size: width inside the feed-forward network.
        itemsize: bytes of a number in the states.

    Raises:
        ResultsError: `asked` is below 1.
    """
    if asked is None:
        return max(1, size_for(WIDEST_STATES, device_type) // (inner_size * itemsize))
    if asked < 1:
        raise ResultsError(must_be("--tokens-per-pass", "at least 1", asked))
    return asked


def cut_parts(lengths: np.ndarray, tokens_per_part: int) -> list[np.ndarray]:
    """Example indices of each part: sorted by length, so that neighbours have equal length, then split."""
    return cut_by_tokens(lengths, np.argsort(lengths, kind="stable"), tokens_per_part)


def cut_batches(
    lengths: np.ndarray, part: np.ndarray, tokens_per_pass: int, lanes: int = 1, n_tokens: int | None = None
) -> list[np.ndarray]:
    """The batches of a part: each has a quarter of a pass, so that the tree can grow before it is split.

    With several lanes each has about a sixth of a pass, so that all lanes finish at about the same time,
    and with few examples every lane gets about two batches. These batches are of nearly equal size, because a
    small last one takes almost as long as a whole one. A small last part is shared, too.

    Args:
        lengths: int ``[examples]``, tokens of every example of the dataset.
        part: int ``[chosen]``, the examples of the part, in order.
        tokens_per_pass: maximum number of rows that pass through a layer together.
        lanes: number of batches that are computed at the same time.
        n_tokens: tokens of all parts that the lanes share; by default those of this part.
    """
    most = max(1, tokens_per_pass // 4)
    if lanes == 1 or not len(part):
        return cut_by_tokens(lengths, part, most)
    own = lengths[part]
    n_tokens = int(own.sum()) if n_tokens is None else n_tokens
    typical = typical_tokens(tokens_per_pass, lanes, n_tokens)
    middles = (np.cumsum(own) - own / 2) / own.sum()  # of each example, from 0 to 1
    for n_batches in range(max(2, round(int(own.sum()) / typical)), len(part) + 1):
        of_batch = (middles * n_batches).astype(int)
        batches = np.split(part, np.flatnonzero(np.diff(of_batch)) + 1)
        if all(len(batch) == 1 or lengths[batch].sum() <= most for batch in batches):
            return batches
    return np.split(part, len(part))


def cut_by_length(
    lengths: np.ndarray, part: np.ndarray, tokens_per_pass: int, lanes: int = 1, n_tokens: int | None = None
) -> list[np.ndarray]:
    """The batches of a part with examples of one length each, which need no padding; as in `cut_batches`."""
    own = lengths[part]
    n_tokens = int(own.sum()) if n_tokens is None else n_tokens
    most = max(1, tokens_per_pass // 4)
    if lanes > 1:
        most = min(most, typical_tokens(tokens_per_pass, lanes, n_tokens))
    batches: list[np.ndarray] = []
    for same in np.split(part, 1 + np.flatnonzero(np.diff(own))):
        if len(same):
            in_one = max(1, most // int(lengths[same[0]]))
            batches += np.array_split(same, -(-len(same) // in_one))
    return batches


def typical_tokens(tokens_per_pass: int, lanes: int, n_tokens: int) -> int:
    """Tokens of a batch if the lanes share `n_tokens`; see `cut_batches`."""
    return max(1, min(tokens_per_pass // 6, math.ceil(n_tokens / (2 * lanes))))


def cut_evenly(lengths: np.ndarray, tokens_per_pass: int, lanes: int) -> list[np.ndarray]:
    """Shares of pairs for the lanes, of nearly equal size and as few as fit into `PASSES_PER_SHARE` passes.

    Args:
        lengths: int ``[pairs]``, tokens of each pair's example.

    Returns:
        Indices of the pairs of each share, in order.
    """
    total = int(lengths.sum())
    shares = lanes * math.ceil(total / (lanes * tokens_per_pass * PASSES_PER_SHARE))
    middles = (np.cumsum(lengths) - lengths / 2) / total  # of each pair, from 0 to 1
    cuts = np.searchsorted(middles, np.arange(1, shares) / shares)
    return [share for share in np.split(np.arange(len(lengths)), cuts) if len(share)]
