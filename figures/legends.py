"""Legends of curves: in the axes where there is room, or on top, fitted to their width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.legend import Legend

from . import style
from .layout import before_drawing, size_in_points

_LINE, _MOST_ROOM = 1.4, 0.7  # of a legend: a line in units of its font size; share of the axes' height
_ROUNDS, _WIDEST = 8, 0.93  # in which a legend is fitted to its axes; share of their width

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


def with_legend(ax: Axes | None, draw: Callable[[Axes], Sequence[LegendEntry]]) -> Axes:
    """Draw on axes, by default the current ones, with a legend of what was drawn above it."""
    ax = plt.gca() if ax is None else ax
    entries = draw(ax)
    leave_room(ax, len(entries))
    add_legend(ax, entries)
    return ax


def legend_on_top(ax: Axes, entries: Sequence[LegendEntry]) -> None:
    """A legend above everything drawn, for which the axis of values is extended when the axes are drawn.

    Limits that are set afterwards are left as they are.
    """
    legend = ax.legend(
        [handle for handle, _ in entries], [label for _, label in entries], loc="upper left", frameon=False,
        fontsize=style.tick_size(), borderpad=0.2, borderaxespad=0.2, handlelength=1.4, handletextpad=0.5,
        labelspacing=0.28,
    )  # fmt: skip
    legend.set_in_layout(False)
    low, high = ax.get_ylim()
    leave_room(ax, len(entries))
    own = [ax.get_ylim()]

    def fit(ax: Axes) -> None:
        _narrow(legend, ax)
        if ax.get_ylim() == own[0]:
            share = legend.get_window_extent().height / ax.get_window_extent().height
            share = min(_MOST_ROOM, share + 0.02) if legend.get_visible() else 0.0
            ax.set_ylim(low, low + (high - low) / (1 - share))
            own[0] = ax.get_ylim()

    before_drawing(ax, fit)


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
