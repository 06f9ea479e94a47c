"""One grid of spans: its numbers and notes, and how it is drawn on axes, without a colour bar.

Row = first layer of the span, column = last. Colours are the levels of `drop_scale`; a black line separates
the spans within the tolerance from the others; single layers are outlined. Colour is never the only cue:
lightness decreases with the drop, gains have a minus sign, and line and outlines differ in place and weight.
A ring in a cell's upper left corner marks a difference that is not significant, a triangle in its lower left
corner a span with a smaller drop than a shorter span inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from adapter_probe import wording
from adapter_probe.analysis.comparing import AverageRecord
from adapter_probe.analysis.published import published_ablation
from adapter_probe.analysis.removable import Segment, tolerance_border
from adapter_probe.analysis.score_changes import drop_points
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.known_tasks import known_task
from adapter_probe.wording import ALL_OFF, rounded, significance_test, tolerance_text, unit_name

from . import style
from .ablation_words import SpanRecord, Words, drop_label, notes_of, study_label
from .grid import Cells, draw_cells, draw_rings, draw_tolerance_border, draw_triangles, forms_of, write_notes
from .levels import Scale, difference_scale, drop_scale


@dataclass(frozen=True, eq=False)
class Grid:
    """A grid of spans, ready to be drawn.

    Attributes:
        frame: columns `first`, `last`, `delta_points`; the drop, its negative, is drawn. With a bool column
            `significant`, cells where it is False get a ring; with `non_monotone`, cells where it is True get
            a triangle; `sd_points` is printed below the numbers where it fits. Cells with an undefined delta
            (NaN) are crossed out.
        notes: lines for the empty corner, the first one the task.
        record: the ablation, or several; None for published grids.
        label: label of the colour bar, with the unit.
        shows: what is drawn: drops, their standard deviation, or the difference of two. Only drops have a
            tolerance, and only differences a scale with a neutral middle.
    """

    frame: pd.DataFrame
    notes: Sequence[str]
    record: SpanRecord | None = None
    label: str = "drop (points)"
    shows: Literal["drops", "spread", "differences"] = "drops"

    @property
    def name(self) -> str:
        """Name of the grid in a CSV file: the study's, or the task with the paper."""
        if isinstance(self.record, AblationRecord):
            return study_label(self.record)
        return f"{self.notes[0]} (Houlsby et al. 2019)"

    @property
    def words(self) -> Words:
        """What was measured and what was done to the spans."""
        return Words.of(self.record) if self.record else Words(None)

    @property
    def test(self) -> str | None:
        """Name of the significance test of an ablation; None if it is not known, or of several."""
        return significance_test(self.words.metric) if isinstance(self.record, AblationRecord) else None

    def border(self, tolerance: float) -> list[Segment]:
        """The black line between spans within the tolerance and the others; empty if there is none."""
        if self.shows != "drops":
            return []
        cells = Cells.of(self.frame)
        return tolerance_border(cells.matrix(drop_points(self.frame["delta_points"])), tolerance)


def grid_of(record: SpanRecord) -> Grid:
    """The drops of an ablation, their mean over several ablations, or the difference of two."""
    frame, notes = record.spans, notes_of(record)
    if isinstance(record, AblationRecord):
        return Grid(frame, notes, record, drop_label([record], record.summary.metric))
    if isinstance(record, AverageRecord):
        return Grid(frame, notes, record, f"mean {wording.drop_label(record.metric)}")
    frame = frame.assign(delta_points=-frame["difference_points"])
    label = f"difference of {wording.drop_name(record.metric)}s ({unit_name(record.metric)})"
    return Grid(frame, notes, record, label, "differences")


def spread_grid(record: AverageRecord) -> Grid:
    """The standard deviation over the studies of an average."""
    frame = record.spans[["first", "last"]].assign(delta_points=-record.spans["sd_points"])
    label, notes = f"s.d. of {wording.drop_label(record.metric)}", f"s.d. over {len(record.names)} studies"
    return Grid(frame, [notes], record, label, "spread")


