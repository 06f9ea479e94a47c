"""Formulas of scores: counts of classes, correlations, losses. NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NO_CLASS = -1
"""The prediction of an example whose logits are not all finite: no class, and no score."""
NO_WORD = -2
"""The place of a tag where a sentence has no word, or none that is scored."""


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """The counts from which all classification scores follow.

    Attributes:
        hits: ``[..., labels]``, examples of the class that were predicted as such.
        predicted: ``[..., labels]``, examples predicted as the class.
        actual: ``[labels]``, or an array that broadcasts with the others: examples of the class.
    """

    hits: np.ndarray
    predicted: np.ndarray
    actual: np.ndarray

    def over_examples(self) -> ClassCounts:
        """The sums over examples, of counts ``[..., examples, labels]``."""
        return ClassCounts(*(part.sum(axis=-2) for part in (self.hits, self.predicted, self.actual)))


def counts_by_example(predictions: np.ndarray, labels: np.ndarray, counted: bool) -> ClassCounts:
    """The counts of every example, from several labels or from entities or words that are counted already.

    Args:
        predictions: ``[..., examples, labels]``, 0 or 1; or ``[..., examples, labels, 2]``, hits and
            predictions.
        labels: ``[examples, labels]``, 0 or 1; or how many there are.
        counted: whether they are counted already.

    Returns:
        `hits` and `predicted` ``[..., examples, labels]``, `actual` ``[examples, labels]``.
    """
    if counted:
        return ClassCounts(predictions[..., 0], predictions[..., 1], labels)
    return ClassCounts(predictions * labels, predictions, labels)


def class_counts(predictions: np.ndarray, labels: np.ndarray) -> ClassCounts:
    """Count hits, predictions and examples of every class.

    Args:
        predictions: int ``[..., examples]``, class indices.
        labels: int ``[examples]``, class indices.
    """
    if predictions.dtype.kind not in "iub" or labels.dtype.kind not in "iub":
        raise ValueError(f"classes must be whole numbers, got {predictions.dtype} and {labels.dtype}")
    predictions, labels = predictions.astype(np.int64, copy=False), labels.astype(np.int64, copy=False)
    if min(predictions.min(), labels.min()) < 0:
        raise ValueError(f"classes must be 0 or more, got {min(predictions.min(), labels.min())}")
    n_labels = 1 + int(max(predictions.max(), labels.max(), 1))
    rows = predictions.reshape(-1, labels.size)  # [variants, examples]
    # Every variant has separate bins, so one bincount serves all of them.
    bins = rows + n_labels * np.arange(len(rows))[:, None]
    size, shape = n_labels * len(rows), (*predictions.shape[:-1], n_labels)
    return ClassCounts(
        hits=np.bincount(bins[rows == labels], minlength=size).reshape(shape),
        predicted=np.bincount(bins.ravel(), minlength=size).reshape(shape),
        actual=np.bincount(labels, minlength=n_labels),
    )


def class_f1(counts: ClassCounts) -> tuple[np.ndarray, np.ndarray]:
    """F1 of every class ``[..., labels]``, and whether each class is present or predicted (bool)."""
    doubled = 2.0 * counts.hits
    mass = counts.predicted + counts.actual
    return np.divide(doubled, mass, out=np.zeros_like(doubled), where=mass > 0), mass > 0


def accuracy(counts: ClassCounts) -> np.ndarray:
    """The share of examples that are predicted rightly, ``[...]``."""
    return counts.hits.sum(axis=-1) / counts.actual.sum(axis=-1)


def macro_f1(counts: ClassCounts) -> np.ndarray:
    """Mean of the classes' F1 ``[...]``, without classes that are neither present nor predicted."""
    f1, there = class_f1(counts)
    return f1.sum(axis=-1) / there.sum(axis=-1)


def micro_f1(counts: ClassCounts) -> np.ndarray:
    """F1 of all classes together ``[...]``, 0 where nothing is present or predicted."""
    doubled = 2.0 * counts.hits.sum(axis=-1)
    mass = counts.predicted.sum(axis=-1) + counts.actual.sum(axis=-1)
    return np.divide(doubled, mass, out=np.zeros_like(doubled), where=mass > 0)


def matthews(counts: ClassCounts) -> np.ndarray:
    """Gorodkin's K-class Matthews correlation (Comput. Biol. Chem. 28, 2004, eq. 8), 0 where undefined."""
    hits, predicted, actual = (c.astype(np.float64) for c in (counts.hits, counts.predicted, counts.actual))
    total = actual.sum(axis=-1)
    covariance = hits.sum(axis=-1) * total - (predicted * actual).sum(axis=-1)
    spread = (total**2 - (predicted**2).sum(axis=-1)) * (total**2 - (actual**2).sum(axis=-1))
    varies = spread > 1e-14 * total**4  # counts may be sums of weights, which round
    scale = np.sqrt(np.where(varies, spread, 1.0))
    return np.divide(covariance, scale, out=np.zeros_like(covariance), where=varies)


def pearson(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Pearson correlation of ``[..., examples]`` with ``[examples]``; nan with a constant."""
    # Not a matrix product: its rounding would depend on how many variants are scored together.
    return np.clip((_unit(predictions) * _unit(labels)).sum(axis=-1), -1.0, 1.0)


def spearman(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Spearman correlation, equal values sharing their ranks' mean; as `pearson`."""
    return pearson(average_ranks(predictions), average_ranks(labels))


def _unit(values: np.ndarray) -> np.ndarray:
    """Centre ``[..., examples]`` and scale it to unit length; nan where constant or not finite."""
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        spread = np.ptp(values, axis=-1, keepdims=True)
        # The mean of a constant may round, so constants are detected in the values, not in the centred ones;
        # dividing by the spread first keeps the squares of very large or small values in range.
        centred = (values - values.mean(axis=-1, keepdims=True)) / np.where(spread > 0, spread, np.nan)
        return centred / np.sqrt(np.square(centred).sum(axis=-1, keepdims=True))


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0 along the last axis, equal values sharing the mean of their ranks.

    Args:
        values: ``[..., examples]``, numbers.

    Returns:
        float64 ``[..., examples]``; a row that holds a nan is nan throughout.
    """
    values = np.asarray(values)
    n_examples = values.shape[-1]
    order = values.argsort(axis=-1)
    ordered = np.take_along_axis(values, order, axis=-1)
    starts_tie = np.ones(values.shape, dtype=bool)
    np.not_equal(ordered[..., 1:], ordered[..., :-1], out=starts_tie[..., 1:])
    # Each row starts a new tie, so ties never cross rows in the flattened array.
    starts = np.flatnonzero(starts_tie)
    lengths = np.diff(starts, append=values.size)
    shared = np.repeat(starts % n_examples + (lengths - 1) / 2, lengths).reshape(values.shape)
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, shared, axis=-1)
    ranks[np.isnan(values).any(axis=-1)] = np.nan
    return ranks


def finite_or_nan(values: np.ndarray) -> np.ndarray:
    """Numbers, with NaN for what is infinite."""
    return np.where(np.isfinite(values), values, np.nan)


def is_complete(predictions: np.ndarray, n_axes: int = 1) -> np.ndarray:
    """Bool ``[...]``: whether predictions ``[..., examples]`` are complete, over so many last axes."""
    axes = tuple(range(-n_axes, 0))
    if np.issubdtype(predictions.dtype, np.signedinteger):
        return np.asarray((predictions != NO_CLASS).all(axis=axes))
    return np.asarray(np.isfinite(predictions).all(axis=axes))
