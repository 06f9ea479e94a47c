"""The guard of mixed precision: which predictions of the fast pass could differ from float32's.

The fast pass's logits are off by rounding. A prediction is the largest of an example's logits, so it can
differ only where the error in the difference of two logits exceeds the fast pass's own margin between the
first and the second. On a sample of the same data both are computed, and the largest such error seen there,
with a factor on top, is the guard band: wherever the margin is within it, float32 has the last word.

How sure that is: the band is a bound from a sample, not a proof. The n examples are drawn at random and seen
under every variant, so that for each other example, whatever the errors' distribution, the chance that one of
its errors is larger than all of the sample's is at most 1 / (n + 1). That leaves out the factor, and that a
prediction differs only if its margin also lies between the band and the error. Each pair that float32 decides
is a further measurement, and where one is larger than those of the sample, the band is widened and the pairs
between are decided too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

FACTOR = 1.5
_LEAST, _MOST, _SHARE = 16, 128, 20


@dataclass(frozen=True)
class Guard:
    """What is known of the fast pass's errors.

    Attributes:
        largest_error: the largest seen between two logits of a pair; infinite errors do not count, since a
            logit that is not finite is never trusted.
        pairs: how many (example, variant) pairs with finite errors were compared.
    """

    largest_error: float = 0.0
    pairs: int = 0

    @property
    def band(self) -> float:
        """Margins below this are not trusted; infinite where nothing could be compared."""
        return FACTOR * self.largest_error if self.pairs else math.inf

    def after(self, fast: np.ndarray, exact: np.ndarray) -> Guard:
        """With the errors of more pairs, whose logits are ``[..., labels]`` in both precisions."""
        return self.with_errors(margin_errors(fast, exact))

    def with_errors(self, errors: np.ndarray) -> Guard:
        """With the errors of more pairs, whichever of them are finite."""
        known = errors[np.isfinite(errors)]
        return Guard(max(self.largest_error, float(known.max(initial=0.0))), self.pairs + known.size)

    def doubts(self, fast: np.ndarray) -> np.ndarray:
        """Bool ``[...]``: which predictions of logits ``[..., labels]`` are within the band."""
        return ~(margins(fast) > self.band) | ~np.isfinite(fast).all(axis=-1)


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


def sample_size(n_examples: int) -> int:
    """How many examples are computed both ways before the rest is begun."""
    return min(n_examples, max(_LEAST, min(_MOST, n_examples // _SHARE)))


def chance_beyond_sample(n_examples: int) -> float:
    """Most chance of an example outside the sample to have a larger error than all inside; any distribution.

    The example and the sample are n + 1 examples in random order, and the largest error is as likely to be
    any one's. 0 where all examples are in the sample.
    """
    n = sample_size(n_examples)
    return 0.0 if n == n_examples else 1 / (n + 1)


def sampled(n_examples: int) -> np.ndarray:
    """Which: int64 ``[sample]``, ascending, the same ones every time."""
    generator = np.random.default_rng(0)
    return np.sort(generator.choice(n_examples, sample_size(n_examples), replace=False))
