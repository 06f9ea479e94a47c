"""The guard of mixed precision: which predictions of the fast pass could differ from float32's.

The fast pass's logits are off by rounding. A prediction is the largest of an example's logits, so it can
differ only where the error in the difference of two logits exceeds the fast pass's own margin between the
first and the second. On a sample of the same data both are computed, and the largest such error seen there,
with a factor on top, is the guard band: wherever the margin is within it, float32 has the last word.

How sure that is: of n sampled examples, the chance that a further one from the same data has a larger error
than all of them is 1 / (n + 1) at most, without the factor; and only if its margin then happens to lie
between band and error could its prediction differ. Each pair that float32 decides is a further measurement,
and where one is larger than those of the sample, the band is widened and the pairs between are decided too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FACTOR = 1.5
_LEAST, _MOST, _SHARE = 16, 128, 20


@dataclass(frozen=True)
class Guard:
    """What is known of the fast pass's errors.

    Attributes:
        largest_error: the largest seen between two logits of a pair.
        pairs: how many (example, variant) pairs were compared.
    """

    largest_error: float = 0.0
    pairs: int = 0

    @property
    def band(self) -> float:
        """Margins below this are not trusted."""
        return FACTOR * self.largest_error

    def after(self, fast: np.ndarray, exact: np.ndarray) -> Guard:
        """With the errors of more pairs, whose logits are ``[..., labels]`` in both precisions."""
        errors = margin_errors(fast, exact)
        return Guard(max(self.largest_error, float(errors.max(initial=0.0))), self.pairs + errors.size)

    def doubts(self, fast: np.ndarray) -> np.ndarray:
        """Bool ``[...]``: which predictions of logits ``[..., labels]`` are within the band."""
        return ~(margins(fast) > self.band)  # also where a logit is NaN


def margins(logits: np.ndarray) -> np.ndarray:
    """Largest minus second largest of logits ``[..., labels]``."""
    two = np.sort(logits, axis=-1)[..., -2:]
    return two[..., 1] - two[..., 0]


def margin_errors(fast: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """By how much the difference of any two logits is off, at most: ``[..., labels]`` to ``[...]``."""
    return np.ptp(fast.astype(np.float64) - exact.astype(np.float64), axis=-1)


def sample_size(n_examples: int) -> int:
    """How many examples are computed both ways before the rest is begun."""
    return min(n_examples, max(_LEAST, min(_MOST, n_examples // _SHARE)))


def sampled(n_examples: int) -> np.ndarray:
    """Which: int64 ``[sample]``, ascending, the same ones every time."""
    generator = np.random.default_rng(0)
    return np.sort(generator.choice(n_examples, sample_size(n_examples), replace=False))
