"""The paired bootstrap: all variants scored on the same resampled examples, vectorised.

A resample is a vector of counts, how often each example was drawn. Scores are functions of counted sums, so
a chunk of resamples is a few matrix products, ``counts [resamples, examples] @ values [examples, variants]``;
for the rank correlation each variant's examples are sorted once, and a resample's ranks are running sums of
its counts in that order. Nothing is approximated: each resample scores as if it had been written out.
Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapters 6 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.formulas import ClassCounts, counts_by_example, is_complete, loss, loss_terms
from adapter_probe.metrics import MEANS, METRICS, PROPORTIONS, is_ratio

N_RESAMPLES = 10_000
_CHUNK_VALUES = 4_000_000  # numbers in a chunk of counts or of what is counted: some tens of megabytes
_RANKED_VALUES = 100_000  # numbers that are sorted and summed at a time: few enough for the processor's cache
_DRAWN_VALUES = 50_000  # numbers that are drawn at a time, for the same reason

Scorer = Callable[[np.ndarray], np.ndarray]
"""From counts float32 ``[resamples, examples]`` to scores float64 ``[resamples, variants]``."""


def bootstrap_scores(
    results: AblationResults, n_resamples: int = N_RESAMPLES, seed: int = 0, more: np.ndarray | None = None
) -> np.ndarray:
    """Scores of every variant on resampled examples.

    Questions are drawn by paragraph: questions on one text are not independent.

    Args:
        seed: random seed; every variant uses the same draws.
        more: further predictions to score on the same examples, ``[rows, examples]``.

    Returns:
        float64 ``[resamples, variants + rows]``, fractions; NaN where a resample leaves the score
        undefined, or where the variant lacks a prediction. All NaN where there is but one example (or
        paragraph) to draw, which says nothing of how others would have come out.
    """
    labels = results.scored_with
    rows = results.scored if more is None else np.concatenate([results.scored, more])
    complete = is_complete(rows, rows.ndim - 1)  # variants without a prediction have no score
    predictions = rows[complete]
    score = weighted_scorer(results.metric, predictions, labels)
    # What is counted is at most one number a variant and class.
    per_row = max(len(labels), len(predictions) * max(1, len(results.label_names)))
    chunks = draw_counts(len(labels), n_resamples, seed, results.units, max(1, _CHUNK_VALUES // per_row))
    scores, done = np.full((n_resamples, len(complete)), np.nan), 0
    if len(np.unique(results.units)) < 2:
        return scores
    for counts in chunks:
        scores[done : done + len(counts), complete] = score(counts)
        done += len(counts)
    return scores


def resampled_changes(
    results: AblationResults, intact: int, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> np.ndarray:
    """The variants' scores on resampled examples less the intact one's, points ``[resamples, variants]``."""
    scores = bootstrap_scores(results, n_resamples, seed)
    return metrics.to_points(results.metric, scores - scores[:, [intact]])


def draw_counts(
    n_examples: int, n_resamples: int, seed: int, clusters: np.ndarray | None = None, chunk: int | None = None
) -> Iterator[np.ndarray]:
    """Chunks ``[resamples, examples]`` of float32: how often each example is in each resample.

    Args:
        n_examples: examples to draw from; as many are drawn.
        clusters: int ``[examples]``; examples of one cluster are drawn together, as many clusters as there
            are, so that the number of examples varies.
        chunk: the most resamples in a chunk; what is drawn does not depend on it.
    """
    generator, examples = np.random.default_rng(seed), np.arange(n_examples)
    _, cluster = np.unique(examples if clusters is None else clusters, return_inverse=True)
    n, size = int(cluster.max()) + 1, chunk or max(1, _CHUNK_VALUES // n_examples)
    for begin in range(0, n_resamples, size):
        counts = np.empty((min(size, n_resamples - begin), n), dtype=np.float32)
        for rows in np.array_split(counts, -(-counts.size // _DRAWN_VALUES)):
            drawn = generator.integers(0, n, rows.shape) + n * np.arange(len(rows))[:, None]
            rows[:] = np.bincount(drawn.ravel(), minlength=rows.size).reshape(rows.shape)
        yield counts if np.array_equal(cluster, examples) else counts[:, cluster]


def weighted_scorer(metric: str, predictions: np.ndarray, labels: np.ndarray) -> Scorer:
    """The function that scores each variant on weighted examples, for a metric.

    Args:
        predictions: ``[variants, examples]``, as `metrics.score` takes them.
        labels: ``[examples]``, or ``[examples, labels]``.
    """
    if isinstance(metric, CustomMetric):
        return _custom_scores(metric, predictions, labels)
    if labels.ndim == 2:
        return _of_counted(metric, predictions, labels)
    if metric in MEANS:
        return _means(predictions)
    if metric in PROPORTIONS:
        return _means((predictions == labels).astype(np.float32))  # whole numbers: exact
    if is_ratio(metric):
        return _ratios(metric, predictions, labels)
    if metric in METRICS["extractive"]:
        return _means(predictions.astype(np.float64))
    if metric in METRICS["classification"]:
        return _of_counts(metric, predictions, labels)
    values, targets = np.asarray(predictions, np.float64), np.asarray(labels, np.float64)
    return (_pearson if metric == "pearson" else _spearman)(values, targets)


def _custom_scores(metric: CustomMetric, predictions: np.ndarray, labels: np.ndarray) -> Scorer:
    """Scores by a user's function, on explicit resamples."""

    def score(counts: np.ndarray) -> np.ndarray:
        drawn = (np.repeat(np.arange(len(labels)), row.astype(np.int64)) for row in counts)
        resample = partial(metric.scores, what="a resample of the examples by the bootstrap, ")
        return np.stack([resample(predictions[:, examples], labels[examples]) for examples in drawn])

    return score


