"""Chosen against rejected: by a language model or a reward model, and similar against other texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from adapter_probe.formulas import finite_or_nan
from adapter_probe.metrics import OF_PAIRS

from .kind import Axes, Scored
from .task import AT_RANDOM, TaskKind

PAIRWISE = TaskKind("pairwise", guess=AT_RANDOM)


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairs(Scored):
    """Pairs; the outputs are log-likelihoods, rewards or similarities of what is chosen and rejected."""

    TASK: ClassVar[TaskKind] = PAIRWISE
    has_texts: ClassVar[bool] = False

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        return metric in OF_PAIRS

    def n_outputs(self) -> int:
        return 2

    def predicted(self, intact: int) -> np.ndarray:
        """See `Scored.predicted`, and `scores_of_pairs`."""
        return scores_of_pairs(self.metric, self.outputs)

    def outcomes(self, predicted: np.ndarray) -> np.ndarray | None:
        return np.asarray(predicted == 1) if self.metric == "pairwise_accuracy" else None

    def chance_score(self) -> float:
        return 0.0 if self.metric == "margin" else 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class ReferredPairs(Pairs):
    """Preferences less a reference.

    Attributes:
        reference: float64 ``[examples, 2]``, the log-likelihoods by a reference model.
    """

    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        **Pairs.ARRAYS, "reference": (np.float64, ("examples", 2)),
    }  # fmt: skip

    reference: np.ndarray

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        return metric in OF_PAIRS and "reference" in arrays

    def predicted(self, intact: int) -> np.ndarray:
        """See `Scored.predicted`, and `scores_of_pairs`."""
        return scores_of_pairs(self.metric, self.outputs, self.reference)


def scores_of_pairs(metric: str, outputs: np.ndarray, reference: np.ndarray | None = None) -> np.ndarray:
    """Scores of examples with two outputs, of which the first should be the larger one.

    Args:
        metric: ``margin``, or ``pairwise_accuracy``.
        outputs: ``[..., examples, 2]``: log-likelihoods of a chosen and a rejected answer, their rewards, or
            similarities.
        reference: ``[examples, 2]``, what is subtracted: a reference model's log-likelihoods, so that the
            margin is the difference of DPO's implicit rewards divided by beta (Rafailov et al. 2023, eq. 7).

    Returns:
        float64 ``[..., examples]``: the first less the second one, or 1 where that is above 0, 1/2 where it
        is 0 and 0 below; NaN where an output is NaN or infinite.
    """
    values = outputs.astype(np.float64) - (0.0 if reference is None else reference)
    with np.errstate(invalid="ignore"):
        margins = finite_or_nan(values[..., 0] - values[..., 1])
    return margins if metric == "margin" else (1 + np.sign(margins)) / 2