def with_spread_apart(record: AverageRecord) -> list[Grid]:
    """The means of an average without the spread in their cells, and the grid of the spread."""
    grid = grid_of(record)
    notes = [note.replace(" ± s.d.", "") for note in grid.notes]
    return [replace(grid, frame=grid.frame.drop(columns="sd_points"), notes=notes), spread_grid(record)]


def published_grid(name: str, study: str = "ablated") -> Grid | None:
    """The paper's grid of the same task, if there is one."""
    task = known_task(name.split(", ")[0])
    frame = published_ablation(task.name) if task and study == "ablated" else None
    if frame is None:
        return None
    whole = -float(frame.loc[frame["n_layers"].idxmax(), "delta_points"])
    notes = ["Houlsby et al. 2019", "BERT-base, accuracy", f"{ALL_OFF}: drop {rounded(whole)}"]
    return Grid(frame, [task.label, *notes])


def scale_of(grids: Sequence[Grid]) -> Scale:
    """The smallest scale that covers all grids, with the spread where it is printed: not by module."""
    shown = [(drop_points(grid.frame["delta_points"]), grid.words.metric) for grid in grids]
    spread = [grid for grid in grids if {"sd_points", "module"} & {*grid.frame} == {"sd_points"}]
    shown += [(grid.frame["sd_points"].to_numpy(float), grid.words.metric) for grid in spread]
    scale = difference_scale if grids[0].shows == "differences" else drop_scale
    printed = [forms_of(*each)[0][0] for each in shown]
    return scale(np.concatenate(printed), [grid.words.metric for grid in grids])


def drawn_tolerance(grids: Sequence[Grid], tolerance: float) -> float | None:
    """The tolerance, if a grid has a black line for it."""
    return tolerance if any(grid.border(tolerance) for grid in grids) else None


def bar_label(label: str, tolerance: float | None, metric: str | None) -> str:
    """The label of a colour bar; with what the black line means, if there is one."""
    return label if tolerance is None else f"{label}; black line = {tolerance_text(tolerance, metric)}"


def draw(grid: Grid, ax: Axes, *, tolerance: float, notes: bool, scale: Scale, numbers: bool = True) -> None:
    """Draw one grid without a colour bar; `numbers` in the cells only where they fit."""
    frame, cells, words = grid.frame, Cells.of(grid.frame), grid.words
    drops = drop_points(frame["delta_points"])  # [spans]
    said = [] if np.isfinite(drops).all() else ["crossed out: undefined"]
    forms = forms_of(drops, words.metric, frame.get("sd_points"), numbers=numbers)
    draw_cells(cells, forms, ax, scale=scale, studied=words.done)
    if border := grid.border(tolerance):
        draw_tolerance_border(ax, border)
    if (marked := marked_cells(frame, "non_monotone", True)).any():
        inks = [style.text_colour(colour) for colour in scale.colours(forms[0][0][marked])]
        draw_triangles(ax, cells.positions[marked], inks)
        more = "differs" if wording.is_distance(words.metric) else f"{words.drop}s"
        said.append(f"◣ shorter span inside {more} more")
    if (unsure := marked_cells(frame, "significant", False)).any():
        draw_rings(ax, cells.positions[unsure])
        said.append("○ not significant" + (f" ({grid.test}, Holm)" if grid.test else ""))
    if notes:
        write_notes(ax, [*grid.notes, *said], cells)


def marked_cells(frame: pd.DataFrame, column: str, value: bool) -> np.ndarray:
    """Whether a bool column has the value and the delta is defined, bool `[rows]`; False without it."""
    if column not in frame.columns:
        return np.zeros(len(frame), dtype=bool)
    return (frame[column].to_numpy(bool) == value) & frame["delta_points"].notna().to_numpy()
