"""What a race found: its table of spans, and its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe import wording
from adapter_probe.ablation_settings import LONGEST, RaceSettings
from adapter_probe.analysis.deltas import without_noise
from adapter_probe.analysis.notable_spans import SpanDrop, StoredSummary

from .confidence_sequences import mean_bounds
from .racing import ASSUMED, BEYOND, CHOSEN, NEEDLESS, UNDEFINED, WITHIN, RaceState


def race_table(race: RaceState, intact: np.ndarray) -> pd.DataFrame:
    """The table of `adapter_probe.Race`, sorted by first, then last layer.

    Args:
        intact: float ``[examples]``, the intact model's scores in the race's order; NaN where not read.
    """
    low, high, cost, score = (np.full(len(race.spans), np.nan) for _ in range(4))
    for n in set(race.n_read.tolist()) - {0}:
        rows = np.flatnonzero((race.n_read == n) & (race.decisions != UNDEFINED))
        own = race.costs[rows, :n].astype(np.float64)
        low[rows], high[rows] = mean_bounds(own, race.costs.shape[1], race.alpha)
        cost[rows] = own.mean(axis=1)
        score[rows] = intact[:n].astype(np.float64).mean() - cost[rows]
    first, last = race.spans.T
    frame = pd.DataFrame(
        {
            "first": first,
            "last": last,
            "n_layers": last - first + 1,
            "score": score,
            "delta_points": -100 * cost,
            "n_examples": race.n_read,
            "decision": race.decisions.astype(str),
            "bound_low_points": without_noise(-100 * high),
            "bound_high_points": without_noise(-100 * low),
        }
    )
    return frame.sort_values(["first", "last"], ignore_index=True)


@dataclass(frozen=True, kw_only=True)
class RaceSummary(StoredSummary):
    """What a race decided, ``race.json``; scores are fractions, differences in points, negative for a loss.

    Attributes:
        task: name of the task as given by the user.
        split: evaluated split; of given data, the one whose place they take.
        metric: metric of the scores.
        goal: ``spans``, ``longest`` or ``least:K``.
        within_points: the tolerated drop.
        risk: probability, over the random order of the examples, that any verdict is wrong.
        seed: seed of the order.
        assume_monotone: whether spans were tried only where their parts were within the tolerance.
        n_examples: number of examples of the evaluation, which the verdicts are about.
        n_read: number of examples that were read for any span.
        n_spans: number of spans.
        n_layers: number of layers of the model.
        decisions: number of spans by decision.
        longest: the longest span within the tolerance; None if there is none, or of another goal.
        least: of `least:K`, the layers that cost least, or first layers of groups.
        intact_score: score of the intact model on the examples read.
        evaluations_share: pairs of a span and an example that were computed, as a share of all.
        layers_share: passes through the layers, as a share of those for all spans on all examples.
        warning: why the verdicts mean nothing; None where they mean something.
        data: name of the evaluated data where they are not a split of the checkpoint's own task.
        strength: what the adapters are multiplied by where they are not intact; None for 0, switched off.
        stack: the stack of layers that the race is about, in a model with several.
        least_ends: of `least:K`, the last layers of the groups in `least`.
    """

    task: str
    split: str
    metric: str
    goal: str
    within_points: float
    risk: float
    seed: int
    assume_monotone: bool
    n_examples: int
    n_read: int
    n_spans: int
    n_layers: int
    decisions: dict[str, int]
    longest: SpanDrop | None
    least: tuple[int, ...]
    intact_score: float
    evaluations_share: float
    layers_share: float
    warning: str | None = None
    data: str | None = None
    strength: float | None = None
    stack: str | None = None
    least_ends: tuple[int, ...] = ()

    @property
    def done(self) -> str:
        """What was done to a span's adapters: `switched off`, `scaled by 0.5`."""
        return wording.done_text("ablated", self.strength or 0.0)

    @property
    def tolerance(self) -> str:
        """The tolerated drop as text."""
        return wording.tolerance_text(self.within_points, self.metric)

    @property
    def answer(self) -> str:
        """The answer to what was asked, in a few words."""
        if self.least:
            return f"layers {', '.join(map(wording.span_text, self.least, self.least_ends or self.least))}"
        if self.goal == LONGEST:
            found = self.longest
            return "no span" if found is None else wording.layers_text(found.first, found.last)
        counts = self.decisions
        beyond = counts.get(BEYOND, 0) + counts.get(ASSUMED, 0)
        return f"{wording.count_text(counts.get(WITHIN, 0), 'span')} within {self.tolerance}, {beyond} beyond"

    @property
    def certainty(self) -> str:
        """What is certain, and over which chance."""
        assumed = ", if no span costs less than its parts" if self.assume_monotone else ""
        return (
            f"right on all {self.n_examples:,} examples with a probability of at least "
            f"{100 * (1 - self.risk):g}% over their random order{assumed}"
        )


