"""Assembles the page: one HTML file that contains its data, style and script and cannot load anything."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import drop_points
from adapter_probe.analysis.study_records import (
    AblationRecord,
    RaceRecord,
    RankRecord,
    StrengthRecord,
    SweepRecord,
    TradeoffRecord,
)
from adapter_probe.figures.levels import DivergingScale, DropScale
from adapter_probe.figures.naming import told_apart
from adapter_probe.results.atomic import make_folder, write_text
from adapter_probe.version import __version__
from adapter_probe.wording import RETRAINED, is_distance, is_percentage

from .ablation_section import ReportedAblation, ablation_study
from .curve_sections import degree_section, degree_title, sweep_section, sweep_title
from .joint_section import average_study, comparison_study
from .map_section import MapStudy, content, section
from .markup import Html, joined, json_for_html, plain, tag
from .module_section import module_section, module_title
from .race_section import race_section, race_title

SCRIPTS = ("study.js", "examples.js", "page.js")
_PLACE = re.compile(r"\{\{(\w+)\}\}")

Reported = ReportedAblation | AverageRecord | ComparisonRecord
"""A study of spans that the page can show."""
Curves = SweepRecord | TradeoffRecord | StrengthRecord | RankRecord | RaceRecord | AblationRecord
"""A study whose figure the page shows: of curves, a race, or a map of layers and modules."""
_SECTIONS = {
    StrengthRecord: (degree_section, degree_title), RankRecord: (degree_section, degree_title),
    RaceRecord: (race_section, race_title), AblationRecord: (module_section, module_title),
}  # fmt: skip


def write_report(
    path: str | Path,
    studies: Sequence[Reported] = (),
    sweeps: Sequence[Curves] = (),
    *,
    tolerance: float = 1.0,
) -> Path:
    """Write the page and return its path; equal results give equal bytes.

    Args:
        path: path of the HTML file; its folder is created if missing.
        studies: ablations, their means and differences, in the order of the page.
        sweeps: sweeps, studies of strengths and ranks, and races, below them, in the order of the page.
    """
    path = Path(path)
    make_folder(path.parent)
    write_text(path, page_html(map_studies(studies, tolerance), sweeps))
    return path


def map_studies(studies: Sequence[Reported], tolerance: float = 1.0) -> list[MapStudy]:
    """The studies of spans, ready for the page; all grids share one scale, and equal spans the tolerances."""
    studies = [part for one in studies for part in one.in_stacks]
    drops = [_drops(one) for one in studies]
    metrics = [
        one.record.summary.metric if isinstance(one, ReportedAblation) else one.metric for one in studies
    ]
    gains = not metrics or not all(map(is_distance, metrics))
    scale = DropScale.spanning(np.concatenate(drops or [np.zeros(0)]), gains)
    interactions = [one.interactions for one in studies if isinstance(one, ReportedAblation)]
    diverging = DivergingScale.spanning(np.concatenate(interactions or [np.zeros(0)]))
    made = []
    for number, (one, key) in enumerate(zip(studies, map(_key, studies))):
        alike = [own for other, own in zip(studies, drops) if other is not one and _key(other) == key]
        prefix = f"m{number}"
        if isinstance(one, ReportedAblation):
            made.append(ablation_study(one, scale, diverging, tolerance, alike, prefix))
        elif isinstance(one, AverageRecord):
            made.append(average_study(one, scale, tolerance, alike, prefix))
        else:
            made.append(comparison_study(one, prefix))
    ablations = [number for number, one in enumerate(studies) if isinstance(one, ReportedAblation)]
    titles = told_apart([made[n].title for n in ablations], [studies[n].record for n in ablations])
    for number, title in zip(ablations, titles):
        made[number] = replace(made[number], title=title)
    return made


def _drops(one: Reported) -> np.ndarray:
    """The drops that share the scale, with the spread of a mean; none of a difference."""
    if isinstance(one, ComparisonRecord):
        return np.zeros(0)
    spans = one.record.spans if isinstance(one, ReportedAblation) else one.spans
    spread = [spans["sd_points"].to_numpy(float)] if "sd_points" in spans else []
    return np.concatenate([drop_points(spans["delta_points"]), *spread])


def _key(one: Reported) -> tuple:
    """What studies have in common that are looked at together."""
    spans = one.record.spans if isinstance(one, ReportedAblation) else one.spans
    return tuple(zip(spans["first"].tolist(), spans["last"].tolist()))


def page_html(studies: Sequence[MapStudy], sweeps: Sequence[Curves] = (), title: str | None = None) -> str:
    """The HTML of a report.

    The data are in a block that is never executed, with `<`, `>` and `&` escaped, so that no text can end the
    block; the script inserts every text as a text node. A content security policy in the page's head allows
    only this script and this style sheet and forbids every request.
    """
    css, script = _file("page.css"), _script()
    title = title or page_title(studies, sweeps)
    keys = list(dict.fromkeys(tuple(study.pairs) for study in studies))
    data = {"studies": [content(study, keys.index(tuple(study.pairs))) for study in studies]}
    parts = {
        "policy": html.escape(_policy(script, css)),
        "title": plain(title),
        "css": css,
        "body": joined(_body(title, studies, sweeps)),
        "data": json_for_html(data),
        "script": script,
        "version": html.escape(__version__),
    }
    return _PLACE.sub(lambda place: parts[place[1]], _file("page.html"))


def _body(title: str, studies: Sequence[MapStudy], sweeps: Sequence[Curves]) -> list[Html | None]:
    """Masthead, contents, and the sections; studies of the same spans stand side by side."""
    names = [(f"study-{number}", study.title) for number, study in enumerate(studies)]
    headings = told_apart([_curves_title(sweep) for sweep in sweeps], sweeps)
    names += [(f"sweep-{number}", heading) for number, heading in enumerate(headings)]
    links = [tag("li", None, tag("a", {"href": f"#{place}"}, name)) for place, name in names]
    parts: list[Html | None] = [
        tag("header", {"class": "masthead"}, tag("p", None, "adapter-probe"), tag("h1", None, title)),
        tag("nav", {"aria-label": "Contents"}, tag("ul", None, links)) if len(links) > 1 else None,
    ]
    groups: dict[tuple, list[Html]] = {}
    for number, study in enumerate(studies):
        groups.setdefault(tuple(study.pairs), []).append(section(study, number))
    parts += [
        tag("div", {"class": "together"}, group) if len(group) > 1 else group[0] for group in groups.values()
    ]
    for number, (sweep, heading) in enumerate(zip(sweeps, headings)):
        section_of, _ = _SECTIONS.get(type(sweep), (sweep_section, sweep_title))
        parts.append(section_of(sweep, number, heading))
    if any(study.steps and is_percentage(study.words.metric) for study in studies):
        told = tag("h2", None, "What an ablation does not tell"), tag("p", {"class": "note"}, RETRAINED)
        parts.append(tag("section", {"class": "study", "id": "retrained"}, told))
    return parts


def _curves_title(record: Curves) -> str:
    return _SECTIONS.get(type(record), (sweep_section, sweep_title))[1](record)


def page_title(studies: Sequence[MapStudy], sweeps: Sequence[Curves]) -> str:
    """The title of the page: what is in it."""
    spans = "layer spans kept on" if any(study.words.study == "kept" for study in studies) else "layer spans"
    joint = [study for study in studies if study.joint]
    topics = dict.fromkeys(study.topic for study in joint or studies)
    names = [f"{', '.join(topics)}: {spans}"] if studies else []
    return "; ".join(dict.fromkeys([*names, *map(_curves_title, sweeps)])) or "adapter-probe"


def _policy(script: str, css: str) -> str:
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(css)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _script() -> str:
    body = "\n".join(_file(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
