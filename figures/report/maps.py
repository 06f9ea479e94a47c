"""Figures as SVG inside the page: themed by its style sheet, with a shape to point at over every span.

A policy in the page's head forbids style attributes, so the properties become attributes. What lies on the
page's background is drawn in two colours that look black and white but are distinct, `INK` and `GROUND`;
the style sheet replaces them in the dark. Everything else has its own colours on any background.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from adapter_probe.analysis.removable import tolerance_border
from adapter_probe.analysis.score_changes import drop_points
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.figures import style
from adapter_probe.figures.attribution import interaction_map
from adapter_probe.figures.grid import NUMBER, Cells
from adapter_probe.figures.layout import fit_height, legend_below, new_figure
from adapter_probe.figures.levels import Scale, draw_colorbar
from adapter_probe.figures.span_curve import SpanLine, draw_line, line_entries
from adapter_probe.figures.span_grid import Grid, draw
from adapter_probe.figures.venues import FigureOptions, Venue
from adapter_probe.wording import unit_name

from .markup import render

INK, GROUND = "#000001", "#fffffe"
_OWN_GROUND = (NUMBER, "dashes", "rings", "triangles")  # drawn on cells, not on the page
_HIDDEN = ("halo", "tolerance border", "tolerance")  # drawn over the figure, because the slider moves them
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_LONG = re.compile(r"-?\d+\.\d{3,}")
_MOVE, _MOVED = re.compile(r"translate\([^)]*\)"), re.compile(r"translate\(([-\d.]+) ([-\d.]+)\)")
_COMMAND = re.compile(r"([A-Za-z])([^A-Za-z]*)")
_CELLS = "cells"  # id of the squares of a grid
_INHERITED = ("fill", "stroke", "stroke-width")
_REFERENCE = re.compile(r"(?<=#)[\w.-]+")
_ROUNDED = ("d", "x", "y", "width", "height", "cx", "cy", "x1", "x2", "y1", "y2")


def inline(
    figure: Figure,
    name: str,
    title: str,
    lay_over: Callable[[], Markup] | None = None,
    below: Callable[[], Markup] | None = None,
) -> Markup:
    """A figure as an SVG element.

    Args:
        name: begins all ids inside, so that several figures fit into one page.
        title: says what it is to those who do not see it.
        lay_over: makes the markup of the shapes over it, in the figure's points, when all places are final.
        below: likewise of shapes below it, which nothing hides that it has no colour.
    """
    for number, artist in enumerate(figure.findobj(lambda one: one.get_label() in (*_OWN_GROUND, *_HIDDEN))):
        artist.set_visible(artist.get_visible() and artist.get_label() not in _HIDDEN)
        artist.set_gid(f"own-{number}")
    for mesh in figure.findobj(QuadMesh):
        mesh.set_gid(_CELLS)
    for ground in (figure.patch, *(ax.patch for ax in figure.axes)) if below else ():
        ground.set_visible(False)
    root = ElementTree.fromstring(style.render(figure, "svg", title, ""))
    for parent in root.iter():
        if (
            parent.attrib.get("id") == _CELLS
        ):  # the other half of a grid: squares of nothing, framed by ground
            for child in [one for one in parent if "fill: none" in one.attrib.get("style", "")]:
                parent.remove(child)
        for child in [one for one in parent if one.tag.endswith(("}metadata", "}style", "}title"))]:
            parent.remove(child)
    over, under = (make() if make else Markup() for make in (lay_over, below))
    _convert(root, own=False)
    values = (value for node in root.iter() for value in node.attrib.values())
    used = {one for value in values if value.startswith(("#", "url(")) for one in _REFERENCE.findall(value)}
    short = {own: f"{name}-{number}" for number, own in enumerate(sorted(used))}
    for node in root.iter():
        if "id" in node.attrib and node.attrib["id"] not in used:
            del node.attrib["id"]
        node.attrib = {key: _shortened(key, value, short) for key, value in node.attrib.items()}
    _share_attributes(root)
    inside = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    inside = inside.replace(" />", "/>").encode("ascii", "xmlcharrefreplace").decode()
    box = " ".join(f"{float(part):g}" for part in root.attrib["viewBox"].split())
    return Markup(
        '<svg viewBox="{}" role="{}" aria-label="{}" fill="{}" stroke-linejoin="round" stroke-linecap="butt">'
        "{}{}{}</svg>"
    ).format(box, "group" if over or under else "img", title, INK, under, Markup(inside), over)


def places(ax: Axes, points: np.ndarray) -> np.ndarray:
    """Points ``[points, 2]`` of axes, in the coordinates of their rendered figure's SVG."""
    figure = ax.get_figure(root=True)
    found = ax.transData.transform(np.asarray(points, dtype=float).reshape(-1, 2)) * 72 / figure.dpi
    found[:, 1] = 72 * figure.get_figheight() - found[:, 1]
    return found.round(1)


