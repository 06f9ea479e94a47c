"""A tag per word: entities, or words of each tag."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .kind import Axes, Scored
from .task import TaskKind

TOKENS = TaskKind(
    "tokens", "sentence", "sentences", "sentences",
    guess=("most frequent tag", "always answering with the most frequent tag"),
    right_by=", by all tags of a sentence", has_classes=True, reads_all=True, of_words=True,
    lists="tag",
)  # fmt: skip
_ENTITY = re.compile(r"[BIES](?:-(?P<type>.+))?")


@dataclass(frozen=True, eq=False, kw_only=True)
class Tags(Scored):
    """Tagged sentences, of which one is right if all its tags are.

    Attributes:
        outputs: how many entities of each type (or words of each tag) of a sentence were found, and how many
            were predicted, ``[variants, sentences, 2 classes]``; NaN where a logit was not finite.
        scored_with: how many there are, int64 ``[sentences, classes]``.
        tags: int16 ``[variants, sentences, words]``, predicted tags, indices into `label_names`; -1 where a
            logit was not finite, `NO_WORD` where a sentence has no word that is scored.
        true_tags: int16 ``[sentences, words]``, the right ones.
    """

    TASK: ClassVar[TaskKind] = TOKENS
    ARRAYS: ClassVar[Mapping[str, tuple[type, Axes]]] = {
        **Scored.ARRAYS, "scored_with": (np.int64, ("examples", "classes")),
        "tags": (np.int16, ("variants", "examples", "words")), "true_tags": (np.int16, ("examples", "words")),
    }  # fmt: skip

    tags: np.ndarray
    true_tags: np.ndarray

    def n_outputs(self) -> int:
        return 2 * int(self.scored_with.shape[1])

    def predicted(self, intact: int) -> np.ndarray:
        """See `Scored.predicted`; ``[variants, sentences, classes, 2]``."""
        return self.outputs.reshape(*self.outputs.shape[:2], -1, 2).astype(np.float64)

    def outcomes(self, predicted: np.ndarray) -> np.ndarray:
        return np.asarray((self.tags == self.true_tags).all(axis=-1))

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        return self.tags, self.true_tags

    def classes_of_labels(self) -> tuple[str, ...]:
        """See `Scored.classes_of_labels`; types of entities, or tags."""
        return entity_types(self.label_names) if self.metric == "entity_f1" else self.label_names


def entity_types(tags: Sequence[str]) -> tuple[str, ...]:
    """The types of entities in tags such as ``B-PER``, sorted; empty unless all tags are of this form.

    They are what the package seqeval reads: ``O``, or ``B-``, ``I-``, ``E-`` or ``S-`` before the type, which
    is ``_`` where there is none.
    """
    found = [_ENTITY.fullmatch(tag) for tag in tags if tag != "O"]
    return () if None in found else tuple(sorted({one["type"] or "_" for one in found if one}))
