"""Rankings of documents, by embeddings or a reranker.

Pairs with a similarity are `adapter_probe.kinds.labels.Numbers`, and triplets are
`adapter_probe.kinds.preferences.Pairs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from adapter_probe.metrics import METRICS

from .kind import Scored
from .task import TaskKind

RANKING = TaskKind("ranking", "query", "queries", "queries")
EMBEDDING = TaskKind("embedding", head="features")
"""A model of embeddings whose rows are not known yet; or its texts, compared with the intact model's."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Rankings(Scored):
    """Queries; the outputs are what each scores by every metric of a ranking, ``[variants, queries, 4]``."""

    TASK: ClassVar[TaskKind] = RANKING
    has_texts: ClassVar[bool] = False

    def n_outputs(self) -> int:
        return len(METRICS["ranking"])

    def predicted(self, intact: int) -> np.ndarray:
        scored = self.outputs[..., METRICS["ranking"].index(self.metric)].astype(np.float64)
        return np.where(self.finite(), scored, np.nan)
