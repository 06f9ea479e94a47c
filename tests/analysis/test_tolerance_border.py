from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from adapter_probe.analysis.removable import tolerance_border

grids = st.tuples(st.integers(1, 8), st.integers(1, 8)).flatmap(
    lambda shape: hnp.arrays(float, shape, elements=st.sampled_from([-2.0, 0.0, 1.0, 1.001, 7.0, np.nan]))
)


def border_by_brute_force(drops: np.ndarray, tolerance: float) -> Counter:
    """Ask of every pair of cells whether they touch and whether the tolerance parts them."""
    found = Counter()
    cells = [(r, c) for r, c in np.ndindex(drops.shape) if not np.isnan(drops[r, c])]
    for r, c in cells:
        for other_r, other_c in cells:
            parted = (drops[r, c] <= tolerance) and not (drops[other_r, other_c] <= tolerance)
            if parted and abs(r - other_r) + abs(c - other_c) == 1:
                corners = {(x, y) for x in (c, c + 1) for y in (r, r + 1)}
                shared = {(x, y) for x in (other_c, other_c + 1) for y in (other_r, other_r + 1)}
                found[tuple(sorted(corners & shared))] += 1
    return found


@settings(deadline=None)
@given(grids, st.sampled_from([0.0, 1.0, 5.0, 50.0]))
def test_it_parts_within_from_beyond_and_nothing_else(drops, tolerance):
    edges = tolerance_border(drops, tolerance)
    assert Counter(tuple(sorted(edge)) for edge in edges) == border_by_brute_force(drops, tolerance)


def test_of_the_published_shape():
    drops = np.array([[1.2, 0.4, 3.0], [np.nan, 0.3, 1.0], [np.nan, np.nan, 1.5]])
    assert set(tolerance_border(drops, 1.0)) == {
        ((1, 0), (1, 1)),
        ((2, 0), (2, 1)),
        ((2, 1), (3, 1)),
        ((2, 2), (3, 2)),
    }
