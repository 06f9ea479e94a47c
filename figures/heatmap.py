"""Heatmap of the drop without each span's adapters (Houlsby et al. 2019, Fig. 6), on any Matplotlib axes.

Row = first layer of the span, column = last. Colours are the levels of `DropScale`; a black line separates
the spans within the tolerance from the others; single layers are outlined. Colour is never the only cue:
lightness decreases with the drop, gains have a minus sign, and line and outlines differ in place and weight.
A ring in a cell's upper right corner marks a difference that is not significant, a triangle in its lower left
corner a span with a smaller drop than a shorter span inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import StudyKind, drop_points
from adapter_probe.analysis.published import PUBLISHED_TASKS, published_ablation
from adapter_probe.analysis.staircase import staircase
from adapter_probe.analysis.studies import AblationOverview, AblationRecord
from adapter_probe.known_tasks import known_task

from . import style
from .grid import Cells, draw_cells, number_size
from .layout import size_in_points
from .levels import DivergingScale, DropScale, Scale, draw_colorbar
from .marks import draw_rings, draw_staircase, draw_triangles, write_notes
from .wording import (
    ablation_notes,
    drop_label,
    drop_name,
    drop_text,
    joint_notes,
    one_decimal,
    study_label,
    test_name,
    unit_name,
)

_WIDEST_SPREAD = "0.5\n± 0.5"  # text that cells must have room for, so that the spread is legible
_NARROWEST = 108.0  # points: a grid with its labels


def heatmap(
    record: AblationRecord | AverageRecord | ComparisonRecord,
    ax: Axes | None = None,
    *,
    tolerance: float = 1.0,
    paper: bool = False,
    colorbar: bool = True,
    notes: bool = True,
    scale: Scale | None = None,
    spread: bool = False,
) -> Axes:
    """Draw an ablation's drops by span, their mean over several ablations, or the difference of two.

    Args:
        record: an ablation, an average or a comparison.
        ax: Axes to draw on; by default the current Axes. A colour bar takes its room from it. Of an average
            whose grid is too deep for numbers, the spread over the studies takes the right half, if that is
            an inch and a half wide.
        tolerance: tolerated drop, in percentage points, marked by the black line; ignored for differences.
        paper: for an ablation, whether the published grid of the same task, if there is one, is drawn in the
            right half of the axes.
        colorbar: whether to draw a colour bar.
        notes: whether to print task, scores and the legend of symbols in the empty corner.
        scale: colour levels; by default the smallest scale that covers the drops.
        spread: for an average, draw the standard deviation over the studies instead of the mean.

    Returns:
        the axes of the record's grid.

    Raises:
        ResultsError: the spans are not a grid.
    """
    ax = plt.gca() if ax is None else ax
    if not isinstance(record, AblationRecord):
        label, scale = label_of(record), scale or scale_of(record)
        said = joint_notes(record) if notes else None
        if isinstance(record, ComparisonRecord):
            frame = record.spans.assign(delta_points=-record.spans["difference_points"])
            return difference(frame, ax, label=label, colorbar=colorbar, notes=said, scale=scale)
        width = size_in_points(ax)[0]
        halved = not spread and not spread_fits(record, width) and width >= 2 * _NARROWEST
        axes = [ax, _right_half(ax)] if halved else [ax]
        if spread:
            draw_spread(record, ax, notes=notes, scale=scale)
        else:
            draw_average(record, axes, tolerance=tolerance, notes=said, scale=scale)
        if colorbar:
            label = f"s.d. of {drop_label(record.metric)}" if spread else label
            _add_bar(scale, axes, label, None if spread else tolerance)
        return ax
    overview = record.overview
    published = published_grid(overview.task, overview.study) if paper else None
    label = label_of(record)
    grid = Grid(record.spans, ablation_notes(overview), overview)
    axes = [ax] if published is None else [ax, _right_half(ax)]
    grids = [grid] if published is None else [grid, published]
    if scale is None:
        scale = joint_scale(grids)
    for one, place in zip(grids, axes):
        draw_grid(one, place, tolerance=tolerance, notes=notes, scale=scale)
    if colorbar:
        _add_bar(scale, axes, label, tolerance)
    return ax


def label_of(record: AblationRecord | AverageRecord | ComparisonRecord) -> str:
    """Label of the colour bar."""
    if isinstance(record, AblationRecord):
        return drop_label(record.overview.metric, record.overview.split)
    if isinstance(record, AverageRecord):
        return f"mean {drop_label(record.metric)}"
    return f"difference of {drop_name(record.metric)}s ({unit_name(record.metric)})"


def scale_of(record: AverageRecord | ComparisonRecord) -> Scale:
    """The smallest scale that covers the record."""
    if isinstance(record, ComparisonRecord):
        return DivergingScale.spanning(record.spans["difference_points"].to_numpy(float))
    drops = drop_points(record.spans["delta_points"])
    return DropScale.spanning(np.concatenate([drops, record.spans["sd_points"].to_numpy(float)]))


def spread_fits(record: AverageRecord, width: float) -> bool:
    """Whether cells have room for a mean and, below it, its spread over the studies."""
    return number_size([_WIDEST_SPREAD], width / record.spans["last"].nunique()) is not None


def draw_average(
    record: AverageRecord,
    axes: Sequence[Axes],
    *,
    tolerance: float,
    notes: Sequence[str] | None,
    scale: Scale,
) -> None:
    """Draw the mean drops on the first axes and, if there are second axes, their spread there."""
    draw(
        record.spans, axes[0], tolerance=tolerance, colorbar=False, notes=notes, scale=scale,
        spread="sd_points",
    )  # fmt: skip
    for ax in axes[1:]:
        draw_spread(record, ax, notes=notes is not None, scale=scale)
        ax.set_ylabel("")


def draw_spread(record: AverageRecord, ax: Axes, *, notes: bool, scale: Scale) -> None:
    """Draw the standard deviation over the studies, on the scale of the means."""
    frame = record.spans[["first", "last"]].assign(delta_points=-record.spans["sd_points"])
    said = [f"s.d. over {len(record.names)} studies"] if notes else None
    draw(frame, ax, tolerance=None, colorbar=False, notes=said, scale=scale)


@dataclass(frozen=True, eq=False)
class Grid:
    """A grid of spans with its notes.

    Attributes:
        frame: as for `draw`.
        notes: lines for the empty corner, the first one the task.
        overview: overview of the ablation; None for published grids.
    """

    frame: pd.DataFrame
    notes: Sequence[str]
    overview: AblationOverview | None

    @property
    def name(self) -> str:
        """Name of the grid in a CSV file: the study's, or the task with the paper."""
        return study_label(self.overview) if self.overview else f"{self.notes[0]} (Houlsby et al. 2019)"


