"""How far a variant is from the intact model: divergence and agreement of outputs, cosines of embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from adapter_probe.formulas import finite_or_nan
from adapter_probe.metrics import COMPARABLE, COMPARISONS

from .embeddings import EMBEDDING
from .kind import Axes, Scored
from .labels import CLASSIFICATION
from .likelihoods import Likelihoods
from .task import TaskKind


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassDistances(Scored):
    """Distributions over the classes; the outputs are logits, and `scored_with` is 1."""

    TASK: ClassVar[TaskKind] = CLASSIFICATION

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        return kind == "classification" and metric in COMPARISONS

    def predicted(self, intact: int) -> np.ndarray:
        return differences_from_logits(self.metric, self.outputs, self.outputs[intact])


@dataclass(frozen=True, eq=False, kw_only=True)
class ChoiceDistances(Likelihoods):
    """Distributions over the choices, by their log-likelihoods."""

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        return kind == "causal" and metric in COMPARISONS

    def predicted(self, intact: int) -> np.ndarray:
        there = self.counts[..., 0] > 0
        return differences_from_logits(self.metric, self.outputs, self.outputs[intact], there)


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenDistances(ChoiceDistances):
    """Distributions over the next token, at every scored token of completions and texts.

    Attributes:
        differences: float64 ``[variants, examples, 2]``: divergences in nats summed over the scored tokens,
            and the number of tokens with the same likeliest next token.
    """

    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        **ChoiceDistances.ARRAYS, "differences": (np.float64, ("variants", "examples", 2)),
    }  # fmt: skip

    differences: np.ndarray

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        return metric in COMPARISONS and "differences" in arrays

    def predicted(self, intact: int) -> np.ndarray:
        return finite_or_nan(self.differences[..., COMPARISONS.index(self.metric)])

    def finite(self) -> np.ndarray:
        return super().finite() & np.isfinite(self.differences).all(axis=-1)


@dataclass(frozen=True, eq=False, kw_only=True)
class EmbeddingDistances(Scored):
    """Embeddings of texts without labels.

    Attributes:
        outputs: whether each text's nearest other text is the intact model's, and the cosine to the intact
            embedding, ``[variants, texts, 2]``.
    """

    TASK: ClassVar[TaskKind] = EMBEDDING

    def n_outputs(self) -> int:
        return 2

    def predicted(self, intact: int) -> np.ndarray:
        scored = self.outputs[..., COMPARABLE["embedding"].index(self.metric)]
        return finite_or_nan(scored.astype(np.float64))


def differences_from_logits(
    metric: str, logits: np.ndarray, intact: np.ndarray, there: np.ndarray | None = None
) -> np.ndarray:
    """How far a classifier's outputs, or log-likelihoods of choices, are from the intact model's, by example.

    Args:
        metric: ``kl`` or ``agreement``.
        logits: ``[..., examples, labels]``.
        intact: ``[examples, labels]``, the intact model's.
        there: bool ``[examples, labels]``, which choices an example has; None for all.

    Returns:
        float64 ``[..., examples]``: the Kullback-Leibler divergence of the variant's distribution over the
        classes from the intact model's, KL(intact || variant) in nats, or 1 where the likeliest class is the
        same and 0 elsewhere; NaN where a logit is NaN or infinite.
    """
    finite = np.isfinite(logits).all(axis=-1) & np.isfinite(intact).all(axis=-1)
    if there is not None:
        logits, intact = np.where(there, logits, -np.inf), np.where(there, intact, -np.inf)
    if metric == "agreement":
        return np.where(finite, logits.argmax(axis=-1) == intact.argmax(axis=-1), np.nan)
    with np.errstate(invalid="ignore"):
        own, other = (_log_softmax(values.astype(np.float64)) for values in (intact, logits))
        divergence = np.sum(np.exp(own) * (own - other), axis=-1, where=True if there is None else there)
    return np.where(finite, np.maximum(divergence, 0.0), np.nan)  # rounding may leave less than 0


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
