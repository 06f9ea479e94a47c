"""The paired bootstrap: all variants scored on the same resampled examples, many times, at once.

A resample is a vector of counts, how often each example was drawn. Scores are functions of counted sums, so
a chunk of resamples is one matrix product, ``counts [resamples, examples] @ values [examples, variants]``.
Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapters 6 and 13.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from adapter_probe import metrics
from adapter_probe.metrics import METRICS, ClassCounts
from adapter_probe.results.ablation import AblationResults

N_RESAMPLES = 10_000
_CHUNK_VALUES = 4_000_000  # numbers in a chunk of counts: some tens of megabytes


def bootstrap_scores(results: AblationResults, n_resamples: int = N_RESAMPLES, seed: int = 0) -> np.ndarray:
    """Scores of every variant on resampled examples.

    Questions are drawn by paragraph: questions on one text are not independent.

    Args:
        results: predictions and labels.
        n_resamples: how many resamples.
        seed: of the draws; the same seed draws the same examples for every variant.

    Returns:
        float64 ``[resamples, variants]``, fractions; NaN where a resample leaves the score undefined.
    """
    clusters = results.labels if results.kind == "extractive" else None
    score = _scorer(results)
    rows = [
        score(counts) for counts in draw_counts(len(results.labels), n_resamples, seed, clusters=clusters)
    ]
    return np.concatenate(rows)


def draw_counts(
    n_examples: int, n_resamples: int, seed: int, clusters: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Chunks ``[resamples, examples]`` of float32: how often each example is in each resample.

    Args:
        n_examples: examples to draw from; as many are drawn.
        n_resamples: resamples in all.
        seed: of the draws.
        clusters: int ``[examples]``; examples of one cluster are drawn together, as many clusters as there
            are.
    """
    generator = np.random.default_rng(seed)
    _, cluster = np.unique(np.arange(n_examples) if clusters is None else clusters, return_inverse=True)
    n = int(cluster.max()) + 1
    size = max(1, _CHUNK_VALUES // n_examples)
    for begin in range(0, n_resamples, size):
        drawn = [np.bincount(generator.integers(0, n, n), minlength=n)
                 for _ in range(min(size, n_resamples - begin))]  # fmt: skip
        counts = np.array(drawn, dtype=np.float32)
        yield counts if clusters is None else counts[:, cluster]


class _scorer:
    """Scores ``[resamples, variants]`` from counts ``[resamples, examples]``."""

    def __init__(self, results: AblationResults):
        self._metric = results.metric
        predictions, labels = results.predictions, results.labels  # [variants, examples], [examples]
        if self._metric in METRICS["classification"]:
            classes = range(1 + int(max(predictions.max(), labels.max(), 1)))
            hit = predictions == labels
            if self._metric == "accuracy":
                self._tables = [hit.T.astype(np.float32)]
            else:
                # [examples, variants] a class: hits, then predictions, then the class's own examples.
                self._tables = [((predictions == c) & hit).T.astype(np.float32) for c in classes]
                self._tables += [(predictions == c).T.astype(np.float32) for c in classes]
                self._tables += [(labels == c)[:, None].astype(np.float32) for c in classes]
        elif self._metric in METRICS["extractive"]:
            self._tables = [predictions.T.astype(np.float64)]
        else:
            self._values, self._labels = np.asarray(predictions, np.float64), np.asarray(labels, np.float64)

    def __call__(self, counts: np.ndarray) -> np.ndarray:
        if self._metric == "pearson":
            return _weighted_pearson(counts, self._values, self._labels)
        if self._metric == "spearman":
            return np.stack([_weighted_spearman(row, self._values, self._labels) for row in counts])
        if self._metric == "accuracy" or self._metric in METRICS["extractive"]:
            drawn = counts.sum(axis=1, dtype=np.float64)[:, None]
            return (counts @ self._tables[0]).astype(np.float64) / drawn
        sums = [(counts @ table).astype(np.float64) for table in self._tables]
        n = len(sums) // 3
        hits, predicted, actual = (np.stack(sums[i * n : (i + 1) * n], axis=-1) for i in range(3))
        return metrics.score_counts(self._metric, ClassCounts(hits, predicted, actual))


def _weighted_pearson(counts: np.ndarray, values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Pearson correlation from weighted moments, ``[resamples, variants]``."""
    with np.errstate(invalid="ignore", divide="ignore"):
        x, y = values - values.mean(axis=1, keepdims=True), labels - labels.mean()
        weights = counts.astype(np.float64)
        total = weights.sum(axis=1)[:, None]
        mean_x, mean_y = weights @ x.T / total, (weights @ y)[:, None] / total
        covariance = weights @ (x * y).T / total - mean_x * mean_y
        var_x = weights @ (x**2).T / total - mean_x**2
        var_y = (weights @ y**2)[:, None] / total - mean_y**2
        constant = (var_x <= 1e-12 * (x**2).mean(axis=1)) | (var_y <= 1e-12 * (y**2).mean())
        return np.where(constant, np.nan, np.clip(covariance / np.sqrt(var_x * var_y), -1.0, 1.0))


def _weighted_spearman(count: np.ndarray, values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Spearman correlation of one resample, ``[variants]``: ranks within the resample, ties averaged."""
    drawn = np.repeat(np.arange(len(labels)), count.astype(np.int64))
    return np.asarray(metrics.score("spearman", values[:, drawn], labels[drawn]))
