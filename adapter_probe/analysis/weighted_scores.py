"""Scores of all variants on weighted examples, vectorised.

A score is a function of weighted sums, so a chunk of draws is a few matrix products, ``weights [draws,
examples] @ values [examples, variants]``; for the rank correlation each variant's examples are sorted once,
and a draw's ranks are running sums of its weights in that order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from adapter_probe import metrics
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.formulas import ClassCounts, counts_by_example, pearson
from adapter_probe.metrics import about

_RANKED_VALUES = 100_000  # numbers that are sorted and summed at a time: few enough for the processor's cache
_ROUNDING = 1e-12  # of a sum of squares: below, values do not vary

Scorer = Callable[[np.ndarray], np.ndarray]
"""From weights float64 ``[draws, examples]`` to scores float64 ``[draws, variants]``."""


def weighted_scorer(metric: str, predictions: np.ndarray, labels: np.ndarray) -> Scorer:
    """The function that scores each variant on weighted examples, for a metric.

    Args:
        predictions: ``[variants, examples]``, as `metrics.score` takes them.
        labels: ``[examples]``, or ``[examples, labels]``.
    """
    if isinstance(metric, CustomMetric):
        return _custom_scores(metric, predictions, labels)
    if (terms := sums_of(metric, predictions, labels)) is not None:
        numerators, denominators = np.ascontiguousarray(terms[0].T, dtype=np.float64), terms[1]
        ratio = about(metric).ratio if about(metric).is_ratio else np.divide
        return lambda weights: ratio(weights @ numerators, (weights @ denominators)[:, None])
    if labels.ndim == 2:
        return _of_counted(metric, predictions, labels)
    if (correlation := about(metric).correlation) is None:
        return _of_counts(metric, predictions, labels)
    values, targets = np.asarray(predictions, np.float64), np.asarray(labels, np.float64)
    return (_pearson if correlation is pearson else _spearman)(values, targets)


def sums_of(metric: str, predictions: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Numerators ``[variants, examples]`` and denominators of scores that are ratios of two sums, or None."""
    if isinstance(metric, CustomMetric) or labels.ndim == 2:
        return None
    own = about(metric)
    if own.is_ratio:
        return own.terms(predictions, labels)
    if own.is_mean:
        return predictions.astype(np.float64), np.ones(len(labels))
    if own.is_proportion:
        return predictions == labels, np.ones(len(labels))
    return None


def unit_of(metric: str) -> float:
    """What a nat is in the metric's unit; of perplexities, in that of their logarithms."""
    own = about(metric)
    return float(own.ratio(1.0, 1.0)) if own.is_ratio and not own.is_perplexity else 1.0


def _custom_scores(metric: CustomMetric, predictions: np.ndarray, labels: np.ndarray) -> Scorer:
    """Scores by a user's function, on explicit resamples."""

    def score(counts: np.ndarray) -> np.ndarray:
        drawn = (np.repeat(np.arange(len(labels)), row.astype(np.int64)) for row in counts)
        resample = partial(metric.scores, what="a resample of the examples by the bootstrap, ")
        return np.stack([resample(predictions[:, examples], labels[examples]) for examples in drawn])

    return score


def _of_counts(metric: str, predictions: np.ndarray, labels: np.ndarray) -> Scorer:
    """Classification scores, from hits, predictions and examples of each class."""
    classes = range(1 + int(max(predictions.max(), labels.max(), 1)))
    members = [np.flatnonzero(labels == c) for c in classes]

    def score(counts: np.ndarray) -> np.ndarray:
        actual = np.stack([counts[:, m].sum(axis=1) for m in members], axis=-1)
        shape = (len(counts), len(predictions), len(classes))
        hits, predicted = np.empty(shape), np.empty(shape)
        for c, m in zip(classes, members):
            hits[..., c] = counts[:, m] @ (predictions[:, m] == c).T.astype(np.float64)
        for c in classes[:-1]:
            predicted[..., c] = counts @ (predictions == c).T.astype(np.float64)
        # Every example is predicted as something, so the last class gets what is left.
        predicted[..., -1] = actual.sum(axis=-1)[:, None] - predicted[..., :-1].sum(axis=-1)
        return metrics.score_counts(metric, ClassCounts(hits, predicted, actual[:, None]))

    return score


def _of_counted(metric: str, predictions: np.ndarray, labels: np.ndarray) -> Scorer:
    """Scores of several labels or of tags, from the hits, predictions and labels of every example."""
    found = counts_by_example(predictions, labels, about(metric).is_of_counted)
    parts = [found.hits, found.predicted, np.broadcast_to(found.actual, found.hits.shape)]
    if not about(metric).by_class:
        parts = [part.sum(axis=-1, keepdims=True) for part in parts]
    n_variants, n_examples, n_classes = parts[0].shape
    columns = [part.swapaxes(0, 1).reshape(n_examples, -1).astype(np.float64) for part in parts]

    def score(counts: np.ndarray) -> np.ndarray:
        sums = ((counts @ column).reshape(-1, n_variants, n_classes) for column in columns)
        return metrics.score_counts(metric, ClassCounts(*sums))

    return score


