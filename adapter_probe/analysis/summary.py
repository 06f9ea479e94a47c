"""The main results of an ablation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis import summary_parts
from adapter_probe.analysis.ablation_tables import AblationTables
from adapter_probe.analysis.groups import GroupScores, group_summary
from adapter_probe.analysis.removable import spans_with_adapters
from adapter_probe.analysis.score_changes import (
    StudyKind,
    finite_or_none,
    intact_row,
    model_of,
    removed_row,
    row_scores,
    span_scores,
    strength_of,
    study_kind,
    switched_layers,
)
from adapter_probe.analysis.significance import ALPHA
from adapter_probe.analysis.summary_parts import LayerDrop, ModuleDrop, SpanDrop, StoredSummary
from adapter_probe.errors import ResultsError
from adapter_probe.kinds.table import about_kind
from adapter_probe.records import to_record
from adapter_probe.results.schema import span_columns
from adapter_probe.spans import ALL_MODULES
from adapter_probe.wording import done_text

NOT_DIFFERENT = "The model's outputs do not differ with all of these adapters"
_ROUNDING = 1e-6  # nats
NOT_WORSE = "The model is not worse with all of these adapters"
_NOTHING = "at the 5% level, so the differences between spans are not informative."
_SITES = {"attention": "attention", "ffn": "feed-forward"}
_NULLS = ("warning", "intact_score", "removed_score", "removed_delta_points", "majority_score",
          "layer_parameters")  # fmt: skip
_SPANS = {"longest_removable", "longest_removable_surely", "shortest_sufficient"}
_SINGLE_LAYERS = {"largest_single_layer_drop", "best_single_layer"}


@dataclass(frozen=True, kw_only=True)
class AblationSummary(StoredSummary):
    """The main results of an ablation, ``summary.json``.

    Scores are fractions in the metric's own units, None if undefined; differences are in points, negative for
    a loss.

    Attributes:
        task: name of the task as given by the user.
        split: evaluated split; of given data, the one whose place they take.
        warning: why the differences between spans mean nothing; None where they mean something.
        study: whether the spans were ``ablated`` or ``kept`` on.
        metric: metric of the scores.
        kind: kind of the task, see `metrics.Kind`.
        n_examples: number of evaluated examples.
        n_layers: number of layers of the model; None in a folder that was made by hand without it.
        intact_score: score with every adapter on.
        removed_score: score with every adapter off that the study switches.
        removed_delta_points: the difference of the two.
        majority_score: score of `baseline`.
        nonfinite_examples: by variant, how many of its outputs are NaN or infinite, which leaves it without a
            score; empty where all is well.
        layer_parameters: number of parameters in the adapters of each layer that the study switches
            ``[layers]``; None if layers share adapters, or if it is not known.
        largest_single_layer_drop: of an ablation; None unless every layer was studied alone.
        longest_removable: by tolerance, the longest span that costs at most that many points.
        best_single_layer, shortest_sufficient: the same of a study of kept spans: the shortest span that,
            alone, is at most the tolerance below the intact model.
        significant_spans, tested_spans: how many drops or gains are beyond chance, of how many.
        longest_removable_surely: `longest_removable` by a 95% bound that allows for the choice.
        layer_shares_points: each layer's share of the drop of all layers.
        switched: the part of the adapters that the study switches, such as ``attention of layers 8-23``; None
            for all of them.
        data: name of the evaluated data where they are not a split of the checkpoint's own task.
        positive_class: the class that F1 is of.
        base_weights: how the base is quantised, if it is.
        guard: statistics of rounding errors in mixed precision.
        groups: scores by group of the data, or by label or type of entity, by name.
        stacks: of a model with several stacks of layers, the summary of each studied one, by name; what names
            spans or layers is there alone.
        strength: what the adapters are multiplied by where they are not intact; None for 0, switched off;
            ``by layer`` where layers or modules have different strengths.
        rank: how many directions they keep there; None where they keep none.
        modules: of a map of layers and modules, each module in all layers and in the one that it matters
            most in.
        model: the base, and what was trained on it, in words; None in folders of older versions.
        base: the base's name on the hub, ``owner/name``, or that of what it comes from; None if not known.
        question: what the study asks of which rows, what is cut, left out or added, what is not read, and
            what else was said before it ran, one line each; None in folders of older versions.
    """

    task: str
    split: str
    warning: str | None = None
    study: StudyKind
    metric: str
    kind: str = ""
    n_examples: int
    n_layers: int | None = None
    intact_score: float | None
    removed_score: float | None = None
    removed_delta_points: float | None
    majority_score: float | None
    nonfinite_examples: dict[str, int] = field(default_factory=dict)
    layer_parameters: tuple[int, ...] | None = None
    largest_single_layer_drop: LayerDrop | None = None
    longest_removable: dict[str, SpanDrop | None] | None = None
    best_single_layer: LayerDrop | None = None
    shortest_sufficient: dict[str, SpanDrop | None] | None = None
    significant_spans: int | None = None
    tested_spans: int | None = None
    longest_removable_surely: dict[str, SpanDrop | None] | None = None
    layer_shares_points: tuple[float | None, ...] | None = None
    switched: str | None = None
    data: str | None = None
    positive_class: str | None = None
    base_weights: str | None = None
    guard: dict[str, Any] | None = None
    groups: dict[str, GroupScores] | None = None
    stacks: dict[str, AblationSummary] | None = None
    strength: float | str | None = None
    rank: int | None = None
    modules: dict[str, ModuleDrop] | None = None
    model: str | None = None
    base: str | None = None
    question: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        metrics.metric_label(self.metric)
        counts = self.layer_parameters
        if counts is not None and (len(counts) != self.n_layers or min(counts, default=0) < 0):
            raise ResultsError(f"layer_parameters should be {self.n_layers} counts, got {list(counts)}")

    def to_dict(self) -> dict[str, Any]:
        """The contents of ``summary.json``; what does not apply to the study is left out."""
        nulls = (*_NULLS, "best_single_layer" if self.study == "kept" else "largest_single_layer_drop")
        found = {name: v for name, v in to_record(self).items() if v is not None or name in nulls}
        for name in _SINGLE_LAYERS & found.keys():
            if found[name] and found[name]["last_layer"] is None:
                del found[name]["last_layer"]
        spans = [span for name in _SPANS & found.keys() for span in found[name].values() if span is not None]
        for span in spans:
            for end in ("ci_low_points", "ci_high_points"):
                if span[end] is None:
                    del span[end]
        return found

    @property
    def is_informative(self) -> bool:
        """Whether differences between spans mean something, so that a span may be recommended by them."""
        return self.warning is None

    @property
    def single_layer(self) -> LayerDrop | None:
        """The layer that matters most alone: with the largest drop, or kept on the best one."""
        return self.best_single_layer if self.study == "kept" else self.largest_single_layer_drop

    @property
    def best_spans(self) -> dict[str, SpanDrop | None]:
        """By tolerance, the longest removable or the shortest sufficient span."""
        return (self.shortest_sufficient if self.study == "kept" else self.longest_removable) or {}

    @property
    def is_of_numbers(self) -> bool:
        """Whether a number is predicted for every example, of which there is no most frequent one."""
        return about_kind(self.kind or "classification").is_number

    @property
    def baseline(self) -> str:
        """The name of the baseline whose score is `majority_score`."""
        return about_kind(self.kind or "classification").guess[0]  # of older folders, which name none

    @property
    def evaluated(self) -> str:
        """The name of the evaluated data: that of given data, or the split of the checkpoint's own task."""
        return self.data or self.split

    @property
    def all_off(self) -> str:
        """What the score with every adapter off is called: `all switched off`, `all scaled by 0.5`."""
        return f"all {done_text('ablated', self.strength or 0.0, self.rank or 0)}"

    @property
    def removed(self) -> str:
        """Description of every adapter off, or scaled, that the study switches."""
        off = self.all_off.removeprefix("all ")
        if not self.switched:
            return self.all_off
        if self.switched.startswith("the "):  # a stack
            return f"all of {self.switched} {off}"
        whole = self.switched if "layers" in self.switched else f"all {self.switched}"
        return f"{whole} {off}"

    @property
    def done(self) -> str:
        """What the study does to a span's adapters: `switched off`, `scaled by 0.5`, `kept on`."""
        return done_text(self.study, self.strength or 0.0, self.rank or 0)


