"""Spans within a tolerance and their border, and spans that are better than shorter ones inside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis import score_changes
from adapter_probe.analysis.resampling import Draws, draw_changes
from adapter_probe.analysis.score_changes import StudyKind
from adapter_probe.analysis.significance import ALPHA, span_interval
from adapter_probe.results.schema import REMOVABLE_COLUMNS
from adapter_probe.settings import Basis
from adapter_probe.startup import import_needed

TOLERANCES = (0.5, 1.0, 2.0)
"""Tolerated drops, in points, for which summaries and tables list removable spans."""

Segment = tuple[tuple[int, int], tuple[int, int]]
"""Two corners ``(x, y)`` of cells; the cell in row r and column c reaches from (c, r) to (c + 1, r + 1)."""

_JUDGED_BY = {"estimate": "delta_points", "interval": "bound_low_points"}


def longest_removable(
    spans: pd.DataFrame, tolerance: float, basis: Basis = "estimate", study: StudyKind = "ablated"
) -> pd.Series | None:
    """The longest span that drops by at most `tolerance` points; ties: smallest drop, then lowest layers.

    Args:
        spans: columns `first`, `last`, `n_layers`, `delta_points`, `bound_low_points`.
        basis: judge by the estimate, or by the bound of `bounds_of_chosen`.
        study: ``kept`` gives the shortest span that, if only it is kept on, drops by as little.

    Returns:
        the span's row, or None if there is none.
    """
    fits = spans[score_changes.within_tolerance(spans[_JUDGED_BY[basis]], tolerance)]
    length = fits["n_layers"] * (1 if study == "kept" else -1)
    # By the drop without float noise, so that equal scores tie.
    order = np.lexsort((fits["first"], score_changes.drop_points(fits["delta_points"]), length))
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
        Columns `tolerance_points`, `basis`, `first`, `last`, `n_layers`, `delta_points`, `bound_low_points`.
    """
    wanted = ["first", "last", "n_layers", "delta_points", "bound_low_points"]
    rows = []
    for tolerance in TOLERANCES:
        for basis in get_args(Basis):
            found = longest_removable(spans, tolerance, basis)
            values = {} if found is None else found[wanted].to_dict()
            rows.append({"tolerance_points": tolerance, "basis": basis, **values})
    frame = pd.DataFrame(rows, columns=list(REMOVABLE_COLUMNS))
    whole = dict.fromkeys(("first", "last", "n_layers"), "Int64")
    return frame.astype({**whole, "delta_points": "float64", "bound_low_points": "float64"})


