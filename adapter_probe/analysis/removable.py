"""Spans within a tolerance and their border, and spans that are better than shorter ones inside them."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.deltas import (
    StudyKind,
    drop_points,
    intact_row,
    rows_of,
    span_scores,
    within_tolerance,
    without_noise,
)
from adapter_probe.analysis.resampling import resampled_changes
from adapter_probe.analysis.significance import LEVEL, span_interval
from adapter_probe.results.schema import REMOVABLE_COLUMNS
from adapter_probe.settings import Basis

TOLERANCES = (0.5, 1.0, 2.0)
"""Tolerated drops, in points, for which summaries and tables list removable spans."""

Segment = tuple[tuple[int, int], tuple[int, int]]
"""Two corners ``(x, y)`` of cells; the cell in row r and column c reaches from (c, r) to (c + 1, r + 1)."""

_ROUNDING = 1e-12  # of a variance: below, the difference does not vary
_JUDGED_BY = {"estimate": "delta_points", "interval": "ci_low_points"}


def longest_removable(
    spans: pd.DataFrame, tolerance: float, basis: Basis = "estimate", study: StudyKind = "ablated"
) -> pd.Series | None:
    """The longest span that drops by at most `tolerance` points; ties: smallest drop, then lowest layers.

    Args:
        spans: columns `first`, `last`, `n_layers`, `delta_points`, `ci_low_points`.
        basis: judge by the estimate, or by the lower end of its interval.
        study: ``kept`` gives the shortest span that, if only it is kept on, drops by as little.

    Returns:
        the span's row, or None if there is none.
    """
    fits = spans[within_tolerance(spans[_JUDGED_BY[basis]], tolerance)]
    length = fits["n_layers"] * (1 if study == "kept" else -1)
    # By the drop without float noise, so that equal scores tie.
    order = np.lexsort((fits["first"], drop_points(fits["delta_points"]), length))
    return None if fits.empty else fits.iloc[order[0]]


def tolerance_steps(drops: np.ndarray, start: float) -> list[float]:
    """Tolerances for the slider, points ascending: fine steps near zero, coarse ones up to the largest drop.

    Args:
        drops: ``[spans]``, points; NaN is skipped.
        start: a tolerance that is always included.
    """
    known = drops[~np.isnan(drops)]
    most = float(max(1.0, known.max(initial=0.0)))
    ranges = (
        (0, 2, 0.1), (2, 5, 0.25), (5, 10, 0.5), (10, 20, 1), (20, 105, 5),
        (200, 1001, 50), (1500, 10_001, 500), (15_000, 100_001, 5000),  # of losses alone
    )  # fmt: skip
    steps = np.concatenate([np.arange(*each) for each in ranges]).round(2)
    return sorted({float(start), *steps[steps < most].tolist(), float(math.ceil(most))})


def tolerance_border(drops: np.ndarray, tolerance: float) -> list[Segment]:
    """The edges between a cell within the tolerance and a neighbour beyond it, for grids of any shape.

    Args:
        drops: points, ``[first, last]``; NaN where there is no cell. An edge needs a number on both sides.
        tolerance: points; a drop of exactly this size is within.

    Returns:
        edges, one cell long each.
    """
    within, cells = drops <= tolerance, ~np.isnan(drops)
    beside = (within[:, 1:] != within[:, :-1]) & cells[:, 1:] & cells[:, :-1]
    below = (within[1:] != within[:-1]) & cells[1:] & cells[:-1]
    upright = [((c + 1, r), (c + 1, r + 1)) for r, c in np.argwhere(beside).tolist()]
    level = [((c, r + 1), (c + 1, r + 1)) for r, c in np.argwhere(below).tolist()]
    return upright + level


def removable_table(spans: pd.DataFrame) -> pd.DataFrame:
    """The longest removable span at each tolerance by either basis; empty fields if there is none.

    Returns:
        Columns `tolerance_points`, `basis`, `first`, `last`, `n_layers`, `delta_points`, `ci_low_points`.
    """
    wanted = ["first", "last", "n_layers", "delta_points", "ci_low_points"]
    rows = []
    for tolerance in TOLERANCES:
        for basis in get_args(Basis):
            found = longest_removable(spans, tolerance, basis)
            values = {} if found is None else found[wanted].to_dict()
            rows.append({"tolerance_points": tolerance, "basis": basis, **values})
    frame = pd.DataFrame(rows, columns=list(REMOVABLE_COLUMNS))
    whole = dict.fromkeys(("first", "last", "n_layers"), "Int64")
    return frame.astype({**whole, "delta_points": "float64", "ci_low_points": "float64"})


def random_halves(results: AblationResults) -> tuple[np.ndarray, np.ndarray]:
    """Two random halves of the examples: one to choose a span on, the other to measure its drop on.

    The drop of the best-looking span is underestimated on the examples that it was chosen on. Questions
    are drawn by paragraph, as in the bootstrap.

    Returns:
        int ``[examples in the half]`` each, ascending; the same results give the same halves.
    """
    found, cluster = np.unique(results.units, return_inverse=True)
    first = np.zeros(len(found), dtype=bool)
    first[np.random.default_rng(0).permutation(len(found))[: len(found) // 2]] = True
    return np.flatnonzero(first[cluster]), np.flatnonzero(~first[cluster])


def span_costs(results: AblationResults, basis: Basis = "estimate") -> pd.DataFrame:
    """The input of `longest_removable`, from predictions; `ci_low_points` is NaN unless it is the basis."""
    spans = span_scores(results).assign(ci_low_points=np.nan)
    if basis == "interval":
        rows, changes = rows_of(results, spans), resampled_changes(results, intact_row(results))
        spans["ci_low_points"], _ = span_interval(without_noise(changes[:, rows]), (results, rows))
    return spans


def spans_with_adapters(spans: pd.DataFrame, adapted: np.ndarray) -> pd.DataFrame:
    """The distinct spans without layers at their ends that lack adapters; `n_layers` counts the others.

    Args:
        spans: columns `first`, `last`, `n_layers`.
        adapted: bool ``[layers]``, whether the layer has an adapter.
    """
    layers, below = np.flatnonzero(adapted), np.concatenate([[0], np.cumsum(adapted)])
    begin, end = below[spans["first"]], below[spans["last"] + 1]  # as numbers of the layers with adapters
    holds = begin < end
    begin, end = begin[holds], end[holds]
    kept = spans[holds].assign(first=layers[begin], last=layers[end - 1], n_layers=end - begin)
    return kept.drop_duplicates(["first", "last"], ignore_index=True)


def non_monotone(spans: np.ndarray, drops: np.ndarray, resampled: np.ndarray) -> np.ndarray:
    """Spans with a significantly smaller drop than a shorter span inside them.

    A span is flagged if the drop of some span inside it is greater by more than a simultaneous 95% bound
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
    errors = np.ascontiguousarray((resampled - drops).T)  # [spans, resamples]
    spread = np.cov(errors, bias=True).reshape(len(spans), len(spans))
    flagged = np.zeros(len(spans), dtype=bool)
    for outer in np.flatnonzero(known):
        inside = np.flatnonzero(known & (first >= first[outer]) & (last <= last[outer]))
        own = spread[inside, inside] + spread[outer, outer]
        variance = own - 2 * spread[inside, outer]
        inside, variance = inside[variance > _ROUNDING * own], variance[variance > _ROUNDING * own]
        studentised = (drops[inside] - drops[outer]) / np.sqrt(variance)
        if (studentised > 0).any():
            order = np.argsort(-studentised)  # most likely to exceed the maximum first
            scale = 1 / np.sqrt(variance[order])
            flagged[outer] = _exceeds_noise(studentised.max(), errors[outer], errors, inside[order], scale)
    return flagged


def _exceeds_noise(
    observed: float, outer: np.ndarray, errors: np.ndarray, inside: np.ndarray, scale: np.ndarray
) -> bool:
    """Whether `observed` is above the 95th percentile of the greatest ``(errors[i] - outer) * scale[i]``."""
    n = len(outer)
    greatest, noise = np.zeros(n), np.empty(n)
    for inner, factor in zip(inside, scale):
        np.subtract(errors[inner], outer, out=noise)
        noise *= factor
        np.maximum(greatest, noise, out=greatest)
        # The greatest only grows: once it reaches what was observed often enough, the rest cannot matter.
        if np.count_nonzero(greatest >= observed) > (1 - LEVEL) * n + 1:
            return False
    return bool(observed > np.quantile(greatest, LEVEL))
