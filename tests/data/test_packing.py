from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import cut_by_tokens, pack

lengths_of_examples = st.lists(st.integers(1, 9), min_size=1, max_size=20)


def dataset(lengths: list[int], types: bool) -> Encoded:
    """Every token of every example has a value of its own."""
    starts = np.cumsum([0, *lengths])
    ids = tuple(np.arange(a, b, dtype=np.int64) for a, b in itertools.pairwise(starts))
    return Encoded(ids, tuple(1000 + i for i in ids) if types else None, fingerprint="")


@st.composite
def packed(draw: st.DrawFn) -> tuple[Encoded, np.ndarray]:
    encoded = dataset(draw(lengths_of_examples), draw(st.booleans()))
    index = draw(st.lists(st.integers(0, len(encoded) - 1), min_size=1, max_size=12, unique=True))
    return encoded, np.array(index)


@given(packed())
def test_every_example_lies_whole_behind_the_shorter_ones(case: tuple[Encoded, np.ndarray]):
    encoded, index = case
    batch = pack(encoded, index)
    # Examples of one length keep the order given.
    assert batch.index.tolist() == sorted(index.tolist(), key=lambda own: len(encoded.input_ids[own]))
    assert batch.lengths.tolist() == sorted(encoded.lengths[index].tolist())
    end = 0
    for place, example in enumerate(batch.index):
        begin, end = end, end + len(encoded.input_ids[example])
        assert batch.rows[place] == slice(begin, end)
        assert batch.input_ids[begin:end].tolist() == encoded.input_ids[example].tolist()
        if encoded.token_type_ids is not None:
            assert batch.token_type_ids[begin:end].tolist() == encoded.token_type_ids[example].tolist()
        assert batch.first[place].item() == begin
        assert batch.last[place].item() == end - 1
    assert end == len(batch.input_ids)
    assert (batch.token_type_ids is None) == (encoded.token_type_ids is None)
    values = torch.stack([batch.input_ids, -batch.input_ids], dim=1)  # [tokens, 2]
    cut = {}
    for examples, own in batch.by_length(values):
        cut |= dict(zip(range(examples.start, examples.stop), own.tolist(), strict=True))
    for place, example in enumerate(batch.index):
        assert cut[place] == [[i, -i] for i in encoded.input_ids[example].tolist()]


def test_a_list_of_examples_does_as_well():
    batch = pack(dataset([2, 1, 2], types=False), [2, 1, 0])
    assert batch.index.tolist() == [1, 2, 0]
    assert batch.input_ids.tolist() == [2, 3, 4, 0, 1]
    assert batch.input_ids.dtype == batch.first.dtype == torch.int64


@pytest.mark.parametrize("types", [True, False])
def test_to_moves_every_tensor(types: bool):
    moved = pack(dataset([3, 2], types), [0, 1]).to(torch.device("meta"))
    tensors = [moved.input_ids, moved.first, *([moved.token_type_ids] if types else [])]
    assert {t.device.type for t in tensors} == {"meta"}
    assert (moved.token_type_ids is None) == (not types)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    lengths = np.array(draw(lengths_of_examples))
    order = draw(st.permutations(range(len(lengths))))
    chosen = order[: draw(st.integers(0, len(order)))]
    return lengths, np.array(chosen, dtype=np.int64), draw(st.integers(1, 40))


@given(cuts())
def test_runs_hold_every_example_in_order_and_all_tokens_they_may(
    case: tuple[np.ndarray, np.ndarray, int],
):
    lengths, order, max_tokens = case
    runs = cut_by_tokens(lengths, order, max_tokens)
    assert [example for run in runs for example in run] == order.tolist()
    assert all(len(run) for run in runs)
    for run, following in zip(runs, [*runs[1:], None]):
        tokens = lengths[run].sum()
        assert tokens <= max_tokens or len(run) == 1
        if following is not None:
            assert tokens + lengths[following[0]] > max_tokens


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "runs"),
    [
        ([2, 9, 2], 4, [[0], [1], [2]]),
        ([9, 2, 2], 4, [[0], [1, 2]]),
        ([1, 1, 1], 1, [[0], [1], [2]]),
        ([1, 1, 1], 99, [[0, 1, 2]]),
    ],
)
def test_a_longer_example_makes_a_run_of_its_own(lengths: list, max_tokens: int, runs: list):
    cut = cut_by_tokens(np.array(lengths), np.arange(len(lengths)), max_tokens)
    assert [run.tolist() for run in cut] == runs
