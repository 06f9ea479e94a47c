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
from adapter_probe.analysis.score_changes import drop_points
from adapter_probe.analysis.study_records import StudyRecord
from adapter_probe.spans import ALL_MODULES
from adapter_probe.wording import sentence, span_text

from . import ablation_words, style
from .ablation_words import SpanRecord, Words
from .drawing import Drawing, caption_of, identity_of, suffix_of, undefined_text
from .grid import (
    Cells,
    cell_size,
    draw_cells,
    draw_rings,
    forms_of,
    number_layers,
    number_size,
    numbers_sentence,
)
from .layout import LINE, LOWEST_ROW, before_drawing, fit_height, new_figure, size_in_points, title_above
from .levels import Scale, draw_colorbar
from .span_grid import Grid, grid_of, marked_cells, scale_of
from .venues import FigureOptions

_GAP = 2.4  # units: between the single cells and those of several together
_WIDEST_CELL = 24.0  # points
_FEWEST_WORDS = 18  # of a tick's size: the width that the notes above a map need
_LAYOUT = "The last row has all {0}s of a {1}, the last column a {0} in all layers."


@dataclass(frozen=True, eq=False)
class _ModuleCells(Cells):
    """Positions in a map: `firsts` are the rows' modules, `lasts` the columns' layers as text."""

    @property
    def column(self) -> str:
        """What a column is."""
        return "group of layers" if any("–" in name for name in self.lasts) else "layer"

    @property
    def shortest(self) -> np.ndarray:
        """Nothing is outlined."""
        return np.zeros(len(self.positions), dtype=bool)

    @classmethod
    def of(cls, frame: pd.DataFrame) -> _ModuleCells:
        """The map of a table with the columns `module`, `first`, `last` and `n_layers`."""
        modules = sorted(dict.fromkeys(frame["module"]), key=ALL_MODULES.__eq__)  # that row last
        ends = list(zip(frame["first"].tolist(), frame["last"].tolist()))
        whole = int(frame["first"].min()), int(frame["last"].max())
        columns = sorted(set(ends), key=lambda span: (span == whole, span))
        names = [span_text(*span) for span in columns]
        if len(names) > 1:
            names[-1] = "all"
        rows = [modules.index(name) for name in frame["module"]]
        places = np.column_stack([rows, [columns.index(span) for span in ends]])
        return cls(np.array(modules, dtype=object), np.array(names, dtype=object), places)


def module_map(
    record: SpanRecord,
    ax: Axes | None = None,
    *,
    colorbar: bool = True,
    notes: bool = True,
    cmap: str | Colormap | None = None,
    annot: bool = True,
) -> Axes:
    """Draw the drops by module, of the first stack of several; arguments as of `heatmap.heatmap`."""
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
    draw_cells(cells, forms_of(drops, grid.words.metric, numbers=numbers), ax, scale=scale)
    if (unsure := marked_cells(frame, "significant", False)).any():
        draw_rings(ax, cells.positions[unsure])
    rows, columns = len(cells.firsts), len(cells.lasts)
    ax.set_yticks(np.arange(rows) + 0.5, [style.escape_mathtext(name) for name in cells.firsts])
    if grouped := cells.column != "layer":
        ax.set_xticks(np.arange(columns) + 0.5, cells.lasts, rotation=90)
    else:
        number_layers(ax.xaxis, cells.lasts)
    ax.set_xlabel(f"layer{'s' if grouped else ''} {grid.words.done}")
    ax.set_ylabel(grid.record.unit if grid.record else "module")
    lines = [ax.axhline(rows - 1), ax.axvline(columns - 1)] if rows > 1 and columns > 1 else []
    widest = max(style.text_width(name, style.tick_size()) for name in cells.lasts)

    def fit(ax: Axes) -> None:
        if grouped:
            wide, high = size_in_points(ax)
            cell = min(wide / columns, high / rows)  # while the layout is made, cells need not be square
            ax.tick_params(axis="x", labelrotation=0 if 1.15 * widest < cell else 90)
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
    for suffix, records in ablation_words.alike_ablations(studies, by_module=True):
        for record in records:
            metric, words, frame = record.summary.metric, Words.of(record), record.spans
            column = _ModuleCells.of(frame).column
            how = "are kept on, all others being off," if words.study == "kept" else f"are {words.done}"
            stem = f"modules{suffix}{suffix_of(record, records)}"
            figure = map_figure([grid_of(record)], options)
            caption = caption_of(
                [
                    *ablation_words.warnings_of([record]),
                    f"{sentence(ablation_words.drop_label([record], metric))} when the {words.adapters} of"
                    f" one {'kind of ' if record.unit == 'module' else ''}{record.unit} in one {column} {how}"
                    " without retraining.",
                    _LAYOUT.format(record.unit, column),
                    *ablation_words.checkpoint_sentences([record]),
                    ablation_words.gains_sentence(frame, metric, "model"),
                    ablation_words.ring_sentence([record], [frame], "cell"),
                    undefined_text(frame["delta_points"].isna().sum(), "Crossed-out cells"),
                    numbers_sentence(figure, stem),
                ]
            )
            title = (
                f"{ablation_words.study_label(record)}: {words.drop} by layer and {record.unit} {words.done}"
            )
            yield Drawing(stem, title, figure, frame, caption, identity_of([record]))


