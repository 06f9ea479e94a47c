"""Assembles the page: one HTML file that contains its data, style and script and cannot load anything."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
from markupsafe import Markup

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.score_changes import drop_points
from adapter_probe.figures.ablation_words import Words, told_apart
from adapter_probe.figures.levels import Scale, difference_scale
from adapter_probe.figures.span_grid import grid_of, scale_of
from adapter_probe.results.atomic import make_folder, write_text
from adapter_probe.version import __version__
from adapter_probe.wording import RETRAINED, is_percentage, own_unit

from .ablation_section import ReportedAblation, ablation_study, average_study, comparison_study
from .curve_sections import Curves, curves_section, curves_title
from .markup import json_for_html, render
from .span_section import MapStudy, content, section

_MOST_IN_TITLE = 3  # kinds of studies

Reported = ReportedAblation | AverageRecord | ComparisonRecord
"""A study of spans that the page can show."""


def write_report(
    path: str | Path,
    studies: Sequence[Reported] = (),
    sweeps: Sequence[Curves] = (),
    *,
    tolerance: float = 1.0,
) -> Path:
    """Write the page and return its path; equal results give equal bytes.

    Args:
        studies: ablations, their means and differences, in the order of the page.
        sweeps: sweeps, studies of strengths and ranks, below them, in the order of the page.
    """
    path = Path(path)
    make_folder(path.parent)
    write_text(path, page_html(map_studies(studies, tolerance), sweeps))
    return path


def map_studies(studies: Sequence[Reported], tolerance: float = 1.0) -> list[MapStudy]:
    """The studies of spans, ready for the page; those of one unit share a scale, and equal spans tolerances.

    A comparison has a scale of its own.
    """
    studies = [part for one in studies for part in one.in_stacks]
    records = [one.record if isinstance(one, ReportedAblation) else one for one in studies]
    units = [own_unit(Words.of(one).metric) for one in records]
    grids = {n: grid_of(one) for n, one in enumerate(records) if not isinstance(one, ComparisonRecord)}
    drops = {n: drop_points(grid.frame["delta_points"]) for n, grid in grids.items()}
    scales: dict[str, tuple[Scale, Scale]] = {}
    for unit in {units[n] for n in grids}:
        own = [n for n in grids if units[n] == unit]
        alone = [
            s.interactions for n, s in enumerate(studies) if n in own and isinstance(s, ReportedAblation)
        ]
        metrics = [grids[n].words.metric for n in own]
        diverging = difference_scale(np.concatenate([*alone, np.zeros(0)]), metrics)
        scales[unit] = scale_of([grids[n] for n in own]), diverging
    keys = [tuple(zip(one.spans["first"].tolist(), one.spans["last"].tolist())) for one in records]
    made = []
    for number, one in enumerate(studies):
        alike = [own for n, own in drops.items() if n != number and keys[n] == keys[number]]
        prefix, unit = f"m{number}", units[number]
        if isinstance(one, ReportedAblation):
            made.append(ablation_study(one, *scales[unit], tolerance, alike, prefix))
        elif isinstance(one, AverageRecord):
            made.append(average_study(one, scales[unit][0], tolerance, alike, prefix))
        else:
            made.append(comparison_study(one, prefix))
    ablations = [number for number, one in enumerate(studies) if isinstance(one, ReportedAblation)]
    titles = told_apart([made[n].title for n in ablations], [records[n] for n in ablations])
    for number, title in zip(ablations, titles):
        made[number] = replace(made[number], title=title)
    return made


def page_html(studies: Sequence[MapStudy], sweeps: Sequence[Curves] = ()) -> str:
    """The HTML of a report; studies of the same spans stand side by side.

    The data are in a block that is never executed, with `<`, `>` and `&` escaped, so that no text can end the
    block; the script inserts every text as a text node. A content security policy in the page's head allows
    only this script and this style sheet and forbids every request.
    """
    css = _file("page.css")
    script = f'(() => {{\n"use strict";\n{_file("study.js")}\n{_file("page.js")}}})();\n'
    title = page_title(studies, sweeps)
    groups: dict[tuple, list[Markup]] = {}
    for number, study in enumerate(studies):
        groups.setdefault(tuple(study.pairs), []).append(section(study, number))
    data = {"studies": [content(study, list(groups).index(tuple(study.pairs))) for study in studies]}
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(css)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    names = [(f"study-{number}", study.title) for number, study in enumerate(studies)]
    headings = told_apart([curves_title(sweep) for sweep in sweeps], sweeps)
    names += [(f"sweep-{number}", heading) for number, heading in enumerate(headings)]
    below = [curves_section(*one) for one in zip(sweeps, range(len(sweeps)), headings)]
    told = any(study.steps and is_percentage(study.words.metric) for study in studies)
    return render(
        "page", title=title, policy=policy, version=__version__, css=Markup(css), script=Markup(script),
        data=json_for_html(data), names=names, groups=list(groups.values()), sweeps=below,
        retrained=RETRAINED if told else None,
    )  # fmt: skip


def page_title(studies: Sequence[MapStudy], sweeps: Sequence[Curves]) -> str:
    """The title of the page: what is in it, of many studies the first."""
    spans = "layer spans kept on" if any(study.words.study == "kept" for study in studies) else "layer spans"
    joint = [study for study in studies if study.joint]
    topics = dict.fromkeys(study.topic for study in joint or studies)
    names = [f"{', '.join(topics)}: {spans}"] if studies else []
    names = list(dict.fromkeys([*names, *map(curves_title, sweeps)])) or ["adapter-probe"]
    if len(names) > _MOST_IN_TITLE:
        return f"{names[0]}; and {len(names) - 1} others"
    return "; ".join(names)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
