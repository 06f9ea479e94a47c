"""Significance of drops: intervals, exact tests, and the correction for testing every span.

All comparisons are paired: the same examples under the intact model and under the variant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.deltas import intact_row, without_noise
from adapter_probe.metrics import COMPARISONS, FEW_DISCORDANT, LOSSES, OF_PAIRS, PROPORTIONS

LEVEL = 0.95
ALPHA = 0.05


def percentile_interval(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval along the first axis, without float noise; NaN if every sample is NaN.

    Args:
        samples: ``[resamples, ...]``, points.

    Returns:
        lower and upper bounds with coverage `LEVEL`, ``[...]`` each.
    """
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    flat = samples.reshape(len(samples), -1)
    undefined = np.isnan(flat).sum(axis=0)
    bounds = np.full((2, flat.shape[1]), np.nan)
    whole, partly = undefined == 0, (undefined > 0) & (undefined < len(flat))
    bounds[:, whole] = np.quantile(flat[:, whole], tails, axis=0)
    bounds[:, partly] = np.nanquantile(flat[:, partly], tails, axis=0)  # much slower
    low, high = without_noise(bounds).reshape(2, *samples.shape[1:])
    return low, high


def bootstrap_interval(samples: np.ndarray, results: AblationResults) -> np.ndarray:
    """The percentile interval ``[2, spans]`` of each span's resampled change, points ``[resamples, spans]``.

    The bootstrap tells nothing where no prediction changes: there it is NaN for a score of predictions.
    """
    ends = np.stack(percentile_interval(samples))
    if results.kind != "regression" and results.metric not in (*LOSSES, "margin"):
        ends[:, (samples == 0).all(axis=0)] = np.nan
    return ends


def exact_interval(lost: int, won: int, n: int) -> tuple[float, float]:
    """Exact interval of a difference of two paired proportions, won minus lost, with coverage `LEVEL`.

    It excludes 0 exactly where the exact McNemar test has p < 0.05, and where nothing changes its ends are
    those of Clopper and Pearson. With the share T of discordant pairs and the share B of these that are won,
    the difference is T (2 B - 1); its upper end is that quantile of the product of their upper confidence
    distributions, which are betas (the lower one of T where the product is negative).
    Source: Fay and Lumbard 2021, Statistics in Medicine 40, 1147-1159. Their coverage is conjectured and
    checked by enumeration, as it is in the tests here.

    Args:
        lost: pairs that are right in the first alone.
        won: pairs that are right in the second alone.
        n: number of pairs.
    """
    return -_upper_end(won, lost, n), _upper_end(lost, won, n)