def summarise(
    results: AblationResults, tables: AblationTables | None = None, groups: pd.DataFrame | None = None
) -> AblationSummary:
    """The summary of an ablation."""
    scores = row_scores(results)
    intact, removed = scores[intact_row(results)], scores[removed_row(results)]
    nonfinite = {name: int(n) for name, n in zip(results.row_names, results.nonfinite) if n}
    return AblationSummary(
        warning=None if tables is None else _warning(tables, intact, removed, results),
        study=study_kind(results),
        metric=results.metric,
        kind=results.kind,
        n_examples=results.n_examples,
        n_layers=results.n_layers,
        intact_score=finite_or_none(intact),
        removed_score=finite_or_none(removed),
        removed_delta_points=finite_or_none(metrics.to_points(results.metric, removed - intact)),
        majority_score=finite_or_none(results.chance_score),
        nonfinite_examples=nonfinite,
        positive_class=results.label_names[-1] if metrics.about(results.metric).two_classes else None,
        groups=None if groups is None else group_summary(groups),
        model=model_of(results),
        **_told(results),
        **_of_spans(results, tables),
    )


def _told(results: AblationResults) -> dict[str, Any]:
    """What the settings of an ablation tell."""
    settings = results.settings
    base, counts = str(settings.get("base", "")).rpartition(" ")[2], settings.get("site_parameters")
    if counts is not None:
        counts = (results.switched * np.reshape(counts, results.switched.shape)).sum(axis=1)
    return {
        "task": settings["task"],
        "split": settings["split"],
        "layer_parameters": None if counts is None else tuple(counts.tolist()),
        "switched": _switched_part(settings) or None,
        "base": base if "/" in base else None,
        "strength": strength_of(results.identity) or None,
        "question": tuple(settings.get("question") or ()) or None,
        "data": settings.get("data") or None,
        "rank": settings.get("rank") or None,
        "base_weights": settings.get("base_weights"),
        "guard": settings.get("guard"),
    }