def _pearson(values: np.ndarray, labels: np.ndarray) -> Scorer:
    """Pearson correlations, from weighted moments; NaN for constants."""
    with np.errstate(invalid="ignore"):
        x, y = values - values.mean(axis=1, keepdims=True), labels - labels.mean()
        moments = [np.ascontiguousarray(table.T) for table in (x, x**2, x * y)]  # [examples, variants]
        # Rounding leaves a constant with a variance of about 1e-16 of the whole sample's.
        least_x, least_y = _ROUNDING * moments[1].mean(axis=0), _ROUNDING * np.square(y).mean()

    def score(counts: np.ndarray) -> np.ndarray:
        weights = counts / counts.sum(axis=1)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_x, square_x, product = (weights @ table for table in moments)
            mean_y, square_y = (weights @ y)[:, None], (weights @ y**2)[:, None]
            var_x, var_y = square_x - mean_x**2, square_y - mean_y**2
            r = np.clip((product - mean_x * mean_y) / np.sqrt(var_x * var_y), -1.0, 1.0)
        return np.where((var_x > least_x) & (var_y > least_y), r, np.nan)

    return score


def _spearman(values: np.ndarray, labels: np.ndarray) -> Scorer:
    """Spearman correlations, from ranks within each resample; equal values share their mean rank."""
    rankings, truth = [_Ranking(row) for row in values], _Ranking(labels)
    n_rows = max(1, _RANKED_VALUES // len(labels))

    def score(counts: np.ndarray) -> np.ndarray:
        blocks = [counts[i : i + n_rows] for i in range(0, len(counts), n_rows)]
        return np.concatenate([_rank_correlations(block, rankings, truth) for block in blocks])

    return score


class _Ranking:
    """One variant's examples in ascending order.

    Attributes:
        order: int ``[examples]``, by ascending value.
        starts: int ``[groups]``, where in that order each group of equal values begins; None without ties.
        defined: no value is NaN.
    """

    def __init__(self, values: np.ndarray):
        self.order = values.argsort(kind="stable")
        new = np.diff(values[self.order], prepend=np.nan) != 0
        self.starts = None if new.all() else np.flatnonzero(new)
        self.defined = not np.isnan(values).any()

    def grouped(self, table: np.ndarray, buffer: np.ndarray) -> np.ndarray:
        """Sums of ``[examples, resamples]`` over groups of equal values, ascending; may lie in `buffer`."""
        ordered = np.take(table, self.order, axis=0, out=buffer, mode="clip")  # no index is out of range
        return ordered if self.starts is None else np.add.reduceat(ordered, self.starts, axis=0)


def _rank_correlations(counts: np.ndarray, rankings: list[_Ranking], truth: _Ranking) -> np.ndarray:
    """Spearman correlations ``[resamples, variants]`` of counts ``[resamples, examples]``.

    With N drawn examples in groups of t equal ones, a group's midrank less the mean rank is what was drawn
    up to it less (t + N) / 2, and the sum of squares over examples is (N^3 - sum of t^3) / 12. The labels'
    ranks have the mean 0, so that N may stay out of the sum of products.
    """
    weights = np.ascontiguousarray(counts.T, dtype=np.float64)  # [examples, resamples]
    total, buffer = weights.sum(axis=0), (np.empty_like(weights), np.empty_like(weights))
    ranked, spread = _weighted_ranks(weights, truth)
    # Without ties the groups are single examples, in any order, so these sums apply to every variant.
    untied, half = total**3 - _cubes(weights), np.einsum("er,er->r", ranked, weights) / 2
    found = np.full((len(rankings), len(total)), np.nan)
    for row, ranking in enumerate(rankings):
        if not ranking.defined:
            continue
        drawn, summed = ranking.grouped(weights, buffer[0]), ranking.grouped(ranked, buffer[1])
        tied = ranking.starts is not None
        own = total**3 - _cubes(drawn) if tied else untied
        own_half = np.einsum("er,er->r", summed, drawn) / 2 if tied else half
        product = np.einsum("er,er->r", np.cumsum(drawn, axis=0, out=drawn), summed) - own_half
        varies = np.minimum(own, spread) > _ROUNDING * total**3
        np.divide(12 * product, np.sqrt(np.abs(own * spread)), out=found[row], where=varies)
    return np.clip(found.T, -1.0, 1.0)


def _weighted_ranks(weights: np.ndarray, truth: _Ranking) -> tuple[np.ndarray, np.ndarray]:
    """The labels' ranks times the weights, ``[examples, resamples]``, and 12 times their sum of squares."""
    total, groups = weights.sum(axis=0), truth.grouped(weights, np.empty_like(weights))
    rank = np.cumsum(groups, axis=0) - (groups + total) / 2
    if truth.starts is not None:
        rank = np.repeat(rank, np.diff(truth.starts, append=len(weights)), axis=0)
    ranked = np.empty_like(weights)
    ranked[truth.order] = rank
    return ranked * weights, total**3 - _cubes(groups)


def _cubes(weights: np.ndarray) -> np.ndarray:
    return np.einsum("er,er,er->r", weights, weights, weights)