def random_halves(results: AblationResults) -> tuple[np.ndarray, np.ndarray]:
    """Two random halves of the examples: one to choose a span on, the other to measure its drop on.

    The drop of the best-looking span is underestimated on the examples that it was chosen on. Questions
    are drawn by paragraph.

    Returns:
        int ``[examples in the half]`` each, ascending; the same results give the same halves.
    """
    found, cluster = np.unique(results.units, return_inverse=True)
    first = np.zeros(len(found), dtype=bool)
    first[np.random.default_rng(0).permutation(len(found))[: len(found) // 2]] = True
    return np.flatnonzero(first[cluster]), np.flatnonzero(~first[cluster])


def span_costs(results: AblationResults, basis: Basis = "estimate") -> pd.DataFrame:
    """The input of `longest_removable` from predictions; `bound_low_points` is NaN unless it is the basis."""
    if results.stacks is not None:
        parts = results.in_stacks.items()
        n = len(parts)
        frames = [_costs(own, basis, n).assign(stack=name) for name, own in parts]
        return pd.concat(frames, ignore_index=True)
    return _costs(results, basis, 1)


def _costs(results: AblationResults, basis: Basis, n_families: int) -> pd.DataFrame:
    spans = score_changes.span_scores(results).assign(bound_low_points=np.nan)
    if basis == "interval":
        rows = score_changes.rows_of(results, spans)
        changes = draw_changes(results, rows)
        spans["bound_low_points"] = bounds_of_ablation(spans, changes, results, rows, n_families)
    return spans


def bounds_of_ablation(
    spans: pd.DataFrame, changes: Draws, results: AblationResults, rows: Sequence[int], n_families: int
) -> np.ndarray:
    """`bounds_of_chosen` of an ablation's spans, by the intervals of their changes in these rows."""
    return bounds_of_chosen(
        spans,
        lambda tails: span_interval(changes, results, rows, tails)[0],
        score_changes.study_kind(results),
        n_families,
    )


def bounds_of_chosen(
    spans: pd.DataFrame,
    low_at: Callable[[np.ndarray], np.ndarray],
    study: StudyKind = "ablated",
    n_families: int = 1,
) -> np.ndarray:
    """One-sided 95% bounds of the changes, which hold for a span that is chosen by them, points ``[spans]``.

    At a tolerance that is given in advance, the probability that the bound of any span is within it and the
    span's true drop is not is at most 5%. Each span is tested at the level 5% divided by the number of spans
    of its length, and its bound is the lowest of those of the spans inside it, so that a long span needs all
    its parts, and in return is tested less strictly. A false claim needs one at a shortest span among those
    that cost too much, none of which is inside another; and of such spans the levels add up to at most 5%,
    as in the inequality of Lubell, Yamamoto and Meshalkin, because there is a random order of spans, each
    inside the next, that meets those of each length with equal probability. Of spans that form no grid and no
    line, each has an equal part of the 5%.

    Of spans kept on, those around a span take the place of those inside it.

    Args:
        low_at: the lower ends of the spans' intervals, ``[spans]``, with these probabilities beyond them.
        study: whether the spans were ablated or kept.
        n_families: the number of stacks from which a span is chosen.
    """
    ends = spans[["first", "last"]].to_numpy()
    units, order = score_changes.span_units(spans), score_changes.span_order(spans)
    alike = np.full(len(spans), len(spans))
    if units is not None and len(spans) == len(units) * (len(units) + 1) // 2:
        length = np.searchsorted(units[:, 0], ends[:, 1], side="right") - np.searchsorted(
            units[:, 0], ends[:, 0]
        )
        alike = len(units) - length + 1
    elif order in ("prefix", "suffix"):
        alike = np.ones(len(spans))
    low = low_at(ALPHA / (n_families * alike))
    inside = (ends[:, 0] >= ends[:, :1]) & (ends[:, 1] <= ends[:, 1:])  # [spans, spans inside]
    smaller = inside.T if study == "kept" else inside  # of kept spans the larger cost less
    return np.where(smaller, low, np.inf).min(axis=1)


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


def non_monotone(spans: np.ndarray, changes: Draws) -> np.ndarray:
    """Spans with a significantly smaller drop than a shorter span inside them.

    A span is flagged if it is better than some span inside it by a one-sided test at the level of 5% divided
    by the number of all pairs of such spans, so that where no span mends anything, the probability of any
    flag in the map is at most 5%. Of right and wrong answers it is the sign test; else that of Student, with
    a standard error to which the two largest contributions of a unit are added.

    Args:
        spans: int ``[spans, 2]``, first and last layer.
        changes: of the score, a column a span. A span that is undefined is not compared.

    Returns:
        bool ``[spans]``.
    """
    special = import_needed("scipy.special")

    first, last, values, counts = *spans.T, np.nan_to_num(changes.values), changes.counts
    known, n = ~np.isnan(changes.values).any(axis=0), counts.sum()
    nested = (first >= first[:, None]) & (last <= last[:, None]) & known & known[:, None]  # [outer, inner]
    nested &= ~np.eye(len(spans), dtype=bool)
    if changes.is_mean and len(np.unique(np.abs(values[values != 0]))) < 2:
        worse, better = (values < 0).astype(float), (values > 0).astype(float)
        won = (counts * (1 - worse).T) @ worse + (counts * better.T) @ (1 - better)  # [outer, inner]
        p = np.where(won > 0, special.betainc(np.maximum(won, 1), won.T + 1, 0.5), 1.0)
    else:
        mean, products = counts @ values / n, (counts * values.T) @ values / n
        apart = mean[:, None] - mean
        own = np.diag(products)
        variance = np.maximum(own[:, None] + own - 2 * products - apart**2, 0.0)
        largest = np.abs(values).max(axis=0)
        error = np.sqrt(variance / n) + (largest[:, None] + largest) / n
        p = special.stdtr(max(n - 1, 1), -apart / np.where(error > 0, error, np.inf))
    return np.asarray((nested & (p * max(nested.sum(), 1) < ALPHA)).any(axis=1))