def _means(values: np.ndarray) -> Scorer:
    """Scores that are means over examples, ``[variants, examples]``."""
    columns = np.ascontiguousarray(values.T)

    def score(counts: np.ndarray) -> np.ndarray:
        drawn = counts.sum(axis=1, dtype=np.float64)[:, None]
        return (counts @ columns).astype(np.float64) / drawn

    return score


def _ratios(metric: str, nats: np.ndarray, units: np.ndarray) -> Scorer:
    """Metrics that are ratios of two sums over examples; arguments as in `loss_terms`."""
    numerators, denominators = loss_terms(metric, nats, units)
    columns = np.ascontiguousarray(numerators.T)

    def score(counts: np.ndarray) -> np.ndarray:
        weights = counts.astype(np.float64)
        return loss(metric, weights @ columns, (weights @ denominators)[:, None])

    return score


def _of_counts(metric: str, predictions: np.ndarray, labels: np.ndarray) -> Scorer:
    """Classification scores, from hits, predictions and examples of each class."""
    classes = range(1 + int(max(predictions.max(), labels.max(), 1)))
    members = [np.flatnonzero(labels == c) for c in classes]

    def score(counts: np.ndarray) -> np.ndarray:
        actual = np.stack([counts[:, m].sum(axis=1, dtype=np.float64) for m in members], axis=-1)
        shape = (len(counts), len(predictions), len(classes))
        hits, predicted = np.empty(shape), np.empty(shape)
        for c, m in zip(classes, members):
            hits[..., c] = counts[:, m] @ (predictions[:, m] == c).T.astype(np.float32)
        for c in classes[:-1]:
            predicted[..., c] = counts @ (predictions == c).T.astype(np.float32)
        # Every example is predicted as something, so the last class gets what is left.
        predicted[..., -1] = actual.sum(axis=-1)[:, None] - predicted[..., :-1].sum(axis=-1)
        return metrics.score_counts(metric, ClassCounts(hits, predicted, actual[:, None]))

    return score


def _of_counted(metric: str, predictions: np.ndarray, labels: np.ndarray) -> Scorer:
    """Scores of several labels or of tags, from the hits, predictions and labels of every example."""
    found = counts_by_example(predictions, labels, metric in METRICS["tokens"])
    parts = [found.hits, found.predicted, np.broadcast_to(found.actual, found.hits.shape)]
    if not metrics.BY_NAME[metric].by_class:
        parts = [part.sum(axis=-1, keepdims=True) for part in parts]
    n_variants, n_examples, n_classes = parts[0].shape
    columns = [part.swapaxes(0, 1).reshape(n_examples, -1).astype(np.float64) for part in parts]

    def score(counts: np.ndarray) -> np.ndarray:
        weights = counts.astype(np.float64)
        sums = ((weights @ column).reshape(-1, n_variants, n_classes) for column in columns)
        return metrics.score_counts(metric, ClassCounts(*sums))

    return score


def _pearson(values: np.ndarray, labels: np.ndarray) -> Scorer:
    """Pearson correlations, from weighted moments; NaN for constants."""
    with np.errstate(invalid="ignore"):
        x, y = values - values.mean(axis=1, keepdims=True), labels - labels.mean()
        moments = [np.ascontiguousarray(table.T) for table in (x, x**2, x * y)]  # [examples, variants]
        # Rounding leaves a constant with a variance of about 1e-16 of the whole sample's.
        least_x, least_y = 1e-12 * moments[1].mean(axis=0), 1e-12 * np.square(y).mean()

    def score(counts: np.ndarray) -> np.ndarray:
        weights = counts / counts.sum(axis=1, dtype=np.float64)[:, None]  # float64
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
        scale = np.sqrt(own * spread)
        np.divide(12 * product, scale, out=found[row], where=scale > 0)
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
