"""Which drops are real: intervals, exact tests, and the correction for testing every span.

All comparisons are paired: the same examples under the intact model and under the variant.
"""

from __future__ import annotations

import numpy as np

from adapter_probe.results.ablation import AblationResults

LEVEL = 0.95
ALPHA = 0.05


def interval(samples: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval along the first axis; NaN where every sample is.

    Args:
        samples: ``[resamples, ...]``.
        level: coverage.
    """
    tail = (1 - level) / 2
    known = ~np.isnan(samples).all(axis=0)
    bounds = np.full((2, *samples.shape[1:]), np.nan)
    if known.any():
        bounds[:, known] = np.nanquantile(samples[:, known], [tail, 1 - tail], axis=0)
    return bounds[0], bounds[1]


def mcnemar_p(right: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Exact two-sided McNemar test of each row against the reference.

    Of the examples that just one of both has right, each is as likely to be the one's as the other's:
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
    """Two-sided bootstrap p of a difference: twice the smaller share of resamples on either side of 0.

    One is added to counts and resamples, so that p is never 0. Source: Davison and Hinkley 1997,
    Bootstrap Methods and their Application, section 4.2.

    Args:
        differences: ``[resamples, variants]``.

    Returns:
        float64 ``[variants]``; NaN where the difference is never defined.
    """
    defined = ~np.isnan(differences)
    n = defined.sum(axis=0)
    below, above = ((side & defined).sum(axis=0) for side in (differences <= 0, differences >= 0))
    p = np.minimum(1.0, 2 * (np.minimum(below, above) + 1) / (n + 1))
    return np.where(n > 0, p, np.nan)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment over the p-values that are numbers; NaN stays NaN.

    Source: Holm 1979, Scandinavian Journal of Statistics 6.
    """
    adjusted = np.full(len(p), np.nan)
    order = [i for i in np.argsort(p, kind="stable") if not np.isnan(p[i])]
    scaled = [p[i] * (len(order) - rank) for rank, i in enumerate(order)]
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled)) if order else []
    return adjusted


def span_p(results: AblationResults, rows: np.ndarray, intact: int, differences: np.ndarray) -> np.ndarray:
    """P of each row against the intact model: McNemar for accuracy, the bootstrap for other scores.

    Args:
        results: predictions and labels.
        rows: int ``[spans]``, the variants to test.
        intact: the variant to test against.
        differences: ``[resamples, spans]``, resampled score minus intact score.
    """
    if results.metric != "accuracy":
        return bootstrap_p(differences)
    right = results.predictions == results.labels
    return mcnemar_p(right[rows], right[intact])