@lru_cache(4096)
def _upper_end(lost: int, won: int, n: int) -> float:
    """The upper end of `exact_interval`, by bisection; the mean over B is a Gauss-Legendre sum."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    signs = np.concatenate([(nodes - 1) / 2, (nodes + 1) / 2])  # 2 B - 1, of either sign
    density = np.tile(weights, 2) * (1 + signs) ** won * (1 - signs) ** (lost - 1)  # Beta(won + 1, lost)
    if lost == 0:  # then B is 1
        signs, density = np.ones(1), np.ones(1)
    density, lose = density / density.sum(), signs < 0
    low, high = -1.0, 1.0
    while high - low > 1e-9:
        end = (low + high) / 2
        share = np.clip(end / signs, 0.0, 1.0)
        if end < 0:
            above = density[~lose].sum() + density[lose] @ (1 - _at_most(lost + won - 1, n, share[lose]))
        else:
            above = density[~lose] @ _at_most(lost + won, n, share[~lose])
        low, high = (end, high) if above > (1 - LEVEL) / 2 else (low, end)
    return high


def _at_most(count: int, n: int, share: np.ndarray) -> np.ndarray:
    """P(X <= count) of a binomial X: that a beta with count + 1 and n - count is above `share`."""
    k, share = np.arange(count + 1)[:, None], np.clip(share, 1e-300, 1 - 1e-16)
    choices = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(count + 1)]
    terms = np.reshape(choices, (-1, 1)) + k * np.log(share) + (n - k) * np.log1p(-share)
    return np.exp(terms).sum(axis=0)


def exact_bounds(results: AblationResults, rows: Sequence[int]) -> np.ndarray:
    """Exact intervals of the rows' changes against the intact model, ``[2, rows]`` in points.

    NaN where the score is no proportion, is undefined, or `FEW_DISCORDANT` predictions or more change,
    or one to or from half right. A classifier's agreement with the intact model is a proportion too, which
    cannot be gained.
    """
    bounds, intact = np.full((2, len(rows)), np.nan), intact_row(results)
    agrees = results.metric == "agreement" and (results.scored_with == 1).all()
    if results.metric in PROPORTIONS or agrees:
        right = results.predictions == results.scored_with
        lost = (right[intact] & ~right[rows]).sum(axis=1).tolist()
        won = (right[rows] & ~right[intact]).sum(axis=1).tolist()
        halves = (results.predictions == 0.5) & (results.metric in OF_PAIRS)
        whole = (halves[rows] == halves[intact]).all(axis=1).tolist()
        for place, row in enumerate(rows):
            if whole[place] and lost[place] + won[place] < FEW_DISCORDANT and not results.nonfinite[row]:
                low, high = exact_interval(lost[place], won[place], results.n_examples)
                bounds[:, place] = 100 * low, 0.0 if agrees else 100 * high
    return bounds


def span_interval(
    samples: np.ndarray, *studies: tuple[AblationResults, Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """The interval of each span's change against the intact model, or of its mean over studies, in points.

    That of a proportion is exact where few predictions change, see `exact_bounds`; others are those of
    `bootstrap_interval`. Of a mean over studies of all of which few predictions change, the interval includes
    the mean of the exact ones, which leaves seeds out but is never too short for the examples. A span that
    switches nothing off has the interval 0 to 0.

    Args:
        samples: ``[resamples, spans]``, resampled `delta_points`, or their means.
        studies: the predictions of each study, and the variants of its spans, int ``[spans]``.

    Returns:
        lower and upper bounds, ``[spans]`` each.
    """
    exact = np.mean([exact_bounds(*study) for study in studies], axis=0)
    results, rows = studies[0]
    ends = bootstrap_interval(samples, results)
    if len(studies) > 1:
        exact = np.stack([np.fmin(exact[0], ends[0]), np.fmax(exact[1], ends[1])])
    ends = np.where(np.isnan(exact), ends, exact)
    ends[:, (results.masks[rows] == results.masks[intact_row(results)]).all(axis=1)] = 0.0
    low, high = without_noise(ends)
    return low, high


def mcnemar_p(right: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Exact two-sided McNemar test of each row against the reference.

    Under the null hypothesis, an example that only one of both has right is equally likely to be either's:
    p = min(1, 2 P(X <= min(b, c))) with X ~ Binomial(b + c, 1/2).
    Source: McNemar 1947, Psychometrika 12; the exact form, e.g., in Fagerland et al. 2013.

    Scores with halves are compared by their order, which makes it a sign test.

    Args:
        right: bool ``[variants, examples]``, or scores.
        reference: bool ``[examples]``, or scores.

    Returns:
        float64 ``[variants]``; 1 where no example differs.
    """
    lost, won = (reference > right).sum(axis=1), (reference < right).sum(axis=1)
    n = lost + won
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n.max(initial=0) + 1)))])
    p = np.ones(len(right))
    for row, (total, fewer) in enumerate(zip(n.tolist(), np.minimum(lost, won).tolist())):
        if total:
            k = np.arange(fewer + 1)
            log_terms = log_factorial[total] - log_factorial[k] - log_factorial[total - k] - total * np.log(2)
            p[row] = min(1.0, 2 * float(np.exp(log_terms).sum()))
    return p


def bootstrap_p(differences: np.ndarray) -> np.ndarray:
    """Two-sided bootstrap p-value of a difference: twice the smaller fraction on either side of 0.

    One is added to counts and resamples, so that p is never 0. Source: Davison and Hinkley 1997,
    Bootstrap Methods and their Application, section 4.2.

    Apart from the added one, it is below 0.05 exactly if the 95% percentile interval excludes 0.

    Args:
        differences: ``[resamples, variants]``, free of float noise, since 0 counts on both sides.

    Returns:
        float64 ``[variants]``; NaN where the difference is never defined.
    """
    n = (~np.isnan(differences)).sum(axis=0)
    below, above = (differences <= 0).sum(axis=0), (differences >= 0).sum(axis=0)  # NaN is on neither side
    p = np.minimum(1.0, 2 * (np.minimum(below, above) + 1) / (n + 1))
    return np.where(n > 0, p, np.nan)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment over the p-values that are numbers; NaN stays NaN.

    Source: Holm 1979, Scandinavian Journal of Statistics 6.
    """
    adjusted = np.full(len(p), np.nan)
    order = np.argsort(p, kind="stable")[: np.count_nonzero(~np.isnan(p))]  # NaN comes last
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)))
    return adjusted


def span_p(results: AblationResults, rows: np.ndarray, intact: int, differences: np.ndarray) -> np.ndarray:
    """The p-value of each row against the intact model: McNemar for accuracy, bootstrap for other scores.

    There is none for a comparison with the intact model: any change of a weight makes the outputs differ, so
    that they are equal is no hypothesis.

    Args:
        rows: int ``[spans]``, the variants to test.
        differences: ``[resamples, spans]``, resampled score minus intact score, without float noise.

    Returns:
        float64 ``[spans]``; NaN where the difference is undefined.
    """
    if results.metric in COMPARISONS:
        return np.full(len(rows), np.nan)
    if results.metric not in PROPORTIONS:
        return bootstrap_p(differences)
    found = results.predictions
    right = found if results.metric in OF_PAIRS else found == results.scored_with
    return mcnemar_p(right[rows], right[intact])
