"""The order of examples."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapter_probe.training.loop import POOL_BATCHES, epoch_batches

SIZES = st.integers(1, 40)
SEEDS = st.integers(0, 2**32)


@given(lengths=st.lists(st.integers(3, 60), min_size=1, max_size=300), size=SIZES, seed=SEEDS, epoch=SIZES)
def test_every_example_once_in_full_batches(lengths, size, seed, epoch):
    batches = epoch_batches(np.array(lengths), size, seed, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert sorted(map(len, batches), reverse=True) == [size] * (len(lengths) // size) + (
        [len(lengths) % size] if len(lengths) % size else []
    )


def test_batches_hold_examples_of_similar_length():
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 60, size=5000)
    batches = epoch_batches(lengths, 32, 0, 0)
    spread = np.mean([np.ptp(lengths[batch]) for batch in batches])
    at_random = np.mean([np.ptp(generator.choice(lengths, 32)) for _ in batches])
    assert spread < at_random / 10


def test_short_and_long_batches_come_in_random_order():
    lengths = np.repeat(np.arange(3, 53), 32)  # one pool, one length a batch
    assert POOL_BATCHES >= 50
    means = [lengths[batch].mean() for batch in epoch_batches(lengths, 32, 0, 0)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.4


def test_the_order_follows_from_seed_and_epoch():
    lengths = np.random.default_rng(0).integers(3, 60, size=200)

    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(epoch_batches(lengths, 8, seed, epoch)).tolist()

    orders = {(seed, epoch): order(seed, epoch) for seed in range(3) for epoch in range(3)}
    assert order(1, 2) == orders[1, 2]
    assert len({tuple(found) for found in orders.values()}) == len(orders)
    np.random.seed(5)  # noqa: NPY002  the global generator must not matter
    assert order(1, 2) == orders[1, 2]