def published_grid(name: str, study: StudyKind = "ablated") -> Grid | None:
    """The paper's grid of the same task, if there is one."""
    task = known_task(name.split(", ")[0])
    if task is None or task.name not in PUBLISHED_TASKS or study != "ablated":
        return None
    frame = published_ablation(task.name)
    whole = -float(frame.loc[frame["n_layers"].idxmax(), "delta_points"])
    notes = ["Houlsby et al. 2019", "BERT-base, accuracy", f"all removed: drop {one_decimal(whole)}"]
    return Grid(frame, [task.label, *notes], None)


def joint_scale(grids: Sequence[Grid]) -> DropScale:
    """The smallest scale that covers all grids."""
    return DropScale.spanning(np.concatenate([drop_points(grid.frame["delta_points"]) for grid in grids]))


def draw_grid(grid: Grid, ax: Axes, *, tolerance: float, notes: bool, scale: DropScale) -> Axes:
    """Draw one grid without a colour bar."""
    overview = grid.overview
    return draw(
        grid.frame,
        ax,
        tolerance=tolerance,
        colorbar=False,
        notes=grid.notes if notes else None,
        scale=scale,
        study=overview.study if overview else "ablated",
        test=test_name(overview.metric) if overview else None,
    )


def _right_half(ax: Axes) -> Axes:
    """New axes in the right half of the given axes, which shrink to the left half."""
    spec = ax.get_subplotspec()
    if spec is None:
        x, y, width, height = ax.get_position(original=True).bounds
        ax.set_position((x, y, 0.45 * width, height))
        return ax.figure.add_axes((x + 0.55 * width, y, 0.45 * width, height))
    halves = spec.subgridspec(1, 2)
    ax.set_subplotspec(halves[0])
    return ax.figure.add_subplot(halves[1])


