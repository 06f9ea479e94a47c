"""Words among data: each goes where nothing is drawn, and a spare one stays away rather than overlap."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes

from . import style

Box = tuple[float, float, float, float]
"""Left, bottom, right, top: points from the axes' lower left corner."""

_STEP = 1.5  # points between samples of a line
_TALL, _DEEP = 0.72, 0.22  # of a letter's size: above and below the base line
_LEADING = 1.25
_GRID = np.linspace(0.0, 1.0, 9)  # where notes may go: their boxes' corners, in shares of the room left


class Room:
    """What is drawn in axes whose place and limits are final: where no word may go."""

    def __init__(self, ax: Axes):
        """Nothing is taken yet."""
        self._ax = ax
        figure = ax.figure
        width, height = 72 * figure.get_size_inches()
        position = ax.get_position()
        self.width, self.height = position.width * width, position.height * height
        self._points = np.empty((0, 3))  # x, y, radius
        self._boxes: list[Box] = []

    def place(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Data as points from the lower left corner, ``[data, 2]``; NaN stays NaN."""
        pixels = self._ax.transData.transform(np.column_stack([x, y]).astype(float))
        return (pixels - self._ax.bbox.min) * 72 / self._ax.figure.dpi

    def take_points(self, x: np.ndarray, y: np.ndarray, radius: float) -> None:
        """Marks of a radius in points."""
        placed = self.place(np.atleast_1d(x), np.atleast_1d(y))
        self._take(placed[np.isfinite(placed).all(axis=1)], radius)

    def take_line(self, x: np.ndarray, y: np.ndarray, radius: float = 0.6) -> None:
        """A line through the data; a gap where a value is NaN."""
        placed = self.place(x, y)
        for start, end in pairwise(placed):
            if np.isfinite([start, end]).all():
                n = 2 + int(np.hypot(*(end - start)) / _STEP)
                self._take(np.linspace(start, end, n), radius)

    def _take(self, points: np.ndarray, radius: float) -> None:
        rows = np.column_stack([points, np.full(len(points), radius)])
        self._points = np.concatenate([self._points, rows])

    def crowd(self, box: Box) -> int:
        """How much lies in a box: samples of what is drawn, and words, which count much."""
        left, bottom, right, top = box
        x, y, radius = self._points.T
        inside = (x > left - radius) & (x < right + radius) & (y > bottom - radius) & (y < top + radius)
        words = sum(left < b[2] and right > b[0] and bottom < b[3] and top > b[1] for b in self._boxes)
        return int(inside.sum()) + 1000 * words

    def holds(self, box: Box) -> bool:
        """Whether a box lies within the axes, clear of their lines."""
        inside = box[0] >= 1 and box[1] >= 1
        return inside and box[2] <= self.width - 1 and box[3] <= self.height - 1

    def take_box(self, box: Box) -> None:
        """Words."""
        self._boxes.append(box)

    def write(self, text: str, box: Box, size: float, colour: str) -> None:
        """Set one line into a box made by `text_box`, and take its place."""
        left, bottom, *_ = box
        self.take_box(box)
        self._ax.annotate(
            text,
            (0, 0),
            xytext=(left, bottom + _DEEP * size),
            xycoords="axes fraction",
            textcoords="offset points",
            size=size,
            color=colour,
            va="baseline",
            zorder=5,
        )


def text_box(text: str, size: float, left: float, bottom: float) -> Box:
    """The box of one line at a place."""
    return left, bottom, left + style.text_width(text, size), bottom + (_TALL + _DEEP) * size


def write_beside(room: Room, text: str, x: float, y: float, *, colour: str, clearance: float) -> bool:
    """Label a mark above, below, right or left of it, wherever nothing is drawn.

    Args:
        room: what is drawn already.
        text: one line.
        x: of the mark, data.
        y: of the mark, data.
        colour: of the letters.
        clearance: points between the mark's centre and the text.

    Returns:
        False where there is no free place; then nothing is written.
    """
    size = style.tick_size()
    ((px, py),) = room.place(np.array([x]), np.array([y]))
    width, height = style.text_width(text, size), (_TALL + _DEEP) * size
    middle, level = px - width / 2, py - height / 2
    places = [
        (middle, py + clearance),
        (middle, py - clearance - height),
        (px + clearance, level),
        (px - clearance - width, level),
        (px + 0.7 * clearance, py + 0.7 * clearance),
        (px + 0.7 * clearance, py - 0.7 * clearance - height),
        (px - 0.7 * clearance - width, py + 0.7 * clearance),
        (px - 0.7 * clearance - width, py - 0.7 * clearance - height),
    ]
    for left, bottom in places:
        box = text_box(text, size, left, bottom)
        if room.holds(box) and not room.crowd(box):
            room.write(text, box, size, colour)
            return True
    return False


def write_notes(room: Room, lines: Sequence[str], colour: str = style.INK) -> None:
    """Set a few lines into the emptiest place, corners first; the first alone if all do not fit."""
    size, pad = style.tick_size(), 3.0 * style.unit()
    crowd, left, bottom = _emptiest(room, lines, size, pad)
    if crowd and len(lines) > 1:
        lines = lines[:1]
        _, left, bottom = _emptiest(room, lines, size, pad)
    for index, line in enumerate(reversed(lines)):
        room.write(line, text_box(line, size, left, bottom + index * _LEADING * size), size, colour)


def _emptiest(room: Room, lines: Sequence[str], size: float, pad: float) -> tuple[int, float, float]:
    """How crowded the best place for the lines is, and its lower left corner."""
    width = max(style.text_width(line, size) for line in lines)
    height = _LEADING * size * (len(lines) - 1) + (_TALL + _DEEP) * size
    free_x, free_y = max(0.0, room.width - width - 2 * pad), max(0.0, room.height - height - 2 * pad)
    places = [(u, v, pad + u * free_x, pad + v * free_y) for u in _GRID for v in _GRID]
    crowd, _, left, bottom = min(
        (room.crowd(_around(left, bottom, width, height)), _off_corner(u, v), left, bottom)
        for u, v, left, bottom in places
    )
    return crowd, left, bottom


def _around(left: float, bottom: float, width: float, height: float, margin: float = 2.0) -> Box:
    return left - margin, bottom - margin, left + width + margin, bottom + height + margin


def _off_corner(u: float, v: float) -> float:
    """How far from a corner; of equals the lower right one is best, then the lower left."""
    return min(u, 1 - u) + min(v, 1 - v) + 0.02 * (v > 0.5) + 0.01 * (u < 0.5)


def spread(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move heights apart to at least `gap`, in their order, none farther than a sweep up and down takes it.

    Args:
        heights: points.
        gap: points.
        low: the lowest place allowed.
        high: the highest place allowed; given up before the order is.
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [0.0] * len(heights)
    floor = low
    for i in order:
        placed[i] = max(heights[i], floor)
        floor = placed[i] + gap
    ceiling = max(high, low + gap * (len(heights) - 1))
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed
