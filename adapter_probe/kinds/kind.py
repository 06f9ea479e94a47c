"""What every kind of task answers about the outputs of an ablation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from adapter_probe.metrics import majority_score

from .task import TaskKind

Axes = tuple[str | int, ...]
"""The axes of an array: names, which have one size in all arrays of an ablation, or sizes."""
ScoredT = TypeVar("ScoredT", bound="Scored")


@dataclass(frozen=True, eq=False, kw_only=True)
class Scored(ABC):
    """What was scored of every example under every variant; a class for each kind, with its own arrays.

    Attributes:
        metric: name of the metric.
        kind: kind of the task, see `adapter_probe.metrics.Kind`.
        label_names: names in the order of the outputs; empty where these have none.
        outputs: float32 ``[variants, examples, outputs]``, of which each kind says what they are.
        scored_with: ``[examples]`` or ``[examples, labels]``, the `labels` of `adapter_probe.metrics.score`.
    """

    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        "outputs": (np.float32, ("variants", "examples", "outputs")),
        "scored_with": (np.int64, ("examples",)),
    }
    """The arrays of the kind: type of their numbers, and axes."""
    TASK: ClassVar[TaskKind]
    """The kind of task that it is of."""
    has_texts: ClassVar[bool] = True
    """Whether a report can list the texts of the examples, which are read again without a tokenizer."""

    metric: str
    kind: str
    label_names: tuple[str, ...]
    outputs: np.ndarray
    scored_with: np.ndarray

    def __post_init__(self) -> None:
        sizes = dict(zip(self.ARRAYS["outputs"][1], (*self.outputs.shape, 0, 0, 0)))
        if (own := self.n_outputs()) is not None:
            sizes["outputs"] = own
        check_arrays(self.arrays(), self.ARRAYS, sizes)

    @classmethod
    def fits(cls, kind: str, metric: str, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether arrays of a kind of task, scored by a metric, are of this class."""
        return kind == cls.TASK.name

    def n_outputs(self) -> int | None:
        """How many outputs an example has, by default those of the head; None where the data says it."""
        return len(self.label_names) if self.TASK.has_classes else self.TASK.n_outputs

    @abstractmethod
    def predicted(self, intact: int) -> np.ndarray:
        """The `predictions` of `adapter_probe.metrics.score`, ``[variants, examples]`` or with more axes.

        -1 or NaN where an output is not finite.

        Args:
            intact: the row of the intact model.
        """

    def outcomes(self, predicted: np.ndarray) -> np.ndarray | None:
        """Whether all that is predicted of each example is right, bool ``[variants, examples]``.

        None where nothing is right or wrong: of numbers, losses and comparisons. By default what is predicted
        in whole numbers, classes or labels, is right where it is `scored_with`.
        """
        if predicted.dtype.kind != "i":
            return None
        right = np.asarray(predicted == self.scored_with)
        return right if right.ndim == 2 else right.all(axis=-1)

    def options(self) -> tuple[str, ...]:
        """The classes, of which each example has one and is predicted one; empty for other kinds."""
        return ()

    def option_logits(self) -> np.ndarray | None:
        """Logits of an example's options, ``[variants, examples, options]``, by which they are compared.

        -inf where there is none; None of kinds without such options.
        """
        return None

    def parts(self) -> tuple[np.ndarray, np.ndarray] | None:
        """What is predicted of an example's parts, ``[variants, examples, parts]``, and what is right.

        None where an example has no parts: a class, an answer, a text.
        """
        return None

    def told(self, texts: Sequence[str], kept: np.ndarray) -> list[list[str]] | None:
        """What is predicted as parts of an example's text, for each example kept of every variant.

        None where it is no part of a text.
        """
        return None

    def finite(self) -> np.ndarray:
        """Bool ``[variants, examples]``: the example's outputs are neither NaN nor infinite."""
        return np.asarray(np.isfinite(self.outputs).all(axis=-1))

    def chance_score(self) -> float:
        """The score of guessing: of the most frequent class or a random choice; NaN where there is none."""
        return majority_score(self.metric, self.scored_with) if self.TASK.has_classes else float("nan")

    def drawn_as_one(self) -> np.ndarray:
        """What resamples draw as one, int ``[examples]``: by default each example."""
        return np.arange(len(self.scored_with))

    def classes_of_labels(self) -> tuple[str, ...]:
        """What the columns of `scored_with` ``[examples, labels]`` are; empty where there are none."""
        return ()

    def arrays(self) -> dict[str, np.ndarray]:
        """The kind's arrays, by name."""
        return {name: getattr(self, name) for name in self.ARRAYS}

    def taken(self: ScoredT, axis: str, chosen: Sequence[int] | np.ndarray) -> ScoredT:
        """The same of some variants or examples."""
        return replace(self, **taken(self.arrays(), self.ARRAYS, axis, chosen))


def taken(
    arrays: Mapping[str, np.ndarray],
    axes: Mapping[str, tuple[type, Axes]],
    axis: str,
    chosen: Sequence[int] | np.ndarray,
) -> dict[str, np.ndarray]:
    """The arrays that have an axis, restricted to some places of it."""
    return {
        name: np.take(array, chosen, axis=axes[name][1].index(axis))
        for name, array in arrays.items()
        if axis in axes[name][1]
    }


def check_arrays(
    arrays: Mapping[str, np.ndarray],
    axes: Mapping[str, tuple[type, Axes]],
    sizes: dict[str | int, int],
) -> None:
    """Make sure that arrays have their types, and one size for every axis.

    Args:
        sizes: known sizes of axes; others are added.

    Raises:
        ValueError: the message names the array, and what it should be.
    """
    for name, array in arrays.items():
        kind, own = axes[name]
        there = dict(zip(own, array.shape))
        shape = tuple(
            axis if isinstance(axis, int) else sizes.setdefault(axis, there.get(axis, 0)) for axis in own
        )
        if array.dtype.type is not kind or array.shape != shape:
            wanted = f"{np.dtype(kind).name} {list(shape)}"
            raise ValueError(f"{name} should be {wanted}, got {array.dtype} {list(array.shape)}")
