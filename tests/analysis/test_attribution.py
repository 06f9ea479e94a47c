"""Interactions and shares against the Shapley value by its definition, and the paper's own grid."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from span_tables import span_grid

from adapter_probe.analysis.attribution import interactions, shares
from adapter_probe.analysis.published import published_ablation


def runs_of(coalition: frozenset[int]) -> list[tuple[int, int]]:
    """A coalition's maximal runs of neighbouring layers."""
    runs: list[list[int]] = []
    for layer in sorted(coalition):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [(run[0], run[-1]) for run in runs]


def shapley(drops: np.ndarray) -> np.ndarray:
    """Mean marginal contribution over all orders; a coalition is worth the sum over its runs."""
    n = len(drops)
    value = {
        frozenset(c): sum(drops[a, b] for a, b in runs_of(frozenset(c)))
        for size in range(n + 1)
        for c in itertools.combinations(range(n), size)
    }
    total = np.zeros(n)
    for order in itertools.permutations(range(n)):
        for position, layer in enumerate(order):
            before = frozenset(order[:position])
            total[layer] += value[before | {layer}] - value[before]
    return total / math.factorial(n)


def grids(n: int):
    return st.lists(st.floats(-50, 50), min_size=n * n, max_size=n * n).map(
        lambda values: np.array(values).reshape(n, n)
    )


@given(st.integers(1, 6).flatmap(grids))
def test_shares_are_the_shapley_value_on_the_chain(drops):
    np.testing.assert_allclose(shares(drops), shapley(drops), atol=1e-9)


@given(st.integers(1, 6).flatmap(grids))
def test_interactions_inside_a_span_sum_to_its_drop(drops):
    found = interactions(drops)
    for a, b in itertools.combinations_with_replacement(range(len(drops)), 2):
        inside = sum(found[i, j] for i in range(a, b + 1) for j in range(i, b + 1))
        assert inside == pytest.approx(drops[a, b], abs=1e-9)
    assert shares(drops).sum() == pytest.approx(drops[0, -1], abs=1e-9)


def test_a_stack_of_grids_at_once():
    drops = np.random.default_rng(0).normal(size=(7, 4, 4))
    np.testing.assert_allclose(shares(drops), np.stack([shares(grid) for grid in drops]), atol=1e-12)


def test_the_lower_triangle_is_not_read():
    drops = np.random.default_rng(0).normal(size=(4, 4))
    np.testing.assert_array_equal(shares(np.where(np.tri(4, k=-1), np.nan, drops)), shares(drops))


def test_the_papers_mnli():
    drops = -span_grid(published_ablation("mnli"))
    share = shares(drops)
    assert share.sum() == pytest.approx(43.5, abs=0.05)
    assert np.trace(drops) == pytest.approx(9.6, abs=0.1)
    assert sorted(np.argsort(share)[-2:].tolist()) == [7, 8]
