"""What random weights on the examples say of the scores of all variants, vectorised.

The Bayesian bootstrap gives every example an exponential weight. A score is a function of weighted sums, so a
chunk of draws is a few matrix products, ``weights [draws, examples] @ values [examples, variants]``; for the
rank correlation each variant's examples are sorted once, and a draw's ranks are running sums of its weights
in that order. Weights alone would say that what was not seen does not happen. So one more example is given a
weight, which changes as much as the one that changes most: the bound of Gaffke. Of right and wrong answers
this is the interval of Clopper and Pearson and the sign test, whatever the number of examples.
Sources: Rubin 1981, Annals of Statistics 9; Gaffke 2005, Metrika 62; Learned-Miller and Thomas 2019,
arXiv 1905.06208.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.deltas import intact_row, without_noise
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.formulas import ClassCounts, counts_by_example, is_complete, loss, loss_terms
from adapter_probe.metrics import COMPARISONS, LOSSES, MEANS, METRICS, PROPORTIONS, is_ratio

N_DRAWS = 10_000
FEWEST_UNITS = 6
"""With fewer units, changes that all go one way have a two-sided p of 0.06 or more by any test."""
_CHUNK_VALUES = 4_000_000  # numbers in a chunk of weights or of what is counted: some tens of megabytes
_RANKED_VALUES = 100_000  # numbers that are sorted and summed at a time: few enough for the processor's cache

_ROUNDING = 1e-12  # of a sum of squares: below, values do not vary

Scorer = Callable[[np.ndarray], np.ndarray]
"""From weights float64 ``[draws, examples]`` to scores float64 ``[draws, variants]``."""


@dataclass(frozen=True, eq=False)
class Draws:
    """Scores in points, more is better, or changes of them, under random weights.

    A *unit* is what has one weight: examples that come out alike in every variant, or the questions on a
    paragraph; else an example.

    Attributes:
        samples: float64 ``[draws, columns]``, each a score or a change; NaN where it is undefined.
        added: float64 ``[draws]``, the weight of one more example as a share of all weights.
        values: float64 ``[units, columns]``, what a unit contributes, so that the mean over units is the
            change; for scores that are no mean, by leaving the unit out.
        counts: int64 ``[units]``, the number of examples that a unit stands for; 1 of a paragraph.
        most: the largest change that one unit can make; infinite for losses, margins and correlations, NaN
            where it is not known.
        is_mean: whether scores are means of what units contribute, or functions of means.
        is_distance: whether a change can be for the worse alone.
        is_exponential: whether scores are perplexities; `values` are those of their logarithms then.
        intact: of changes of logarithms, the intact perplexity in every draw, by which they are converted.
    """

    samples: np.ndarray
    added: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    most: float | np.ndarray
    is_mean: bool
    is_distance: bool = False
    is_exponential: bool = False
    intact: np.ndarray | None = None

    def map(self, function: Callable[[np.ndarray], np.ndarray], most: float | np.ndarray = 1.0) -> Draws:
        """Linear functions of the columns, ``[..., columns]`` to ``[..., new columns]``.

        Args:
            most: how much a unit can change them, in changes of a score.
        """
        slope = np.abs(self.samples).mean(axis=0) / 100 if self.is_exponential else 1.0
        samples, values = (without_noise(function(own)) for own in (self.samples, slope * self.values))
        return replace(self, samples=samples, values=values, most=most * self.most, is_exponential=False)

    def changes(self, rows: Sequence[int], intact: int) -> Draws:
        """Changes of some scores against the intact one; of perplexities by way of their logarithms."""
        if not self.is_exponential:
            return self.map(lambda scores: scores[..., rows] - scores[..., [intact]])
        logarithms = replace(self, samples=-100 * np.log(-self.samples / 100), is_exponential=False)
        return replace(logarithms.changes(rows, intact), intact=-self.samples[:, intact])

    def first(self, n_draws: int) -> Draws:
        """The first draws alone."""
        intact = None if self.intact is None else self.intact[:n_draws]
        return replace(self, samples=self.samples[:n_draws], added=self.added[:n_draws], intact=intact)

    def columns(self, kept: np.ndarray) -> Draws:
        """Some of the columns, bool ``[columns]``; `most` is what each of them has."""
        most = np.broadcast_to(self.largest if np.isnan(self.most).any() else self.most, kept.shape)[kept]
        return replace(self, samples=self.samples[:, kept], values=self.values[:, kept], most=most)

    @property
    def largest(self) -> np.ndarray:
        """The largest contribution of a unit to each column ``[columns]``, or where none contributes `most`.

        Where that is not known, it is the largest to any column; NaN if none contributes to any.
        """
        seen = np.abs(self.values).max(axis=0)
        most = np.where(np.isnan(self.most), np.max(seen, initial=0.0, where=seen > 0), self.most)
        found = np.where(seen > 0, seen, most)
        return np.where(found > 0, found, np.nan)

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The samples with one more unit that is as extreme as any: the lowest and the highest.

        Both ``[draws, columns]``. Where nothing bounds what a unit can change, the unit is
        ``1 + sqrt(30 / n)`` times as far from the mean of n units as any on its side (of correlations, on
        either), which by simulation suffices for heavy tails; NaN with fewer units than `FEWEST_UNITS`.
        """
        low, high, n = -self.largest, self.largest, self.counts.sum()
        if np.isinf(self.most).all():
            beyond = 1 + np.sqrt(30 / n) if n >= FEWEST_UNITS else np.nan
            centre = np.average(self.values, axis=0, weights=self.counts)
            low, high = (beyond * (end(axis=0) - centre) for end in (self.values.min, self.values.max))
            if not self.is_mean:  # of which the other examples say less
                low, high = np.minimum(low, -high), np.maximum(high, -low)
            low, high = centre + low, centre + high
        if self.is_distance:
            high = np.minimum(high, 0.0)
        share = self.added[:, None]
        low, high = (self.samples + share * (end - self.samples) for end in (low, high))
        if self.intact is not None:
            low, high = (-self.intact[:, None] * np.expm1(-end / 100) for end in (low, high))
        return without_noise(low), without_noise(high)


