"""Figures of ablations for papers: several grids on one scale, layer shares next to interactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import span_order
from adapter_probe.analysis.studies import AblationRecord
from adapter_probe.errors import ResultsError

from . import style
from .attribution import STEM, attribution, interaction_label, interaction_map, legend_entries, shares_of
from .captions import attribution_caption, curve_caption, heatmap_caption, joint_caption
from .drawing import Drawing
from .heatmap import Grid, draw, grid_of, heatmap, published_grid, scale_of, spread_fits, spread_grid
from .layout import WIDE, fit_height, legend_below, new_figure, title_above
from .levels import DivergingScale, Scale, draw_colorbar
from .span_curve import (
    ASPECT,
    WIDE_ASPECT,
    SpanLine,
    curve,
    draw_line,
    line_entries,
    line_of_spans,
    span_line,
)
from .venues import FigureOptions
from .wording import common_metric, common_value, drop_label, drop_name, points_text, study_label

_NARROWEST, _LOWEST_ROW = 1.5, 2.0  # inches: of a grid with its words
_MARGIN = 0.5  # inches: width of the labels next to a grid


def plot(
    record: AblationRecord | AverageRecord | ComparisonRecord,
    ax: Axes | None = None,
    *,
    tolerance: float = 1.0,
    paper: bool = False,
    notes: bool = True,
) -> Axes:
    """Draw a curve where the spans are a line, and a heatmap otherwise; arguments as of both."""
    how = heatmap if span_order(record.spans) is None else curve
    return how(record, ax, tolerance=tolerance, paper=paper, notes=notes)


def heatmap_drawing(grids: Sequence[Grid], options: FigureOptions, identity: Mapping[str, object]) -> Drawing:
    """The figure of one or several ablations, with its CSV and caption.

    Args:
        grids: the ablations' grids, with published ones between them.
        options: sizes and the tolerance.
        identity: identity of the results, written to the files' metadata.

    Raises:
        ResultsError: the grids do not fit the width.
    """
    own = [grid.overview for grid in grids if grid.overview is not None]
    published = ["accuracy"] if len(own) < len(grids) else []  # the published drops are drops in accuracy
    metric = common_value([*(overview.metric for overview in own), *published])
    split = common_value(overview.split for overview in own) or ""
    label = " ".join(drop_label(metric, split).split())
    figure = heatmap_figure(grids, options, label)
    names = " and ".join(dict.fromkeys(study_label(overview) for overview in own))
    title = f"{names}: {drop_name(metric)} by span of {own[0].study} layers"
    caption = heatmap_caption(grids, options.tolerance)
    return Drawing("heatmap", title, figure, _spans_drawn(grids), caption, identity)


def _spans_drawn(grids: Sequence[Grid]) -> pd.DataFrame:
    """The grids' frames concatenated, with a column that names each grid."""
    named = []
    for grid in grids:
        named.append(grid.frame.copy())
        named[-1].insert(0, "grid", grid.name)
    return pd.concat(named, ignore_index=True) if len(named) > 1 else grids[0].frame


def heatmap_figure(grids: Sequence[Grid], options: FigureOptions, label: str) -> Figure:
    """Grids in rows, exactly as wide as the venue requires; a wide single grid has a vertical colour bar."""
    width, scale = options.width("full" if len(grids) > 1 else "half"), scale_of(grids)
    tolerance = options.tolerance if grids[0].shows == "drops" else None
    label += "" if tolerance is None else f"; black line = {points_text(tolerance)}"
    with style.paper_style(options.venue):
        rows, columns = shape_of(len(grids), width)
        figure = new_figure(width, width * (rows / columns + 1))
        axes = [figure.add_subplot(rows, columns, index + 1) for index in range(len(grids))]
        for index, (grid, ax) in enumerate(zip(grids, axes)):
            draw(grid, ax, tolerance=options.tolerance, notes=True, scale=scale)
            ax.set_ylabel("" if index % columns else ax.get_ylabel())
        where = "right" if len(grids) == 1 and width >= WIDE else "bottom"
        _add_bar(scale, axes, label, where, tolerance)
        return fit_height(figure, max(options.venue.tallest, rows * _LOWEST_ROW))