def _convert(node: ElementTree.Element, own: bool) -> None:
    """Properties as attributes, names without namespaces, and the page's colours where the ground is its."""
    node.tag = node.tag.removeprefix(_SVG)
    if node.attrib.get("id", "").startswith("own-"):
        own = True
        node.attrib.setdefault("fill", style.INK)
    for marker in node if node.tag == "defs" else ():  # each use says it, which the style sheet can change
        marker.attrib.pop("style", None)
    for item in filter(None, node.attrib.pop("style", "").split(";")):
        key, _, value = item.partition(":")
        node.attrib[key.strip()] = value.strip()
    if _LINK in node.attrib:
        node.attrib["href"] = node.attrib.pop(_LINK)
    if node.tag == "use" and (moved := _MOVED.fullmatch(node.attrib.get("transform", ""))):
        del node.attrib["transform"]  # the same, and shorter
        node.attrib.update({key: place for key, place in zip("xy", moved.groups()) if float(place)})
    if not own:
        for key in ("fill", "stroke"):
            theirs = {style.INK: INK, style.WHITE: GROUND}
            if node.attrib.get(key) in theirs:
                node.attrib[key] = theirs[node.attrib[key]]
    for child in node:
        child.tail = None
        _convert(child, own)
    node.text = None


def _share_attributes(node: ElementTree.Element) -> None:
    """Give a group the properties that all its children have: the cells of a grid differ in little."""
    for child in node:
        _share_attributes(child)
    if node.tag != "g" or len(node) < 2:
        return
    moved = any("transform" in child.attrib for child in node)  # clipping areas move with what they clip
    for key in _INHERITED if moved or "clip-path" in node.attrib else (*_INHERITED, "clip-path"):
        (first, *others) = {child.attrib.get(key) for child in node}
        if first is not None and not others:
            node.attrib[key] = first
            for child in node:
                del child.attrib[key]


def _path(text: str) -> str:
    """The same path, in short: lines along an axis have one number."""
    parts, here = [], None
    for command, numbers in _COMMAND.findall(text):
        values = numbers.split()
        if command == "L" and len(values) == 2 and here is not None and here[1] == values[1]:
            parts.append(f"H{values[0]}")
        elif command == "L" and len(values) == 2 and here is not None and here[0] == values[0]:
            parts.append(f"V{values[1]}")
        else:
            parts.append(command + " ".join(values))
        here = tuple(values[-2:]) if len(values) > 1 else None
    return "".join(parts)


def _shortened(key: str, value: str, short: Mapping[str, str]) -> str:
    """An attribute with short ids that no other figure has, and with short numbers."""
    if key == "id":
        return short[value]
    if key == "href" or value.startswith("url("):
        return _REFERENCE.sub(lambda found: short[found[0]], value)
    if key == "transform":
        return _MOVE.sub(lambda found: _LONG.sub(_rounded, found[0]), value)
    if key in _ROUNDED:
        value = _LONG.sub(_rounded, value)
    return _path(value) if key == "d" else value


def _rounded(number: re.Match) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


_WIDTH, MANY = 5.2, 14  # inches; layers that fit into them
_PER_LAYER = 0.24  # inches: the room of each further one
_PAGE = Venue("page", _WIDTH, _WIDTH, 9.0, 9.0, tallest=40.0, sans=True)
NARROW = FigureOptions(_PAGE, formats=("svg",))


@dataclass(frozen=True, eq=False)
class Map:
    """A drawing of all spans.

    Attributes:
        svg: the drawing, with an element of class ``cell`` over every span.
        line_at: the tolerance line as an SVG path at a number of points; None where there is none.
        bar_at: its place on the colour bar, likewise.
    """

    svg: Markup
    line_at: Callable[[float], str] | None = None
    bar_at: Callable[[float], float] | None = None


