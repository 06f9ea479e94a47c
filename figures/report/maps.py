"""Maps of spans for the page: figures of this project with a shape to point at over every span."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar

from adapter_probe.analysis.deltas import drop_points
from adapter_probe.analysis.removable import tolerance_border
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.figures import style
from adapter_probe.figures.grid import Cells
from adapter_probe.figures.interactions import interaction_label, interaction_map
from adapter_probe.figures.layout import fit_height, legend_below, new_figure
from adapter_probe.figures.levels import DivergingScale, Scale, draw_colorbar
from adapter_probe.figures.span_grid import Grid, draw
from adapter_probe.figures.span_line import SpanLine, draw_line, line_entries
from adapter_probe.figures.venues import FigureOptions, Venue

from .inline_svg import GROUND, INK, inline, places
from .markup import Html, tag

_WIDTH, MANY, _PER_LAYER = (
    5.2,
    14,
    0.24,
)  # inches; layers that fit into them, and the room of each further one
_PAGE = Venue("page", _WIDTH, _WIDTH, 9.0, 9.0, tallest=40.0, sans=True)
NARROW = FigureOptions(_PAGE, formats=("svg",))


@dataclass(frozen=True, eq=False)
class View:
    """One drawing of all spans.

    Attributes:
        name: ``drop``, ``interaction``, ``difference`` or ``spread``.
        label: the words that choose it.
        svg: the drawing, with an element of class ``cell`` over every span.
        line_at: the tolerance line as an SVG path at a number of points; None where there is none.
        bar_at: its place on the colour bar, likewise.
    """

    name: str
    label: str
    svg: Html
    line_at: Callable[[float], str] | None = None
    bar_at: Callable[[float], float] | None = None


def drop_view(name: str, label: str, grid: Grid, scale: Scale, labels: Sequence[str], prefix: str) -> View:
    """A grid of drops, of their spread or of their differences.

    Args:
        name: of the view.
        label: the words that choose it.
        grid: the spans.
        scale: colour levels.
        labels: what each span says to those who do not see it.
        prefix: begins the ids in its SVG.
    """

    def paint(ax: Axes) -> None:
        draw(grid, ax, tolerance=0.0, notes=True, scale=scale)

    return _grid_view(
        name, label, grid.frame, paint, scale, grid.label, labels, prefix, grid.shows == "drops"
    )


def interaction_view(
    record: AblationRecord, scale: DivergingScale, labels: Sequence[str], prefix: str
) -> View:
    """The grid of an ablation's interactions; arguments as of `drop_view`."""

    def paint(ax: Axes) -> None:
        interaction_map(record, ax, colorbar=False, scale=scale)

    label = interaction_label(record.summary.metric)
    return _grid_view("interaction", "interaction", record.spans, paint, scale, label, labels, prefix, False)


def line_view(name: str, label: str, line: SpanLine, labels: Sequence[str], prefix: str) -> View:
    """Spans that form a line, as a curve; arguments as of `drop_view`."""
    with style.paper_style(_PAGE):
        figure = new_figure(_WIDTH, _WIDTH)
        ax = figure.add_subplot()
        draw_line(line, ax, tolerance=0.0)
        ax.set_box_aspect(0.62)
        low, high = ax.get_ylim()
        legend_below(figure, [entry for entry in line_entries([line], 0.0) if "tolerance" not in entry[1]])
        fit_height(figure, _PAGE.tallest)

    def over() -> str:
        edges = np.arange(len(line.frame) + 1) - 0.5
        corners = places(ax, [(x, y) for x in edges for y in (low, high)]).reshape(-1, 2, 2)
        boxes = [(a[1][0], a[1][1], b[0][0] - a[0][0], a[0][1] - a[1][1]) for a, b in pairwise(corners)]
        shapes = [_cell(box, row, labels[row], "option") for row, box in enumerate(boxes)]
        return _over(
            tag("g", {"class": "cells", "role": "listbox", "aria-label": line.label}, shapes), "dashes"
        )

    def line_at(tolerance: float) -> str:
        (left, y), (right, _) = places(ax, [(-0.6, tolerance), (len(line.frame) - 0.4, tolerance)])
        return f"M{left:g} {y:g}H{right:g}" if low <= tolerance <= high else ""

    svg = inline(figure, prefix, line.label, over)
    return View(name, label, svg, line_at if line.shows == "drops" else None)


