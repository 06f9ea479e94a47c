"""Heatmap of the drop without each span's adapters (Houlsby et al. 2019, Fig. 6).

`heatmap` draws on any Matplotlib axes, `drawings` the figure of one or several ablations, side by side on one
scale. A wide figure of one ablation has the shares of the layers beside the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from adapter_probe.analysis.comparing import AverageRecord
from adapter_probe.analysis.score_changes import span_order, span_units
from adapter_probe.analysis.study_records import AblationRecord, StudyRecord
from adapter_probe.wording import common_value, drop_name, metric_name, sentence, tolerance_text

from . import ablation_words, layout, span_grid, style
from .ablation_words import SpanRecord, Words
from .attribution import draw_shares
from .drawing import SOURCE, Drawing, caption_of, identity_of, joined, undefined_text
from .grid import Cells, number_size, numbers_sentence
from .levels import draw_colorbar
from .modules import module_map
from .span_grid import Grid
from .venues import FigureOptions

_WIDEST_SPREAD = "0.5\n± 0.5"  # text that cells must have room for, so that the spread is legible
_NARROWEST = 108.0  # points: a grid with its labels
_WIDEST_CELL = 26.0  # points, in a wide figure of one grid
_SMALLEST_GRID = 160.0  # points, likewise: its words need them
_LABELS = 36.0  # points: what the labels next to a grid take of the width
PUBLISHED = f"Grids labelled {SOURCE} show the published values (BERT-base, points of validation accuracy)."


def heatmap(
    record: SpanRecord,
    ax: Axes | None = None,
    *,
    tolerance: float = 1.0,
    paper: bool = False,
    colorbar: bool = True,
    notes: bool = True,
    spread: bool = False,
    cmap: str | Colormap | None = None,
    annot: bool = True,
) -> Axes:
    """Draw an ablation's drops by span, their mean over several ablations, or the difference of two.

    Arguments as of `adapter_probe.Ablation.heatmap` and `adapter_probe.Average.heatmap`. Of several stacks of
    layers, a grid for each shares the axes' place. Of an average whose grid is too deep for numbers, the
    spread over the studies takes the right half, if that is an inch and a half wide.

    Raises:
        ResultsError: there is no such colour map.
    """
    if record.by_module:
        return module_map(record, ax, colorbar=colorbar, notes=notes, cmap=cmap, annot=annot)
    ax = plt.gca() if ax is None else ax
    parts = record.in_stacks
    grids, other = _grids_of(record, layout.size_in_points(ax)[0], spread), None
    if paper and len(parts) == 1 and isinstance(record, AblationRecord):
        other = span_grid.published_grid(record.summary.task, record.summary.study)
    grids += [] if other is None else [other]
    scale = span_grid.scale_of(grids).recoloured(cmap)
    axes = beside(ax, len(grids))
    for grid, place in zip(grids, axes):
        span_grid.draw(grid, place, tolerance=tolerance, notes=notes, scale=scale, numbers=annot)
    for part, place in zip(parts, axes if len(parts) > 1 else ()):
        place.set_title(part.stack)
    for place in axes[1:]:  # whose rows are those of the first
        place.set_ylabel("")
    if colorbar:
        line = span_grid.drawn_tolerance(grids, tolerance)
        label, metric = grids[0].label, grids[0].words.metric
        if isinstance(record, AblationRecord) and other is not None and metric != "accuracy":
            # The published drops are of accuracy.
            label, metric = ablation_words.drop_label([record], None), None
        draw_colorbar(scale, axes, span_grid.bar_label(label, line, metric), line)
    return ax


def _grids_of(record: SpanRecord, width: float, spread: bool) -> list[Grid]:
    """The grid of each stack of layers; of a mean, on request, its spread, or both where they need it.

    Args:
        width: of the axes, points.
        spread: whether the spread over the studies is asked for, and not their mean.
    """
    parts = record.in_stacks
    if spread and isinstance(record, AverageRecord):
        return [span_grid.spread_grid(part) for part in parts if isinstance(part, AverageRecord)]
    if len(parts) == 1 and isinstance(record, AverageRecord):
        cell = width / record.spans["last"].nunique()
        if width >= 2 * _NARROWEST and number_size([_WIDEST_SPREAD], cell) is None:
            return span_grid.with_spread_apart(record)  # the cells have no room for it below a mean
    return [span_grid.grid_of(part) for part in parts]


def beside(ax: Axes, n: int) -> list[Axes]:
    """The given axes, and new ones on their right with which they share their place equally."""
    if n == 1:
        return [ax]
    spec = ax.get_subplotspec()
    if spec is None:
        x, y, width, height = ax.get_position(original=True).bounds
        each, gap = 0.9 * width / n, 0.1 * width / (n - 1)
        ax.set_position((x, y, each, height))
        places = [(x + i * (each + gap), y, each, height) for i in range(1, n)]
        return [ax, *map(ax.figure.add_axes, places)]
    parts = spec.subgridspec(1, n)
    ax.set_subplotspec(parts[0])
    return [ax, *(ax.figure.add_subplot(parts[i]) for i in range(1, n))]


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of the ablations of every span, with its CSV and caption; another one of spans kept on."""
    for suffix, ablations in ablation_words.alike_ablations(studies):
        records = [record for record in ablations if span_order(record.spans) is None]
        if not records:
            continue
        grids = [span_grid.grid_of(record) for record in records]
        grids = _with_published(grids) if options.paper else grids
        published = ["accuracy"] if len(records) < len(grids) else []  # in which the published drops are
        metric = common_value([*(record.summary.metric for record in records), *published])
        beside = records[0] if len(grids) == 1 and records[0].shares is not None else None
        figure = heatmap_figure(grids, options, ablation_words.drop_label(records, metric), metric, beside)
        names = " and ".join(dict.fromkeys(ablation_words.study_label(record) for record in records))
        title = f"{names}: {drop_name(metric)} by span of layers {records[0].summary.done}"
        caption = _caption(records, grids, options.tolerance, bool(beside and len(figure.axes) > 2))
        caption = caption_of([caption, numbers_sentence(figure, f"heatmap{suffix}")])
        named = [(grid.name, grid.frame) for grid in grids]
        yield Drawing(f"heatmap{suffix}", title, figure, joined(named), caption, identity_of(records))


