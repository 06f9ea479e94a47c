"""Scores of examples that consist of several texts, from the outputs of the single texts.

An item is a text, or a query with a document; its outputs are ``[variants, items, width]``: an embedding, or
one number. What is here makes ``[variants, examples, columns]`` of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adapter_probe.metrics import METRICS

Combine = Callable[[np.ndarray], np.ndarray]
"""From the outputs of all items to those of the examples, float32."""
RANKED = 10
"""How many of the first documents nDCG, MRR and recall are of."""
_ROWS = 1024  # of similarities in memory at a time


@dataclass(frozen=True, eq=False)
class Numbers:
    """Two texts with a number each, of which the first should be the larger one.

    Attributes:
        places: int64 ``[examples, 2]``, the items.
    """

    places: np.ndarray

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """See `Combine`."""
        return values[:, self.places, 0]


@dataclass(frozen=True, eq=False)
class Similarities:
    """A text and what it is compared with, by their embeddings.

    Attributes:
        places: int64 ``[examples, texts]``, the items, -1 where there are fewer. Of two texts, the one column
            is their similarity; of more, the second is the one that should be the most similar, and the
            columns are its similarity and the largest one of the others.
        dot: whether the similarity is the dot product instead of the cosine.
    """

    places: np.ndarray
    dot: bool = False

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """See `Combine`."""
        found = []
        for own in values:  # [items, width]; one variant at a time, for memory
            vectors = _directions(own, self.dot)[self.places]  # [examples, texts, width]
            similar = np.einsum("ew,etw->et", vectors[:, 0], vectors[:, 1:])
            similar[self.places[:, 1:] < 0] = -np.inf
            rest = similar[:, 1:].max(axis=1, keepdims=True) if similar.shape[1] > 1 else similar[:, 1:]
            found.append(np.concatenate([similar[:, :1], rest], axis=1))
        return np.stack(found).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Queries with documents to rank.

    Attributes:
        documents: per query int64 ``[documents]``, their items; queries may share an array.
        gains: per query float32 ``[documents]``, how relevant each is; 0 for not at all.
        queries: int64 ``[queries]``, the items of the queries, which documents are compared with by their
            embeddings; None where an item is a document with its query, and its output their score.
        dot: see `Similarities`.
    """

    documents: tuple[np.ndarray, ...]
    gains: tuple[np.ndarray, ...]
    queries: np.ndarray | None = None
    dot: bool = False

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """See `Combine`."""
        found = np.empty((len(values), len(self.documents), len(METRICS["ranking"])), np.float32)
        for variant, own in enumerate(values):
            vectors = own if self.queries is None else _directions(own, self.dot)
            for number, places in enumerate(self.documents):
                scores = vectors[places, 0] if self.queries is None else (
                    vectors[places] @ vectors[self.queries[number]]
                )  # fmt: skip
                found[variant, number] = ranking_scores(scores, self.gains[number])
        return found


@dataclass(frozen=True, eq=False)
class Agreement:
    """Texts under every variant beside the intact model, which is the first one.

    Attributes:
        dot: whether nearest is the largest dot product instead of the largest cosine.
    """

    dot: bool = False

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """See `Combine`; the columns are those of `AblationResults.outputs`."""
        found = np.ones((*values.shape[:2], 2), np.float32)
        intact, nearest = _directions(values[0], dot=False), _nearest(_directions(values[0], self.dot))
        for variant, own in enumerate(values[1:], start=1):
            found[variant, :, 0] = _nearest(_directions(own, self.dot)) == nearest
            found[variant, :, 1] = np.clip((_directions(own, dot=False) * intact).sum(axis=1), -1, 1)
        found[~np.isfinite(values).all(axis=-1)] = np.nan
        return found


def _nearest(vectors: np.ndarray) -> np.ndarray:
    """The most similar other text of each, int64 ``[texts]``."""
    found = []
    for begin in range(0, len(vectors), _ROWS):
        similar = vectors[begin : begin + _ROWS] @ vectors.T
        np.fill_diagonal(similar[:, begin:], -np.inf)
        found.append(similar.argmax(axis=1))
    return np.concatenate(found)


def ranking_scores(scores: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """What one query scores by every metric of a ranking, in their order.

    nDCG has linear gains and logarithmic discounts, as in trec_eval (Järvelin and Kekäläinen 2002); with
    equal gains it is that of sentence-transformers. Equal scores keep the order of the documents.

    Args:
        scores: ``[documents]``.
        gains: ``[documents]``, at least one of them above 0.

    Returns:
        float64 ``[metrics]``; NaN if a score is not finite.
    """
    if not np.isfinite(scores).all():
        return np.full(len(METRICS["ranking"]), np.nan)
    top = gains[np.argsort(-scores, kind="stable")[:RANKED]].astype(np.float64)
    best = np.sort(gains)[::-1][:RANKED].astype(np.float64)
    discounts = 1 / np.log2(np.arange(2, RANKED + 2))
    ndcg = (top @ discounts[: len(top)]) / (best @ discounts[: len(best)])
    hits = np.flatnonzero(top > 0)
    recall = len(hits) / np.count_nonzero(gains > 0)
    reciprocal = 1 / (1 + hits[0]) if len(hits) else 0.0
    right = pairs = 0.0
    for document in np.flatnonzero(gains > 0):
        lower = scores[gains < gains[document]]
        right += np.count_nonzero(lower < scores[document]) + np.count_nonzero(lower == scores[document]) / 2
        pairs += len(lower)
    return np.array([ndcg, reciprocal, recall, right / pairs if pairs else 1.0])


def _directions(vectors: np.ndarray, dot: bool) -> np.ndarray:
    """Embeddings ``[items, width]`` as they are multiplied: of length 1 for the cosine."""
    if dot:
        return vectors
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)  # as PyTorch's normalize
