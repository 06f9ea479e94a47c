"""What can go: the longest span within a tolerance, and spans that do better without more adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from adapter_probe.analysis.deltas import within_tolerance
from adapter_probe.analysis.significance import interval

Basis = Literal["estimate", "interval"]
BASES: tuple[Basis, ...] = ("estimate", "interval")
_JUDGED_BY = {"estimate": "delta_points", "interval": "ci_low_points"}


def longest_removable(spans: pd.DataFrame, tolerance: float, basis: Basis = "estimate") -> pd.Series | None:
    """The longest span that costs at most `tolerance` points; of equals the cheapest, then the lowest.

    Args:
        spans: columns `first`, `last`, `n_layers`, `delta_points`, `ci_low_points`.
        tolerance: points.
        basis: judge by the estimate, or by the lower end of its interval.

    Returns:
        the span's row, or None if there is none.
    """
    fits = spans[within_tolerance(spans[_JUDGED_BY[basis]], tolerance)]
    ranked = fits.sort_values(["n_layers", "delta_points", "first"], ascending=[False, False, True])
    return None if ranked.empty else ranked.iloc[0]


def removable_table(spans: pd.DataFrame, tolerances: Sequence[float]) -> pd.DataFrame:
    """The longest removable span at each tolerance by either basis; empty fields where there is none.

    Returns:
        Columns `tolerance_points`, `basis`, `first`, `last`, `n_layers`, `delta_points`, `ci_low_points`.
    """
    wanted = ["first", "last", "n_layers", "delta_points", "ci_low_points"]
    rows = []
    for tolerance in tolerances:
        for basis in BASES:
            found = longest_removable(spans, tolerance, basis)
            values = {} if found is None else found[wanted].to_dict()
            rows.append({"tolerance_points": float(tolerance), "basis": basis, **values})
    frame = pd.DataFrame(rows, columns=["tolerance_points", "basis", *wanted])
    whole = dict.fromkeys(("first", "last", "n_layers"), "Int64")
    return frame.astype({**whole, "delta_points": "float64", "ci_low_points": "float64"})


def non_monotone(spans: np.ndarray, drops: np.ndarray, resampled: np.ndarray) -> np.ndarray:
    """Spans that cost less than a shorter span inside them, by more than noise.

    A span is flagged if it contains one whose drop is greater, and the 95 % bootstrap interval of the
    difference of both drops, on the same resamples, lies above 0. The intervals are not corrected for the
    many pairs: a flag is a hint where to look.

    Args:
        spans: int ``[spans, 2]``, first and last layer.
        drops: ``[spans]``, points.
        resampled: ``[resamples, spans]``, the same on resampled examples.

    Returns:
        bool ``[spans]``.
    """
    first, last = spans.T
    flagged = np.zeros(len(spans), dtype=bool)
    for outer in range(len(spans)):
        inside = (first >= first[outer]) & (last <= last[outer]) & (drops > drops[outer])
        if inside.any():
            low, _ = interval(resampled[:, inside] - resampled[:, [outer]])
            flagged[outer] = bool((low > 0).any())
    return flagged
