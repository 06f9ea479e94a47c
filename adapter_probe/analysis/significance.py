"""Significance of changes: intervals, exact tests, and the correction for testing every span.

All comparisons are paired: the same examples under the intact model and under the variant. An interval and
the p-value beside it are two readings of one distribution: p is below 0.05 exactly if the 95% interval
excludes 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.resampling import Draws
from adapter_probe.analysis.score_changes import intact_row, without_noise
from adapter_probe.startup import import_needed

LEVEL = 0.95
ALPHA = 0.05
_TAIL = (1 - LEVEL) / 2
_NODES = np.linspace(-5.0, 5.0, 121)  # of a normal deviate, over which means are taken
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()


def interval(changes: Draws, tails: np.ndarray | float = _TAIL) -> tuple[np.ndarray, np.ndarray]:
    """The interval of every change, in points.

    Where all units that change anything change as much, such as right and wrong answers do, it is exact, see
    `exact_end`. Else it has the quantiles of the weighted changes, each with one more unit that changes as
    much as the one that changes most, see `Draws.ends`.

    Args:
        tails: the probability beyond either end, one or ``[changes]``.

    Returns:
        lower and upper bounds, ``[changes]`` each; NaN where a draw is undefined, or nothing is known.
    """
    tails, n = np.broadcast_to(tails, changes.values.shape[1:]), changes.counts.sum()
    exact, size, lost, won = _of_one_size(changes)
    low, high = np.full((2, len(tails)), np.nan)
    low[exact] = -(size * exact_end(won, lost, n, tails[exact]))
    high[exact] = 0.0 if changes.is_distance else size * exact_end(lost, won, n, tails[exact])
    ends = changes.columns(~exact).ends
    low[~exact], high[~exact] = _quantiles(ends[0], tails[~exact]), _quantiles(ends[1], 1 - tails[~exact])
    return without_noise(low), without_noise(high)


def span_interval(
    changes: Draws, results: AblationResults, rows: Sequence[int], tails: np.ndarray | float = _TAIL
) -> tuple[np.ndarray, np.ndarray]:
    """The `interval` of the variants' changes against the intact model; 0 to 0 of one that is the same."""
    same = (results.masks[rows] == results.masks[intact_row(results)]).all(axis=1)
    low, high = (np.where(same, 0.0, end) for end in interval(changes, tails))
    return low, high


def p_values(changes: Draws) -> np.ndarray:
    """Two-sided p-values ``[changes]`` of no change, see `interval`; NaN where it has no ends.

    Where all units that change anything change as much, this is the exact McNemar test, or the sign test.
    Sources: McNemar 1947, Psychometrika 12; of the others, whose counts one is added to, Davison and Hinkley
    1997, Bootstrap Methods and their Application, section 4.2.
    """
    exact, _, lost, won = _of_one_size(changes)
    p = np.full(exact.shape, np.nan)
    p[exact] = sign_test(lost, won)
    low, high = changes.columns(~exact).ends
    fewer = np.minimum((low <= 0).sum(axis=0), (high >= 0).sum(axis=0))
    known = ~(np.isnan(low) | np.isnan(high)).any(axis=0)
    p[~exact] = np.where(known, np.minimum(1.0, 2 * (fewer + 1) / (len(low) + 1)), np.nan)
    p[(changes.values == 0).all(axis=0)] = 1.0
    return p


