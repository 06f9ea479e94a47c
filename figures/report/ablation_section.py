"""An ablation, the mean of several or the difference of two, as a study of spans for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe import wording
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.score_changes import are_groups, drop_points, section_of, span_order, span_units
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.figures.ablation_words import SpanRecord, Words, score_range, study_label
from adapter_probe.figures.attribution import draw_shares
from adapter_probe.figures.layout import one_panel
from adapter_probe.figures.levels import Scale
from adapter_probe.figures.span_curve import line_of_spans
from adapter_probe.figures.span_grid import Grid, grid_of, scale_of, spread_grid

from . import span_section
from .curve_sections import WIDE, text_table
from .examples import ExampleTexts, confusion, examples_content, flip_counts
from .maps import MANY, NARROW, grid_map, inline, interaction_grid, line_map
from .markup import short_name
from .span_section import Fact, MapStudy, Reading, SingleLayers, View

_DESCRIBED = ("method", "base", "max_length", "training", "scores")


@dataclass(frozen=True, eq=False)
class ReportedAblation:
    """One ablation together with data from outside its results folder.

    Attributes:
        results: predictions, or None if the folder has none.
        checkpoint: description of the checkpoint as plain JSON; empty if the checkpoint was not found.
        texts: texts of the examples, in the order of the predictions; None to leave them out.
    """

    record: AblationRecord
    results: AblationResults | None = None
    checkpoint: Mapping[str, Any] | None = None
    texts: ExampleTexts | None = None

    @property
    def in_stacks(self) -> list[ReportedAblation]:
        """An ablation of each stack of layers; of a model with one stack, this ablation itself."""
        if self.results is None:
            return [replace(self, record=record) for record in self.record.in_stacks]
        of = self.results.in_stacks
        return [replace(self, record=one, results=of[one.stack]) for one in self.record.in_stacks]

    @property
    def interactions(self) -> np.ndarray:
        """Interaction of every span in points of drop, `[spans]`; NaN where unknown."""
        column = self.record.spans.get("interaction_points")
        return np.full(len(self.record.spans), np.nan) if column is None else column.to_numpy(float)


def ablation_study(
    ablation: ReportedAblation,
    scale: Scale,
    interaction_scale: Scale,
    tolerance: float,
    others: Sequence[np.ndarray] = (),
    prefix: str = "a",
) -> MapStudy:
    """An ablation, ready for the page.

    Args:
        scale: colour levels of drops, shared by all grids of the page.
        others: drops of other studies of the same spans, whose sliders have the same positions.
        prefix: begins all ids inside.
    """
    record, results, said = ablation.record, ablation.results, ablation.record.summary
    words, frame = Words.of(record), record.spans
    views = [_view(record, span_section.drops_of(frame, words, words.drop), words.drop, scale, prefix)]
    beyond = span_section.interactions_of(frame, words) if np.isfinite(ablation.interactions).any() else None
    if beyond and span_order(frame) is None:
        drawn = interaction_grid(record, interaction_scale, beyond.spoken(frame), f"{prefix}i")
        views.append(View(beyond, "interaction", drawn))
    examples = examples_content(results, frame, ablation.texts) if results and ablation.texts else None
    scored = [wording.examples_text(said.n_examples, said.metric), wording.metric_name(said.metric)]
    return MapStudy(
        study_label(record),
        " · ".join(filter(None, [said.evaluated, *scored, short_name(record.folder)])),
        words,
        frame,
        views,
        _facts(ablation, words, beyond),
        _tiles(record, words),
        _marks(frame, words),
        _record(ablation),
        layers=said.n_layers or 0,
        topic=study_label(replace(record, stack="")),
        warning=said.warning,
        question=said.question or (),
        steps=span_section.slider_steps(
            frame, words, tolerance, view=views[0], parameters=said.layer_parameters,
            partly=bool(said.switched), others=others, prune=_can_prune(record, words), warning=said.warning,
        ),
        start=tolerance,
        single=_layers(record, prefix, words),
        script={"confusion": confusion(results, frame) if results else None, "examples": examples},
    )  # fmt: skip


def _can_prune(record: AblationRecord, words: Words) -> bool:
    """Whether `prune` can remove what a span of the study switches off."""
    said, chosen = record.summary, section_of(record.identity, "settings")
    partly = chosen.get("sites", "both") != "both" or bool(chosen.get("layers"))
    return said.study != "kept" and said.is_informative and words.off == "off" and not partly


def _record(ablation: ReportedAblation) -> dict[str, Any]:
    """The settings that the page lists: of the run and, where it is known, of the checkpoint."""
    run = {"identity": ablation.record.identity, "created_with": ablation.record.created_with}
    described = ablation.checkpoint or {}
    own = {name: described[name] for name in _DESCRIBED if name in described}
    return {"checkpoint": own, "run": run} if own else run


def average_study(
    record: AverageRecord, scale: Scale, tolerance: float, others: Sequence[np.ndarray], prefix: str
) -> MapStudy:
    """The mean over studies with its spread, ready for the page; arguments as of `ablation_study`."""
    words, frame, n = Words.of(record), record.spans, len(record.names)
    seeds = None if record.deltas is None else drop_points(record.deltas).T.tolist()
    mean = span_section.drops_of(frame, words, f"mean {words.drop}", seeds)
    views = [_view(record, mean, mean.lead, scale, prefix)]
    if span_order(frame) is None:
        spread = Reading("spread", words, frame["sd_points"].tolist(), "s.d.")
        views.append(_view(record, spread, "spread over studies", scale, prefix, spread_grid(record)))
    ends = zip(drop_points(frame["max_points"]), drop_points(frame["min_points"]))
    facts: dict[str, list[Fact]] = {
        "mean score": [[wording.score_text(score, words.metric), ""] for score in frame["score"]],
        "s.d.": [[words.amount(sd), f"over {n} studies"] for sd in frame["sd_points"]],
        "smallest to largest": [[wording.interval_text(*pair, words.metric), ""] for pair in ends],
    }
    if "significant" in frame:
        facts["significance"] = span_section.significance(frame)
    legend = [
        ("key-stairs", f"tolerated {words.drop}"),
        *_badges(frame, words),
        ("key-seed", "single studies (on the card)"),
    ]
    tiles = [] if wording.is_distance(words.metric) else [("intact", score_range(record), "")]
    tiles.append(("studies", f"{n}", ", ".join(record.names)))
    title = f"{wording.task_label(record.task or record.data or 'Ablations')}: mean of {n} studies"
    steps = span_section.slider_steps(
        frame, words, tolerance, view=views[0], others=others, warning=record.warning
    )
    return replace(_joint_study(record, title, views, facts, tiles, legend), steps=steps, start=tolerance)


def comparison_study(record: ComparisonRecord, prefix: str) -> MapStudy:
    """The difference of two ablations, ready for the page."""
    words, frame, (a, b) = Words.of(record), record.spans, record.names
    ends = (frame[f"ci_{end}_points"].tolist() for end in ("low", "high"))
    lead = f"difference of {words.drop}s"
    reading = Reading("difference", words, frame["difference_points"].tolist(), lead, *ends)
    facts: dict[str, list[Fact]] = {
        f"{words.drop} in {name}": [[words.amount(points), ""] for points in frame[f"drop_{key}_points"]]
        for key, name in zip("ab", (a, b))
    }
    facts["significance"] = span_section.significance(frame)
    intact = [] if wording.is_distance(words.metric) else zip((a, b), record.intact_scores)
    tiles = [(f"{name}, intact", wording.score_text(score, words.metric), "") for name, score in intact]
    views = [_view(record, reading, lead, scale_of([grid_of(record)]), prefix)]
    return _joint_study(record, f"{b} minus {a}", views, facts, tiles, [_single(frame)])


def _joint_study(
    record: AverageRecord | ComparisonRecord,
    title: str,
    views: list[View],
    facts: Mapping[str, list[Fact]],
    tiles: list[tuple[str, str, str]],
    legend: list[tuple[str, str]],
) -> MapStudy:
    about = [wording.examples_text(record.n_examples, record.metric), wording.metric_name(record.metric)]
    return MapStudy(
        title, " · ".join([*about, ", ".join(record.names)]), views[0].reading.words, record.spans, views,
        facts, tiles, legend, dict(record.identity), topic=title, warning=record.warning, joint=True,
    )  # fmt: skip


def _view(
    record: SpanRecord, reading: Reading, label: str, scale: Scale, prefix: str, grid: Grid | None = None
) -> View:
    """A reading with its drawing: a curve where the spans form a line, or a grid, by default the record's."""
    draw = partial(grid_map, grid or grid_of(record), scale)
    if span_order(record.spans) is not None:
        draw = partial(line_map, line_of_spans(record))
    return View(reading, label, draw(reading.spoken(record.spans), f"{prefix}{reading.name[0]}"))


