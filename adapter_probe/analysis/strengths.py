"""Scores against the strength of adapters, from one ablation for every strength."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from adapter_probe import metrics, wording
from adapter_probe.ablation_results import AblationResults, of_variants
from adapter_probe.analysis import score_changes
from adapter_probe.analysis.removable import random_halves
from adapter_probe.analysis.resampling import draw_changes
from adapter_probe.analysis.significance import span_interval
from adapter_probe.analysis.summary_parts import StoredSummary
from adapter_probe.results.schema import span_columns
from adapter_probe.spans import ALL_MODULES


@dataclass(frozen=True, kw_only=True)
class JudgedSummary(StoredSummary):
    """The summary of a study that chooses the best of several strengths or ranks, ``summary.json``.

    Attributes:
        task: name of the task as given by the user.
        data: name of the evaluated data, or the split.
        metric: metric of the scores.
        n_examples: number of evaluated examples.
        intact_score: score of the intact model; None if undefined.
        chosen_on: ``half`` if the best one was chosen on one half of the examples and judged on the other;
            ``all`` if there were too few.
        n_judged: number of examples that it was judged on.
        delta_points: its score minus that of the intact model, in points, a loss negative; None if undefined.
        interval_points: its 95% interval, see `span_interval`.
        model, question: see `AblationSummary`.
    """

    task: str
    data: str
    metric: str
    n_examples: int
    intact_score: float | None
    chosen_on: Literal["half", "all"] = "half"
    n_judged: int = 0
    delta_points: float | None = None
    interval_points: tuple[float | None, float | None] = (None, None)
    model: str | None = None
    question: tuple[str, ...] | None = None

    @property
    def verdict(self) -> str:
        """The answer of the study."""
        raise NotImplementedError


def facts_of(results: AblationResults) -> dict[str, Any]:
    """The fields of a `JudgedSummary` that say what was evaluated."""
    return {
        "task": results.settings["task"],
        "data": results.settings.get("data") or results.settings["split"],
        "metric": results.metric,
        "n_examples": results.n_examples,
        "intact_score": score_changes.finite_or_none(score_changes.row_scores(results)[0]),
        "model": score_changes.model_of(results),
        "question": tuple(results.settings.get("question") or ()) or None,
    }


def choose_and_judge(
    results: AblationResults, rows: np.ndarray, choose: Callable[[np.ndarray], int]
) -> tuple[int, dict[str, Any]]:
    """Choose a variant on one half of the examples, and compare it with the first variant on the other half.

    Args:
        rows: int ``[candidates]``, the variants among which to choose.
        choose: from their scores ``[candidates]`` to the place of the best one.

    Returns:
        this place, and the fields of a `JudgedSummary` that say how it was chosen and judged.
    """
    chosen, judged = random_halves(results)
    half = len(chosen) > 0 and len(judged) > 1
    if not half:
        chosen = judged = np.arange(results.n_examples)
    best = choose(score_changes.row_scores(results.of_examples(chosen))[rows])
    pair = [0, rows[best]]
    there = results.of_examples(judged)
    scores = score_changes.row_scores(there)[pair]
    change = score_changes.without_noise(metrics.to_points(results.metric, scores[1:] - scores[:1]))
    ends = span_interval(draw_changes(there, pair[1:]), there, pair[1:])
    return best, {
        "chosen_on": "half" if half else "all",
        "n_judged": len(judged),
        "delta_points": score_changes.finite_or_none(change[0]),
        "interval_points": tuple(score_changes.finite_or_none(end[0]) for end in ends),
    }


@dataclass(frozen=True, kw_only=True)
class StrengthSummary(JudgedSummary):
    """Whether another strength is better than 1, ``summary.json``; see `JudgedSummary`.

    Attributes:
        best: the best strength of the whole adapter; None for a metric that only tells distances.
    """

    best: float | None = None

    @property
    def verdict(self) -> str:
        """The answer to "is the adapter too strong?"."""
        if self.best is None:
            return (
                f"not known: {self.metric} tells how far the outputs are from those at strength 1, and not "
                "which are better; give data with labels, or of texts the metric nll"
            )
        best, n = wording.strength_text(self.best), wording.count_text(self.n_judged, "example")
        half = self.chosen_on == "half"
        if self.best == 1:
            where = "the half of the examples that it is chosen on" if half else "the examples"
            return f"no: of these strengths, none has a better score than 1 on {where}"
        low, high = self.interval_points
        if self.delta_points is None or low is None or high is None:
            return f"not known: the difference of strength {best} to 1 is undefined on {n}"
        what = "too strong" if self.best < 1 else "too weak"
        sure = f"yes, {what}" if low > 0 else "no evidence"
        chosen, judged = (
            ("one half of the examples", f"the other half ({n})") if half else (n, "the same ones")
        )
        gain = "fall" if wording.is_loss(self.metric) else "gain"
        change = wording.drop_text(-self.delta_points, self.metric).replace(" ", " of ", 1)
        return (
            f"{sure}: of these strengths {best} is best on {chosen}; on {judged} it is a {change} against "
            f"strength 1, 95% interval of the {gain} {wording.interval_text(low, high, self.metric)}"
        )


def joined(by_strength: Mapping[float, AblationResults]) -> tuple[AblationResults, pd.DataFrame]:
    """The ablations of several strengths as one, and what its variants are.

    Args:
        by_strength: ablations of the same variants on the same examples, by strength; none of 1.

    Returns:
        the ablation, whose first variant is intact and whose spans repeat; and a frame with one row for each
        other variant: `variant`, its row; `strength`; `stack` of several, `module` of a map of them;
        `first`, `last`, `n_layers`; `whole`, whether it is of all adapters that the study scales.
    """
    results, rows, n = list(by_strength.values()), [], 1
    for strength, one in by_strength.items():
        for row in range(1, len(one.masks)):
            whole = row == score_changes.removed_row(one)
            named = (one.stacks, one.modules)
            stack, module = ("" if of is None else ALL_MODULES if whole else str(of[row]) for of in named)
            rows.append((n, strength, stack, module, *_layers_off(one, row, whole), whole))
            n += 1
    names = [f"{name} at {s:g}" for s, one in by_strength.items() for name in one.row_names[1:]]
    columns = ["variant", "strength", "stack", "module", "first", "last", "n_layers", "whole"]
    frame = pd.DataFrame(rows, columns=columns)
    for name in ("stack", "module"):
        if getattr(results[0], f"{name}s") is None:
            del frame[name]
    return of_variants(results, (results[0].row_names[0], *names)), frame


def _layers_off(one: AblationResults, row: int, whole: bool) -> tuple[int, int, int]:
    """The first and the last layer that a variant switches, in their stacks, and how many it switches."""
    if not whole and one.spans[row, 0] >= 0:
        first, last = map(int, one.spans[row])
        return first, last, last - first + 1
    off = np.flatnonzero((~one.masks[row]).reshape(one.n_layers, -1).any(axis=1))
    begin, places = 0, off.copy()
    for _, n_layers, *of_adapter in one.settings.get("stacks") or ():
        own = (begin <= off) & (off < begin + n_layers)
        places[own] -= of_adapter[0] if of_adapter else begin
        begin += n_layers
    several = whole and one.stacks is not None
    first, last = int(places.min()), int(places.max())
    return first, last, len(off) if several else last - first + 1


def strength_table(results: AblationResults, variants: pd.DataFrame, intact: float = 1.0) -> pd.DataFrame:
    """The table of `adapter_probe.Strengths`, the whole adapter first; `intact` is the intact strength."""
    scores = score_changes.row_scores(results)
    every = range(len(scores))
    low, high = span_interval(draw_changes(results, every), results, every)
    points = score_changes.without_noise(metrics.to_points(results.metric, scores - scores[0]))
    columns = {"score": scores, "delta_points": points, "ci_low_points": low, "ci_high_points": high}
    spans = variants.drop_duplicates([*span_columns(variants), "whole"]).assign(strength=intact, variant=0)
    frame = pd.concat([variants, spans], ignore_index=True)
    rows = frame.pop("variant").to_numpy()
    frame = frame.assign(**{name: values[rows] for name, values in columns.items()})
    frame["n_examples"] = results.n_examples
    order = ["whole", *span_columns(frame)[:-3], "n_layers", "first", "strength"]
    return frame.sort_values(order, ascending=[name != "whole" for name in order], ignore_index=True)


def strength_summary(results: AblationResults, variants: pd.DataFrame) -> StrengthSummary:
    """Which strength of the whole adapter is best; see `joined`."""
    facts = facts_of(results)
    if metrics.about(results.metric).distance:
        return StrengthSummary(**facts)
    whole = variants[variants["whole"]]
    strengths = np.append(1.0, whole["strength"].to_numpy())

    def nearest_of_best(scores: np.ndarray) -> int:
        points = np.nan_to_num(
            score_changes.without_noise(metrics.to_points(results.metric, scores)), nan=-np.inf
        )
        return int(np.lexsort((np.abs(strengths - 1), -points))[0])

    best, judged = choose_and_judge(results, np.append(0, whole["variant"].to_numpy()), nearest_of_best)
    return StrengthSummary(best=float(strengths[best]), **facts, **judged)
