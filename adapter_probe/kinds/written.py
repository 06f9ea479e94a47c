"""What a model writes, scored by exact match, numbers, words, or a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from adapter_probe.formulas import NO_CLASS, finite_or_nan
from adapter_probe.metrics import about

from .kind import Scored
from .likelihoods import CAUSAL
from .task import TaskKind


@dataclass(frozen=True, eq=False, kw_only=True)
class Written(Scored):
    """Written texts; the outputs are their scores ``[variants, examples, 1]``, NaN if a logit is not finite.

    A mean of numbers per text has no right and wrong texts.
    """

    TASK: ClassVar[TaskKind] = CAUSAL

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        return kind == CAUSAL.name and about(metric).is_written

    def n_outputs(self) -> int:
        return 1

    def predicted(self, intact: int) -> np.ndarray:
        """See `Scored.predicted`; of shares 0 where a text is right and else 1, else its score."""
        scores = finite_or_nan(self.outputs[..., 0].astype(np.float64))
        if about(self.metric).is_ratio:
            return scores
        return np.where(np.isnan(scores), NO_CLASS, 1 - np.nan_to_num(scores)).astype(np.int64)
