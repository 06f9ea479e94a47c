from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import naming

from adapter_probe.errors import ResultsError
from adapter_probe.probe.plan import (
    WIDEST_STATES,
    choose_tokens_per_pass,
    count_work,
    cut_batches,
    cut_by_length,
    cut_parts,
)
from adapter_probe.spans import span_variants

lengths_of_examples = st.lists(st.integers(1, 30), min_size=1, max_size=40).map(np.array)


@given(lengths_of_examples, st.integers(1, 100), st.integers(1, 100))
def test_batches_of_all_parts_hold_every_example_once(lengths, tokens_per_part: int, tokens_per_pass: int):
    parts = cut_parts(lengths, tokens_per_part)
    batches = [batch for part in parts for batch in cut_batches(lengths, part, tokens_per_pass)]
    assert sorted(np.concatenate(parts)) == sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert all(lengths[part].sum() <= tokens_per_part or len(part) == 1 for part in parts)
    # Only a batch of a single example may fill the pass by more than a fourth.
    assert all(lengths[batch].sum() <= tokens_per_pass / 4 or len(batch) == 1 for batch in batches)


@given(lengths_of_examples, st.integers(1, 100), st.integers(1, 100), st.integers(1, 3))
def test_batches_of_one_length_hold_every_example_in_order(lengths, tokens_per_part, tokens_per_pass, lanes):
    for part in cut_parts(lengths, tokens_per_part):
        batches = cut_by_length(lengths, part, tokens_per_pass, lanes)
        assert np.concatenate(batches).tolist() == part.tolist()
        assert all(len(set(lengths[batch].tolist())) == 1 for batch in batches)
        assert all(lengths[batch].sum() <= tokens_per_pass / 4 or len(batch) == 1 for batch in batches)


@pytest.mark.parametrize("lanes", [2, 16])
def test_few_examples_give_every_lane_a_batch(lanes):
    lengths = np.array([21] * 64)
    (part,) = cut_parts(lengths, 10_000)
    batches = cut_batches(lengths, part, 100_000, lanes)
    assert np.concatenate(batches).tolist() == part.tolist()
    assert len(batches) == 2 * lanes
    assert len(cut_batches(lengths, part, 100_000)) == 1


@given(lengths_of_examples, st.integers(12, 400), st.integers(2, 16))
def test_batches_of_several_lanes_are_of_nearly_equal_size(lengths, tokens_per_pass: int, lanes: int):
    (part,) = cut_parts(lengths, 10**9)
    batches = cut_batches(lengths, part, tokens_per_pass, lanes)
    assert np.concatenate(batches).tolist() == part.tolist()
    sizes = [lengths[batch].sum() for batch in batches]
    assert all(size <= tokens_per_pass / 4 or len(batch) == 1 for size, batch in zip(sizes, batches))
    # Cut at the examples nearest to equal shares: no batch is further from one than its longest example.
    longest = max(lengths)
    assert max(sizes) - min(sizes) <= 2 * longest


@given(lengths_of_examples, st.integers(1, 100))
def test_parts_go_from_short_to_long(lengths, tokens_per_part: int):
    order = np.concatenate(cut_parts(lengths, tokens_per_part))
    assert order.tolist() == sorted(range(len(lengths)), key=lambda example: lengths[example])


def test_the_work_of_the_papers_study():
    work = count_work(span_variants(12).masks, np.array([3, 5, 4]))
    assert (work.n_variants, work.n_distinct, work.n_examples, work.n_tokens) == (79, 79, 3, 12)
    assert work.layer_evaluations == (298, 376)
    assert work.separate_layer_evaluations == 79 * 12 == 948


@given(arrays(bool, st.tuples(st.integers(1, 10), st.sampled_from([2, 4, 8]))))
def test_work_is_the_number_of_different_prefixes(masks):
    rows = [tuple(row) for row in masks.tolist()]
    work = count_work(masks, np.array([1]))
    for kind in (0, 1):
        expected = sum(len({row[:site] for row in rows}) for site in range(kind, masks.shape[1], 2))
        assert work.layer_evaluations[kind] == expected
    assert (work.n_variants, work.n_distinct) == (len(rows), len(set(rows)))


def test_tokens_per_pass_follow_device_and_width_unless_asked_for():
    assert choose_tokens_per_pass(None, "cpu", 1024) == WIDEST_STATES["cpu"] // 4096
    assert choose_tokens_per_pass(None, "cpu", 2048) == WIDEST_STATES["cpu"] // 8192
    assert choose_tokens_per_pass(None, "cpu", 1024, 2) == WIDEST_STATES["cpu"] // 2048
    assert choose_tokens_per_pass(None, "cuda", 1024) > choose_tokens_per_pass(None, "cpu", 1024)
    assert choose_tokens_per_pass(None, "mps", 10**10) == 1
    assert choose_tokens_per_pass(1, "cpu", 1024) == 1
    for asked in (0, -5):
        with pytest.raises(ResultsError, match=naming("--tokens-per-pass", "1", str(asked))):
            choose_tokens_per_pass(asked, "cpu", 1024)