def draw(
    frame: pd.DataFrame,
    ax: Axes | None = None,
    *,
    label: str = "drop (points)",
    tolerance: float | None = 1.0,
    colorbar: bool = True,
    notes: Sequence[str] | None = (),
    scale: Scale | None = None,
    study: StudyKind = "ablated",
    test: str | None = None,
    spread: str | None = None,
) -> Axes:
    """Draw any table of spans: drops of one study, their mean over several, or a difference of two.

    Args:
        frame: columns `first`, `last`, `delta_points`; the drop, its negative, is drawn. With a bool column
            `significant`, cells where it is False get a ring; with `non_monotone`, cells where it is True get
            a triangle. Cells with an undefined delta (NaN) are crossed out.
        ax: Axes to draw on; by default the current Axes.
        label: label of the colour bar, with the unit.
        tolerance: tolerated drop, in percentage points, marked by the black line; None for no line.
        colorbar: whether to draw a colour bar.
        notes: lines of text in the empty corner, above the legend of symbols; None for neither.
        scale: colour levels; by default the smallest `DropScale` that covers the frame. Use a
            `DivergingScale` for differences.
        study: what was done to the spans, used in the axis labels.
        test: name of the test behind the rings, for the notes.
        spread: column printed below the numbers, after a ±, where it fits.

    Raises:
        ResultsError: the frame is not a grid of spans.
    """
    ax = plt.gca() if ax is None else ax
    cells = Cells.of(frame, "delta_points")
    drops = drop_points(frame["delta_points"])  # [spans]
    scale = DropScale.spanning(drops) if scale is None else scale
    texts = [drop_text(drop) for drop in drops]
    said = [] if np.isfinite(drops).all() else ["crossed out: undefined"]
    if spread is not None:
        texts = [f"{text}\n± {drop_text(sd)}" for text, sd in zip(texts, frame[spread])]
    draw_cells(cells, drops, ax, scale=scale, texts=texts, studied=study)
    if tolerance is not None:
        draw_staircase(ax, staircase(cells.matrix(drops), tolerance))
    if (marked := marked_cells(frame, "non_monotone", True)).any():
        inks = [style.text_colour(colour) for colour in scale.colours(drops[marked])]
        draw_triangles(ax, cells.positions[marked], inks)
        said.append("◣ shorter span inside drops more")
    if (unsure := marked_cells(frame, "significant", False)).any():
        draw_rings(ax, cells.positions[unsure])
        sign = "○" if len(cells.lasts) <= 24 else "○ or dot:"
        said.append(f"{sign} not significant" + (f" ({test}, Holm)" if test else ""))
    if notes is not None:
        write_notes(ax, [*notes, *said], cells)
    if colorbar:
        _add_bar(scale, [ax], label, tolerance)
    return ax


def _add_bar(scale: Scale, axes: Sequence[Axes], label: str, tolerance: float | None) -> None:
    text = style.wrapped(label, style.label_size(), 0.8 * size_in_points(axes[0])[1])
    draw_colorbar(scale, *axes, label=text, tolerance=tolerance)


def difference(
    frame: pd.DataFrame,
    ax: Axes | None = None,
    *,
    label: str = "difference of drops (points)",
    colorbar: bool = True,
    notes: Sequence[str] | None = (),
    scale: DivergingScale | None = None,
) -> Axes:
    """Draw the difference of two studies' drops, span by span, on a scale with a neutral middle.

    Args:
        frame: as for `draw`; `delta_points` is the difference of the deltas, so that the difference of the
            drops is drawn: red where the second study loses more.
        ax: Axes to draw on; by default the current Axes.
        label: label of the colour bar.
        colorbar: whether to draw a colour bar.
        notes: lines of text in the empty corner; None for none.
        scale: colour levels; by default the smallest scale that covers the frame.
    """
    scale = DivergingScale.spanning(drop_points(frame["delta_points"])) if scale is None else scale
    return draw(frame, ax, label=label, tolerance=None, colorbar=colorbar, notes=notes, scale=scale)


def marked_cells(frame: pd.DataFrame, column: str, value: bool) -> np.ndarray:
    """Whether a bool column has the value and the delta is defined, bool `[rows]`; False without it."""
    if column not in frame.columns:
        return np.zeros(len(frame), dtype=bool)
    return (frame[column].to_numpy(bool) == value) & frame["delta_points"].notna().to_numpy()
