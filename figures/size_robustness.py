"""Does the adapter size need tuning? Score against size, task by task (Houlsby et al. 2019, section 3.6)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from adapter_probe.analysis.published import published_sizes

from . import style
from .captions import size_robustness_caption
from .curves import METHODS, Entry, Mark, legend_height, line_of, look_of, place_legend, tidy_axes
from .drawing import Drawing, add_axes
from .labels import Room, spread
from .venues import Look
from .wording import literal, task_label

STEM = "size-robustness"
FIXED_COLUMNS = ("size", "n_tasks", "mean_score", "sem")
_LEFT, _TOP, _BELOW, _ASPECT = 32.0, 4.0, 25.0, 0.9  # units; height over width
_TASK_COLOURS = ("#56b4e9", "#009e73", "#cc79a7", "#b8860b", "#0072b2", "#7f7f7f")
_DASHES = ("-", "--", "-.", ":")
_MEAN = Mark("#000000", "o", "-", 3.8)


def size_robustness(frame: pd.DataFrame, look: Look, identity: Mapping[str, object]) -> Drawing:
    """The figure, with its CSV and caption.

    Args:
        frame: columns of ``sizes.csv``: `FIXED_COLUMNS`, then one a task.
        look: sizes.
        identity: what determines the numbers.
    """
    published = published_sizes() if look.paper else None
    figure = size_robustness_figure(frame, look, published)
    numbers = frame.assign(source="this run")
    if published is not None:
        numbers = pd.concat([numbers, published.assign(source="Houlsby et al. 2019")], ignore_index=True)
    caption = size_robustness_caption(frame, tasks_of(frame), published is not None)
    return Drawing(STEM, "score against adapter size", figure, numbers, caption, identity)


def tasks_of(frame: pd.DataFrame) -> list[str]:
    """The tasks' columns."""
    return [str(name) for name in frame.columns if name not in FIXED_COLUMNS]


def size_robustness_figure(frame: pd.DataFrame, look: Look, published: pd.DataFrame | None = None) -> Figure:
    """One axes, tasks named at their lines' ends, the legend below."""
    width = look.width("half")
    with style.paper_style(look.venue):
        u, size = style.unit(), style.tick_size()
        names = [literal(task_label(task)) for task in tasks_of(frame)]
        labels = names if len(names) > 1 else []
        right = 8 * u + min(max((style.text_width(name, size) for name in labels), default=0.0), 24 * width)
        legend = _legend(names, published)
        foot = legend_height(legend, 72 * width) + u * _BELOW
        across = 72 * width - u * _LEFT - right
        tall = min(_ASPECT * across, 72 * look.venue.tallest - foot - u * _TOP, 190 * u)
        figure = Figure(figsize=(width, (foot + tall + u * _TOP) / 72))
        draw(frame, add_axes(figure, (u * _LEFT, foot, across, tall)), published=published)
        place_legend(figure, legend, 0.0, 0.0, 72 * width)
    return figure


def draw(frame: pd.DataFrame, ax: Axes, *, published: pd.DataFrame | None = None) -> Axes:
    """Draw the lines into axes that already stand at their place, within `style.paper_style`.

    Args:
        frame: columns of ``sizes.csv``, scores as fractions.
        ax: where; names of tasks stand to its right.
        published: the paper's means; None for none.
    """
    unit = style.unit()
    frame = frame.sort_values("size")
    x = frame["size"].to_numpy(float)
    tidy_axes(ax)
    ax.grid(False, axis="x")
    ax.set_xscale("log", base=2)
    ax.set_xlabel("adapter size")
    texts = ["validation score × 100", "score × 100"]
    ax.set_ylabel(style.fitting(texts, style.label_size(), 1.05 * Room(ax).height))
    ends = []
    tasks = tasks_of(frame)
    for index, task in enumerate(tasks if len(tasks) > 1 else []):  # one task is the mean
        y = 100 * frame[task].to_numpy(float)
        colour, dash = _TASK_COLOURS[index % len(_TASK_COLOURS)], _DASHES[index % len(_DASHES)]
        ax.plot(x, y, color=colour, linestyle=dash, linewidth=0.9 * unit, zorder=2)
        known = np.flatnonzero(np.isfinite(y))
        if known.size:
            ends.append((y[known[-1]], literal(task_label(task)), colour))
    if published is not None:
        look = look_of(METHODS["adapters"], published=True) | {"color": style.INK}
        ax.plot(published["size"], 100 * published["mean_score"], zorder=3, **look)
    mean, sem = 100 * frame["mean_score"], 100 * frame["sem"]
    ax.errorbar(x, mean, sem, elinewidth=0.8 * unit, zorder=4, **look_of(_MEAN))
    _set_ticks(ax, x, published)
    _name_lines(ax, ends)
    return ax


def _set_ticks(ax: Axes, x: np.ndarray, published: pd.DataFrame | None) -> None:
    sizes = np.unique(x if published is None else np.concatenate([x, published["size"].to_numpy(float)]))
    ax.set_xlim(sizes[0] / 1.35, sizes[-1] * 1.35)
    room = Room(ax)
    places = room.place(sizes, np.full(len(sizes), ax.get_ylim()[0]))[:, 0]
    gap = style.text_width("000", style.tick_size()) + 3
    shown = [sizes[-1]]  # from the greatest down, as many as do not touch
    for size, place in zip(sizes[-2::-1], places[-2::-1]):
        if room.place(np.array(shown[-1:]), np.array([ax.get_ylim()[0]]))[0, 0] - place >= gap:
            shown.append(size)
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(shown, [f"{size:.0f}" for size in shown])


def _name_lines(ax: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Each task's name right of its line's end, moved apart where they would overlap."""
    if not ends:
        return
    room, size = Room(ax), style.tick_size()
    at = room.place(np.full(len(ends), ax.get_xlim()[1]), np.array([end for end, _, _ in ends]))[:, 1]
    heights = spread(at.tolist(), 1.05 * size, 0.3 * size, room.height - 0.3 * size)
    for (_, name, colour), height, origin in zip(ends, heights, at):
        unit = style.unit()
        here = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
        ax.annotate(name, (1, 0), xytext=(5 * unit, height), va="center_baseline", size=size,
                    color=_dark(colour), **here)  # fmt: skip
        share = origin / room.height, height / room.height
        edge = 1 + 4 * unit / room.width
        ax.plot([1, edge], share, color=colour, linewidth=0.4 * unit, transform=ax.transAxes, clip_on=False)


def _dark(colour: str) -> str:
    """The colour, or black where it would be hard to read as letters."""
    return colour if style.contrast(colour, style.WHITE) >= 3 else style.INK


def _legend(names: list[str], published: pd.DataFrame | None) -> list[Entry]:
    if len(names) == 1:
        entries: list[Entry] = [(line_of(_MEAN), f"{names[0]}, mean ± s.e.m.")]
    else:
        one = Line2D([], [], color="#7f7f7f", linewidth=0.9 * style.unit())
        entries = [(line_of(_MEAN), "mean over tasks ± s.e.m."), (one, "one task")]
    if published is not None:
        look = look_of(METHODS["adapters"], published=True) | {"color": style.INK}
        entries.append((Line2D([], [], **look), "Houlsby et al. 2019, 8 GLUE tasks"))
    return entries