def joint_drawing(record: AverageRecord | ComparisonRecord, options: FigureOptions) -> Drawing:
    """The figure of the mean of several ablations, or of the difference of two, with its CSV and caption.

    Of means whose cells are too small for two numbers, a second grid shows the spread; on request the
    published grid stands beside that of the means.

    Raises:
        ResultsError: the grids do not fit the width.
    """
    stem = "comparison" if isinstance(record, ComparisonRecord) else "average"
    line, grids, published = span_line(record), [grid_of(record)], None
    label = grids[0].label
    title = f"{label}: {', '.join(record.names)}"
    if isinstance(record, AverageRecord) and line is None:
        with style.paper_style(options.venue):
            if not spread_fits(record, 72 * (options.width("half") - _MARGIN)):
                grids.append(spread_grid(record))
        if options.paper and (published := published_grid(record.task)) is not None:
            grids.append(published)
            if record.metric != "accuracy":
                label = f"mean {drop_label(None)}"  # the published drops are drops in accuracy
    figure = heatmap_figure(grids, options, label) if line is None else curve_figure([line], options)
    caption = joint_caption(record, options.tolerance, paper=published is not None)
    return Drawing(stem, title, figure, record.spans, caption, {"studies": dict(record.identity)})


def curve_drawing(
    records: Sequence[AblationRecord], options: FigureOptions, identity: Mapping[str, object]
) -> Drawing:
    """The figure of ablations whose spans are lines, side by side on one scale, with its CSV and caption.

    Raises:
        ResultsError: the spans of a record are a grid, or the panels do not fit the width.
    """
    lines = [line_of_spans(record, paper=options.paper) for record in records]
    names = [study_label(record.overview) for record in records]
    dropped = drop_name(common_metric(records))
    title = f"{' and '.join(dict.fromkeys(names))}: {dropped} by span of {records[0].overview.study} layers"
    paper = any(line.published is not None for line in lines)
    caption = curve_caption(records, options.tolerance, paper=paper)
    numbers = _lines_drawn(names, lines)
    return Drawing("curve", title, curve_figure(lines, options), numbers, caption, identity)


def _lines_drawn(names: Sequence[str], lines: Sequence[SpanLine]) -> pd.DataFrame:
    """The lines' frames and then the published ones, each once, with a column that names each line."""
    published = [line.published for line in lines if line.published is not None]
    if len(lines) == 1 and not published:
        return lines[0].frame
    own = [line.frame.assign(grid=name)[["grid", *line.frame]] for name, line in zip(names, lines)]
    theirs = [pd.concat(published).drop_duplicates()] if published else []
    return pd.concat([*own, *theirs], ignore_index=True)


def curve_figure(lines: Sequence[SpanLine], options: FigureOptions) -> Figure:
    """Panels in rows, with what the marks mean below them."""
    width = options.width("full" if len(lines) > 1 else "half")
    with style.paper_style(options.venue):
        rows, columns = shape_of(len(lines), width)
        aspect = WIDE_ASPECT if width / columns >= WIDE else ASPECT
        figure = new_figure(width, width * aspect * (rows / columns + 0.5))
        first = None
        for index, line in enumerate(lines):
            ax = figure.add_subplot(rows, columns, index + 1, sharey=first)
            first = first or ax
            draw_line(line, ax, tolerance=options.tolerance)
            title_above(ax, line.notes)
            ax.set_box_aspect(aspect)
            ax.set_ylabel("" if index % columns else ax.get_ylabel())
        legend_below(figure, line_entries(lines, options.tolerance))
        return fit_height(figure, max(options.venue.tallest, rows * _LOWEST_ROW))


