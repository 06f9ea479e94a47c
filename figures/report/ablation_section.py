"""An ablation as a study of spans for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.deltas import are_groups, drop_points, section_of, span_order
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.figures.ablation_words import study_label
from adapter_probe.figures.attribution import attribution, legend_entries
from adapter_probe.figures.layout import one_panel
from adapter_probe.figures.levels import DivergingScale, Scale
from adapter_probe.figures.span_grid import grid_of
from adapter_probe.figures.span_line import line_of_spans
from adapter_probe.wording import (
    best_span_text,
    drop_text,
    examples_text,
    is_distance,
    metric_name,
    percent_text,
    score_text,
)

from .curve_sections import WIDE, text_table
from .examples import ExampleTexts, confusion, confusion_card, examples_card, examples_content, flip_counts
from .map_section import MapStudy
from .maps import MANY, NARROW, drop_view, inline, interaction_view, line_view
from .markup import Html, short_name, tag
from .span_words import Words, drops_of, fact, interactions_of, significance, slider_steps

_RIGHT_BY = {
    "extractive": ", by exact match",
    "tokens": ", by all tags of a sentence",
    "multilabel": ", by all labels of a text",
}
_DESCRIBED = ("method", "base", "max_length", "training", "scores")


@dataclass(frozen=True, eq=False)
class ReportedAblation:
    """One ablation together with data from outside its results folder.

    Attributes:
        record: tables of the ablation.
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
    interaction_scale: DivergingScale,
    tolerance: float,
    others: Sequence[np.ndarray] = (),
    prefix: str = "a",
) -> MapStudy:
    """An ablation, ready for the page.

    Args:
        scale: colour levels of drops, shared by all grids of the page.
        others: drops of other studies of the same spans, whose sliders have the same positions.
    """
    record, results, said = ablation.record, ablation.results, ablation.record.summary
    words, frame = Words(said.metric, said.study, said.strength or 0.0), record.spans
    readings = [drops_of(frame, words.drop)]
    spoken = _spoken(frame, readings[0].said(words), words)
    if span_order(frame) is not None:
        views = [line_view("drop", words.drop, line_of_spans(record), spoken, f"{prefix}d")]
    else:
        views = [drop_view("drop", words.drop, grid_of(record), scale, spoken, f"{prefix}d")]
    if np.isfinite(ablation.interactions).any():
        readings.append(interactions_of(frame, words))
        if span_order(frame) is None:
            told = _spoken(frame, readings[1].said(words), words)
            views.append(interaction_view(record, interaction_scale, told, f"{prefix}i"))
    matrices = confusion(results, frame) if results else None
    examples = examples_content(results, frame, ablation.texts) if results and ablation.texts else None
    whole = _switched(replace(record, stack="")) == ""
    prunable = said.study != "kept" and said.is_informative and not said.strength and whole
    steps = slider_steps(
        frame, words, tolerance, view=views[0], reading=readings[0], parameters=said.layer_parameters,
        others=others, prune=prunable, warning=said.warning,
    )  # fmt: skip
    about = [
        said.evaluated,
        examples_text(said.n_examples, said.metric),
        metric_name(said.metric),
    ]
    name, topic = study_label(record), study_label(replace(record, stack=""))
    return MapStudy(
        title=name,
        topic=topic,
        about=" · ".join(filter(None, [*about, short_name(record.folder)])),
        words=words,
        spans=frame,
        views=views,
        readings=readings[: len(views)],
        facts=_facts(ablation, words, readings),
        tiles=_tiles(record, words),
        legend=_legend(frame, words),
        layers=said.n_layers or int(frame["last"].max() + 1),
        warning=said.warning,
        steps=steps,
        start=tolerance,
        more=[
            matrices and confusion_card(matrices),
            examples and examples_card(examples),
            _layers(record, prefix, words),
        ],
        script={"confusion": matrices, "examples": examples},
        record=_settings(ablation),
    )


def _spoken(frame: pd.DataFrame, said: Sequence[str], words: Words) -> list[str]:
    """What each span says to those who do not see it."""
    told = []
    for number, row in enumerate(frame.itertuples(index=False)):
        verdict = ", not significant" if getattr(row, "significant", True) is False else ""
        told.append(f"{words.span(row.first, row.last)}: {said[number]}{verdict}")
    return told


def _facts(ablation: ReportedAblation, words: Words, readings: list) -> dict[str, list]:
    """By heading, what is known of each span."""
    frame, record, results = ablation.record.spans, ablation.record, ablation.results
    said = record.summary.intact_score
    intact = "" if said is None else f"intact {score_text(said, words.metric)}"
    facts: dict[str, list] = {}
    if not is_distance(words.metric):
        facts["score"] = [fact(score_text(score, words.metric), intact) for score in frame["score"]]
    if "p_holm" in frame:
        facts["significance"] = significance(frame)
    if results is not None:
        total = f"of {results.n_examples:,}{_RIGHT_BY.get(results.kind, '')}"
        facts["examples"] = [
            None if n is None else fact(f"{n[0]:,} newly wrong, {n[1]:,} newly correct", total)
            for n in flip_counts(results, frame)
        ]
    for reading in readings[1:]:
        facts[reading.name] = [
            None
            if value != value
            else fact(words.amount(value) + (f" ({interval})" if interval else ""), note)
            for value, interval, note in zip(reading.values, reading.intervals(words), reading.notes or [])
        ]
    if parameters := record.summary.layer_parameters:
        total, kept = (
            sum(parameters),
            "kept" if words.study == "kept" else words.removed,
        )
        inside = [sum(parameters[first : last + 1]) for first, last in zip(frame["first"], frame["last"])]
        facts[kept] = [
            fact(f"{n:,} parameters", f"{percent_text(100 * n / total)} of the adapters") for n in inside
        ]
    if "non_monotone" in frame:
        note = f"smaller {words.drop} than a shorter span inside it (simultaneous 95% bound)"
        facts["note"] = [fact(note) if flag else None for flag in frame["non_monotone"].eq(True)]
    return facts


