"""The section of a study of spans: map, slider, card and tables as HTML, and what the script fills in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from adapter_probe.wording import is_percentage, span_text

from .maps import MANY, View
from .markup import Html, settings, table, tag
from .span_words import NONE, Reading, Words, facts_content


@dataclass(frozen=True, eq=False)
class MapStudy:
    """A study of spans, ready for the page.

    Attributes:
        title: heading, and name in the contents.
        topic: what it is about, in the page's title.
        about: a line below it.
        words: of the study.
        spans: its table, in the order of the readings.
        views: its drawings, the first one shown first.
        readings: what each view says of the spans.
        facts: by heading, a fact of each span with a remark, or None.
        tiles: main numbers: name, value, remark.
        legend: what the marks in the maps mean: class of the key, words.
        layers: layers of the model.
        warning: why the spans mean nothing; None where they mean something.
        steps: positions of the slider; empty without one.
        start: tolerance where the slider starts, points.
        more: further parts of the section.
        script: what these need, as JSON.
        record: settings and versions.
        joint: whether it joins several studies, so that it stands above them.
    """

    title: str
    topic: str
    about: str
    words: Words
    spans: pd.DataFrame
    views: Sequence[View]
    readings: Sequence[Reading]
    facts: Mapping[str, Sequence[list[str] | None]]
    tiles: Sequence[tuple[str, str, str]]
    legend: Sequence[tuple[str, str]]
    layers: int
    warning: str | None = None
    steps: Sequence[dict[str, Any]] = ()
    start: float = 1.0
    more: Sequence[Html | None] = ()
    script: Mapping[str, Any] | None = None
    record: Mapping[str, object] | None = None
    joint: bool = False

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """First and last layer of each span."""
        return list(zip(self.spans["first"].tolist(), self.spans["last"].tolist()))


def section(study: MapStudy, number: int) -> Html:
    """The section with everything that does not depend on the chosen span and tolerance."""
    heading = f"study-{number}"
    tiles = [
        tag(
            "div",
            None,
            tag("dt", None, name),
            tag("dd", None, value, note and tag("small", None, f" {note}")),
        )
        for name, value, note in study.tiles
    ]
    head = tag(
        "header", None, tag("h2", {"id": heading}, study.title), tag("p", {"class": "note"}, study.about),
        study.warning and tag("p", {"class": "warning", "role": "note"}, study.warning),
        tag("dl", {"class": "tiles"}, tiles),
    )  # fmt: skip
    bench = tag(
        "div", {"class": "bench"}, _map(study), _control(study) if study.steps else None, _card(study)
    )
    named = {
        "class": "study joint" if study.joint else "study",
        "data-study": number,
        "aria-labelledby": heading,
    }
    return tag("section", named, head, bench, study.more, _spans_table(study), settings(study.record or {}))


def content(study: MapStudy, group: int) -> dict[str, Any]:
    """What the script shows in the section, as plain JSON.

    Args:
        group: number that studies of the same spans share; they are looked at together.
    """
    whole = max(range(len(study.spans)), key=lambda row: study.pairs[row][1] - study.pairs[row][0])
    numbers = study.spans[[n for n, one in study.spans.items() if n == "stack" or one.dtype.kind in "iufb"]]
    return {
        "name": study.title, "group": group, "spans": study.pairs, "whole": whole, "start": study.start,
        "titles": [study.words.span(*pair) for pair in study.pairs],
        "views": [reading.content(study.words) for reading in study.readings],
        "facts": facts_content(study.facts), "steps": list(study.steps),
        "csv": numbers.to_csv(index=False, float_format="%.10g", lineterminator="\n"), **(study.script or {}),
    }  # fmt: skip


def _map(study: MapStudy) -> Html:
    """The drawings, of which one is shown, their legend, and how to take them along."""
    choices = [
        tag(
            "button",
            {"type": "button", "data-view": view.name, "aria-pressed": str(not index).lower()},
            view.label,
        )
        for index, view in enumerate(study.views)
    ]
    shown = [
        tag(
            "div",
            {"class": "view", "data-view": view.name, "hidden": index > 0, "data-wide": _size(study)},
            view.svg,
        )
        for index, view in enumerate(study.views)
    ]
    keys = [
        tag("li", {"class": kind}, tag("i", {"aria-hidden": "true"}), words) for kind, words in study.legend
    ]
    saves = [
        tag("button", {"type": "button", "data-save": kind}, kind.upper()) for kind in ("csv", "svg", "png")
    ]
    tools = tag("p", {"class": "tools"}, tag("a", {"class": "here", "href": "#"}, "link to this view"), saves)
    choice = tag("div", {"class": "choice", "role": "group", "aria-label": "What the cells show"}, choices)
    return tag(
        "figure", {"class": "card map"}, choice if len(choices) > 1 else None,
        tag("div", {"class": "scroll figure"}, shown), tag("ul", {"class": "legend"}, keys), tools,
    )  # fmt: skip


def _size(study: MapStudy) -> str:
    """How wide the maps need to be."""
    n = max(study.spans["first"].nunique(), study.spans["last"].nunique())
    return "small" if n <= 7 else "middle" if n <= MANY else "large"


def _control(study: MapStudy) -> Html:
    """The slider, and what it says."""
    at = next(place for place, step in enumerate(study.steps) if step["tolerance"] == study.start)
    slider = {"type": "range", "min": 0, "max": len(study.steps) - 1, "value": at}
    name = tag("span", None, f"Tolerated {study.words.drop}")
    label = tag("label", {"class": "slider"}, name, tag("input", slider), tag("output"))
    advice = [
        tag("p", {"class": "advised"}, tag("b"), tag("span"),
            tag("button", {"type": "button", "class": "span-link"}), tag("span"))
        for _ in study.steps[0]["advice"]
    ]  # fmt: skip
    command = "adapter-probe prune CHECKPOINT --span ", tag("span"), " --out FOLDER"
    removal = "To remove these adapters: ", tag("code", None, *command)
    told = " ", tag("a", {"href": "#retrained"}, "What this does not tell"), "."
    prune = tag("p", {"class": "note prune"}, removal, told if is_percentage(study.words.metric) else None)
    note = tag("p", {"class": "note within"})
    return tag(
        "div",
        {"class": "card control"},
        label,
        tag("div", {"class": "advice", "aria-live": "polite"}, advice, note, prune),
    )


def _card(study: MapStudy) -> Html:
    """The card of one span, to be filled."""
    which = (
        tag("span", {"class": "pinned"}, "selected span"),
        tag("span", {"class": "passing"}, "span in focus"),
    )
    dots = max(len(row) for reading in study.readings for row in (reading.dots or [[]]))
    marks = [
        tag("i", {"class": kind}) for kind in ("zero", "limit-mark", "whisker", *["seed"] * dots, "point")
    ]
    big = tag("small", {"class": "lead"}), " ", tag("b"), tag("small", {"class": "unit"})
    return tag(
        "div", {"class": "card span-card"}, tag("p", {"class": "over-title"}, which), tag("h3"),
        tag("div", {"class": "strip", "aria-hidden": "true"}, [tag("i")] * study.layers),
        tag("p", {"class": "big"}, big), tag("div", {"class": "axis", "aria-hidden": "true"}, marks),
        tag("p", {"class": "note interval"}, "95% interval ", tag("span")),
        tag("p", {"class": "note meaning"}), tag("dl", {"class": "facts"}),
    )  # fmt: skip


def _spans_table(study: MapStudy) -> Html:
    """All spans with what the views and the card say of them."""
    facts, words = facts_content(study.facts), study.words
    columns: list[tuple[str, Sequence[str]]] = []
    for reading in study.readings:
        columns.append(
            (
                f"{reading.lead}{words.unit and f' ({words.unit.strip()})'}",
                [words.number(v) for v in reading.values],
            )
        )
        if any(intervals := reading.intervals(words)):
            columns.append(("95% interval", [text.removesuffix(words.unit) or NONE for text in intervals]))
    for place, head in enumerate(facts["heads"]):
        columns.append((head, [NONE if row[place] is None else row[place][0] for row in facts["rows"]]))
    rows = list(zip((span_text(*pair) for pair in study.pairs), *(column for _, column in columns)))
    return table(f"{len(rows)} spans as a table", ["span", *(head for head, _ in columns)], rows)
