"""What random weights on the examples say of the scores of all variants, vectorised.

The Bayesian bootstrap gives every example an exponential weight; `weighted_scores` has the scores. Weights
alone would say that what was not seen does not happen. So one more example is given a weight, which changes
as much as the one that changes most: the bound of Gaffke. Of right and wrong answers this is the interval of
Clopper and Pearson and the sign test, whatever the number of examples.
Sources: Rubin 1981, Annals of Statistics 9; Gaffke 2005, Metrika 62; Learned-Miller and Thomas 2019,
arXiv 1905.06208.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.score_changes import intact_row, without_noise
from adapter_probe.analysis.weighted_scores import Scorer, sums_of, unit_of, weighted_scorer
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.formulas import is_complete
from adapter_probe.metrics import about

N_DRAWS = 10_000
FEWEST_UNITS = 6
"""With fewer units, changes that all go one way have a two-sided p of 0.06 or more by any test."""
_CHUNK_VALUES = 4_000_000  # numbers in a chunk of weights or of what is counted: some tens of megabytes


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

        Both ``[draws, columns]``. A bounded unit changes as much as any that was seen, and the fewer change,
        the nearer to the most it can: one part in 1 + m of the way with m that do. Where nothing bounds a
        unit, it is ``1 + sqrt(30 / n) / 2`` times as far from the mean of n units as any on its side. If that
        side is the longer one, ``sqrt(30 / n) (w / 3.5)^2.5`` of what it is longer by is added, with w the
        unit's weight in the draw: a tail has more that was not seen, the farther away the less probable it
        is. By simulation this suffices for heavy tails. Of what is no mean, it is ``1 + sqrt(30 / n)`` times
        as far as any on either side. NaN with fewer unbounded units than `FEWEST_UNITS`.
        """
        n, share = self.counts.sum(), self.added[:, None]
        if np.isinf(self.most).all():
            unseen = np.sqrt(30 / n) if n >= FEWEST_UNITS else np.nan
            centre = np.average(self.values, axis=0, weights=self.counts)
            below, above = centre - self.values.min(axis=0), self.values.max(axis=0) - centre
            if self.is_mean:
                tail = unseen * (n * share / (1 - share) / 3.5) ** 2.5 * (above - below)
                low, high = ((1 + unseen / 2) * side for side in (below, above))
                low, high = centre - low + np.minimum(tail, 0.0), centre + high + np.maximum(tail, 0.0)
            else:  # of which the other examples say less
                farthest = (1 + unseen) * np.maximum(below, above)
                low, high = centre - farthest, centre + farthest
        else:
            seen, changed = self.largest, self.counts @ (self.values != 0)
            high = seen + np.nan_to_num(np.maximum(self.most - seen, 0.0)) / (1 + changed)
            low = -high
        if self.is_distance:
            high = np.minimum(high, 0.0)
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
    terms, values = sums_of(metric, predictions, labels), np.full((len(counts), n_rows), np.nan)
    if terms is None:
        values[:, complete] = metrics.to_points(metric, _without_each(score, unit, counts))
    else:
        numerators, denominators = terms
        per_unit = numerators * 1.0 if group is not None else _by_group(numerators, unit)
        scale = n / (denominators @ counts if group is not None else denominators.sum())
        values[:, complete] = metrics.to_points(metric, per_unit.T * scale * unit_of(metric))
    most = _most(studies[0], rows[complete], unit if group is None else None)
    is_distance, is_exponential = bool(about(metric).distance), about(metric).is_perplexity
    return Draws(samples, added, values, counts, most, terms is not None, is_distance, is_exponential)


def draw_changes(results: AblationResults, rows: Sequence[int]) -> Draws:
    """Changes of some variants' scores against the intact model, as in `draw_scores`."""
    return draw_scores([results]).changes(rows, intact_row(results))


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
        if about(results.metric).is_proportion:
            table = (table == labels[:, None]).astype(np.int64)
        table, group = np.unique(table, axis=0, return_inverse=True)
        return np.ascontiguousarray(table[:, 1:].T), table[:, 0], np.arange(len(table)), group.ravel()
    return predictions, labels, np.unique(results.units, return_inverse=True)[1], None


def _most(results: AblationResults, predictions: np.ndarray, unit: np.ndarray | None) -> float:
    """The largest change of the score that one unit can make, in points; see `Draws`."""
    metric = results.metric
    if about(metric).can_grow or results.scored.TASK.is_number:
        return np.inf
    if (terms := sums_of(metric, predictions, results.scored_with)) is None:
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
