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
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import StudyKind, drop_points
from adapter_probe.analysis.published import published_ablation
from adapter_probe.analysis.removable import tolerance_border
from adapter_probe.analysis.studies import AblationOverview, AblationRecord
from adapter_probe.known_tasks import known_task

from . import style
from .grid import Cells, draw_cells, number_size
from .layout import size_in_points
from .levels import DivergingScale, DropScale, Scale, draw_colorbar
from .marks import draw_rings, draw_tolerance_border, draw_triangles, write_notes
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

SpanRecord = AblationRecord | AverageRecord | ComparisonRecord


@dataclass(frozen=True, eq=False)
class Grid:
    """A grid of spans, ready to be drawn.

    Attributes:
        frame: columns `first`, `last`, `delta_points`; the drop, its negative, is drawn. With a bool column
            `significant`, cells where it is False get a ring; with `non_monotone`, cells where it is True get
            a triangle; `sd_points` is printed below the numbers where it fits. Cells with an undefined delta
            (NaN) are crossed out.
        notes: lines for the empty corner, the first one the task.
        overview: overview of the ablation; None for published grids and those of several ablations.
        label: label of the colour bar, with the unit.
        shows: what is drawn: drops, their standard deviation, or the difference of two. Only drops have a
            tolerance, and only differences a scale with a neutral middle.
        joint_study: without an overview, what was done to the spans.
    """

    frame: pd.DataFrame
    notes: Sequence[str]
    overview: AblationOverview | None = None
    label: str = "drop (points)"
    shows: Literal["drops", "spread", "differences"] = "drops"
    joint_study: StudyKind = "ablated"

    @property
    def name(self) -> str:
        """Name of the grid in a CSV file: the study's, or the task with the paper."""
        return study_label(self.overview) if self.overview else f"{self.notes[0]} (Houlsby et al. 2019)"

    @property
    def study(self) -> StudyKind:
        """What was done to the spans."""
        return self.overview.study if self.overview else self.joint_study


def grid_of(record: SpanRecord) -> Grid:
    """The drops of an ablation, their mean over several ablations, or the difference of two."""
    if isinstance(record, AblationRecord):
        said = record.overview
        return Grid(record.spans, ablation_notes(said), said, drop_label(said.metric, said.split))
    frame, notes = record.spans, joint_notes(record)
    if isinstance(record, AverageRecord):
        return Grid(frame, notes, label=f"mean {drop_label(record.metric)}", joint_study=record.study)
    frame = frame.assign(delta_points=-frame["difference_points"])
    label = f"difference of {drop_name(record.metric)}s ({unit_name(record.metric)})"
    return Grid(frame, notes, label=label, shows="differences", joint_study=record.study)


def spread_grid(record: AverageRecord) -> Grid:
    """The standard deviation over the studies of an average."""
    frame = record.spans[["first", "last"]].assign(delta_points=-record.spans["sd_points"])
    label = f"s.d. of {drop_label(record.metric)}"
    notes = [f"s.d. over {len(record.names)} studies"]
    return Grid(frame, notes, label=label, shows="spread", joint_study=record.study)


def spread_fits(record: AverageRecord, width: float) -> bool:
    """Whether cells have room for a mean and, below it, its spread over the studies."""
    return number_size([_WIDEST_SPREAD], width / record.spans["last"].nunique()) is not None


def published_grid(name: str, study: StudyKind = "ablated") -> Grid | None:
    """The paper's grid of the same task, if there is one."""
    task = known_task(name.split(", ")[0])
    frame = published_ablation(task.name) if task and study == "ablated" else None
    if frame is None:
        return None
    whole = -float(frame.loc[frame["n_layers"].idxmax(), "delta_points"])
    notes = ["Houlsby et al. 2019", "BERT-base, accuracy", f"all removed: drop {one_decimal(whole)}"]
    return Grid(frame, [task.label, *notes])


def scale_of(grids: Sequence[Grid]) -> Scale:
    """The smallest scale that covers all grids, with the spread where it is printed."""
    shown = [drop_points(grid.frame["delta_points"]) for grid in grids]
    shown += [grid.frame["sd_points"].to_numpy(float) for grid in grids if "sd_points" in grid.frame]
    kind = DivergingScale if grids[0].shows == "differences" else DropScale
    return kind.spanning(np.concatenate(shown))


def heatmap(
    record: SpanRecord,
    ax: Axes | None = None,
    *,
    tolerance: float = 1.0,
    paper: bool = False,
    colorbar: bool = True,
    notes: bool = True,
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
        spread: for an average, draw the standard deviation over the studies instead of the mean.

    Returns:
        the axes of the record's grid.
    """
    ax = plt.gca() if ax is None else ax
    grids, other = [grid_of(record)], None
    if isinstance(record, AverageRecord):
        width = size_in_points(ax)[0]
        if spread or (width >= 2 * _NARROWEST and not spread_fits(record, width)):
            other = spread_grid(record)
    elif isinstance(record, AblationRecord) and paper:
        other = published_grid(record.overview.task, record.overview.study)
    grids += [] if other is None else [other]
    scale = scale_of(grids)
    grids = grids[1:] if spread else grids
    axes = [ax] if len(grids) == 1 else [ax, _right_half(ax)]
    for grid, place in zip(grids, axes):
        draw(grid, place, tolerance=tolerance, notes=notes, scale=scale)
    if len(grids) == 2 and grids[1].shows == "spread":
        axes[1].set_ylabel("")
    if colorbar:
        draw_colorbar(scale, axes, grids[0].label, tolerance if grids[0].shows == "drops" else None)
    return ax


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


def draw(grid: Grid, ax: Axes, *, tolerance: float, notes: bool, scale: Scale) -> Axes:
    """Draw one grid without a colour bar; arguments as of `heatmap`."""
    frame, cells = grid.frame, Cells.of(grid.frame)
    drops = drop_points(frame["delta_points"])  # [spans]
    texts = [drop_text(drop) for drop in drops]
    said = [] if np.isfinite(drops).all() else ["crossed out: undefined"]
    if "sd_points" in frame:
        texts = [f"{text}\n± {drop_text(sd)}" for text, sd in zip(texts, frame["sd_points"])]
    draw_cells(cells, drops, ax, scale=scale, texts=texts, studied=grid.study)
    if grid.shows == "drops":
        draw_tolerance_border(ax, tolerance_border(cells.matrix(drops), tolerance))
    if (marked := marked_cells(frame, "non_monotone", True)).any():
        inks = [style.text_colour(colour) for colour in scale.colours(drops[marked])]
        draw_triangles(ax, cells.positions[marked], inks)
        said.append("◣ shorter span inside drops more")
    if (unsure := marked_cells(frame, "significant", False)).any():
        draw_rings(ax, cells.positions[unsure])
        sign = "○" if len(cells.lasts) <= 24 else "○ or dot:"
        test = test_name(grid.overview.metric) if grid.overview else None
        said.append(f"{sign} not significant" + (f" ({test}, Holm)" if test else ""))
    if notes:
        write_notes(ax, [*grid.notes, *said], cells)
    return ax


def marked_cells(frame: pd.DataFrame, column: str, value: bool) -> np.ndarray:
    """Whether a bool column has the value and the delta is defined, bool `[rows]`; False without it."""
    if column not in frame.columns:
        return np.zeros(len(frame), dtype=bool)
    return (frame[column].to_numpy(bool) == value) & frame["delta_points"].notna().to_numpy()