def race_summary(
    race: RaceState, intact: np.ndarray, layers_share: float, about: Mapping[str, Any], chance_score: float
) -> RaceSummary:
    """The summary of a finished race.

    Args:
        intact: as of `race_table`.
        layers_share: see `RaceSummary`.
        about: `task`, `split`, `metric`, `n_layers`, `data`, `strength` and `stack` of the summary.
        chance_score: score of guessing; NaN where there is none.
    """
    asked: RaceSettings = race.settings
    n, read, row = race.costs.shape[1], intact[~np.isnan(intact)].astype(np.float64), race.longest
    n_read = len(read)
    longest, warning = None, None
    if row is not None and asked.goal == LONGEST:
        first, last = race.spans[row].tolist()
        cost = float(race.costs[row, : race.n_read[row]].astype(np.float64).mean())
        longest = SpanDrop(first, last, last - first + 1, delta_points=-100 * cost)
    if not np.isnan(chance_score) and mean_bounds(read[None], n, asked.risk)[0][0] <= chance_score:
        warning = (
            f"On the {n_read:,} examples read, the intact model is not surely better than guessing "
            f"({wording.score_text(chance_score, about['metric'])}), so the verdicts are not informative."
        )
    return RaceSummary(
        goal=asked.goal,
        within_points=asked.within,
        risk=asked.risk,
        seed=asked.race_seed,
        assume_monotone=asked.assume_monotone,
        n_examples=n,
        n_read=n_read,
        n_spans=len(race.spans),
        decisions=dict(sorted(Counter(race.decisions.tolist()).items())),
        longest=longest,
        least=tuple(race.spans[race.decisions == CHOSEN, 0].tolist()),
        least_ends=tuple(race.spans[race.decisions == CHOSEN, 1].tolist()),
        intact_score=float(read.mean()),
        evaluations_share=float(race.n_read.sum() / (n * len(race.spans))),
        layers_share=layers_share,
        warning=warning,
        **about,
    )


def race_rows(summary: RaceSummary) -> list[tuple[str, str]]:
    """The summary as (name, value) pairs of text."""
    said = summary
    asked = {LONGEST: f"longest span {said.done} within {said.tolerance}"}.get(said.goal, "spans")
    if said.least:
        asked = f"the {len(said.least)} that cost least, up to {said.tolerance}"
    rows = [] if said.warning is None else [("note", said.warning)]
    rows += [
        (asked, said.answer),
        ("certainty", said.certainty),
        ("task", f"{said.task}, {said.data or said.split}, {wording.metric_name(said.metric)}"),
    ]
    if not wording.is_distance(said.metric):
        score = wording.score_text(said.intact_score, said.metric)
        rows.append(("intact", f"{score} on {said.n_read:,} examples"))
    others = {name: count for name, count in said.decisions.items() if name in (NEEDLESS, ASSUMED, UNDEFINED)}
    if others:
        rows.append(("not decided", ", ".join(f"{count} {name}" for name, count in others.items())))
    cost = f"{wording.percent_text(100 * said.evaluations_share)} of all pairs of a span and an example, "
    rows.append(
        ("computed", f"{cost}{wording.percent_text(100 * said.layers_share)} of the passes through layers")
    )
    return rows