def map_figure(grids: Sequence[Grid], options: FigureOptions) -> Figure:
    """Maps below each other, exactly as wide as the venue requires: wide if numbers have no room else."""
    with style.paper_style(options.venue):
        columns = max(len(_ModuleCells.of(grid.frame).lasts) for grid in grids)
        names = {name for grid in grids for name in grid.frame["module"]}
        beside = max(style.text_width(name, style.tick_size()) for name in names) + 3 * style.tick_size()
        cell = (72 * options.width("half") - beside) / columns
        width = options.width("half" if number_size(["−0.5"], cell) else "full")
        lowest = LINE * style.tick_size() * columns / (72 * width - beside)  # of a row over a column's width
        scale = scale_of(grids)
        figure = new_figure(width, (len(grids) + 2) * width)
        axes = [figure.add_subplot(len(grids), 1, n + 1) for n in range(len(grids))]
        for grid, ax in zip(grids, axes):
            _draw(grid, ax, scale, notes=True)
            if lowest > 1:
                ax.set_aspect("auto")
                ax.set_box_aspect(lowest * len(_ModuleCells.of(grid.frame).firsts) / columns)
        spare = 72 * width - max(columns * _WIDEST_CELL, _FEWEST_WORDS * style.tick_size()) - beside
        if spare > 0:
            edge = spare / 144 / width  # of the figure's width, on either side
            figure.get_layout_engine().set(rect=(edge, 0, 1 - 2 * edge, 1))
        draw_colorbar(scale, axes, grids[0].label, location="bottom", length=np.inf)
        return fit_height(figure, max(options.venue.tallest, len(grids) * LOWEST_ROW))


def joint_drawing(record: AverageRecord | ComparisonRecord, options: FigureOptions, test: str) -> Drawing:
    """The map of an average or a comparison of ablations by module; `test` is said of its rings."""
    stem, names = "average", ", ".join(record.names)
    if isinstance(record, ComparisonRecord):
        stem, names = "comparison", f"{record.names[1]} minus {record.names[0]}"
    grids = [grid_of(part) for part in record.in_stacks]
    label, figure = grids[0].label, map_figure(grids, options)
    caption = caption_of(
        [
            record.warning,
            f"{sentence(label)} by layer and {record.unit} {Words.of(record).done}: {names}"
            f" ({ablation_words.about_joint(record)}).",
            _LAYOUT.format(record.unit, _ModuleCells.of(grids[0].frame).column),
            "significant" in record.spans
            and "A ring marks a cell that is not significant "
            f"{ablation_words.at_level(test, [record.spans], 'cells')}.",
            numbers_sentence(figure, stem),
        ]
    )
    title, identity = f"{label} by layer and {record.unit}: {names}", {"studies": dict(record.identity)}
    return Drawing(stem, title, figure, record.spans, caption, identity)
