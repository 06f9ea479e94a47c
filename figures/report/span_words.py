"""What the page says of each span, in words and numbers, and at each position of its slider.

Every sentence and every number is made here. A drop is positive for the worse, as in the figures: a drop in
points of the score, or a rise of a loss in its own unit. A gain is a negative drop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.analysis.deltas import StudyKind, drop_points, tested_spans
from adapter_probe.analysis.removable import longest_removable, tolerance_steps
from adapter_probe.wording import (
    amount_text,
    done_text,
    drop_name,
    drop_text,
    interval_text,
    layers_text,
    percent_text,
    tolerance_text,
)

from .maps import View

NONE = "—"


@dataclass(frozen=True)
class Words:
    """The words of one study.

    Attributes:
        metric: its metric; None if unknown.
        study: whether the spans were ablated or kept on.
        strength: what the adapters were multiplied by; 0 if they were switched off.
    """

    metric: str | None
    study: StudyKind = "ablated"
    strength: float | str = 0.0

    @property
    def done(self) -> str:
        """What was done to the adapters, in a word or two: `off`, `alone`, `scaled by 0.5`."""
        if self.study == "kept":
            return "alone"
        return done_text(self.study, self.strength).removeprefix("switched ")

    @property
    def removed(self) -> str:
        """The same, where it is about what the checkpoint has: `removed`, `scaled by 0.5`."""
        return self.done.replace("off", "removed")

    @property
    def drop(self) -> str:
        """What a change for the worse is called."""
        return drop_name(self.metric)

    def number(self, points: float) -> str:
        """A drop or another number of points without its unit; `undefined` for NaN."""
        return "undefined" if math.isnan(points) else amount_text(points, self.metric).split(" ")[0]

    def amount(self, points: float) -> str:
        """A number of points with its unit; `undefined` for NaN."""
        return "undefined" if math.isnan(points) else amount_text(points, self.metric)

    @property
    def unit(self) -> str:
        """The unit with a blank before it; empty for a perplexity."""
        return amount_text(0.0, self.metric).removeprefix(self.number(0.0))

    def interval(self, low: float, high: float) -> str:
        """An interval of points with its unit."""
        return interval_text(low, high, self.metric)

    def span(self, first: int, last: int) -> str:
        """A span with what was done to it."""
        return f"{layers_text(first, last).capitalize()} {self.done}"


def p_text(p: float) -> str:
    """A p-value."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


@dataclass(frozen=True, eq=False)
class Reading:
    """What one view says of all spans: values with intervals, in points.

    Attributes:
        name: of the view.
        values: ``[spans]``.
        low, high: ends of the 95% intervals ``[spans]``; None without any.
        lead: word before the value.
        notes: what else the value means ``[spans]``, or nothing.
        dots: the same value in each of several studies ``[spans][studies]``.
    """

    name: str
    values: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None
    lead: str
    notes: Sequence[str] | None = None
    dots: Sequence[Sequence[float]] | None = None

    def worded(self, value: float, words: Words) -> str:
        """A value with its name: of a drop, the name carries the sign."""
        if self.name != "drop" or math.isnan(value):
            return f"{self.lead} {words.amount(value)}"
        return self.lead.removesuffix(words.drop) + drop_text(value, words.metric)

    def said(self, words: Words) -> list[str]:
        """The value of each span with its interval, as a sentence's part."""
        of = f" of the {words.drop}" if self.name == "drop" else ""
        return [
            self.worded(value, words) + (f", 95% interval{of} {interval}" if interval else "")
            for value, interval in zip(self.values, self.intervals(words))
        ]

    def intervals(self, words: Words) -> list[str]:
        """The interval of each span; empty where there is none."""
        if self.low is None or self.high is None:
            return [""] * len(self.values)
        return [
            "" if math.isnan(low) or math.isnan(high) else words.interval(low, high)
            for low, high in zip(self.low, self.high)
        ]

    def content(self, words: Words) -> dict[str, Any]:
        """For the page: of each span the value, its unit, its interval and the places of these on one axis.

        The axis includes zero and every interval, so that spans can be compared; places are percentages.
        """
        ends = [end for end in (self.low, self.high) if end is not None]
        dots = self.dots if self.dots is not None else [[]] * len(self.values)
        every = [0.0, *self.values, *(v for end in ends for v in end), *(v for row in dots for v in row)]
        finite = [value for value in every if math.isfinite(value)]
        least, reach = min(finite), (max(finite) - min(finite)) or 1.0

        def at(value: float) -> float | None:
            return round(3 + 94 * (value - least) / reach, 1) if math.isfinite(value) else None

        lows, highs = (
            end if end is not None else [math.nan] * len(self.values) for end in (self.low, self.high)
        )
        rows = [
            [words.number(value), words.amount(value).removeprefix(words.number(value)), interval,
             self.notes[row] if self.notes else "", [at(low), at(value), at(high)], [*map(at, dots[row])]]
            for row, (value, low, high, interval) in enumerate(
                zip(self.values, lows, highs, self.intervals(words))
            )
        ]  # fmt: skip
        return {"name": self.name, "lead": self.lead, "zero": at(0.0), "axis": [least, reach], "rows": rows}


