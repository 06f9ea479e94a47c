"""The guard of mixed precision: which predictions of the fast pass could differ from float32's.

The fast pass's logits are off by rounding. A prediction is the largest of an example's logits, so it can
differ only where the error in the difference of two logits exceeds the fast pass's own margin between the
first and the second. Wherever the margin is within the guard band, float32 has the last word; each pair that
it decides is also a measurement of an error.

How wide the band is: let S(m) be the chance that a pair's error exceeds m. Beyond the band, the predictions
that differ number on average at most the sum of S over the margins there, and the chance that there is any is
no more than that (Markov's inequality, however the errors depend on each other). The band is the narrowest
for which the sum is at most `CHANCE`. S comes from the errors at hand: the largest tenth is taken to fall
off exponentially, its scale being the mean excess over the tenth's threshold, at the upper end of that mean's
95 % interval. Errors that fall off faster, as normal ones do, get a wider band than they need.

The errors at hand are those of a random sample of pairs, which gives the band to begin with, and of all pairs
that were then decided, which lie where it matters: next to those that the band just leaves out. What the
chance leaves out is that errors beyond the band might be of another kind than those within and in the sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

CHANCE = 0.01
_TAIL = 0.1
_SAMPLE = 64
_NORMAL_95 = 1.645


@dataclass(frozen=True)
class Guard:
    """What is known of the fast pass's errors.

    Attributes:
        pairs: how many (example, variant) pairs were compared. Infinite errors do not count, since a logit
            that is not finite is never trusted.
        largest_error: the largest seen between two logits of a pair.
        threshold: a tenth of the errors exceed it,
        scale: by so much on average, at most.
    """

    pairs: int
    largest_error: float
    threshold: float
    scale: float

    @staticmethod
    def of(errors: np.ndarray) -> Guard:
        """From the errors of some pairs, whichever of them are finite."""
        known = np.sort(errors[np.isfinite(errors)])
        if not known.size:
            return Guard(0, 0.0, math.inf, math.inf)
        n_tail = math.ceil(_TAIL * known.size)
        threshold = float(known[-n_tail - 1]) if known.size > n_tail else 0.0
        scale = float(np.mean(known[-n_tail:] - threshold)) * (1 + _NORMAL_95 / math.sqrt(n_tail))
        return Guard(known.size, float(known[-1]), threshold, scale)

    def exceeded(self, margins: np.ndarray) -> np.ndarray:
        """S, the chance of an error above each margin; margins below the threshold count in full."""
        if self.scale == 0.0 or math.isinf(self.scale):
            return np.where(margins > self.threshold, 0.0, 1.0)
        return np.where(
            margins > self.threshold, _TAIL * np.exp((self.threshold - margins) / self.scale), 1.0
        )

    def first_band(self, n_pairs: int) -> float:
        """The band to begin with, rather too narrow: of `n_pairs`, ten errors would be above it."""
        if not self.pairs:
            return math.inf
        return self.threshold + self.scale * math.log(max(1.0, _TAIL * n_pairs / 10))

    def band(self, margins: np.ndarray) -> float:
        """The narrowest above which the sum of S over the margins is at most `CHANCE`."""
        if not self.pairs:
            return math.inf
        descending = np.sort(margins[np.isfinite(margins)])[::-1]
        too_many = np.cumsum(self.exceeded(descending)) > CHANCE
        return max(self.threshold, float(descending[too_many.argmax()])) if too_many.any() else self.threshold


def doubts(fast: np.ndarray, band: float) -> np.ndarray:
    """Bool ``[...]``: which predictions of logits ``[..., labels]`` are within the band, or not finite."""
    return ~(margins(fast) > band) | ~np.isfinite(fast).all(axis=-1)


def margins(logits: np.ndarray) -> np.ndarray:
    """Largest minus second largest of logits ``[..., labels]``."""
    two = np.sort(logits, axis=-1)[..., -2:]
    with np.errstate(invalid="ignore"):
        return two[..., 1] - two[..., 0]


def margin_errors(fast: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """By how much the difference of any two logits is off, at most: ``[..., labels]`` to ``[...]``.

    Infinite where a logit is NaN or infinite.
    """
    with np.errstate(invalid="ignore"):
        errors = np.ptp(fast.astype(np.float64) - exact.astype(np.float64), axis=-1)
    return np.where(np.isnan(errors), np.inf, errors)


def sampled(n_variants: int, n_examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Random pairs that are computed both ways before the rest is begun, the same ones every time.

    Returns:
        int64 ``[pairs]``, the variant and the example of each.
    """
    n = n_variants * n_examples
    chosen = np.random.default_rng(0).choice(n, min(n, _SAMPLE), replace=False)
    variants, examples = np.divmod(chosen, n_examples)
    return variants, examples
