"""What the page shows at each position of its slider: the tolerance line, the best spans and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.analysis.deltas import drop_points
from adapter_probe.analysis.removable import longest_removable, shortest_sufficient, tolerance_steps
from adapter_probe.wording import drop_text, layers_text, percent_text, tolerance_text

from .maps import View
from .span_words import Reading, Words


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
        frame: table of spans.
        words: of the study.
        start: a tolerance that is always included, points.
        view: the drawing with the tolerance line.
        reading: the drops, on whose axis the tolerance is marked.
        parameters: number of adapter parameters of each layer.
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
    best = shortest_sufficient if words.study == "kept" else longest_removable
    for tolerance in tolerance_steps(np.concatenate([drops, *others]), start):
        bases = ("estimate", "interval") if has_intervals else ("estimate",)
        found = [None if warning else best(spans, tolerance, basis) for basis in bases]
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
