"""The mean of several ablations, or the difference of two, as a study of spans for the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import drop_points, span_order
from adapter_probe.figures.levels import Scale
from adapter_probe.figures.span_grid import grid_of, scale_of, spread_grid
from adapter_probe.figures.span_line import line_of_spans
from adapter_probe.wording import (
    best_span_text,
    examples_text,
    is_distance,
    metric_name,
    score_text,
    task_label,
)

from .map_section import MapStudy
from .maps import View, drop_view, line_view
from .span_words import Reading, Words, drops_of, fact, significance, slider_steps


def average_study(
    record: AverageRecord, scale: Scale, tolerance: float, others: Sequence[np.ndarray], prefix: str
) -> MapStudy:
    """The mean over studies with its spread, ready for the page; arguments as of `ablation_study`."""
    words, frame = Words(record.metric, record.study, record.strength), record.spans
    mean = drops_of(frame, f"mean {words.drop}")
    seeds = None if record.deltas is None else drop_points(record.deltas).T.tolist()
    mean = Reading("drop", mean.values, mean.low, mean.high, mean.lead, None, seeds)
    spread = Reading("spread", frame["sd_points"].tolist(), None, None, "s.d.", None, seeds and None)
    views = _views(record, "drop", mean.lead, mean, words, scale, prefix)
    if len(views) and span_order(frame) is None:
        told = _told(frame, spread, words)
        views.append(
            drop_view("spread", "spread over studies", spread_grid(record), scale, told, f"{prefix}s")
        )
    ends = zip(drop_points(frame["max_points"]), drop_points(frame["min_points"]))
    facts = {
        "mean score": [fact(score_text(score, words.metric)) for score in frame["score"]],
        "s.d.": [fact(words.amount(sd), f"over {len(record.names)} studies") for sd in frame["sd_points"]],
        "smallest to largest": [fact(words.interval(low, high)) for low, high in ends],
    }
    if "significant" in frame:
        facts["significance"] = significance(frame)
    steps = slider_steps(
        frame, words, tolerance, view=views[0], reading=mean, others=others, warning=record.warning
    )
    legend = [
        ("key-stairs", f"tolerated {words.drop}"),
        ("key-badge estimate", best_span_text("ablated", words.strength)),
        ("key-badge bound", "the same by the 95% interval"),
        ("key-seed", "single studies (on the card)"),
    ]
    tiles = [
        *([] if is_distance(words.metric) else [("intact", _scores(record, words), "")]),
        ("studies", f"{len(record.names)}", ", ".join(record.names)),
    ]
    title = f"{task_label(record.task) if record.task else 'Ablations'}: mean of {len(record.names)} studies"
    return MapStudy(
        title=title,
        topic=title,
        about=_about(record),
        words=words,
        spans=frame,
        views=views,
        readings=[mean, spread][: len(views)],
        facts=facts,
        tiles=tiles,
        legend=legend,
        layers=int(frame["last"].max()) + 1,
        warning=record.warning,
        steps=steps,
        start=tolerance,
        record=dict(record.identity),
        joint=True,
    )


def comparison_study(record: ComparisonRecord, prefix: str) -> MapStudy:
    """The difference of two ablations, ready for the page."""
    words, (a, b) = Words(record.metric, record.study, record.strength), record.names
    frame = record.spans
    ends = (frame[f"ci_{end}_points"].tolist() for end in ("low", "high"))
    reading = Reading(
        "difference", frame["difference_points"].tolist(), *ends, f"difference of {words.drop}s"
    )
    view = _views(record, "difference", reading.lead, reading, words, scale_of([grid_of(record)]), prefix)
    facts = {
        f"{words.drop} in {a}": [fact(words.amount(points)) for points in frame["drop_a_points"]],
        f"{words.drop} in {b}": [fact(words.amount(points)) for points in frame["drop_b_points"]],
        "significance": significance(frame),
    }
    tiles = [
        (f"{name}, intact", score_text(score, words.metric), "")
        for name, score in zip((a, b), record.intact_scores)
        if not is_distance(words.metric)
    ]
    single = "single layer" if (frame["first"] == frame["last"]).any() else "one group"
    return MapStudy(
        title=f"{b} minus {a}",
        topic=f"{b} minus {a}",
        about=_about(record),
        words=words,
        spans=frame,
        views=view,
        readings=[reading],
        facts=facts,
        tiles=tiles,
        legend=[("key-single", single)],
        layers=int(frame["last"].max()) + 1,
        warning=record.warning,
        record=dict(record.identity),
        joint=True,
    )


def _views(
    record: AverageRecord | ComparisonRecord, name: str, label: str, reading: Reading, words: Words,
    scale: Scale, prefix: str,
) -> list[View]:  # fmt: skip
    told = _told(record.spans, reading, words)
    if span_order(record.spans) is not None:
        return [line_view(name, label, line_of_spans(record), told, f"{prefix}{name[0]}")]
    return [drop_view(name, label, grid_of(record), scale, told, f"{prefix}{name[0]}")]


def _told(frame: pd.DataFrame, reading: Reading, words: Words) -> list[str]:
    sure = frame["significant"] if "significant" in frame else [True] * len(frame)
    pairs = zip(frame["first"], frame["last"], reading.said(words), sure)
    return [f"{words.span(a, b)}: {said}{'' if sure else ', not significant'}" for a, b, said, sure in pairs]


def _scores(record: AverageRecord, words: Words) -> str:
    low, high = (
        score_text(min(record.intact_scores), words.metric),
        score_text(max(record.intact_scores), words.metric),
    )
    return low if low == high else f"{low} to {high}"


def _about(record: AverageRecord | ComparisonRecord) -> str:
    return (
        f"{examples_text(record.n_examples, record.metric)} · {metric_name(record.metric)} · "
        f"{', '.join(record.names)}"
    )
