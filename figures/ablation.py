"""The ablation's figure: one or several grids of spans side by side, one scale, one colour bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adapter_probe import metrics
from adapter_probe.analysis.deltas import Study, drop_points, span_scores, study_kind
from adapter_probe.results.ablation import AblationResults

from . import style
from .heatmap import draw
from .levels import DropScale, draw_scale
from .wording import ablation_notes, drop_label

# Points: around and between the grids, then the colour bar below or beside them.
_LEFT, _BETWEEN, _RIGHT, _TOP, _BELOW = 27.0, 22.0, 2.0, 3.0, 25.0
_BAR, _BAR_GAP, _BAR_TICKS, _LINE = 8.0, 5.0, 12.0, 10.0
_BAR_BESIDE, _GAIN_WORD, _LONGEST_BAR = 54.0, 28.0, 330.0
_SMALLEST_GRID = 72.0

Place = tuple[float, float, float, float]
"""x, y, width and height from the figure's lower left corner, points."""


@dataclass(frozen=True, eq=False)
class Panel:
    """One grid of the figure.

    Attributes:
        frame: columns `first`, `last`, `delta_points` and, optionally, `significant` (bool).
        notes: lines for the empty corner, the first one the task.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()


def save_ablation_heatmap(
    results: AblationResults,
    folder: str | Path,
    *,
    task: str,
    split: str = "validation",
    tolerance: float = 1.0,
    width: float = style.HALF_WIDTH,
    frame: pd.DataFrame | None = None,
    formats: Sequence[str] = style.FORMATS,
) -> tuple[Path, ...]:
    """Write `heatmap.pdf`, `.svg` and `.png` of one ablation into `folder` and return their paths.

    Args:
        results: the ablation.
        folder: made if missing.
        task: the task's name, the first line of the notes.
        split: which data the scores are of; a word on the colour bar.
        tolerance: points that the black line stands for.
        width: inches, `style.HALF_WIDTH` or `style.FULL_WIDTH`.
        frame: `span_scores(results)` with further columns such as `significant`; computed by default.
        formats: out of `style.FORMATS`.

    Raises:
        ResultsError: the results lack an intact row, or a file cannot be written.
    """
    study = study_kind(results)
    panel = Panel(span_scores(results) if frame is None else frame, ablation_notes(results, task))
    figure = ablation_figure(
        [panel], study=study, metric=results.metric, split=split, tolerance=tolerance, width=width
    )
    title = f"{task}: {metrics.metric_label(results.metric)} by span of {study} layers"
    return style.save(figure, folder, "heatmap", title=title, identity=results.identity, formats=formats)


def ablation_figure(
    panels: Sequence[Panel],
    *,
    study: Study = "ablated",
    metric: str | None = "accuracy",
    split: str = "validation",
    tolerance: float = 1.0,
    width: float = style.HALF_WIDTH,
) -> Figure:
    """Grids side by side, exactly `width` inches wide; the bar stands beside a single grid in a wide figure.

    Args:
        panels: one a grid, from the left.
        study: what happened to the spans; it names the axes.
        metric: what the drops are of; None if the panels differ in it.
        split: which data; a word on the colour bar.
        tolerance: points that the black line stands for.
        width: inches.

    Raises:
        ValueError: no panels, or a width that leaves no room for them.
        ResultsError: a frame is not a grid of spans.
    """
    beside = len(panels) == 1 and width > 1.2 * style.HALF_WIDTH
    label = drop_label(metric, split, tolerance)
    if not beside and style.text_width(label, style.LABEL_SIZE) > 72 * width - 4:
        label = label.replace("; ", "\n")
    layout = _lay_out(len(panels), 72 * width, beside, 1 + label.count("\n"))
    scale = DropScale.spanning(np.concatenate([drop_points(panel.frame["delta_points"]) for panel in panels]))
    with style.paper_style():
        figure = Figure(figsize=(width, layout.height / 72))
        for index, (panel, place) in enumerate(zip(panels, layout.grids)):
            ax = draw(
                panel.frame,
                _add_axes(figure, place),
                notes=panel.notes,
                tolerance=tolerance,
                scale=scale,
                study=study,
            )
            if index:
                ax.set_ylabel("")
        draw_scale(scale, _add_axes(figure, layout.bar), label=label, tolerance=tolerance, vertical=beside)
    return figure


@dataclass(frozen=True)
class _Layout:
    height: float
    grids: tuple[Place, ...]
    bar: Place


def _lay_out(n_grids: int, width: float, beside: bool, label_lines: int) -> _Layout:
    """Places in points; the grids are square and as large as the width lets them be."""
    margins = _LEFT + (_BAR_BESIDE if beside else _RIGHT) + _BETWEEN * (n_grids - 1)
    side = (width - margins) / n_grids if n_grids else 0.0
    if side < _SMALLEST_GRID:
        raise ValueError(f"{n_grids} grids do not fit {width / 72:g} inches: each needs at least one inch")
    foot = 0.0 if beside else _BAR_GAP + _BAR + _BAR_TICKS + _LINE * label_lines
    grids = tuple((_LEFT + i * (side + _BETWEEN), foot + _BELOW, side, side) for i in range(n_grids))
    if beside:
        bar = (_LEFT + side + 14, _BELOW + 0.1 * side, _BAR, 0.8 * side)
    else:
        length = min(width - _LEFT - _GAIN_WORD - _RIGHT - 8, _LONGEST_BAR)
        start = _LEFT + (width - _LEFT - _RIGHT - length + _GAIN_WORD) / 2
        bar = (start, foot - _BAR_GAP - _BAR, length, _BAR)
    return _Layout(_TOP + side + _BELOW + foot, grids, bar)


def _add_axes(figure: Figure, place: Place) -> Axes:
    width, height = 72 * figure.get_size_inches()
    x, y, w, h = place
    return figure.add_axes((x / width, y / height, w / width, h / height))
