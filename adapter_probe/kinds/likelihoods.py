"""Choices, completions and texts by their likelihood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from adapter_probe.formulas import NO_CLASS, finite_or_nan
from adapter_probe.metrics import COUNTED, about, continuation_sizes

from .kind import Axes, Scored
from .task import AT_RANDOM, TaskKind

CAUSAL = TaskKind("causal", guess=AT_RANDOM, reads_all=True, is_language_model=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Likelihoods(Scored):
    """Losses of completions and texts, in nats or bits, or perplexities.

    Attributes:
        outputs: summed log-likelihoods in nats, ``[variants, examples, continuations]``, 0 where an example
            has fewer.
        counts: int64 ``[examples, continuations, 4]``, what `adapter_probe.metrics.COUNTED` says of every
            continuation, 0 where there is none.
    """

    TASK: ClassVar[TaskKind] = CAUSAL
    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        **Scored.ARRAYS, "counts": (np.int64, ("examples", "outputs", len(COUNTED))),
    }  # fmt: skip

    has_texts: ClassVar[bool] = False

    counts: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """What every continuation's log-likelihood is divided by: int64 ``[examples, continuations]``."""
        return continuation_sizes(self.metric, self.counts)

    def predicted(self, intact: int) -> np.ndarray:
        return predictions_from_likelihoods(self.metric, self.outputs, self.sizes)


@dataclass(frozen=True, eq=False, kw_only=True)
class Choices(Likelihoods):
    """Multiple choice; `scored_with` has the numbers of the right choices."""

    has_texts: ClassVar[bool] = True

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        return kind == "causal" and about(metric).of_choices

    def option_logits(self) -> np.ndarray | None:
        """See `Scored.option_logits`; None where they are compared by their length too."""
        return np.where(self.sizes > 0, self.outputs, -np.inf) if self.metric == "accuracy" else None

    def chance_score(self) -> float:
        return float((1 / (self.counts[..., 0] > 0).sum(axis=1)).mean())


@dataclass(frozen=True, eq=False, kw_only=True)
class Greedy(Likelihoods):
    """Completions, of which one is right if decoding writes it.

    Attributes:
        greedy: bool ``[variants, examples]``, whether every token is the most likely one.
    """

    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        **Likelihoods.ARRAYS, "greedy": (np.bool_, ("variants", "examples")),
    }  # fmt: skip

    greedy: np.ndarray

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        return metric == "greedy_accuracy"

    def predicted(self, intact: int) -> np.ndarray:
        """See `Scored.predicted`; 0 where an example is right and else 1."""
        return np.where(self.finite(), 1 - self.greedy, NO_CLASS).astype(np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class RightTokens(Likelihoods):
    """Completions and texts by the share of their tokens that are the most likely ones.

    Attributes:
        right: int64 ``[variants, examples]``, how many are.
    """

    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        **Likelihoods.ARRAYS, "right": (np.int64, ("variants", "examples")),
    }  # fmt: skip

    right: np.ndarray

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        return metric == "token_accuracy"

    def predicted(self, intact: int) -> np.ndarray:
        return np.where(np.isfinite(self.outputs[..., 0]), self.right, np.nan)


def predictions_from_likelihoods(metric: str, sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Predictions of a language model, from the log-likelihoods of continuations.

    Args:
        sums: ``[..., examples, continuations]``, summed log-likelihoods, nats.
        sizes: int ``[examples, continuations]``, what the sums are divided by before they are compared; 0
            where an example has no such continuation.

    Returns:
        int64 ``[..., examples]``, the most likely choice (the first of equals), or `NO_CLASS` if the
        log-likelihood of a choice is NaN or infinite; for a loss float64, the negative log-likelihood or NaN.
    """
    if about(metric).less_is_better:
        return finite_or_nan(-sums[..., 0].astype(np.float64))
    there = sizes > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        compared = np.where(there, sums.astype(np.float64) / sizes, -np.inf)
    finite = (np.isfinite(sums) | ~there).all(axis=-1)
    return np.where(finite, compared.argmax(axis=-1), NO_CLASS).astype(np.int64, copy=False)