def _with_published(grids: Sequence[Grid]) -> list[Grid]:
    """The grids, with each published grid after the last ablation of its task."""
    theirs = [span_grid.published_grid(grid.record.summary.task, grid.words.study) for grid in grids]
    names = [None if grid is None else grid.notes[0] for grid in theirs]
    out: list[Grid] = []
    for index, (grid, published) in enumerate(zip(grids, theirs)):
        out += [grid] if published is None or names[index] in names[index + 1 :] else [grid, published]
    return out


def heatmap_figure(
    grids: Sequence[Grid],
    options: FigureOptions,
    label: str,
    metric: str | None = None,
    beside: AblationRecord | None = None,
) -> Figure:
    """Grids in rows, exactly as wide as the venue requires.

    A wide figure of one grid has the layer shares of `beside` next to it, if the cells then have room for
    numbers, and otherwise a vertical colour bar; the cells of a shallow grid do not grow to the whole width.
    A name that is too long for the empty corner stands above its grid.
    """
    width, scale = options.width("full" if len(grids) > 1 else "half"), span_grid.scale_of(grids)
    tolerance = span_grid.drawn_tolerance(grids, options.tolerance)
    label = span_grid.bar_label(label, tolerance, metric)
    with style.paper_style(options.venue):
        alone = len(grids) == 1 and width >= layout.WIDE
        cells = len(Cells.of(grids[0].frame).lasts)
        half = (36 * width - _LABELS) / cells  # points: a cell, if the grid takes half of the width
        with_shares = alone and beside is not None and number_size(["−0.5"], half) is not None
        rows, columns = (1, 2) if with_shares else layout.shape_of(len(grids), width)
        figure = layout.new_figure(width, width * (rows / columns + 1))
        axes = [figure.add_subplot(rows, columns, index + 1) for index in range(len(grids))]
        for index, (grid, ax) in enumerate(zip(grids, axes)):
            grid = replace(grid, notes=layout.name_above(ax, grid.notes or (), 72 * width / columns))
            span_grid.draw(grid, ax, tolerance=options.tolerance, notes=True, scale=scale)
            ax.set_ylabel("" if index % columns else ax.get_ylabel())
        if with_shares:
            shares = figure.add_subplot(1, 2, 2)
            shares.set_box_aspect(1.0)
            layout.legend_below(figure, draw_shares([beside], shares))
        spare = 72 * width - max(cells * _WIDEST_CELL, _SMALLEST_GRID) - 2 * _LABELS if alone else 0.0
        if spare > 0 and not with_shares:
            edge = spare / 144 / width  # of the figure's width, on either side
            figure.get_layout_engine().set(rect=(edge, 0, 1 - 2 * edge, 1))
        where = "right" if alone and spare <= 0 else "bottom"
        draw_colorbar(scale, axes, label, tolerance, location=where, length=np.inf)
        return layout.fit_height(figure, max(options.venue.tallest, rows * layout.LOWEST_ROW))


def _caption(
    records: Sequence[AblationRecord], grids: Sequence[Grid], tolerance: float, with_shares: bool
) -> str:
    frame = pd.concat([grid.frame for grid in grids], ignore_index=True)
    metric, words = ablation_words.common_metric(records), Words.of(records[0])
    drop, line = drop_name(metric), span_grid.drawn_tolerance(grids, tolerance)
    units = [one for one in (span_units(record.spans) for record in records) if one is not None]
    one = "group of layers" if any((ends[:, 0] < ends[:, 1]).any() for ends in units) else "layer"
    return caption_of(
        [
            *ablation_words.warnings_of(records),
            f"{sentence(ablation_words.drop_label(records, metric))} when {words.done_to_span()}.",
            f"Rows: the first layer {words.done}, columns: the last; green frames mark single "
            f"{one.replace('group', 'groups') if ' ' in one else 'layers'}.",
            line is not None
            and f"The black line separates spans with a {drop} of at most {tolerance_text(line, metric)} "
            "from the others.",
            *ablation_words.checkpoint_sentences(records),
            ablation_words.gains_sentence(frame, metric, metric_name(metric)),
            ablation_words.ring_sentence(records, [frame]),
            frame.get("non_monotone", pd.Series(dtype=bool)).eq(True).any()
            and f"A triangle marks a span with a smaller {drop} than a shorter span inside it (5% level, "
            "corrected over all such pairs).",
            with_shares and f"Right: the share of each {one} in the whole, and the {one} alone.",
            len(records) < len(grids) and PUBLISHED,
            undefined_text(frame["delta_points"].isna().sum(), "Crossed-out spans"),
        ]
    )