def drops_of(frame: pd.DataFrame, lead: str) -> Reading:
    """The drops of a table of spans, positive for the worse."""
    low, high = (
        drop_points(frame[name]).tolist() if name in frame else None
        for name in ("ci_high_points", "ci_low_points")
    )
    return Reading("drop", drop_points(frame["delta_points"]).tolist(), low, high, lead)


def interactions_of(frame: pd.DataFrame, words: Words) -> Reading:
    """The interactions of a table of spans, with what each means."""
    low, high = (
        frame[name].tolist() if name in frame else None
        for name in ("interaction_low_points", "interaction_high_points")
    )
    values = frame["interaction_points"].tolist()
    notes = [
        _meaning(value, None if low is None else low[row], None if high is None else high[row], words, single)
        for row, (value, single) in enumerate(zip(values, (frame["first"] == frame["last"]).tolist()))
    ]
    return Reading("interaction", values, low, high, "interaction", notes)


def _meaning(value: float, low: float | None, high: float | None, words: Words, single: bool) -> str:
    if single:
        return f"a single layer: its {words.drop}"
    if low is not None and high is not None and low <= 0 <= high:
        return "not clear: the interval includes 0 (not corrected over spans)"
    more = "larger" if value > 0 else "smaller"
    return f"{more} {words.drop} than the shorter spans inside explain"


def fact(text: str | None, small: str = "") -> list[str] | None:
    """A fact of the card with a remark, or None if it is unknown."""
    return None if text is None else [text, small]


def significance(frame: pd.DataFrame) -> list[list[str] | None]:
    """Of each span the corrected p-value and the verdict; None where it was not tested."""
    tested = tested_spans(frame)
    told: list[list[str] | None] = []
    for row in frame[["p_value", "p_holm", "significant"]].itertuples(index=False):
        verdict = "" if row.significant else "not "
        alone = "" if math.isnan(row.p_value) else f"; uncorrected {p_text(row.p_value)}"
        small = f"Holm-corrected over {tested} span{'s' * (tested != 1)}{alone}"
        known = not math.isnan(row.p_holm)
        told.append(fact(f"{p_text(row.p_holm)}: {verdict}significant at 0.05", small) if known else None)
    return told


def facts_content(facts: Mapping[str, Sequence[list[str] | None]]) -> dict[str, Any]:
    """Facts by heading, of each span one or None, as headings and rows; headings without any are left out."""
    kept = {name: column for name, column in facts.items() if any(one is not None for one in column)}
    return {"heads": list(kept), "rows": [list(row) for row in zip(*kept.values())]}


