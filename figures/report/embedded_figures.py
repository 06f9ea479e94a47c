"""Figures and tables of the project prepared for the page: images, and cells as text."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from adapter_probe.analysis.studies import StudyRecord
from adapter_probe.figures import gallery, style
from adapter_probe.figures.drawing import Drawing
from adapter_probe.figures.venues import PAPER, FigureOptions
from adapter_probe.metrics import IN_PERCENT
from adapter_probe.wording import score_text

from .json_tables import json_cell

NONE = "—"
SVG = FigureOptions(PAPER, formats=("svg",))
_SCORES = ("mean", "min", "max", "score", "majority_score")
_WHOLE = ("trained_parameters_without_head", "best_epoch")
_SHORT = ("init_std", "learning_rate", "percent_of_base")
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_PIXELS = 2.0  # pixels per point in print, so that 8-point text appears in the size of the page's text


def embedded_figures(record: StudyRecord) -> list[dict[str, Any]]:
    """The figures that `adapter-probe figures` draws of one study, see `image_of`."""
    return [image_of(drawing) for drawing in gallery.figures_of([record], SVG)]


def image_of(drawing: Drawing) -> dict[str, Any]:
    """One figure: `title`, `caption`, `width` in pixels, and `source`, the SVG as a data address.

    Metadata are left out, because they may contain folder names.
    """
    svg = style.render(drawing.figure, "svg", drawing.title, "").decode("utf-8")
    data = base64.b64encode(_METADATA.sub("", svg).encode("utf-8")).decode("ascii")
    return {
        "title": drawing.title,
        "caption": drawing.caption,
        "width": round(_PIXELS * 72 * drawing.figure.get_figwidth()),
        "source": f"data:image/svg+xml;base64,{data}",
    }


def text_table(title: str, frame: pd.DataFrame, heads: Mapping[str, str]) -> dict[str, Any]:
    """A table of the page: a title, column headings, and rows of text.

    Args:
        title: title of the table.
        frame: numbers; scores are fractions, formatted by the row's `metric` if there is one.
        heads: headings by column; columns that are missing or empty are left out.
    """
    kept = [name for name in heads if name in frame and not frame[name].isna().all()]
    metrics: Sequence[str | None] = frame["metric"].tolist() if "metric" in frame else [None] * len(frame)
    columns = [[cell_text(name, v, m) for v, m in zip(frame[name].tolist(), metrics)] for name in kept]
    return {
        "title": title,
        "columns": [heads[name] for name in kept],
        "rows": [list(row) for row in zip(*columns)],
    }


def cell_text(name: str, value: object, metric: str | None) -> str:
    """A field of a results table as text, formatted by its column."""
    plain = json_cell(value)
    if plain is None:
        return NONE
    if isinstance(plain, (bool, str)):
        return {True: "yes", False: "no"}.get(plain, plain)  # type: ignore[call-overload]
    if name in _SCORES:
        return score_text(plain, metric)
    if name == "sem":
        return f"{100 * plain:.2f}" if metric is None or metric in IN_PERCENT else f"{plain:.3f}"
    if name.startswith("p_"):
        return "< 0.001" if plain < 0.001 else f"{plain:.3f}"
    if name.endswith("_points"):
        text = f"{plain:+.2f}".replace("-", "−")
        return "0.00" if float(plain) == 0 else text
    if name in _SHORT:
        return f"{float(value):.3g}"  # type: ignore[arg-type]
    return f"{plain:,.0f}" if isinstance(plain, int) or name in _WHOLE else f"{100 * plain:.1f}"
