"""Random batches of examples with similar length."""

from __future__ import annotations

import numpy as np

# Examples are sorted by length inside pools of this many batches: nearly free of length bias, yet a batch
# holds few different lengths.
POOL_BATCHES = 50


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Batches of example numbers for one epoch; every example once, the last batch may be smaller.

    Args:
        lengths: int ``[examples]``, tokens of each example.
        batch_size: number of examples per batch.
        seed: together with `epoch` determines the order.
        epoch: from 0.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), POOL_BATCHES * batch_size):
        pool = order[start : start + POOL_BATCHES * batch_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in generator.permutation(len(batches))]
