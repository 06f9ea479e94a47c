"""The guard of mixed precision: which predictions of the fast pass could differ from float32's.

The logits of the fast pass have rounding errors. A prediction is the largest of an example's logits, so it
can differ only if the error in the difference of two logits exceeds the margin between the two largest logits
of the fast pass. If the margin is within the guard band, the pair is repeated in float32, which also measures
its error.

The width of the band: let S(m) be the probability that a pair's error exceeds m. Beyond the band, the
expected number of differing predictions is at most the sum of S over the margins there, which also bounds the
probability of any difference (Markov's inequality, for arbitrary dependence between errors). The band is the
narrowest one for which this sum is at most `CHANCE`. S is estimated from the measured errors: the largest
tenth is modelled as an exponential tail whose scale is the mean excess over the tenth's threshold, at the
upper end of the 95% interval of that mean. Errors with lighter tails, such as normal ones, get a wider band
than necessary.

The measured errors are those of a random sample of pairs, which determines the initial band, and of all pairs
repeated afterwards, which are close to those that the band just excludes. The bound does not cover the case
that errors beyond the band are distributed differently from those inside it and in the sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

CHANCE = 0.01
_TAIL = 0.1
_SAMPLE = 32
_BEYOND_FIRST, _BEYOND_ESTIMATE = 30, 10  # errors expected above a band
_NORMAL_95 = 1.645


@dataclass(frozen=True)
class Guard:
    """Statistics of the errors of the fast pass.

    Attributes:
        pairs: number of compared (example, variant) pairs. Infinite errors do not count, because a logit
            that is not finite is always repeated.
        largest_error: the largest error in the difference of two logits of a pair.
        threshold: value that a tenth of the errors exceeds.
        scale: upper confidence limit of the mean excess over the threshold.
    """

    pairs: int
    largest_error: float
    threshold: float
    scale: float

    @staticmethod
    def of(errors: np.ndarray) -> Guard:
        """Statistics from the finite errors of some pairs."""
        known = np.sort(errors[np.isfinite(errors)])
        if not known.size:
            return Guard(0, 0.0, math.inf, math.inf)
        n_tail = math.ceil(_TAIL * known.size)
        threshold = float(known[-n_tail - 1]) if known.size > n_tail else 0.0
        scale = float(np.mean(known[-n_tail:] - threshold)) * (1 + _NORMAL_95 / math.sqrt(n_tail))
        return Guard(known.size, float(known[-1]), threshold, scale)

    def exceeded(self, margins: np.ndarray) -> np.ndarray:
        """S, the probability of an error above each margin; 1 for margins below the threshold."""
        if self.scale == 0.0 or math.isinf(self.scale):
            return np.where(margins > self.threshold, 0.0, 1.0)
        return np.where(
            margins > self.threshold, _TAIL * np.exp((self.threshold - margins) / self.scale), 1.0
        )

    def first_band(self, n_pairs: int, estimate: bool = False) -> float:
        """The initial band of `n_pairs`, deliberately narrow; with `estimate`, about that of a whole run."""
        if not self.pairs:
            return math.inf
        beyond = _BEYOND_ESTIMATE if estimate else _BEYOND_FIRST
        return self.threshold + self.scale * math.log(max(1.0, _TAIL * n_pairs / beyond))

    def band(self, margins: np.ndarray) -> float:
        """The narrowest band beyond which the sum of S over the margins is at most `CHANCE`."""
        if not self.pairs:
            return math.inf
        descending = np.sort(margins[np.isfinite(margins)])[::-1]
        too_many = np.cumsum(self.exceeded(descending)) > CHANCE
        return max(self.threshold, float(descending[too_many.argmax()])) if too_many.any() else self.threshold


def doubts(fast: np.ndarray, band: float) -> np.ndarray:
    """Whether the margins of logits ``[..., labels]`` are within the band or not finite, bool ``[...]``."""
    return ~(margins(fast) > band) | ~np.isfinite(fast).all(axis=-1)


def least_certain(fast: np.ndarray, chosen: tuple[np.ndarray, ...], n: int) -> tuple[np.ndarray, ...]:
    """At most `n` of the chosen pairs, those with the smallest margins; logits that are not finite first."""
    if len(chosen[0]) <= n:
        return chosen
    own = fast[chosen]
    smallest = np.argsort(np.where(np.isfinite(own).all(axis=-1), margins(own), -1.0), kind="stable")
    kept = np.sort(smallest[:n])
    return tuple(part[kept] for part in chosen)


def margins(logits: np.ndarray) -> np.ndarray:
    """Largest minus second largest of logits ``[..., labels]``."""
    two = np.sort(logits, axis=-1)[..., -2:]
    with np.errstate(invalid="ignore"):
        return two[..., 1] - two[..., 0]


def margin_errors(fast: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Maximum error in the difference of any two logits, ``[...]`` for logits ``[..., labels]``.

    The error is infinite if a logit is NaN or infinite.
    """
    with np.errstate(invalid="ignore"):
        errors = np.ptp(fast.astype(np.float64) - exact.astype(np.float64), axis=-1)
    return np.where(np.isnan(errors), np.inf, errors)


def sampled(n_variants: int, n_examples: int) -> tuple[np.ndarray, np.ndarray]:
    """A fixed random sample of pairs that are computed in both precisions first.

    Returns:
        Two int64 arrays ``[pairs]``: the variant and the example of each pair.
    """
    n = n_variants * n_examples
    chosen = np.random.default_rng(0).choice(n, min(n, _SAMPLE), replace=False)
    variants, examples = np.divmod(chosen, n_examples)
    return variants, examples
