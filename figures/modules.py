"""Map of layers and modules: the drop without each tuned module of each layer, and without several together.

A row is a module and a column a layer. The last row has all modules of a layer off, the last column a module
in all layers. Colours, rings and crosses are those of the grids of spans, see `span_grid`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import drop_points
from adapter_probe.analysis.study_records import AblationRecord, StudyRecord
from adapter_probe.spans import ALL_MODULES
from adapter_probe.wording import cell_text, done_text, drop_name, is_distance, sentence, span_text

from . import style
from .ablation_words import checkpoint_sentences, drop_label, over_spans, study_label, tests_of, warnings_of
from .drawing import Drawing, caption_of, identity_of, undefined_text
from .grid import Cells, cell_size, draw_cells, number_layers, number_size
from .layout import LOWEST_ROW, before_drawing, fit_height, new_figure, title_above
from .levels import Scale, add_bar, draw_colorbar
from .marks import draw_rings
from .naming import alike_ablations, suffix_of
from .span_grid import Grid, SpanRecord, grid_of, marked_cells, scale_of
from .venues import FigureOptions

_GAP = 2.4  # units: between the single cells and those of several together
_WIDEST_CELL = 24.0  # points
_FEWEST_WORDS = 18  # of a tick's size: the width that the notes above a map need


@dataclass(frozen=True, eq=False)
class _ModuleCells(Cells):
    """Positions in a map: `firsts` are the rows' modules, `lasts` the columns' layers as text."""

    @property
    def shortest(self) -> np.ndarray:
        """Nothing is outlined."""
        return np.zeros(len(self.positions), dtype=bool)

    @classmethod
    def of(cls, frame: pd.DataFrame) -> _ModuleCells:
        """The map of a table with the columns `module`, `first`, `last` and `n_layers`."""
        modules = sorted(dict.fromkeys(frame["module"]), key=ALL_MODULES.__eq__)  # that row last
        ends = list(zip(frame["first"].tolist(), frame["last"].tolist()))
        columns = sorted(set(ends), key=lambda span: (span == _whole(frame), span))
        names = [span_text(*span) for span in columns]
        if len(names) > 1:
            names[-1] = "all"
        rows = [modules.index(name) for name in frame["module"]]
        places = np.column_stack([rows, [columns.index(span) for span in ends]])
        return cls(np.array(modules, dtype=object), np.array(names, dtype=object), places)


def _whole(frame: pd.DataFrame) -> tuple[int, int]:
    """First and last of all layers of a map."""
    return int(frame["first"].min()), int(frame["last"].max())


def module_map(
    record: SpanRecord,
    ax: Axes | None = None,
    *,
    colorbar: bool = True,
    notes: bool = True,
    cmap: str | Colormap | None = None,
    annot: bool = True,
) -> Axes:
    """Draw the drops of an ablation by module, their mean over several, or the difference of two.

    Args:
        record: an ablation by module, or an average or a comparison of some; the first stack of several.
        ax: Axes to draw on; by default the current Axes. A colour bar takes its room from it.
        colorbar: whether to draw a colour bar.
        notes: whether to print task and scores above the map.
        cmap: Matplotlib's colour map for the levels; by default this project's own colours.
        annot: whether to print the numbers in cells that have room for them.

    Raises:
        ResultsError: there is no such colour map.
    """
    ax = plt.gca() if ax is None else ax
    grid = grid_of(record.in_stacks[0])
    scale = scale_of([grid]).recoloured(cmap)
    _draw(grid, ax, scale, notes, annot)
    if colorbar:
        draw_colorbar(scale, [ax], grid.label)
    return ax


def _draw(grid: Grid, ax: Axes, scale: Scale, notes: bool, numbers: bool = True) -> None:
    frame, cells = grid.frame, _ModuleCells.of(grid.frame)
    drops = drop_points(frame["delta_points"])
    texts = [cell_text(drop, grid.metric) if numbers else "" for drop in drops]
    draw_cells(cells, drops, ax, scale=scale, texts=texts)
    if (unsure := marked_cells(frame, "significant", False)).any():
        draw_rings(ax, cells.positions[unsure])
    rows, columns = len(cells.firsts), len(cells.lasts)
    ax.set_yticks(np.arange(rows) + 0.5, [style.escape_mathtext(name) for name in cells.firsts])
    if any("–" in name for name in cells.lasts):  # groups of layers
        ax.set_xticks(np.arange(columns) + 0.5, cells.lasts, rotation=90)
    else:
        number_layers(ax.xaxis, cells.lasts)
    ax.set_xlabel(f"layer{'s' if any('–' in name for name in cells.lasts) else ''} {grid.done}")
    ax.set_ylabel("module")
    lines = [ax.axhline(rows - 1), ax.axvline(columns - 1)] if rows > 1 and columns > 1 else []

    def fit(ax: Axes) -> None:
        for line in lines:
            width = min(_GAP * style.scale_factor(), 0.3 * cell_size(ax))
            line.set(color=ax.get_facecolor(), linewidth=width, zorder=3)

    before_drawing(ax, fit)
    if notes:
        said = [] if np.isfinite(drops).all() else ["crossed out: undefined"]
        said += ["○ not significant"] if unsure.any() else []
        title_above(ax, [*grid.notes, *said])


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The map of each ablation by module, with its CSV and caption."""
    for suffix, records in alike_ablations(studies, by_module=True):
        for record in records:
            grid = grid_of(record)
            drop, done = drop_name(record.summary.metric), record.summary.done
            title = f"{study_label(record)}: {drop} by layer and module {done}"
            figure, own = map_figure([grid], options), suffix_of(record, records)
            identity = identity_of([record])
            yield Drawing(f"modules{suffix}{own}", title, figure, record.spans, _caption(record), identity)