def _grid_view(
    name: str,
    label: str,
    frame: pd.DataFrame,
    paint: Callable[[Axes], None],
    scale: Scale,
    bar_label: str,
    labels: Sequence[str],
    prefix: str,
    has_line: bool,
) -> View:
    cells = Cells.of(frame)
    with style.paper_style(_PAGE):
        width = _WIDTH + _PER_LAYER * max(0, len(cells.lasts) - MANY)
        figure = new_figure(width, 1.2 * width)
        ax = figure.add_subplot()
        paint(ax)
        bar = draw_colorbar(scale, [ax], bar_label, None, location="bottom", length=60 * width)
        fit_height(figure, _PAGE.tallest)

    def over() -> str:
        corners = places(ax, cells.squares(np.ones(len(frame), bool)).reshape(-1, 2)).reshape(-1, 4, 2)
        low, high = corners.min(axis=1), corners.max(axis=1)
        shapes = [
            _cell((*low[row], *(high[row] - low[row])), row, labels[row], "gridcell")
            for row in range(len(frame))
        ]
        lines = [
            tag("g", {"role": "row"}, [shapes[i] for i in np.flatnonzero(cells.positions[:, 0] == row)])
            for row in range(len(cells.firsts))
        ]
        mark = [_bar_mark(bar)] if has_line else []
        grid = tag("g", {"class": "cells", "role": "grid", "aria-label": bar_label}, lines)
        return _over(grid, "stairs" if has_line else "") + "".join(mark)

    def line_at(tolerance: float) -> str:
        edges = tolerance_border(cells.matrix(drop_points(frame["delta_points"])), tolerance)
        ends = places(ax, np.array(edges, dtype=float).reshape(-1, 2)).reshape(-1, 2, 2)
        return "".join(f"M{x:g} {y:g}" + (f"V{v:g}" if x == u else f"H{u:g}") for (x, y), (u, v) in ends)

    def bar_at(tolerance: float) -> float:
        return float(places(bar.ax, [(min(tolerance, scale.edges[-1]), 0.0)])[0][0])

    svg = inline(figure, prefix, bar_label, over)
    return View(name, label, svg, line_at if has_line else None, bar_at if has_line else None)


def _bar_mark(bar: Colorbar) -> Html:
    (_, top), (_, foot) = places(bar.ax, [(0.0, end) for end in bar.ax.get_ylim()])
    lines = [
        tag("path", {"d": f"M0 {top:g}V{foot:g}", "stroke": colour, "stroke-width": width})
        for colour, width in ((GROUND, 3.4), (INK, 1.7))
    ]
    return tag("g", {"class": "bar-mark"}, lines)


def _cell(box: Sequence[float], row: int, label: str, role: str) -> Html:
    x, y, width, height = (f"{side:.1f}" for side in box)
    shape = {"x": x, "y": y, "width": width, "height": height}
    return tag("rect", {"class": "cell", "role": role, "aria-label": label, "data-row": row, **shape})


def _over(cells: Html, kind: str) -> Html:
    """The tolerance line, the marks of the best spans, the cells to point at, and the frame of one cell."""
    lines = [
        tag("path", {"class": f"limit {kind}", "fill": "none", "stroke": colour, "stroke-width": width})
        for colour, width in ((GROUND, 3.4), (INK, 1.7))
    ]
    tick = tag("path", {"d": "M-2 .1L-.6 1.6L2.2 -1.5", "fill": "none"})
    badges = [
        tag("g", {"class": f"badge {kind}", "hidden": True}, tag("circle", {"r": "4.4"}), tick)
        for kind in ("estimate", "bound")
    ]
    frame = tag("rect", {"class": "cursor", "fill": "none"})
    below = [lines[kind == "dashes" :], badges] if kind else []
    return tag("g", {"class": "over"}, below, cells, frame)
