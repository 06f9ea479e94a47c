"""The ablation's figure: one or several grids of spans side by side, one scale, one colour bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from adapter_probe.analysis.deltas import drop_points
from adapter_probe.analysis.studies import AblationOverview

from . import style
from .captions import heatmap_caption
from .drawing import Drawing, Place, add_axes
from .heatmap import draw
from .levels import DropScale, draw_scale
from .venues import Look
from .wording import ablation_notes, drop_label, task_label, test_name

STEM = "heatmap"
# Units: around and between the grids, then the colour bar below or beside them.
_LEFT, _BETWEEN, _RIGHT, _TOP, _BELOW = 27.0, 22.0, 2.0, 3.0, 25.0
_BAR, _BAR_GAP, _BAR_TICKS, _LINE = 8.0, 5.0, 12.0, 10.0
_BAR_BESIDE, _GAIN_WORD, _LONGEST_BAR = 54.0, 28.0, 330.0
_SMALLEST_GRID = 72.0  # points
WIDE = 4.5  # inches: from here on, grids stand side by side and one alone has its bar beside it


@dataclass(frozen=True, eq=False)
class Panel:
    """One grid of the figure.

    Attributes:
        frame: columns `first`, `last`, `delta_points` and, optionally, `significant` and `non_monotone`.
        facts: whose grid it is; None for a published one.
        notes: lines for the empty corner, the first one the task.
    """

    frame: pd.DataFrame
    facts: AblationOverview | None = None
    notes: tuple[str, ...] = ()


def ablation_panel(frame: pd.DataFrame, facts: AblationOverview) -> Panel:
    """An ablation's grid with its notes."""
    return Panel(frame, facts, ablation_notes(facts))


def heatmap(panels: Sequence[Panel], look: Look, identity: Mapping[str, object]) -> Drawing:
    """The figure of one or several ablations, with its CSV and caption.

    Raises:
        ResultsError: a frame is not a grid of spans.
    """
    own = [panel.facts for panel in panels if panel.facts is not None]
    metrics = {facts.metric for facts in own}
    # A published grid beside ours is of accuracy.
    metric = metrics.pop() if len(metrics) == 1 else None
    if len(own) < len(panels) and metric != "accuracy":
        metric = None
    split = own[0].split if len({facts.split for facts in own}) == 1 else ""
    figure = ablation_figure(
        panels, look, study=own[0].study, metric=metric, split=split, preferred_wide=len(panels) > 1
    )
    names = " and ".join(dict.fromkeys(task_label(facts.task) for facts in own))
    title = f"{names}: score by span of {own[0].study} layers"
    caption = heatmap_caption(panels, look.tolerance)
    return Drawing(STEM, title, figure, _numbers(panels), caption, identity)


def _numbers(panels: Sequence[Panel]) -> pd.DataFrame:
    """The panels' frames below one another, with a column that says whose they are."""
    named = []
    for panel in panels:
        name = task_label(panel.facts.task) if panel.facts else f"{panel.notes[0]} (Houlsby et al. 2019)"
        named.append(panel.frame.copy())
        named[-1].insert(0, "grid", name)
    return pd.concat(named, ignore_index=True) if len(named) > 1 else panels[0].frame