def line_map(line: SpanLine, labels: Sequence[str], prefix: str) -> Map:
    """Spans that form a line, as a curve.

    Args:
        labels: what each span says to those who do not see it.
        prefix: begins all ids inside.
    """
    with style.paper_style(_PAGE):
        figure = new_figure(_WIDTH, _WIDTH)
        ax = figure.add_subplot()
        draw_line(line, ax, tolerance=0.0)
        ax.set_box_aspect(0.62)
        low, high = ax.get_ylim()
        legend_below(figure, [entry for entry in line_entries([line], 0.0) if "tolerance" not in entry[1]])
        fit_height(figure, _PAGE.tallest)

    def over() -> Markup:
        edges = np.arange(len(line.frame) + 1) - 0.5
        corners = places(ax, [(x, y) for x in edges for y in (low, high)]).reshape(-1, 2, 2)
        boxes = [(a[1][0], a[1][1], b[0][0] - a[0][0], a[0][1] - a[1][1]) for a, b in pairwise(corners)]
        cells = {"label": line.label, "lines": [range(len(boxes))], "boxes": boxes, "labels": labels}
        return render("over", kind="dashes", role="listbox", bar="", **cells)

    def line_at(tolerance: float) -> str:
        (left, y), (right, _) = places(ax, [(-0.6, tolerance), (len(line.frame) - 0.4, tolerance)])
        return f"M{left:g} {y:g}H{right:g}" if low <= tolerance <= high else ""

    return Map(inline(figure, prefix, line.label, over), line_at if line.shows == "drops" else None)


def grid_map(grid: Grid, scale: Scale, labels: Sequence[str], prefix: str) -> Map:
    """A grid of drops, of their spread or of their differences; arguments as of `line_map`."""
    paint = partial(draw, grid, tolerance=0.0, notes=True, scale=scale)
    return _map(grid.frame, paint, scale, grid.label, labels, prefix, grid.shows == "drops")


def interaction_grid(record: AblationRecord, scale: Scale, labels: Sequence[str], prefix: str) -> Map:
    """The grid of an ablation's interactions; arguments as of `line_map`."""
    paint = partial(interaction_map, record, scale=scale)
    label = f"interaction ({unit_name(record.summary.metric)})"
    return _map(record.spans, paint, scale, label, labels, prefix, False)


def _map(
    frame: pd.DataFrame,
    paint: Callable[[Axes], None],
    scale: Scale,
    bar_label: str,
    labels: Sequence[str],
    prefix: str,
    has_line: bool,
) -> Map:
    cells = Cells.of(frame)
    with style.paper_style(_PAGE):
        width = _WIDTH + _PER_LAYER * max(0, len(cells.lasts) - MANY)
        figure = new_figure(width, 1.2 * width)
        ax = figure.add_subplot()
        paint(ax)
        bar = draw_colorbar(scale, [ax], bar_label, None, location="bottom", length=60 * width)
        fit_height(figure, _PAGE.tallest)

    def over() -> Markup:
        corners = places(ax, cells.squares(np.ones(len(frame), bool)).reshape(-1, 2)).reshape(-1, 4, 2)
        low, high = corners.min(axis=1), corners.max(axis=1)
        boxes = np.concatenate([low, high - low], axis=1)
        rows = [np.flatnonzero(cells.positions[:, 0] == row) for row in range(len(cells.firsts))]
        (_, top), (_, foot) = places(bar.ax, [(0.0, end) for end in bar.ax.get_ylim()])
        kind, mark = ("stairs", f"M0 {top:g}V{foot:g}") if has_line else ("", "")
        return render(
            "over", kind=kind, role="grid", label=bar_label, lines=rows, boxes=boxes, labels=labels, bar=mark
        )

    def line_at(tolerance: float) -> str:
        edges = tolerance_border(cells.matrix(drop_points(frame["delta_points"])), tolerance)
        ends = places(ax, np.array(edges, dtype=float).reshape(-1, 2)).reshape(-1, 2, 2)
        return "".join(f"M{x:g} {y:g}" + (f"V{v:g}" if x == u else f"H{u:g}") for (x, y), (u, v) in ends)

    def bar_at(tolerance: float) -> float:
        return float(places(bar.ax, [(min(tolerance, scale.edges[-1]), 0.0)])[0][0])

    svg = inline(figure, prefix, bar_label, over)
    return Map(svg, line_at, bar_at) if has_line else Map(svg)
