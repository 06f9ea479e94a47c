"""Words beside curves and points: legends where there is room, and labels next to marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.legend import Legend
from matplotlib.transforms import Bbox

from . import style
from .layout import before_drawing, size_in_points

_LINE, _MOST_ROOM = 1.4, 0.7  # of a legend: a line in units of its font size; share of the axes' height
_ROUNDS, _WIDEST = 8, 0.93  # in which a legend is fitted to its axes; share of their width
_SIDES = np.array(
    [(0, 1), (0, -1), (1, 0), (-1, 0), (0.8, 0.8), (0.8, -0.8), (-0.8, 0.8), (-0.8, -0.8)]
)  # possible positions of a label around its mark: above first

INTERVAL = "interval"
"""Label of artists that a point's label may cover."""

LegendEntry = tuple[Artist, str]
"""A legend's handle and its words."""


def add_legend(ax: Axes, entries: Sequence[LegendEntry], notes: Sequence[str] = ()) -> None:
    """A legend, headed by the notes, wherever the axes are emptiest."""
    if entries or notes:
        legend = ax.legend(
            [handle for handle, _ in entries], [label for _, label in entries], title="\n".join(notes),
            title_fontsize=style.tick_size(), fontsize=style.tick_size(), frameon=False, alignment="left",
            borderpad=0.2, borderaxespad=0.3, handlelength=2.0, labelspacing=0.28,
        )  # fmt: skip
        legend.set_in_layout(False)
        before_drawing(ax, lambda ax: _narrow(legend, ax))


def with_legend(ax: Axes | None, draw: Callable[[Axes], Sequence[LegendEntry]], *, room: bool = True) -> Axes:
    """Draw on axes, by default the current ones, with a legend of what was drawn: above it, with `room`."""
    ax = plt.gca() if ax is None else ax
    entries = draw(ax)
    if room:
        leave_room(ax, len(entries))
    add_legend(ax, entries)
    return ax


def _narrow(legend: Legend, ax: Axes) -> None:
    """Shrink a legend's letters until it is no wider than the axes; hide it where they would be too small."""
    texts, size = (*legend.get_texts(), legend.get_title()), style.tick_size()
    for _ in range(_ROUNDS):
        for text in texts:
            text.set_fontsize(size)
        excess = legend.get_window_extent().width - _WIDEST * ax.get_window_extent().width
        if excess <= 0 or size <= style.SMALLEST_SIZE:
            break
        letters = max(text.get_window_extent().width for text in texts)
        size = max(style.SMALLEST_SIZE, size * max(0.3, 1 - excess / letters) - 0.02)
    legend.set_visible(excess <= 0)


def leave_room(ax: Axes, n_lines: int) -> None:
    """Extend the axis of values above everything drawn, for a legend of this many lines."""
    low, high = ax.get_ylim()
    share = min(_MOST_ROOM, _LINE * n_lines * style.tick_size() / size_in_points(ax)[1])
    ax.set_ylim(low, low + (high - low) / (1 - share))


@dataclass(frozen=True)
class PointLabel:
    """A label next to a mark, at `x` and `y` in data coordinates, in its series' colour."""

    text: str
    x: float
    y: float
    colour: str


def label_points(ax: Axes, labels: Sequence[PointLabel], *, opaque: bool = False) -> None:
    """Write each label above, below or next to its mark, wherever nothing is drawn; else leave it out.

    Opaque ones cover what is below them: intervals, see `INTERVAL`.
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
            half = pixels * np.array([style.text_width(one.text, size) / 2 + 1.0, 0.5 * size])
            reach = half + 2.6 * pixels * style.scale_factor()
            middle = ax.transData.transform((one.x, one.y))
            word.set(visible=False, size=size)
            for shift in _SIDES * reach:
                box = Bbox([middle + shift - half, middle + shift + half])
                inside = ax.bbox.fully_containsx(box.x0) and ax.bbox.fully_containsx(box.x1)
                inside &= ax.bbox.fully_containsy(box.y0) and ax.bbox.fully_containsy(box.y1)
                if inside and not box.count_contains(taken) and not box.count_overlaps(boxes):
                    word.set(visible=True)
                    word.xyann = tuple(shift / pixels)
                    boxes.append(box)
                    break

    before_drawing(ax, place)


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
