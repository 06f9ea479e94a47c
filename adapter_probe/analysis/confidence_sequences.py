"""Bounds on a mean over a finite set of examples that hold after every example read, by betting.

The examples are read in random order without replacement, and the mean over all of them is asked for. So the
only chance is the order of the examples: nothing is assumed about where they come from.

A gambler starts with the capital 1 and bets before every example that its value will be above what a
hypothesis lets expect. If the hypothesis is true, the capital is a nonnegative supermartingale, and by
Ville's inequality the probability that it ever reaches 1 / alpha is at most alpha, however often one looks.

Sources: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", Journal of
the Royal Statistical Society B 86 (section 4 and appendix B: the capital process, mixtures of bets) and 2020,
"Confidence sequences for sampling without replacement", NeurIPS 33 (the conditional mean).
"""

from __future__ import annotations

import math

import numpy as np

FRACTIONS = 2.0 ** -np.arange(6)
"""Bets as shares of the largest one that cannot lose more than the capital; a sixth of it goes to each."""
_EPSILON = 1e-7  # sums of differences that are no whole numbers are rounded
_STEPS = 26  # of a bisection: bounds to 1e-7 of the largest difference


class Evidence:
    """Evidence against hypotheses of the form "all differences add up to at most this total", one per row.

    Before example i, with S the sum of the i - 1 differences read and n the number of examples, a hypothesis
    lets expect at most m = (total - S) / (n - i + 1). A bet of the share c multiplies the capital by
    1 - c + c (1 + d) / (1 + m), which is 1 or less in expectation if the hypothesis is true, and never
    negative. Every share of `FRACTIONS` is used with its own part of the capital, which adapts to the
    variance of the differences: the fewer differ from 0, the better do large bets. A hypothesis that the
    differences read already contradict has infinite evidence against it. This object is mutable.

    Args:
        totals: float ``[rows]``.
    """

    def __init__(self, n_examples: int, totals: np.ndarray):
        self._n, self._totals = n_examples, np.asarray(totals, dtype=np.float64)
        rows = len(self._totals)
        self._read = np.zeros(rows, dtype=np.int64)
        self._sums, self._logs = np.zeros(rows), np.zeros((rows, len(FRACTIONS)))
        self.largest = np.zeros(rows)
        """The largest logarithm of the capital so far, ``[rows]``."""

    def add(self, rows: np.ndarray, differences: np.ndarray) -> None:
        """Read the next differences of some rows, float ``[chosen, examples]`` in [-1, 1]."""
        d = np.asarray(differences, dtype=np.float64)
        if not d.size:
            return
        sums = self._sums[rows, None] + np.cumsum(d, axis=1)
        left = (self._n - self._read[rows])[:, None] - np.arange(d.shape[1])  # before each example
        room = self._totals[rows, None] - (sums - d) + left  # (n - i + 1) (1 + m): what 1 + d may add up to
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (1 + d) * left / np.minimum(room, 2 * left)  # m is at most 1
            ratio[room <= _EPSILON] = 1.0
            gains = np.log1p(FRACTIONS * (ratio[..., None] - 1))  # [chosen, examples, fractions]
        logs = self._logs[rows][:, None] + np.cumsum(gains, axis=1)
        capital = np.logaddexp.reduce(logs, axis=-1) - math.log(len(FRACTIONS))
        capital[room - (1 + d) < -_EPSILON] = np.inf  # not even the least of the rest makes it true
        self._sums[rows], self._logs[rows] = sums[:, -1], logs[:, -1]
        self._read[rows] += d.shape[1]
        self.largest[rows] = np.maximum(self.largest[rows], capital.max(axis=1))


def mean_bounds(differences: np.ndarray, n_examples: int, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on the mean of all differences, from those of the first examples in random order.

    Each of the two is wrong with a probability of at most `alpha`, however the number of examples was
    chosen. After all examples both are the mean.

    Args:
        differences: float ``[rows, read]`` in [-1, 1].

    Returns:
        lower and upper bounds, ``[rows]``.
    """
    d = np.asarray(differences, dtype=np.float64)
    upper = -_lower_totals(-d, n_examples, alpha) / n_examples
    return _lower_totals(d, n_examples, alpha) / n_examples, upper


def _lower_totals(d: np.ndarray, n_examples: int, alpha: float) -> np.ndarray:
    """The largest refuted totals: the evidence decreases with the total, so they are found by bisection."""
    rows, rest = np.arange(len(d)), n_examples - d.shape[1]
    low, high = d.sum(axis=1) - rest, d.sum(axis=1) + rest
    for _ in range(_STEPS if rest else 0):
        middle = (low + high) / 2
        evidence = Evidence(n_examples, middle)
        evidence.add(rows, d)
        refuted = evidence.largest >= math.log(1 / alpha)
        low, high = np.where(refuted, middle, low), np.where(refuted, high, middle)
    return low