def _switched(record: AblationRecord) -> str:
    """The part of the adapters that was switched; empty for all."""
    chosen = section_of(record.identity, "settings")
    sites = {"attention": "attention ", "ffn": "feed-forward "}.get(str(chosen.get("sites")), "")
    layers = chosen.get("layers")
    own = f"{sites}adapters{f' of layers {layers}' if layers else ''}" if sites or layers else ""
    return f"{own or 'adapters'} of the {record.stack}" if record.stack else own


def _tiles(record: AblationRecord, words: Words) -> list[tuple[str, str, str]]:
    said = record.summary
    if is_distance(words.metric):
        far = None if said.removed_delta_points is None else -said.removed_delta_points
        tiles = [(_all_off(record, words), drop_text(far, words.metric), "")]
    else:
        tiles = _score_tiles(record, words)
    if parameters := said.layer_parameters:
        adapted = sum(number > 0 for number in parameters)
        where = f"in {adapted} {'layer' if adapted == 1 else 'layers'}"
        tiles.append(("adapter parameters", f"{sum(parameters):,}", where))
    return tiles


def _all_off(record: AblationRecord, words: Words) -> str:
    done = Words(words.metric, strength=words.strength).done
    return f"all {_switched(record) or 'adapters'} {done}"


def _score_tiles(record: AblationRecord, words: Words) -> list[tuple[str, str, str]]:
    """The intact score, that with everything off, and that of guessing."""
    said = record.summary
    tiles = [] if said.intact_score is None else [("intact", score_text(said.intact_score, words.metric), "")]
    if said.intact_score is not None and said.removed_delta_points is not None:
        change = drop_text(-said.removed_delta_points, words.metric)
        removed = score_text(said.removed_score, words.metric)
        tiles.append((_all_off(record, words), removed, change))
    if said.majority_score is not None:
        tiles.append((said.baseline, score_text(said.majority_score, words.metric), ""))
    return tiles


def _legend(frame: pd.DataFrame, words: Words) -> list[tuple[str, str]]:
    """What the marks mean that the drawings themselves do not explain."""
    if span_order(frame) is not None:
        return [("key-dashes", f"tolerated {words.drop}")]
    single = "single layer" if (frame["first"] == frame["last"]).any() else "one group"
    best = best_span_text(words.study, words.strength)
    keys = [("key-single", single), ("key-stairs", f"tolerated {words.drop}"), ("key-badge estimate", best)]
    return keys + ([("key-badge bound", "the same by the 95% interval")] if "ci_low_points" in frame else [])


def _layers(record: AblationRecord, prefix: str, words: Words) -> Html | None:
    """Figure (where there are shares) and table of the single layers."""
    if record.layers is None:
        return None
    alone, unit = f"{'on' if words.study == 'kept' else words.done} alone", words.unit.strip()
    frame = _as_drops(record.layers)
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
    heading, figure = f"Each {one} {alone}", None
    if record.shares is not None:
        heading = f"Which layers carry the {words.drop}"
        figure = _shares(record, f"{prefix}l", heading)
    return tag(
        "section", {"class": "card"}, tag("h3", None, heading), figure, text_table(title, shown, heads)
    )


def _shares(record: AblationRecord, name: str, title: str) -> Html:
    """Each layer's share of the drop, next to its drop alone."""

    def panel(ax: Axes) -> list[tuple[Artist, str]]:
        attribution(record, ax, legend=False)
        return legend_entries([record])

    size, options = ("large", WIDE) if len(record.spans["last"].unique()) > MANY else ("middle", NARROW)
    svg = inline(one_panel(panel, options, 0.5, 0.5), name, title)
    return tag("div", {"class": "scroll figure"}, tag("div", {"class": "view", "data-wide": size}, svg))


def _as_drops(layers: pd.DataFrame) -> pd.DataFrame:
    """The layers with the drop of each alone, positive for the worse, and its interval."""
    names = {"alone": "delta_points", "alone_low": "ci_high_points", "alone_high": "ci_low_points"}
    return layers.assign(**{new: drop_points(layers[old]) for new, old in names.items() if old in layers})


def _settings(ablation: ReportedAblation) -> dict[str, object]:
    """Settings behind the numbers: the checkpoint's description, the run's identity, library versions."""
    record, described = ablation.record, ablation.checkpoint or {}
    run = {"identity": record.identity, "created_with": record.created_with}
    own = {name: described[name] for name in _DESCRIBED if name in described}
    return {"checkpoint": own, "run": run} if own else run
