"""A race of spans: which ones are decided, and which are computed on which examples next.

All spans are compared with the intact model on the same examples, which are read in one random order. What
is asked about is the score on all examples of the evaluation; the verdicts are all right with a probability
of at least 1 - risk over that order, by a union bound over the spans (or over the pairs of layers). For every
span exactly one of "costs more than the tolerance" and "costs at most the tolerance" is true, so that each of
the two one-sided tests has the whole share risk / spans. When all examples are read, the verdict is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from adapter_probe.ablation_results import AblationResults
from adapter_probe.ablation_settings import LONGEST, RaceSettings
from adapter_probe.errors import ResultsError
from adapter_probe.formulas import NO_CLASS
from adapter_probe.metrics import GENERATED, LOSSES, OF_PAIRS, PROPORTIONS, is_generated, is_ratio

from .confidence_sequences import Evidence

WITHIN, BEYOND, OPEN = "within", "beyond", "undecided"
ASSUMED, NEEDLESS, UNDEFINED = "assumed beyond", "not needed", "undefined"
CHOSEN, LEFT = "among the least", "not among the least"
"""The decisions of ``spans.csv``: the drop is within the tolerance, or beyond it, or not yet known, which
nothing is in a finished race; not tried, because a shorter span inside is not within (`assume_monotone`); not
tried, since the race was decided without it; with NaN or infinite outputs; of `least:K`, the K layers and the
others."""

_FIRST, _GROWTH, _LEAST_STEP = 16, 1.125, 16  # examples of the rounds, at whose ends spans are decided
_EPSILON = 1e-7


def refuse_unraced(metric: str, kind: str) -> None:
    """Refuse metrics that are no mean over examples of a score between 0 and 1.

    Raises:
        ResultsError: it is one.
    """
    if metric in ("accuracy", "squad_f1", "exact_match", *PROPORTIONS, *GENERATED):
        return
    if metric == "agreement" and kind == "classification":
        return
    if metric in LOSSES:
        why = "has no range, so one example can change it by any amount and no number of examples bounds it"
    elif is_generated(metric):
        why = "is a number per text whose range is not known"
    elif is_ratio(metric):
        why = "is a share of tokens, and not a mean over examples"
    else:
        why = "is not a mean over examples, so a part of them bounds it by no known rule"
    others = {"classification": "accuracy or agreement", "extractive": "squad_f1 or exact_match"}
    ways = f"give --metric {others[kind]}" if kind in others else "score right answers, such as of choices"
    raise ResultsError(f"--race is not possible with the metric {metric}: it {why}; {ways}, or omit --race")


def is_whole(metric: str) -> bool:
    """Whether the scores of examples are 0 or 1, and nothing in between."""
    return metric == "agreement" or not (metric in ("squad_f1", *OF_PAIRS) or is_ratio(metric))


def example_scores(results: AblationResults) -> np.ndarray:
    """The score of every example, float ``[variants, examples]`` in [0, 1]; NaN where it is undefined.

    Args:
        results: with a metric that `refuse_unraced` lets pass.
    """
    found = results.predictions
    if not is_whole(results.metric):
        return np.asarray(found, dtype=np.float64)
    right = 1 if results.kind == "extractive" else results.scored_with
    known = np.isfinite(found) if found.dtype.kind == "f" else found != NO_CLASS
    return np.where(known, found == right, np.nan)


def round_ends(n_examples: int) -> list[int]:
    """The numbers of examples after which a race is looked at, ascending, the last one all of them."""
    ends, end = [], _FIRST
    while end < n_examples:
        ends.append(end)
        end = max(end + _LEAST_STEP, math.ceil(_GROWTH * end))
    return [*ends, n_examples]


def order_of(n_examples: int, seed: int) -> np.ndarray:
    """The random order in which a race reads the examples, int ``[examples]``."""
    return np.random.default_rng(seed).permutation(n_examples)


@dataclass(frozen=True, eq=False)
class Round:
    """What is computed next: spans, int ``[spans]``, on the examples from `start` to `stop` of the order."""

    spans: np.ndarray
    start: int
    stop: int


def refuse_no_choice(spans: np.ndarray, settings: RaceSettings) -> None:
    """Refuse `least:K` among spans that overlap, or of so few that there is nothing to choose.

    Raises:
        ResultsError: it is so.
    """
    if not settings.n_least:
        return
    first, last = spans[np.argsort(spans[:, 0], kind="stable")].T
    if (first[1:] <= last[:-1]).any():
        raise ResultsError(f"--race {settings.goal} chooses among layers or groups; add --spans single")
    if settings.n_least >= len(spans):
        raise ResultsError(f"--race {settings.goal}: there are {len(spans)} to choose among; ask for fewer")


class RaceState:
    """The state of a race; mutable.

    Args:
        spans: int ``[spans, 2]``, first and last layer.
        n_examples: number of all examples of the evaluation.
        settings: what is asked for.
        ends: see `round_ends`.
        whole: whether all scores of examples are 0 or 1, so that costs are whole numbers of examples.

    Attributes:
        decisions: ``[spans]``, see above; `OPEN` until there is one.
        n_read: int ``[spans]``, how many examples of the order each span was computed on.
        costs: float32 ``[spans, examples]`` in the random order: intact score minus the span's; NaN where it
            was not computed.
    """

    def __init__(
        self, spans: np.ndarray, n_examples: int, settings: RaceSettings, ends: Sequence[int], whole: bool
    ):
        self.spans, self.settings, self._n, self._ends = spans, settings, n_examples, list(ends)
        n = len(spans)
        refuse_no_choice(spans, settings)
        self.decisions = np.full(n, OPEN, dtype=object)
        self.n_read = np.zeros(n, dtype=np.int64)
        self.costs = np.full((n, n_examples), np.nan, dtype=np.float32)
        self._limit = settings.within / 100 * n_examples + _EPSILON  # the largest sum of costs within
        least_beyond = math.floor(self._limit) + 1 if whole else self._limit
        self._limit = math.floor(self._limit) if whole else self._limit
        if settings.n_least:
            pairs = n * (n - 1)
            self._level = math.log(pairs / 2 / settings.risk)
            self._better = Evidence(n_examples, np.zeros(pairs))
            self._near = Evidence(n_examples, np.full(pairs, -least_beyond))
            self._pairs = np.argwhere(~np.eye(n, dtype=bool))  # the first one is compared with the second
        else:
            self._level = math.log(n / settings.risk)
            self._more = Evidence(n_examples, np.full(n, self._limit))
            self._less = Evidence(n_examples, np.full(n, -least_beyond))

    @property
    def is_open(self) -> np.ndarray:
        """Whether spans have no decision yet, bool ``[spans]``."""
        return np.asarray(self.decisions == OPEN)

    @property
    def alpha(self) -> float:
        """The error probability of one bound on the mean cost of one span."""
        return self.settings.risk / len(self.spans)

    def rounds(self) -> Iterator[Round]:
        """What to compute, round by round; `take` has to be called with the scores before the next one."""
        for stage in self._stages():
            for start, stop in pairwise([0, *self._ends]):
                alive = stage[self.is_open[stage]]
                if not len(alive):
                    break
                yield Round(alive, start, stop)

    def take(self, done: Round, costs: np.ndarray) -> None:
        """Take what a round computed, ``[spans, examples]`` as `costs`, and decide what can be decided."""
        self.costs[done.spans, done.start : done.stop] = costs
        self.n_read[done.spans] = done.stop
        bad = np.isnan(costs).any(axis=1)
        self.decisions[done.spans[bad]] = UNDEFINED
        alive = done.spans[~bad]
        if self.settings.n_least:
            self._choose_least(done, alive)
            return
        new = self.costs[alive, done.start : done.stop]
        self._more.add(alive, new)
        self._less.add(alive, -new)
        if done.stop == self._n:
            sums = self.costs[alive].sum(axis=1, dtype=np.float64)
            self.decisions[alive] = np.where(sums <= self._limit, WITHIN, BEYOND)
        else:
            self.decisions[alive[self._more.largest[alive] >= self._level]] = BEYOND
            self.decisions[alive[self._less.largest[alive] >= self._level]] = WITHIN

    def _stages(self) -> Iterator[np.ndarray]:
        """The spans that are computed together, one set after the other."""
        goal, length = self.settings.goal, self.spans[:, 1] - self.spans[:, 0]
        if not self.settings.assume_monotone and goal != LONGEST:
            yield np.arange(len(self.spans))
            return
        grows = self.settings.assume_monotone
        for own in sorted(set(length.tolist()), reverse=not grows):
            stage = np.flatnonzero(length == own)
            if grows:
                stage = self._with_parts_within(stage)
            yield stage
            if not grows and (self.decisions[stage] == WITHIN).any():
                self.decisions[self.is_open] = NEEDLESS

    def _with_parts_within(self, stage: np.ndarray) -> np.ndarray:
        """Those of some spans without a studied span inside that is not within the tolerance."""
        first, last = self.spans.T
        failed = np.isin(self.decisions, [BEYOND, ASSUMED, UNDEFINED])
        inside = (first >= first[stage, None]) & (last <= last[stage, None])  # [stage, spans]
        tried = ~(inside & failed).any(axis=1)
        self.decisions[stage[~tried]] = ASSUMED
        return stage[tried]

    @property
    def longest(self) -> int | None:
        """The longest span within the tolerance: of several the one with the smallest mean cost so far."""
        rows = np.flatnonzero(self.decisions == WITHIN)
        length = self.spans[rows, 1] - self.spans[rows, 0]
        mean = [float(self.costs[row, : self.n_read[row]].mean()) for row in rows]
        return int(rows[np.lexsort((self.spans[rows, 0], mean, -length))[0]]) if len(rows) else None

    def _choose_least(self, done: Round, alive: np.ndarray) -> None:
        """Accept and reject layers by comparing them with each other, and stop when a choice is sure.

        A layer is chosen if it surely costs less than all but K - 1 others, and left if K surely cost less.
        The race is over as soon as each of the K layers that cost least so far surely costs at most the
        tolerance more than each of the others.
        """
        a, b = self._pairs.T
        chosen = np.flatnonzero(np.isin(a, alive) & np.isin(b, alive))
        new = self.costs[:, done.start : done.stop]
        apart = new[b[chosen]] - new[a[chosen]]  # positive where the first costs less
        self._better.add(chosen, apart)
        self._near.add(chosen, apart)
        n, k = len(self.spans), self.settings.n_least
        wins, near = np.zeros((n, n), dtype=bool), np.zeros((n, n), dtype=bool)
        wins[a, b] = self._better.largest >= self._level
        near[a, b] = self._near.largest >= self._level
        lost = np.flatnonzero(self.decisions == UNDEFINED)
        wins[:, lost] = near[:, lost] = True
        wins[lost] = near[lost] = False
        self.decisions[alive[wins[:, alive].sum(axis=0) >= k]] = LEFT
        self.decisions[alive[wins[alive].sum(axis=1) >= n - k]] = CHOSEN
        alive = alive[self.is_open[alive]]
        missing = k - int((self.decisions == CHOSEN).sum())
        order = alive[np.lexsort((alive, self.costs[alive, : done.stop].sum(axis=1, dtype=np.float64)))]
        best, others = order[:missing], order[missing:]
        if done.stop == self._n or near[np.ix_(best, others)].all():
            self.decisions[best], self.decisions[others] = CHOSEN, LEFT
