"""Significance of drops: intervals, exact tests, and the correction for testing every span.

All comparisons are paired: the same examples under the intact model and under the variant.
"""

from __future__ import annotations

import numpy as np

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.deltas import without_noise
from adapter_probe.metrics import COMPARISONS, PROPORTIONS

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


def mcnemar_p(right: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Exact two-sided McNemar test of each row against the reference.

    Under the null hypothesis, an example that only one of both has right is equally likely to be either's:
    p = min(1, 2 P(X <= min(b, c))) with X ~ Binomial(b + c, 1/2).
    Source: McNemar 1947, Psychometrika 12; the exact form, e.g., in Fagerland et al. 2013.

    Args:
        right: bool ``[variants, examples]``.
        reference: bool ``[examples]``.

    Returns:
        float64 ``[variants]``; 1 where no example differs.
    """
    lost = (reference & ~right).sum(axis=1)
    won = (~reference & right).sum(axis=1)
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
    right = results.predictions == results.scored_with
    return mcnemar_p(right[rows], right[intact])