def _quantiles(samples: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Of every column its own quantile; NaN where a sample is."""
    found, place = np.full(len(at), np.nan), at * (len(samples) - 1)
    known = ~np.isnan(samples).any(axis=0)
    ordered = np.sort(samples[:, known], axis=0)
    below = np.floor(place[known]).astype(int)
    above, column = np.minimum(below + 1, len(samples) - 1), np.arange(known.sum())
    part = place[known] - below
    found[known] = (1 - part) * ordered[below, column] + part * ordered[above, column]
    return found


def _of_one_size(changes: Draws) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Which changes are made by units that change as much, bool ``[changes]``, or by none.

    Returns:
        and of these, how much a unit changes, how many change for the worse and for the better.
    """
    largest, values = changes.largest, changes.values
    found = ((values == 0) | (np.abs(values) > largest - 1e-6)).all(axis=0)
    found &= changes.is_mean & np.isfinite(changes.most)
    lost, won = (changes.counts @ side[:, found] for side in (values < 0, values > 0))
    return found, largest[found], lost, won


def exact_end(lost: np.ndarray, won: np.ndarray, n: int, tail: np.ndarray | float = _TAIL) -> np.ndarray:
    """The upper ends of exact intervals of differences of two paired proportions, won minus lost.

    The interval excludes 0 exactly where the exact McNemar test says so, and where nothing changes its ends
    are those of Clopper and Pearson. With the share T of discordant pairs and the share B of these that are
    won, the difference is T (2 B - 1); its upper end is that quantile of the product of their upper
    confidence distributions, which are betas (the lower one of T where the product is negative).
    Source: Fay and Lumbard 2021, Statistics in Medicine 40, 1147-1159. Their coverage is conjectured and
    checked by enumeration, as it is in the tests here.

    Args:
        lost: pairs that are right in the first alone, ``[differences]``.
        won: pairs that are right in the second alone, ``[differences]``.
        n: number of pairs.
        tail: the probability beyond the end.
    """
    special = import_needed("scipy.special")  # here, since it takes a fifth of a second

    every = np.stack([lost, won, np.broadcast_to(tail, np.shape(lost))]).astype(np.float64)
    (lost, won, tail), place = np.unique(every, axis=1, return_inverse=True)
    lost, won = lost[:, None], won[:, None]
    m = lost + won
    at = special.ndtr(_NODES)  # quantiles of T's distributions
    most = np.where(m < n, special.betaincinv(m + 1, np.maximum(n - m, 1), at), 1.0)
    least = np.where(m > 0, special.betaincinv(np.maximum(m, 1), n - m + 1, at), 1.0)
    low, high = np.full(lost.shape, -1.0), np.ones(lost.shape)
    for _ in range(34):
        end = (low + high) / 2
        share = np.clip((1 + end / np.where(end < 0, least, most)) / 2, 0.0, 1.0)
        beyond = (1 - special.betainc(won + 1, np.maximum(lost, 1), share)) @ _WEIGHTS > tail
        low[beyond, 0], high[~beyond, 0] = end[beyond, 0], end[~beyond, 0]
    alone = special.betaincinv(m + 1, np.maximum(n - m, 1), 1 - tail[:, None])  # where B is 1
    return np.where(lost > 0, high, np.where(m < n, alone, 1.0))[place.ravel(), 0]


def sign_test(lost: np.ndarray, won: np.ndarray) -> np.ndarray:
    """Two-sided exact p-values ``[differences]``: min(1, 2 P(X <= min(lost, won))), X binomial with 1/2."""
    special = import_needed("scipy.special")

    fewer, more = np.minimum(lost, won), np.maximum(lost, won)
    return np.where(
        more > 0, np.minimum(1.0, 2 * special.betainc(np.maximum(more, 1), fewer + 1.0, 0.5)), 1.0
    )


def over_seeds(
    changes: Draws, of_seeds: np.ndarray, tails: np.ndarray | float = _TAIL
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interval and p-value of mean changes over seeds and examples, two crossed random factors.

    The squares of two half-widths are added: that of Student's t over the seeds, with one degree of freedom
    less than seeds, and that of `interval` over the examples for these seeds. What seeds and examples have in
    common is in both, so that the sum is at least 95% for normal effects, whatever the sizes of the variances
    (Banerjee 1960, Sankhya 22); asymmetric ends are added as in Zou and Donner 2008 (Statistics in Medicine
    27). For p the half-widths are multiples of Student's t and of a normal quantile, at the level at which
    the interval ends at 0.

    Args:
        changes: means over the seeds, under random weights of the examples.
        of_seeds: the change of every seed, ``[seeds, changes]``.
        tails: the probability beyond either end, one or ``[changes]``.

    Returns:
        lower and upper bounds and p-values, ``[changes]`` each.
    """
    special = import_needed("scipy.special")

    n, mean = len(of_seeds), of_seeds.mean(axis=0)
    error = of_seeds.std(axis=0, ddof=1) / np.sqrt(n)
    low, high = interval(changes, tails)
    below, above = np.maximum(mean - low, 0.0), np.maximum(high - mean, 0.0)
    own = special.stdtrit(n - 1, 1 - np.asarray(tails)) * error
    ends = mean - np.hypot(own, below), mean + np.hypot(own, above)
    nearer = np.where(mean > 0, below, above) / special.ndtri(1 - np.asarray(tails))
    least, most = np.full(mean.shape, -700.0), np.zeros(mean.shape)  # logarithms of p
    for _ in range(60):
        middle = (least + most) / 2
        tail = np.exp(middle) / 2
        inside = np.hypot(special.stdtrit(n - 1, tail) * error, special.ndtri(tail) * nearer) >= np.abs(mean)
        least, most = np.where(inside, middle, least), np.where(inside, most, middle)
    p = np.where(np.isnan(ends[0]) | np.isnan(ends[1]), np.nan, np.exp(most))
    if changes.is_distance:
        ends = ends[0], np.minimum(ends[1], 0.0)
    return without_noise(ends[0]), without_noise(ends[1]), p


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment over the p-values that are numbers; NaN stays NaN.

    Source: Holm 1979, Scandinavian Journal of Statistics 6.
    """
    adjusted = np.full(len(p), np.nan)
    order = np.argsort(p, kind="stable")[: np.count_nonzero(~np.isnan(p))]  # NaN comes last
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)))
    return adjusted
