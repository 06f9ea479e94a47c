"""What can go: the longest span within a tolerance, and spans that do better without more adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from adapter_probe.analysis.deltas import drop_points, within_tolerance
from adapter_probe.analysis.significance import LEVEL

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
    # By the drop without float noise, so that scores that are equal tie.
    order = np.lexsort((fits["first"], drop_points(fits["delta_points"]), -fits["n_layers"]))
    return None if fits.empty else fits.iloc[order[0]]


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

    A span is flagged if the drop of some span inside it is greater by more than a simultaneous 95 % bound
    allows: with the differences' bootstrap standard errors s, if the greatest ``difference / s`` over the
    spans inside is above the 95th percentile of the greatest ``(resampled difference - difference) / s``. So
    of spans that cost as much as all that lie inside, at most one in twenty is flagged, however many lie
    inside. Each span is judged for itself; there is no correction over the spans that could be flagged.
    Source: Romano and Wolf 2005, Journal of the American Statistical Association 100.

    Args:
        spans: int ``[spans, 2]``, first and last layer.
        drops: ``[spans]``, points.
        resampled: ``[resamples, spans]``, the same on resampled examples. A span that is undefined, be it on
            one resample, is not compared.

    Returns:
        bool ``[spans]``.
    """
    first, last = spans.T
    known = ~np.isnan(drops) & ~np.isnan(resampled).any(axis=0)
    flagged = np.zeros(len(spans), dtype=bool)
    for outer in np.flatnonzero(known):
        inside = known & (first >= first[outer]) & (last <= last[outer])
        gaps = drops[inside] - drops[outer]  # of the span itself: 0
        if not (gaps > 0).any():
            continue
        noise = resampled[:, inside] - resampled[:, [outer]] - gaps
        error = noise.std(axis=0)
        varies = error > 0
        greatest = (noise[:, varies] / error[varies]).max(axis=1, initial=0.0)
        bound = np.quantile(greatest, LEVEL)
        flagged[outer] = bool((gaps[varies] / error[varies] > bound).any())
    return flagged
