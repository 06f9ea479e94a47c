"""Figures as SVG inside the page: themed by its style sheet, and pointed at through shapes laid over them.

A policy in the page's head forbids style attributes, so the properties become attributes. What lies on the
page's background is drawn in two colours that look black and white but are distinct, `INK` and `GROUND`;
the style sheet replaces them in the dark. Everything else has its own colours on any background.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from xml.etree import ElementTree

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from adapter_probe.figures import style
from adapter_probe.figures.grid import NUMBER

from .markup import Html, plain

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
    lay_over: Callable[[], str] | None = None,
    below: Callable[[], str] | None = None,
) -> Html:
    """A figure as an SVG element.

    Args:
        figure: drawn by this project.
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
    over, under = (make() if make else "" for make in (lay_over, below))
    _convert(root, own=False)
    used = {found for node in root.iter() for value in node.attrib.values() for found in _references(value)}
    short = {own: f"{name}-{number}" for number, own in enumerate(sorted(used))}
    for node in root.iter():
        if "id" in node.attrib and node.attrib["id"] not in used:
            del node.attrib["id"]
        node.attrib = {key: _shortened(key, value, short) for key, value in node.attrib.items()}
    while _without_empty_groups(root):
        pass
    _share_attributes(root)
    inside = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    inside = inside.replace(" />", "/>").encode("ascii", "xmlcharrefreplace").decode()
    box = " ".join(f"{float(part):g}" for part in root.attrib["viewBox"].split())
    return Html(
        f'<svg viewBox="{box}" role="{"group" if over or under else "img"}" aria-label="{plain(title)}"'
        f' fill="{INK}" stroke-linejoin="round" stroke-linecap="butt">{under}{inside}{over}</svg>'
    )


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


def _references(value: str) -> list[str]:
    return _REFERENCE.findall(value) if value.startswith(("#", "url(")) else []


def _without_empty_groups(root: ElementTree.Element) -> bool:
    """Remove groups and definitions without contents; whether there were any."""
    found = [
        (parent, one) for parent in root.iter() for one in parent if one.tag in ("g", "defs") and not len(one)
    ]
    for parent, one in found:
        parent.remove(one)
    return bool(found)


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
