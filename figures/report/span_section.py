"""The section of a study of spans: map, slider, card and tables as HTML, and what the script fills in.

Every sentence and every number is made here. A drop is positive for the worse, as in the figures: a drop in
points of the score, or a rise of a loss in its own unit. A gain is a negative drop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from adapter_probe import wording
from adapter_probe.analysis.removable import longest_removable, tolerance_steps
from adapter_probe.analysis.score_changes import drop_points, span_units, tested_spans
from adapter_probe.figures.ablation_words import Words

from .maps import MANY, Map
from .markup import NONE, Numbers, render, settings

Fact = list[str] | None
"""A fact of a span and a remark; None where it is unknown."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What one view says of all spans: values with intervals, in points.

    Attributes:
        name: of the view: ``drop``, ``interaction``, ``difference`` or ``spread``.
        lead: word before the value.
        low, high: ends of the 95% intervals ``[spans]``; None without any.
        notes: what else the value means ``[spans]``, or nothing.
        dots: the same value in each of several studies ``[spans][studies]``.
    """

    name: str
    words: Words
    values: Sequence[float]
    lead: str
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    notes: Sequence[str] | None = None
    dots: Sequence[Sequence[float]] | None = None

    def spoken(self, frame: pd.DataFrame) -> list[str]:
        """What each span says to those who do not see it."""
        sure = frame["significant"] if "significant" in frame else [True] * len(frame)
        told, of = [], f" of the {self.words.drop}" if self.name == "drop" else ""
        for value, interval, first, last, clear in zip(
            self.values, self.intervals, frame["first"], frame["last"], sure
        ):
            said = f"{self.lead} {self.words.amount(value)}"
            if self.name == "drop" and not math.isnan(value):  # whose name carries the sign
                said = self.lead.removesuffix(self.words.drop) + wording.drop_text(value, self.words.metric)
            said += f", 95% interval{of} {interval}" if interval else ""
            told.append(f"{self.words.span(first, last)}: {said}{'' if clear else ', not significant'}")
        return told

    @property
    def intervals(self) -> list[str]:
        """The interval of each span; empty where there is none."""
        if self.low is None or self.high is None:
            return [""] * len(self.values)
        return [
            "" if math.isnan(low) or math.isnan(high) else wording.interval_text(low, high, self.words.metric)
            for low, high in zip(self.low, self.high)
        ]

    @property
    def axis(self) -> tuple[float, float]:
        """Start and length of an axis with zero and every interval, so that spans can be compared."""
        ends = [*(self.low or ()), *(self.high or ())]
        every = [0.0, *self.values, *ends, *(value for row in self.dots or () for value in row)]
        finite = [value for value in every if math.isfinite(value)]
        return min(finite), (max(finite) - min(finite)) or 1.0

    def content(self) -> dict[str, Any]:
        """Of each span the value, its unit, its interval and the places of these on the axis."""
        least, reach = self.axis
        n, nothing = len(self.values), [math.nan] * len(self.values)

        def at(value: float) -> float | None:
            return round(3 + 94 * (value - least) / reach, 1) if math.isfinite(value) else None

        columns = (self.values, self.low or nothing, self.high or nothing, self.intervals,
                   self.notes or [""] * n, self.dots or [[]] * n)  # fmt: skip
        number, amount = self.words.number, self.words.amount
        rows = [
            [number(value), amount(value).removeprefix(number(value)), interval, note,
             [at(low), at(value), at(high)], [*map(at, dots)]]
            for value, low, high, interval, note, dots in zip(*columns)
        ]  # fmt: skip
        return {"name": self.name, "lead": self.lead, "zero": at(0.0), "axis": [least, reach], "rows": rows}


def drops_of(frame: pd.DataFrame, words: Words, lead: str, dots: list[list[float]] | None = None) -> Reading:
    """The drops of a table of spans, positive for the worse."""
    low, high = (
        drop_points(frame[name]).tolist() if name in frame else None
        for name in ("ci_high_points", "ci_low_points")
    )
    return Reading("drop", words, drop_points(frame["delta_points"]).tolist(), lead, low, high, dots=dots)


def interactions_of(frame: pd.DataFrame, words: Words) -> Reading:
    """The interactions of a table of spans, with what each means."""
    low, high = (
        frame[name].tolist() if name in frame else None
        for name in ("interaction_low_points", "interaction_high_points")
    )
    values, notes, units = frame["interaction_points"].tolist(), [], span_units(frame)
    alone = [] if units is None else units.tolist()
    for row, (value, ends) in enumerate(zip(values, frame[["first", "last"]].to_numpy().tolist())):
        if ends in alone:
            notes.append(f"a single {'layer' if ends[0] == ends[1] else 'group of layers'}: its {words.drop}")
        elif low is not None and high is not None and low[row] <= 0 <= high[row]:
            notes.append("not clear: the interval includes 0 (not corrected over spans)")
        else:
            more = "larger" if value > 0 else "smaller"
            notes.append(f"{more} {words.drop} than the shorter spans inside explain")
    return Reading("interaction", words, values, "interaction", low, high, notes)


@dataclass(frozen=True, eq=False)
class View:
    """One drawing of all spans: what it says, the words that choose it, and the drawing."""

    reading: Reading
    label: str
    map: Map


class SingleLayers(NamedTuple):
    """What a study says of every layer alone: a figure, if there are shares, and its size; and a table."""

    heading: str
    svg: Markup | None
    size: str
    numbers: Numbers


@dataclass(frozen=True, eq=False)
class MapStudy:
    """A study of spans, ready for the page.

    Attributes:
        spans: its table, in the order of the readings.
        views: its drawings, the first one shown first.
        facts: by heading, a fact of each span.
        tiles: main numbers: name, value, remark.
        legend: what the marks in the maps mean: class of the key, words.
        layers: layers of the model; 0 for the last one in the table.
        topic: what it is about, in the page's title; by default its own.
        warning: why the spans mean nothing; None where they mean something.
        question: what it asks, one line each.
        steps: positions of the slider; empty without one.
        start: tolerance where the slider starts, points.
        single: figure and table of the single layers, or None.
        script: what the script needs of examples and confusion matrices, as JSON.
        joint: whether it joins several studies, so that it stands above them.
    """

    title: str
    about: str
    words: Words
    spans: pd.DataFrame
    views: Sequence[View]
    facts: Mapping[str, Sequence[Fact]]
    tiles: Sequence[tuple[str, str, str]]
    legend: Sequence[tuple[str, str]]
    record: Mapping[str, object]
    layers: int = 0
    topic: str = ""
    warning: str | None = None
    question: Sequence[str] = ()
    steps: Sequence[dict[str, Any]] = ()
    start: float = 1.0
    single: SingleLayers | None = None
    script: Mapping[str, Any] = field(default_factory=dict)
    joint: bool = False

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """First and last layer of each span."""
        return list(zip(self.spans["first"].tolist(), self.spans["last"].tolist()))

    @property
    def known_facts(self) -> dict[str, Sequence[Fact]]:
        """The facts without headings under which nothing is known."""
        return {name: column for name, column in self.facts.items() if any(one is not None for one in column)}


def section(study: MapStudy, number: int) -> Markup:
    """The section with everything that does not depend on the chosen span and tolerance."""
    n = max(study.spans["first"].nunique(), study.spans["last"].nunique())
    starts = [place for place, step in enumerate(study.steps) if step["tolerance"] == study.start]
    return render(
        "study",
        study=study,
        number=number,
        size="small" if n <= 7 else "middle" if n <= MANY else "large",
        at=next(iter(starts), 0),
        percent=wording.is_percentage(study.words.metric),
        layers=study.layers or int(study.spans["last"].max()) + 1,
        dots=max(len(row) for view in study.views for row in (view.reading.dots or [[]])),
        numbers=_spans_table(study),
        settings=settings(study.record),
    )


def content(study: MapStudy, group: int) -> dict[str, Any]:
    """What the script shows in the section, as plain JSON.

    Args:
        group: number that studies of the same spans share; they are looked at together.
    """
    whole = max(range(len(study.spans)), key=lambda row: study.pairs[row][1] - study.pairs[row][0])
    facts = study.known_facts
    numbers = study.spans[[n for n, one in study.spans.items() if n == "stack" or one.dtype.kind in "iufb"]]
    return {
        "name": study.title, "group": group, "spans": study.pairs, "whole": whole, "start": study.start,
        "titles": [study.words.span(*pair) for pair in study.pairs],
        "views": [view.reading.content() for view in study.views],
        "facts": {"heads": list(facts), "rows": [list(row) for row in zip(*facts.values())]},
        "steps": list(study.steps),
        "csv": numbers.to_csv(index=False, float_format="%.10g", lineterminator="\n"), **study.script,
    }  # fmt: skip


def _spans_table(study: MapStudy) -> Numbers:
    """All spans with what the views and the card say of them."""
    unit, columns = study.words.unit, [("span", [wording.span_text(*pair) for pair in study.pairs])]
    for reading in (view.reading for view in study.views):
        lead = f"{reading.lead}{unit and f' ({unit.strip()})'}"
        columns.append((lead, [study.words.number(value) for value in reading.values]))
        if any(intervals := reading.intervals):
            columns.append(("95% interval", [text.removesuffix(unit) or NONE for text in intervals]))
    for head, facts in study.known_facts.items():
        columns.append((head, [NONE if fact is None else fact[0] for fact in facts]))
    rows = list(zip(*(column for _, column in columns)))
    return Numbers(f"{len(rows)} spans as a table", [head for head, _ in columns], rows)


def significance(frame: pd.DataFrame) -> list[Fact]:
    """Of each span the corrected p-value and the verdict; None where it was not tested."""
    tested, told = tested_spans(frame), []
    for row in frame[["p_value", "p_holm", "significant"]].itertuples(index=False):
        verdict = "" if row.significant else "not "
        alone = "" if math.isnan(row.p_value) else f"; uncorrected {_p_text(row.p_value)}"
        small = f"Holm-corrected over {tested} span{'s' * (tested != 1)}{alone}"
        fact = [f"{_p_text(row.p_holm)}: {verdict}significant at 0.05", small]
        told.append(None if math.isnan(row.p_holm) else fact)
    return told


def _p_text(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {wording.rounded(p, 3 if p < 0.1 else 2)}"


def slider_steps(
    frame: pd.DataFrame,
    words: Words,
    start: float,
    *,
    view: View | None = None,
    parameters: Sequence[int] | None = None,
    partly: bool = False,
    others: Sequence[np.ndarray] = (),
    prune: bool = False,
    warning: str | None = None,
) -> list[dict[str, Any]]:
    """The positions of the slider, by ascending tolerance.

    Args:
        start: a tolerance that is always included, points.
        partly: whether the study switches a part of the adapters only, whose parameters these are.
        others: drops of other studies whose sliders should have the same positions.
        prune: whether to name the command that removes the best span.
        warning: why the spans are not informative, so that none is named; None where they are.

    Returns:
        of each `tolerance` in points its `words`; `estimate` and `bound`, rows of the best span by either
        basis, or None; `within`, number of spans within the tolerance; `advice`, paragraphs (lead, text
        before the span, its row, its name, text after it); `note`, and the span for `prune`, or None; `line`,
        `bar` and `at`, places of the tolerance in the drawing, on its colour bar and on the card's axis.
    """
    frame, drops = frame.reset_index(drop=True), drop_points(frame["delta_points"])
    spans, steps = frame, []
    if parameters is not None and words.study != "kept":
        # Of what is switched off, layers with adapters count.
        below = np.concatenate([[0], np.cumsum(np.array(parameters) > 0)])
        spans = frame.assign(n_layers=below[frame["last"] + 1] - below[frame["first"]])
    bases = ("estimate", "interval") if "bound_low_points" in frame else ("estimate",)
    (least, reach), drawn = view.reading.axis if view else (None, None), view.map if view else Map(Markup())
    for tolerance in tolerance_steps(np.concatenate([drops, *others]), start):
        found = [
            None if warning else longest_removable(spans, tolerance, basis, words.study) for basis in bases
        ]
        rows = [None if row is None else int(row.name) for row in found]
        limit, within = wording.tolerance_text(tolerance, words.metric), int((drops <= tolerance).sum())
        count = f"{within} of {len(frame)} span{'s' * (len(frame) != 1)} {'is' if within == 1 else 'are'}"
        steps.append({
            "tolerance": tolerance, "words": limit, "estimate": rows[0],
            "bound": rows[1] if len(rows) > 1 else None, "within": within,
            "advice": [["No span is named. ", warning, None, "", ""]] if warning else [
                _paragraph(frame, row, words, limit, basis == "interval", parameters, partly)
                for row, basis in zip(rows, bases)
            ],
            "note": f"{count} within {limit}." + (" This folder has no bounds." if len(rows) < 2 else ""),
            "prune": _span_to_prune(frame, rows) if prune else None,
            "line": drawn.line_at and drawn.line_at(tolerance),
            "bar": drawn.bar_at and round(drawn.bar_at(tolerance), 1),
            "at": None if reach is None else round(3 + 94 * (tolerance - least) / reach, 1),
        })  # fmt: skip
    return steps


def _span_to_prune(frame: pd.DataFrame, rows: Sequence[int | None]) -> str | None:
    """The best span by the bound, or else by the estimate, as `prune --span` takes it."""
    chosen = next((frame.iloc[row] for row in reversed(rows) if row is not None), None)
    if chosen is None:
        return None
    span = f"{chosen['first']:.0f}-{chosen['last']:.0f}"
    return f'"{chosen["stack"]} {span}"' if "stack" in frame else span


def _paragraph(
    frame: pd.DataFrame,
    row: int | None,
    words: Words,
    limit: str,
    sure: bool,
    parameters: Sequence[int] | None,
    partly: bool,
) -> list[Any]:
    """The best span at a tolerance, as a sentence in parts around its name."""
    lead, kept = ("By the 95% bound, " if sure else "By the estimate, "), words.study == "kept"
    if row is None:
        none = "no span alone suffices" if kept else f"no span can be {words.removed}"
        return [lead, f"{none if sure else 'no span is'} within {limit}.", None, "", ""]
    span = frame.iloc[row]
    first, last = int(span["first"]), int(span["last"])
    if sure:
        cost = f"at worst {wording.drop_text(-span['bound_low_points'], words.metric)}"
    else:
        cost = wording.drop_text(-span["delta_points"], words.metric)
        if "ci_low_points" in frame and pd.notna(span["ci_low_points"]):
            ends = wording.interval_text(-span["ci_high_points"], -span["ci_low_points"], words.metric)
            cost += f" (95% interval of the {words.drop} {ends})"
    n_layers = len(parameters) if parameters else int(frame["last"].max()) + 1
    if kept:  # layers outside the study keep theirs
        n_layers = int(frame["last"].max() - frame["first"].min()) + 1
    inside = last - first + 1
    saved = f"{n_layers - inside if kept else inside} of {n_layers} layers"
    if parameters is not None and (every := sum(parameters)):
        inner = sum(parameters[first : last + 1])
        gone = every - inner if kept else inner
        those = "parameters that the study switches" if partly else "adapter parameters"
        saved += f", {gone:,} of {every:,} {those} ({wording.percent_text(100 * gone / every)})"
    name = wording.layers_text(first, last)
    if kept:
        after = f" alone {'suffice' if sure else 'are'} within {limit}, without {saved}; {cost}."
        return [lead, f"the {words.adapters} of ", row, name, after]
    more = f"{saved}, " if words.off == "off" else ""
    done = f" can be {words.removed} within" if sure else f", {words.removed}, are within"
    return [lead, "", row, name, f"{done} {limit}: {more}{cost}."]