def map_figure(grids: Sequence[Grid], options: FigureOptions) -> Figure:
    """Maps below each other, exactly as wide as the venue requires: wide if numbers have no room else."""
    with style.paper_style(options.venue):
        columns = max(len(_ModuleCells.of(grid.frame).lasts) for grid in grids)
        names = {name for grid in grids for name in grid.frame["module"]}
        beside = max(style.text_width(name, style.tick_size()) for name in names) + 3 * style.tick_size()
        cell = (72 * options.width("half") - beside) / columns
        width = options.width("half" if number_size(["−0.5"], cell) else "full")
        scale = scale_of(grids)
        figure = new_figure(width, width * len(grids))
        axes = [figure.add_subplot(len(grids), 1, n + 1) for n in range(len(grids))]
        for grid, ax in zip(grids, axes):
            _draw(grid, ax, scale, notes=True)
        spare = 72 * width - max(columns * _WIDEST_CELL, _FEWEST_WORDS * style.tick_size()) - beside
        if spare > 0:
            edge = spare / 144 / width  # of the figure's width, on either side
            figure.get_layout_engine().set(rect=(edge, 0, 1 - 2 * edge, 1))
        add_bar(scale, axes, grids[0].label, "bottom")
        return fit_height(figure, max(options.venue.tallest, len(grids) * LOWEST_ROW))


def joint_drawing(record: AverageRecord | ComparisonRecord, options: FigureOptions) -> Drawing:
    """The map of an average or a comparison of ablations by module."""
    stem = "comparison" if isinstance(record, ComparisonRecord) else "average"
    grids = [grid_of(part) for part in record.in_stacks]
    names = f"{record.names[1]} minus {record.names[0]}" if stem == "comparison" else ", ".join(record.names)
    caption = caption_of(
        [
            record.warning or "",
            f"{sentence(grids[0].label)} by layer and module {done_text(record.study, record.strength)}: "
            f"{names}.",
            _LAYOUT,
            "A ring marks a cell that is not significant at 0.05 by a two-sided bootstrap test, "
            f"Holm-corrected{over_spans([record.spans], 'cells')}."
            if "significant" in record.spans
            else "",
        ]
    )
    figure, title = map_figure(grids, options), f"{grids[0].label} by layer and module: {names}"
    return Drawing(stem, title, figure, record.spans, caption, {"studies": dict(record.identity)})


_LAYOUT = "The last row has all modules of a layer, the last column a module in all layers."


def _caption(record: AblationRecord) -> str:
    metric, frame = record.summary.metric, record.spans
    drops = drop_points(frame["delta_points"])
    how = "are kept on, all others being off,"
    if record.summary.study != "kept":
        how = f"are {record.summary.done}"
    return caption_of(
        [
            *warnings_of([record]),
            f"{sentence(drop_label([record], metric))} when the adapters of one kind of module in one layer "
            f"{how} without retraining.",
            _LAYOUT,
            *checkpoint_sentences([record]),
            "Blue cells, with a minus sign: the model improves."
            if (drops < 0).any() and not is_distance(metric)
            else "",
            "A ring, or in small cells a dot, marks a cell that does not differ significantly from the intact"
            f" model at 0.05 by {tests_of([record])}, Holm-corrected{over_spans([frame], 'cells')}."
            if "significant" in frame
            else "",
            undefined_text(int(frame["delta_points"].isna().sum()), "Crossed-out cells"),
        ]
    )