def slider_steps(
    frame: pd.DataFrame,
    words: Words,
    start: float,
    *,
    view: View | None = None,
    reading: Reading | None = None,
    parameters: Sequence[int] | None = None,
    others: Sequence[np.ndarray] = (),
    prune: bool = False,
    warning: str | None = None,
) -> list[dict[str, Any]]:
    """The positions of the slider, by ascending tolerance.

    Args:
        start: a tolerance that is always included, points.
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
    spans, steps = _counted(frame, words, parameters), []
    has_intervals = "ci_low_points" in frame
    axis = reading.content(words)["axis"] if reading else None
    for tolerance in tolerance_steps(np.concatenate([drops, *others]), start):
        bases = ("estimate", "interval") if has_intervals else ("estimate",)
        found = [
            None if warning else longest_removable(spans, tolerance, basis, words.study) for basis in bases
        ]
        rows = [None if row is None else int(row.name) for row in found]
        limit, within = tolerance_text(tolerance, words.metric), int((drops <= tolerance).sum())
        count = f"{within} of {len(frame)} span{'s' * (len(frame) != 1)} {'is' if within == 1 else 'are'}"
        chosen = next((frame.iloc[row] for row in reversed(rows) if row is not None), None)
        span = None if chosen is None or not prune else f"{chosen['first']:.0f}-{chosen['last']:.0f}"
        if span and "stack" in frame:
            span = f'"{chosen["stack"]} {span}"'
        steps.append({
            "tolerance": tolerance, "words": limit, "estimate": rows[0],
            "bound": rows[1] if has_intervals else None, "within": within,
            "advice": [["No span is named. ", warning, None, "", ""]] if warning else [
                _paragraph(frame, row, words, limit, basis == "interval", parameters)
                for row, basis in zip(rows, bases)
            ],
            "note": f"{count} within {limit}." + ("" if has_intervals else " This folder has no intervals."),
            "prune": span,
            "line": view.line_at(tolerance) if view and view.line_at else None,
            "bar": round(view.bar_at(tolerance), 1) if view and view.bar_at else None,
            "at": axis and round(3 + 94 * (tolerance - axis[0]) / axis[1], 1),
        })  # fmt: skip
    return steps


def _counted(frame: pd.DataFrame, words: Words, parameters: Sequence[int] | None) -> pd.DataFrame:
    """The spans, of which `n_layers` counts the layers with adapters if they are switched off."""
    if words.study == "kept" or parameters is None:
        return frame
    below = np.concatenate([[0], np.cumsum(np.array(parameters) > 0)])
    return frame.assign(n_layers=below[frame["last"] + 1] - below[frame["first"]])


def _paragraph(
    frame: pd.DataFrame,
    row: int | None,
    words: Words,
    limit: str,
    sure: bool,
    parameters: Sequence[int] | None,
) -> list[Any]:
    """The best span at a tolerance, as a sentence in parts around its name."""
    lead, kept = ("By the 95% interval, " if sure else "By the estimate, "), words.study == "kept"
    done = words.removed
    if row is None:
        none = "no span alone suffices" if kept else f"no span can be {done}"
        return [lead, f"{none} within {limit}.", None, "", ""]
    span = frame.iloc[row]
    name = layers_text(int(span["first"]), int(span["last"]))
    saved = _saved(int(span["first"]), int(span["last"]), kept, parameters, _n_layers(frame, parameters))
    if sure:
        cost = f"at worst {drop_text(-span['ci_low_points'], words.metric)}"
    else:
        interval = ""
        if "ci_low_points" in frame and pd.notna(span["ci_low_points"]):
            ends = words.interval(-span["ci_high_points"], -span["ci_low_points"])
            interval = f" (95% interval of the {words.drop} {ends})"
        cost = f"{drop_text(-span['delta_points'], words.metric)}{interval}"
    if kept:
        return [
            lead,
            "the adapters of ",
            row,
            name,
            f" alone suffice within {limit}, without {saved}; {cost}.",
        ]
    more = "" if words.strength else f"{saved}, "
    return [lead, "", row, name, f" can be {done} within {limit}: {more}{cost}."]


def _n_layers(frame: pd.DataFrame, parameters: Sequence[int] | None) -> int:
    return len(parameters) if parameters else int(frame["last"].max()) + 1


def _saved(first: int, last: int, kept: bool, parameters: Sequence[int] | None, n_layers: int) -> str:
    """The layers, and if they are known the parameters, whose adapters go."""
    inside = last - first + 1
    layers = f"{n_layers - inside if kept else inside} of {n_layers} layers"
    if parameters is None or not sum(parameters):
        return layers
    inner, every = sum(parameters[first : last + 1]), sum(parameters)
    gone = every - inner if kept else inner
    return f"{layers}, {gone:,} of {every:,} adapter parameters ({percent_text(100 * gone / every)})"