def _facts(ablation: ReportedAblation, words: Words, beyond: Reading | None) -> dict[str, list[Fact]]:
    """By heading, what is known of each span."""
    frame, said, results = ablation.record.spans, ablation.record.summary, ablation.results
    facts: dict[str, list[Fact]] = {}
    if not wording.is_distance(words.metric):
        intact = (
            ""
            if said.intact_score is None
            else f"intact {wording.score_text(said.intact_score, words.metric)}"
        )
        facts["score"] = [[wording.score_text(score, words.metric), intact] for score in frame["score"]]
    if "p_holm" in frame:
        facts["significance"] = span_section.significance(frame)
    if results is not None:
        total = f"of {results.n_examples:,}{results.scored.TASK.right_by}"
        facts["examples"] = [
            None if n is None else [f"{n[0]:,} newly wrong, {n[1]:,} newly correct", total]
            for n in flip_counts(results, frame)
        ]
    if beyond is not None:
        facts["interaction"] = [
            None if value != value else [words.amount(value) + (interval and f" ({interval})"), note]
            for value, interval, note in zip(beyond.values, beyond.intervals, beyond.notes or [])
        ]
    if parameters := said.layer_parameters:
        inside = [sum(parameters[first : last + 1]) for first, last in zip(frame["first"], frame["last"])]
        those = f"the {words.adapters}" + (" that the study switches" if said.switched else "")
        facts["kept" if words.study == "kept" else words.removed] = [
            [f"{n:,} parameters", f"{wording.percent_text(100 * n / sum(parameters))} of {those}"]
            for n in inside
        ]
    if "non_monotone" in frame:
        note = f"smaller {words.drop} than a shorter span inside it (at the 5% level, over all pairs)"
        facts["note"] = [[note, ""] if flag else None for flag in frame["non_monotone"].eq(True)]
    return facts


