"""Assembles the page: one HTML file that contains its data, style and script and cannot load anything."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from adapter_probe.analysis.studies import SweepRecord, TradeoffRecord
from adapter_probe.figures import style
from adapter_probe.figures.levels import DROP_COLOURS, GAIN_COLOURS, DropScale, colour_of
from adapter_probe.results.atomic import make_folder, write_text
from adapter_probe.version import __version__

from .ablation_section import ReportedAblation, ablation_content, joint_scale
from .sweep_section import sweep_content

SCRIPTS = (
    "dom.js", "words.js", "heatmap.js", "curve.js", "bar.js", "span.js", "examples.js", "ablation.js",
    "page.js",
)  # fmt: skip
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_report(
    path: str | Path,
    ablations: Sequence[ReportedAblation] = (),
    sweeps: Sequence[SweepRecord | TradeoffRecord] = (),
    *,
    tolerance: float = 1.0,
) -> Path:
    """Write the page and return its path; equal results give equal bytes.

    Args:
        path: path of the HTML file; its folder is created if missing.
        ablations: ablations, in the order of the page.
        sweeps: sweeps, below the ablations, in the order of the page.
        tolerance: initial position of the slider, points.
    """
    path = Path(path)
    make_folder(path.parent)
    write_text(path, page_html(report_content(ablations, sweeps, tolerance=tolerance)))
    return path


def report_content(
    ablations: Sequence[ReportedAblation],
    sweeps: Sequence[SweepRecord | TradeoffRecord],
    *,
    tolerance: float = 1.0,
) -> dict[str, Any]:
    """All contents of the page, as plain JSON. All grids share one scale."""
    scale = joint_scale([ablation.drops for ablation in ablations])
    interactions = joint_scale([ablation.interactions for ablation in ablations])
    content: dict[str, Any] = {
        "version": __version__,
        "tolerance": tolerance,
        "colours": _colours(),
        "scale": _shown_levels(scale),
        "interactionScale": _shown_levels(interactions),
        "ablations": [ablation_content(one, scale, interactions, tolerance) for one in ablations],
        "sweeps": [sweep_content(sweep) for sweep in sweeps],
    }
    return {**content, "title": page_title(content)}


def _colours() -> dict[str, Any]:
    """The colour levels of the project's figures, each with a legible text colour."""
    levels = [*range(1, len(DROP_COLOURS) + 1), *range(-1, -len(GAIN_COLOURS) - 1, -1)]
    colours = {str(level): colour_of(level) for level in levels}
    shown = {level: [colour, style.text_colour(colour)] for level, colour in colours.items()}
    return {"levels": shown, "single": style.GREEN}


def _shown_levels(scale: DropScale) -> list[dict[str, Any]]:
    """The levels of a colour bar, from the largest gain to the largest drop; an open end is null."""
    ends = [None, *scale.edges, *([None] if scale.beyond else [])]
    levels = [*range(-scale.n_gains, 0), *range(1, len(ends) - scale.n_gains)]
    return [{"level": level, "from": low, "to": high} for level, (low, high) in zip(levels, pairwise(ends))]


def page_html(content: Mapping[str, Any]) -> str:
    """The HTML of a report.

    The data are in a block that is never executed, with `<`, `>` and `&` escaped, so that no text can end the
    block; the script inserts every text as a text node. A content security policy in the page's head allows
    only this script and this style sheet and forbids every request.
    """
    css, script = _file("page.css"), _script()
    parts = {
        "policy": html.escape(_policy(script, css)),
        "title": _plain(str(content["title"])),
        "css": css,
        "data": json_for_html(content),
        "script": script,
        "fallback": _plain(_fallback(content)),
        "version": html.escape(str(content["version"])),
    }
    return _PLACE.sub(lambda place: parts[place[1]], _file("page.html"))


def json_for_html(value: object) -> str:
    """JSON that HTML cannot misread: ASCII, without `<`, `>` and `&`."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_title(content: Mapping[str, Any]) -> str:
    """The title of the page: its studies and their tasks, `CoLA, MNLI-m: ablation of layer spans`."""
    tasks: dict[str, list[str]] = {}
    for ablation in content["ablations"]:
        study = "layer spans kept on" if ablation["study"] == "kept" else "ablation of layer spans"
        tasks.setdefault(study, []).append(ablation["task"])
    for sweep in content["sweeps"]:
        study = "initialisation sweep" if sweep["kind"] == "init" else "parameter trade-off"
        tasks.setdefault(study, []).extend(sweep["tasks"])
    said = [f"{', '.join(dict.fromkeys(names))}: {study}" for study, names in tasks.items()]
    return "; ".join(said) or "adapter-probe"


def _fallback(content: Mapping[str, Any]) -> str:
    names = [part["name"] for part in (*content["ablations"], *content["sweeps"])]
    return f"The same numbers are in the CSV files of {', '.join(names) or 'the results'}."


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


def _plain(text: str) -> str:
    """Text escaped for HTML: safe in any encoding, without control characters and lone surrogates."""
    shown = "".join("\ufffd" if unicodedata.category(c) == "Cc" else c for c in text)
    return html.escape(shown).encode("ascii", "xmlcharrefreplace").decode("ascii")