def _of_spans(results: AblationResults, tables: AblationTables | None) -> dict[str, Any]:
    """What stands out in the table of spans, or in that of each stack of layers."""
    frame, study = span_scores(results), study_kind(results)
    found = {} if tables is None else _statistics(tables, study)
    if results.stacks is not None:
        own = {} if tables is None else tables.stacks
        stacks = {name: summarise(part, own.get(name)) for name, part in results.in_stacks.items()}
        return {**found, "stacks": stacks}
    if results.modules is not None:
        found["modules"] = summary_parts.notable_modules(frame, study)
        frame = frame[frame["module"] == ALL_MODULES]
    if study == "ablated":
        frame = spans_with_adapters(frame, switched_layers(results))
    if tables is not None and "ci_high_points" in tables.spans:
        names = span_columns(frame)
        ends = tables.spans[[*names, "ci_low_points", "ci_high_points"]]
        frame = frame.merge(ends, on=names, how="left")
    spans = summary_parts.notable_spans(frame, study)
    if results.modules is not None:  # single layers and all say nothing of spans
        spans = {name: one for name, one in spans.items() if name in _SINGLE_LAYERS}
    return {**found, **spans}


def _switched_part(settings: Mapping[str, object]) -> str:
    """The part of the adapters that an ablation switches: ``attention of layers 8-23``; empty for all."""
    sites, layers = str(settings.get("sites", "both")), settings.get("layers")
    sites = "" if sites == "both" else _SITES.get(sites, sites.replace(",", ", "))
    of_layers = f"layers {layers}" if layers else ""
    stack = f"the {settings['stack']}" if settings.get("stack") else ""
    return " of ".join(part for part in (sites, of_layers, stack) if part)


def _warning(tables: AblationTables, intact: float, removed: float, results: AblationResults) -> str | None:
    """Why the spans are not informative, or None; shown to readers first."""
    if metrics.about(results.metric).distance:
        largest = tables.spans["delta_points"].abs().max()
        same = abs(removed - intact) <= _ROUNDING and largest <= 100 * _ROUNDING
        said = f"{NOT_DIFFERENT} {_off(results)}, so the differences between spans are not informative."
        return said if same else None
    chance = 0.0 if metrics.about(results.metric).correlation else results.chance_score
    if tables.chance_p >= ALPHA or intact < chance:
        return f"The intact model is not better than {results.scored.TASK.guess[1]} {_NOTHING}"
    if tables.removed_p >= ALPHA or metrics.to_points(results.metric, removed - intact) > 0:
        return f"{NOT_WORSE} {_off(results)} {_NOTHING}"
    return None


def _off(results: AblationResults) -> str:
    done = done_text("ablated", strength_of(results.identity), results.settings.get("rank") or 0)
    return done.removeprefix("switched ")


def _statistics(tables: AblationTables, study: StudyKind) -> dict[str, Any]:
    removable = tables.removable
    counts = {}
    if "p_holm" in tables.spans:
        tested = int(tables.spans["p_holm"].count())
        counts = {"significant_spans": int(tables.spans["significant"].sum()), "tested_spans": tested}
    if study != "ablated" or tables.stacks or "module" in tables.spans:
        return counts
    sure = removable[removable["basis"] == "interval"]
    surely = {f"{row['tolerance_points']:g}": summary_parts.span_of(row) for _, row in sure.iterrows()}
    shares = tuple(finite_or_none(share) for share in tables.layers["share_points"])
    return {**counts, "longest_removable_surely": surely, "layer_shares_points": shares}
