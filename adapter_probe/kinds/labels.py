"""Texts, pairs or batches with a label, several labels, a number or several numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from adapter_probe.formulas import NO_CLASS, finite_or_nan

from .kind import Axes, Scored
from .task import TaskKind

CLASSIFICATION = TaskKind("classification", has_classes=True, one_class=True)
MULTILABEL = TaskKind(
    "multilabel",
    right_by=", by all labels of a text",
    label="labels",
    has_classes=True,
    lists="label",
)
REGRESSION = TaskKind(
    "regression", guess=("constant answer", "a constant answer"), label="number", n_outputs=1
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Classes(Scored):
    """A label per example; the outputs are logits, and `scored_with` indices into `label_names`."""

    TASK: ClassVar[TaskKind] = CLASSIFICATION

    def __post_init__(self) -> None:
        super().__post_init__()
        n = self.n_outputs()
        if not np.all((self.scored_with >= 0) & (self.scored_with < n)):
            raise ValueError(f"scored_with should lie in 0..{n - 1}")

    def predicted(self, intact: int) -> np.ndarray:
        return largest_of(self.outputs)

    def options(self) -> tuple[str, ...]:
        return self.label_names

    def option_logits(self) -> np.ndarray:
        return self.outputs


@dataclass(frozen=True, eq=False, kw_only=True)
class SeveralLabels(Scored):
    """Several labels per example, each 0 or 1; a text is right if its set of labels is."""

    TASK: ClassVar[TaskKind] = MULTILABEL
    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        **Scored.ARRAYS, "scored_with": (np.int64, ("examples", "outputs")),
    }  # fmt: skip

    def predicted(self, intact: int) -> np.ndarray:
        return labels_from_logits(self.outputs)

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        return labels_from_logits(self.outputs), self.scored_with

    def classes_of_labels(self) -> tuple[str, ...]:
        return self.label_names


@dataclass(frozen=True, eq=False, kw_only=True)
class Numbers(Scored):
    """A number per example, a regression; of pairs of embeddings their similarity."""

    TASK: ClassVar[TaskKind] = REGRESSION
    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        **Scored.ARRAYS, "scored_with": (np.float64, ("examples",)),
    }  # fmt: skip

    def predicted(self, intact: int) -> np.ndarray:
        return numbers_from_outputs(self.outputs)


@dataclass(frozen=True, eq=False, kw_only=True)
class SeveralNumbers(Scored):
    """Several numbers per example, which a function of the user's scores."""

    TASK: ClassVar[TaskKind] = REGRESSION
    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        **Scored.ARRAYS, "scored_with": (np.float64, ("examples", "outputs")),
    }  # fmt: skip

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        return kind == "regression" and arrays["scored_with"].ndim == 2

    def n_outputs(self) -> int:
        return int(self.scored_with.shape[1])

    def predicted(self, intact: int) -> np.ndarray:
        return finite_or_nan(self.outputs.astype(np.float64))


def largest_of(logits: np.ndarray) -> np.ndarray:
    """The index of the largest logit of ``[..., examples, labels]``, the first of equals: int64.

    `NO_CLASS` where a logit is NaN or infinite.
    """
    classes = np.asarray(logits).argmax(axis=-1).astype(np.int64, copy=False)
    return np.where(np.isfinite(logits).all(axis=-1), classes, NO_CLASS)


def labels_from_logits(logits: np.ndarray) -> np.ndarray:
    """Which of several labels hold: 1 where the sigmoid of a logit is above 0.5, else 0; int64, as given.

    `NO_CLASS` where the logit is NaN or infinite.
    """
    return np.where(np.isfinite(logits), logits > 0, NO_CLASS).astype(np.int64, copy=False)


def numbers_from_outputs(outputs: np.ndarray) -> np.ndarray:
    """The numbers that heads with one output ``[..., examples, 1]`` predict, float64 ``[..., examples]``."""
    return finite_or_nan(outputs[..., 0].astype(np.float64))


PREDICTED = MappingProxyType(
    {"classification": largest_of, "multilabel": labels_from_logits, "regression": numbers_from_outputs}
)
"""By the kind of a task with one label, or number, per output or example: what its outputs predict."""