def shape_of(n_grids: int, width: float) -> tuple[int, int]:
    """Rows and columns of grids: up to three in a row if there is room, and four as two by two.

    Raises:
        ResultsError: a grid with its labels would be narrower than an inch and a half.
    """
    columns = 1 if width < WIDE else 2 if n_grids == 4 else min(n_grids, 3)
    if width / columns < _NARROWEST:
        raise ResultsError(f"{n_grids} grids do not fit {width:g} inches: each needs {_NARROWEST} inches")
    return -(-n_grids // columns), columns


def _add_bar(
    scale: Scale, axes: Sequence[Axes], label: str, where: str, tolerance: float | None = None
) -> None:
    """The colour bar of several grids; its label fits the figure's width, or half of it next to a grid."""
    length = (0.4 if where == "right" else 0.74) * 72 * axes[0].figure.get_figwidth()
    draw_colorbar(scale, axes, label, tolerance, location=where, length=length)


def attribution_drawing(
    records: Sequence[AblationRecord], options: FigureOptions, identity: Mapping[str, object]
) -> Drawing:
    """The figure of one or several ablations' shares and interactions, with its CSV and caption.

    Raises:
        ResultsError: the grids do not fit the width.
    """
    names = [study_label(record.overview) for record in records]
    figure = attribution_figure(records, options)
    numbers = pd.concat([_shares_drawn(record, name) for record, name in zip(records, names)])
    title = f"{' and '.join(dict.fromkeys(names))}: shares of the drop by layer, interactions of spans"
    caption = attribution_caption(records)
    return Drawing(STEM, title, figure, numbers.reset_index(drop=True), caption, identity)


def attribution_figure(records: Sequence[AblationRecord], options: FigureOptions) -> Figure:
    """Grids above the shares, or a single grid next to the shares in a wide figure."""
    width = options.width("full")
    values = np.concatenate([record.spans["interaction_points"].to_numpy(float) for record in records])
    scale = DivergingScale.spanning(values)
    with style.paper_style(options.venue):
        figure = new_figure(width, 3 * width)
        beside = len(records) == 1 and width >= WIDE
        low = 0.3 if width >= WIDE else 0.5  # height of the shares over width
        rows, columns = (1, 1) if beside else shape_of(len(records), width)
        heights = [1] if beside else [1] * rows + [low * columns]
        spec = figure.add_gridspec(len(heights), 2 if beside else columns, height_ratios=heights)
        axes = [figure.add_subplot(spec[divmod(index, columns)]) for index in range(len(records))]
        shares = figure.add_subplot(spec[0, 1] if beside else spec[rows, :])
        shares.set_box_aspect(1.0 if beside else low)
        for index, (record, ax) in enumerate(zip(records, axes)):
            interaction_map(record, ax, colorbar=False, scale=scale)
            ax.set_ylabel("" if index % columns else ax.get_ylabel())
        _add_bar(scale, axes, interaction_label(common_metric(records)), "bottom")
        attribution(records, shares, legend=False)
        legend_below(figure, legend_entries(records))
        return fit_height(figure, max(options.venue.tallest, len(heights) * _LOWEST_ROW))


def _shares_drawn(record: AblationRecord, name: str) -> pd.DataFrame:
    """All drawn values in long form: quantity, span, value and interval; drops are positive."""
    layers, spans = shares_of(record), record.spans
    alone = {"low": -layers.get("ci_high_points", np.nan), "high": -layers.get("ci_low_points", np.nan)}
    share = {end: layers.get(f"share_{end}_points", np.nan) for end in ("low", "high")}
    apart = {end: spans.get(f"interaction_{end}_points", np.nan) for end in ("low", "high")}
    kinds = (
        ("layer share", layers["layer"], layers["layer"], layers["share_points"], share),
        ("layer alone", layers["layer"], layers["layer"], -layers["delta_points"], alone),
        ("interaction", spans["first"], spans["last"], spans["interaction_points"], apart),
    )
    parts = [
        pd.DataFrame({"task": name, "quantity": kind, "first": first, "last": last, "drop_points": value,
                      "low_points": ends["low"], "high_points": ends["high"]})
        for kind, first, last, value, ends in kinds
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)
