"""Labels next to marks, wherever nothing is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.transforms import Bbox

from . import style
from .layout import before_drawing

_SIDES = np.array(
    [(0, 1), (0, -1), (1, 0), (-1, 0), (0.8, 0.8), (0.8, -0.8), (-0.8, 0.8), (-0.8, -0.8)]
)  # possible positions of a label around its mark: above first


@dataclass(frozen=True)
class PointLabel:
    """A label next to a mark, at `x` and `y` in data coordinates, in its series' colour."""

    text: str
    x: float
    y: float
    colour: str


INTERVAL = "interval"
"""Label of artists that a point's label may cover."""


def label_points(ax: Axes, labels: Sequence[PointLabel], *, opaque: bool = False) -> None:
    """Write each label above, below or next to its mark, wherever nothing is drawn; else leave it out.

    Args:
        ax: where.
        opaque: whether they cover what is below them: intervals, see `INTERVAL`.
    """
    at = {"textcoords": "offset points", "va": "center", "ha": "center", "in_layout": False}
    if opaque:
        at["bbox"] = {"boxstyle": "square,pad=0.02", "fc": ax.get_facecolor(), "ec": "none", "lw": 0.0}
    words = [ax.annotate(one.text, (one.x, one.y), (0, 0), color=one.colour, **at) for one in labels]

    def place(ax: Axes) -> None:
        size, pixels = style.tick_size(), ax.get_figure(root=True).dpi / 72
        taken = _what_is_drawn(ax)
        boxes = [text.get_window_extent() for text in ax.texts if text not in words and text.get_visible()]
        for one, word in zip(labels, words):
            half = pixels * np.array([style.text_width(one.text, size) / 2 + 0.5, 0.46 * size])
            reach = half + 2.6 * pixels * style.scale_factor()
            middle = ax.transData.transform((one.x, one.y))
            options = [(side * reach, _box(middle + side * reach, half)) for side in _SIDES]
            free = [o for o in options if _is_free(o[1], ax.bbox, taken, boxes)]
            word.set(visible=bool(free), size=size)
            if free:
                word.xyann = tuple(free[0][0] / pixels)
                boxes.append(free[0][1])

    before_drawing(ax, place)


def _box(middle: np.ndarray, half: np.ndarray) -> Bbox:
    return Bbox([middle - half, middle + half])


def _is_free(box: Bbox, within: Bbox, taken: np.ndarray, boxes: Sequence[Bbox]) -> bool:
    inside = box.x0 > within.x0 and box.x1 < within.x1 and box.y0 > within.y0 and box.y1 < within.y1
    return inside and not box.count_contains(taken) and not box.count_overlaps(boxes)


def _what_is_drawn(ax: Axes) -> np.ndarray:
    """Pixels on the lines, bars and marks in axes, ``[samples, 2]``; a sample every few pixels."""
    found = [np.zeros((0, 2))]
    paths = [line.get_transform().transform(line.get_xydata()) for line in ax.lines]
    for collection in ax.collections:
        if collection.get_label() == INTERVAL:
            continue
        offsets = np.ma.filled(collection.get_offsets().astype(float), np.nan)
        found.append(collection.get_offset_transform().transform(offsets))
        if isinstance(collection, LineCollection):
            paths += [collection.get_transform().transform(segment) for segment in collection.get_segments()]
    for path in paths:
        for start, end in pairwise(path):
            if np.isfinite([start, end]).all():
                found.append(np.linspace(start, end, 2 + int(np.hypot(*(end - start)) / 4)))
        found.append(np.reshape(path, (-1, 2)))  # an undefined interval has no points
    samples = np.concatenate(found)
    return samples[np.isfinite(samples).all(axis=1)]