def _tiles(record: AblationRecord, words: Words) -> list[tuple[str, str, str]]:
    """The intact score, that with everything off, that of guessing, and the number of parameters."""
    said, delta, tiles = record.summary, record.summary.removed_delta_points, []
    change = wording.drop_text(None if delta is None else -delta, words.metric)
    if wording.is_distance(words.metric):
        tiles.append((said.removed, change, ""))
    elif said.intact_score is not None:
        tiles.append(("intact", wording.score_text(said.intact_score, words.metric), ""))
        if delta is not None:
            tiles.append((said.removed, wording.score_text(said.removed_score, words.metric), change))
    if said.majority_score is not None and not wording.is_distance(words.metric):
        tiles.append((said.baseline, wording.score_text(said.majority_score, words.metric), ""))
    if parameters := said.layer_parameters:
        adapted = sum(number > 0 for number in parameters)
        where = f"in {adapted} {'layer' if adapted == 1 else 'layers'}"
        where += f", {said.switched} only" if said.switched else ""
        tiles.append(("adapter parameters", f"{sum(parameters):,}", where))
    return tiles


def _marks(frame: pd.DataFrame, words: Words) -> list[tuple[str, str]]:
    """The marks of an ablation's drawings that these do not explain themselves."""
    if span_order(frame) is not None:
        return [("key-dashes", f"tolerated {words.drop}")]
    return [_single(frame), ("key-stairs", f"tolerated {words.drop}"), *_badges(frame, words)]


def _single(frame: pd.DataFrame) -> tuple[str, str]:
    units = span_units(frame)
    grouped = units is not None and (units[:, 0] < units[:, 1]).any()
    return "key-single", "one group" if grouped else "single layer"


def _badges(frame: pd.DataFrame, words: Words) -> list[tuple[str, str]]:
    """The marks of the best span by the estimate and, where there is one, by the bound."""
    keys = [("key-badge estimate", words.best_span)]
    return keys + ([("key-badge bound", "the same by the 95% bound")] if "bound_low_points" in frame else [])


def _layers(record: AblationRecord, prefix: str, words: Words) -> SingleLayers | None:
    """Figure (where there are shares) and table of the single layers."""
    if record.layers is None:
        return None
    alone, unit = f"{'on' if words.study == 'kept' else words.off} alone", words.unit.strip()
    drops = {"alone": "delta_points", "alone_low": "ci_high_points", "alone_high": "ci_low_points"}
    frame = record.layers
    frame = frame.assign(**{new: drop_points(frame[old]) for new, old in drops.items() if old in frame})
    to, share = "to (95%)", f"share of the {words.drop}"
    grouped = are_groups(frame)
    one, many = ("group of layers", "groups of layers") if grouped else ("layer", "layers")
    ends = {"layer": "first layer", "last_layer": "last layer"} if grouped else {"layer": "layer"}
    heads = {
        **ends, "alone": f"{words.drop} {alone}", "alone_low": "from", "alone_high": to,
        "p_holm": "Holm p", "share_points": share, "share_low_points": "from", "share_high_points": to,
    }  # fmt: skip
    rows = frame[[name for name in heads if name in frame and not frame[name].isna().all()]]
    shown = rows.apply(
        lambda column: column if column.name in {*ends, "p_holm"} else [words.number(v) for v in column]
    )
    title = f"{len(frame)} {many} as a table" + (f" ({unit})" if unit else "")
    heading, svg, size = f"Each {one} {alone}", None, ""
    if record.shares is not None:
        heading = f"Which layers carry the {words.drop}"
        size, options = ("large", WIDE) if len(record.spans["last"].unique()) > MANY else ("middle", NARROW)
        svg = inline(one_panel(partial(draw_shares, [record]), options, 0.5, 0.5), f"{prefix}l", heading)
    return SingleLayers(heading, svg, size, text_table(title, shown, heads))