def ablation_figure(
    panels: Sequence[Panel],
    look: Look,
    *,
    study: str = "ablated",
    metric: str | None = "accuracy",
    split: str = "validation",
    preferred_wide: bool = False,
) -> Figure:
    """Grids in rows, exactly as wide as the venue asks for; the bar stands beside a single grid if wide.

    Args:
        panels: one a grid, from the upper left.
        look: sizes and the tolerance.
        study: what happened to the spans; it names the axes.
        metric: what the drops are of; None if the panels differ in it.
        split: which data; a word on the colour bar.
        preferred_wide: whether it fills the text's width where the look leaves that open.

    Raises:
        ValueError: no panels, or a width that leaves no room for them.
        ResultsError: a frame is not a grid of spans.
    """
    width = look.width("full" if preferred_wide else "half")
    scale = DropScale.spanning(np.concatenate([drop_points(panel.frame["delta_points"]) for panel in panels]))
    with style.paper_style(look.venue):
        beside = len(panels) == 1 and width >= WIDE
        label = " ".join(drop_label(metric, split, look.tolerance).split())
        layout = lay_out(len(panels), 72 * width, 72 * look.venue.tallest, beside, label)
        figure = Figure(figsize=(width, layout.height / 72))
        for index, (panel, place) in enumerate(zip(panels, layout.grids)):
            ax = draw(
                panel.frame,
                add_axes(figure, place),
                notes=panel.notes,
                tolerance=look.tolerance,
                scale=scale,
                study=study,
                test=test_name(panel.facts.metric) if panel.facts else None,
            )
            if index % layout.columns:
                ax.set_ylabel("")
        draw_scale(
            scale, add_axes(figure, layout.bar), label=layout.label, tolerance=look.tolerance, vertical=beside
        )
    return figure


@dataclass(frozen=True)
class Layout:
    """Where grids and bar stand, points.

    Attributes:
        height: of the figure.
        columns: grids in a row.
        grids: their places, row by row.
        bar: the colour bar's place.
        label: the bar's label, broken into lines that fit.
    """

    height: float
    columns: int
    grids: tuple[Place, ...]
    bar: Place
    label: str


def lay_out(n_grids: int, width: float, tallest: float, beside: bool, label: str) -> Layout:
    """Square grids, as large as width and height let them be but an inch at least; in the style in force.

    Raises:
        ValueError: no grids, or a width that leaves no room for them.
    """
    u = style.unit()
    columns = n_columns(n_grids, width)
    rows = -(-n_grids // max(columns, 1))
    if beside:
        label = style.wrapped(label, style.label_size(), min(0.8 * width, tallest) - u * (_TOP + _BELOW))
    else:
        label = style.wrapped(label, style.label_size(), width - 4)
    lines = 1 + label.count("\n")
    foot = 0.0 if beside else u * (_BAR_GAP + _BAR + _BAR_TICKS + _LINE * lines)
    right = _BAR_BESIDE + _LINE * (lines - 1) if beside else _RIGHT
    margins = u * (_LEFT + right + _BETWEEN * (columns - 1))
    across = (width - margins) / columns if columns else 0.0
    # Where the height would press the grids flat, the figure is taller than was asked for.
    side = min(across, max((tallest - foot) / max(rows, 1) - u * (_TOP + _BELOW), _SMALLEST_GRID))
    if across < _SMALLEST_GRID:
        raise ValueError(f"{n_grids} grids do not fit {width / 72:g} inches: each needs at least one inch")
    indent = (across - side) * columns / 2  # grids that the height bounds stand in the middle
    height = u * (_TOP + _BELOW) * rows + side * rows + foot
    grids = []
    for index in range(n_grids):
        row, column = divmod(index, columns)
        x = indent + u * _LEFT + column * (side + u * _BETWEEN)
        grids.append((x, height - (row + 1) * (u * _TOP + side) - row * u * _BELOW, side, side))
    bar = _place_bar(width, foot, beside, grids[0])
    return Layout(height, columns, tuple(grids), bar, label)


def n_columns(n_grids: int, width: float) -> int:
    """Grids in a row: up to three where there is room, and four as two and two."""
    if width < 72 * WIDE:
        return min(n_grids, 1)
    return 2 if n_grids == 4 else min(n_grids, 3)


def _place_bar(width: float, foot: float, beside: bool, grid: Place) -> Place:
    u = style.unit()
    x, y, side, _ = grid
    if beside:
        return x + side + 14 * u, y + 0.1 * side, u * _BAR, 0.8 * side
    length = min(width - u * (_LEFT + _GAIN_WORD + _RIGHT + 8), u * _LONGEST_BAR)
    start = u * _LEFT + (width - u * (_LEFT + _RIGHT - _GAIN_WORD) - length) / 2
    return start, foot - u * (_BAR_GAP + _BAR), length, u * _BAR