def draw_scores(
    studies: Sequence[AblationResults],
    n_draws: int = N_DRAWS,
    seed: int = 0,
    more: np.ndarray | None = None,
) -> Draws:
    """Scores of every variant of all studies under the same weights, in points; a column a variant.

    Args:
        studies: scored on the same examples by the same metric.
        seed: random seed; every variant has the same weights.
        more: further predictions to score on the same examples, ``[rows, examples]``.
    """
    metric = studies[0].metric
    rows = np.concatenate([*(one.taken_by_metric for one in studies), *([] if more is None else [more])])
    complete = is_complete(rows, rows.ndim - 1)  # variants without a prediction have no score
    predictions, labels, unit, group = _alike(studies[0], rows[complete])
    counts = np.ones(unit.max() + 1, dtype=np.int64) if group is None else np.bincount(group)
    n, n_rows = counts.sum(), len(rows)
    score = weighted_scorer(metric, predictions, labels)
    samples, added, done = np.full((n_draws, n_rows), np.nan), np.empty(n_draws), 0
    # What is counted is at most one number a variant and class.
    per_row = max(len(rows[0]), complete.sum() * max(1, len(studies[0].label_names)))
    whole = isinstance(metric, CustomMetric)
    for weights, one_more in draw_weights(n, n_draws, seed, max(1, _CHUNK_VALUES // per_row), whole):
        chunk = slice(done, done := done + len(weights))
        added[chunk] = one_more / (weights.sum(axis=1) + one_more)
        of_rows = weights[:, unit] if group is None else _by_group(weights, group)
        samples[chunk, complete] = metrics.to_points(metric, score(of_rows))
    if n < 2:  # which says nothing of how others would have come out
        samples[:] = np.nan
    terms, values = _sums(metric, predictions, labels), np.full((len(counts), n_rows), np.nan)
    if terms is None:
        values[:, complete] = metrics.to_points(metric, _without_each(score, unit, counts))
    else:
        numerators, denominators = terms
        per_unit = numerators * 1.0 if group is not None else _by_group(numerators, unit)
        scale = n / (denominators @ counts if group is not None else denominators.sum())
        values[:, complete] = metrics.to_points(metric, per_unit.T * scale * _unit_of(metric))
    most = _most(studies[0], rows[complete], unit if group is None else None)
    is_distance, is_exponential = metric in COMPARISONS, _is_perplexity(metric)
    return Draws(samples, added, values, counts, most, terms is not None, is_distance, is_exponential)


def draw_changes(
    results: AblationResults, rows: Sequence[int], n_draws: int = N_DRAWS, seed: int = 0
) -> Draws:
    """Changes of some variants' scores against the intact model, as in `draw_scores`."""
    return draw_scores([results], n_draws, seed).changes(rows, intact_row(results))


def _alike(
    results: AblationResults, predictions: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Predictions and labels; of classes, examples that are alike in every variant are one.

    Returns:
        predictions, labels; the unit of each of their examples; the group of each example among those that
        are alike, or None.
    """
    labels = results.scored_with
    if labels.ndim == 1 and predictions.dtype.kind in "iu" and not isinstance(results.metric, CustomMetric):
        table = np.concatenate([labels[:, None], predictions.T], axis=1)
        if results.metric in PROPORTIONS:
            table = (table == labels[:, None]).astype(np.int64)
        table, group = np.unique(table, axis=0, return_inverse=True)
        return np.ascontiguousarray(table[:, 1:].T), table[:, 0], np.arange(len(table)), group.ravel()
    return predictions, labels, np.unique(results.units, return_inverse=True)[1], None


def _most(results: AblationResults, predictions: np.ndarray, unit: np.ndarray | None) -> float:
    """The largest change of the score that one unit can make, in points; see `Draws`."""
    metric = results.metric
    if metric in (*LOSSES, "margin", *METRICS["regression"]) or results.kind == "regression":
        return np.inf
    if (terms := _sums(metric, predictions, results.scored_with)) is None:
        return np.nan
    sizes = np.ones(1) if unit is None else np.bincount(unit, terms[1])
    extent = np.ptp(terms[0]) if metric.startswith(metrics.PER_TEXT) else 1.0
    return float(100 * extent * sizes.max() / sizes.mean())


def _by_group(table: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Sums of ``[rows, examples]`` over the examples of each group, ``[rows, groups]``."""
    order = np.argsort(group, kind="stable")
    begins = np.searchsorted(group[order], np.arange(group.max() + 1))
    return np.add.reduceat(table[:, order].astype(np.float64), begins, axis=1)


def _without_each(score: Scorer, unit: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """What each of n units contributes to scores, ``[units, variants]``: n of all - (n - 1) of the others."""
    n, n_units = counts.sum(), len(counts)
    if n < 2:
        return np.full((n_units, 1), np.nan)
    size, found = max(1, _CHUNK_VALUES // len(unit)), []
    whole = score(counts[None, unit].astype(np.float64))
    for begin in range(0, n_units, size):
        weights = np.repeat(counts[None].astype(np.float64), min(size, n_units - begin), axis=0)
        weights[np.arange(len(weights)), begin + np.arange(len(weights))] -= 1
        found.append(n * whole - (n - 1) * score(weights[:, unit]))
    return np.concatenate(found)


def draw_weights(
    n: int, n_draws: int, seed: int, chunk: int = 1, whole: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Chunks of exponential weights of n examples, ``[draws, n]``, and of one more, ``[draws]``.

    Args:
        chunk: the most draws in a chunk; what is drawn does not depend on it.
        whole: draw whole numbers, how often each is in a resample: for functions of lists of examples.
    """
    generator, other = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    for begin in range(0, n_draws, chunk):
        size = min(chunk, n_draws - begin)
        if whole:
            weights = generator.multinomial(n, np.full(n, 1 / n), size).astype(np.float64)
        else:
            weights = generator.standard_exponential((size, n))
        yield weights, other.standard_exponential(size)


def weighted_scorer(metric: str, predictions: np.ndarray, labels: np.ndarray) -> Scorer:
    """The function that scores each variant on weighted examples, for a metric.

    Args:
        predictions: ``[variants, examples]``, as `metrics.score` takes them.
        labels: ``[examples]``, or ``[examples, labels]``.
    """
    if isinstance(metric, CustomMetric):
        return _custom_scores(metric, predictions, labels)
    if (terms := _sums(metric, predictions, labels)) is not None:
        numerators, denominators = np.ascontiguousarray(terms[0].T, dtype=np.float64), terms[1]
        return lambda weights: _ratio(metric, weights @ numerators, (weights @ denominators)[:, None])
    if labels.ndim == 2:
        return _of_counted(metric, predictions, labels)
    if metric in METRICS["classification"]:
        return _of_counts(metric, predictions, labels)
    values, targets = np.asarray(predictions, np.float64), np.asarray(labels, np.float64)
    return (_pearson if metric == "pearson" else _spearman)(values, targets)


def _sums(metric: str, predictions: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Numerators ``[variants, examples]`` and denominators of scores that are ratios of two sums, or None."""
    if isinstance(metric, CustomMetric) or labels.ndim == 2:
        return None
    if is_ratio(metric):
        return loss_terms(metric, predictions, labels)
    if metric in (*MEANS, *METRICS["extractive"]):
        return predictions.astype(np.float64), np.ones(len(labels))
    if metric in PROPORTIONS:
        return predictions == labels, np.ones(len(labels))
    return None


def _is_perplexity(metric: str) -> bool:
    return metric in LOSSES and metric.endswith("perplexity")


def _unit_of(metric: str) -> float:
    """What a nat is in the metric's unit; of perplexities, in that of their logarithms."""
    return float(loss(metric, 1.0, 1.0)) if is_ratio(metric) and not _is_perplexity(metric) else 1.0


def _ratio(metric: str, numerator: np.ndarray, denominator: np.ndarray | float) -> np.ndarray:
    return loss(metric, numerator, denominator) if is_ratio(metric) else numerator / denominator


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
    found = counts_by_example(predictions, labels, metric in METRICS["tokens"])
    parts = [found.hits, found.predicted, np.broadcast_to(found.actual, found.hits.shape)]
    if not metrics.BY_NAME[metric].by_class:
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
