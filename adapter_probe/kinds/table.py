"""All kinds: of tasks, and of what is scored."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adapter_probe.metrics import METRICS, about, check_kind

from .answers import Answers
from .distance import ChoiceDistances, ClassDistances, EmbeddingDistances, TokenDistances
from .embeddings import Rankings
from .kind import Scored
from .labels import Classes, Numbers, SeveralLabels, SeveralNumbers
from .likelihoods import Choices, Greedy, Likelihoods, RightTokens
from .preferences import Pairs, ReferredPairs
from .tags import Tags
from .task import TaskKind
from .written import Written

KINDS: tuple[type[Scored], ...] = (
    TokenDistances, ChoiceDistances, ClassDistances, EmbeddingDistances, Written, ReferredPairs, Pairs,
    Rankings, Greedy, RightTokens, Choices, Likelihoods, Answers, Tags, SeveralLabels, SeveralNumbers,
    Numbers, Classes,
)  # fmt: skip
"""All kinds of what is scored; of those that fit, the first counts."""

TASKS = {one.TASK.name: one.TASK for one in KINDS}
"""The kinds of tasks that they are of, by name."""


def about_kind(kind: str) -> TaskKind:
    """What a kind of task is.

    Raises:
        DataError: the kind is unknown.
    """
    return TASKS[check_kind(kind)]


def about_metric(metric: str) -> TaskKind:
    """The first kind of task that a metric fits; of those of written texts, language models."""
    return TASKS[next(iter(about(metric).kinds), "causal")]


def scored_of(
    kind: str, metric: str, label_names: tuple[str, ...], arrays: Mapping[str, np.ndarray]
) -> Scored:
    """What was scored, as the kind that it is of; arrays that this kind does not have are left out.

    Args:
        kind: kind of the task.
        arrays: by name, see the kinds.

    Raises:
        ValueError: there is no such kind, an array is missing, or they do not fit together.
    """
    if kind not in METRICS:
        raise ValueError(f"kind should be one of {', '.join(METRICS)}, got {kind!r}")
    found = next(one for one in KINDS if one.fits(kind, metric, arrays))
    if lacking := [name for name in found.ARRAYS if name not in arrays]:
        raise ValueError(f"kind {kind!r} and metric {metric!r} need {', '.join(lacking)}")
    own = {name: arrays[name] for name in found.ARRAYS}
    return found(kind=kind, metric=metric, label_names=label_names, **own)
