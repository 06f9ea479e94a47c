"""An answer in a context; answers are decoded in `adapter_probe.data.answers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .kind import Axes, Scored
from .task import TaskKind

EXTRACTIVE = TaskKind(
    "extractive",
    drawn="paragraphs",
    right_by=", by exact match",
    n_outputs=2,
    reads_all=True,
    in_windows=True,
    lists="answer",
)

_SCORES = ("squad_f1", "exact_match")


@dataclass(frozen=True, eq=False, kw_only=True)
class Answers(Scored):
    """Questions, of which one is right if the answer matches a correct one exactly.

    Attributes:
        outputs: what each question scores, answer F1 and exact match, ``[variants, questions, 2]``; NaN where
            a logit was not finite.
        scored_with: the number of each question's paragraph; resamples draw its questions as one.
        answers: int32 ``[variants, questions, 2]``, first character of each answer in its context and one
            past its last, -1 for none.
    """

    TASK: ClassVar[TaskKind] = EXTRACTIVE
    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        **Scored.ARRAYS, "answers": (np.int32, ("variants", "examples", 2)),
    }  # fmt: skip

    answers: np.ndarray

    def predicted(self, intact: int) -> np.ndarray:
        """See `Scored.predicted`; what each question scores."""
        return self.outputs[..., _SCORES.index(self.metric)]

    def outcomes(self, predicted: np.ndarray) -> np.ndarray:
        return np.asarray(self.outputs[..., _SCORES.index("exact_match")] > 0.5)

    def told(self, texts: Sequence[str], kept: np.ndarray) -> list[list[str]]:
        """The answers in the contexts, one list over the variants for each example kept."""
        return [
            [texts[i][start:end] if start >= 0 else "" for start, end in self.answers[:, i].tolist()]
            for i in kept
        ]

    def drawn_as_one(self) -> np.ndarray:
        """See `Scored.drawn_as_one`; the questions on a paragraph."""
        return self.scored_with
