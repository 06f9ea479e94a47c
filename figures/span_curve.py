"""Curves of the drop of spans that form a line instead of a grid: prefixes, suffixes, or single layers.

The x-axis shows the end in which the spans differ, or the layers of each span. The y-axis shows the drop of
the score, with losses upwards. The band is the 95% interval; spans with no common end have bars instead. A
filled mark is a significant difference from the intact model, a hollow mark is not. The dashed line is the
tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adapter_probe.analysis.deltas import StudyKind, span_order
from adapter_probe.analysis.study_records import AblationRecord, StudyRecord
from adapter_probe.wording import done_text, drop_name, exact_note, sentence, tolerance_text

from . import style
from .ablation_words import (
    checkpoint_sentences,
    common_metric,
    drop_label,
    over_spans,
    study_label,
    tests_of,
    units_of,
    warnings_of,
)
from .drawing import SOURCE, Drawing, caption_of, identity_of, undefined_text
from .heatmap import beside, heatmap
from .layout import (
    LOWEST_ROW,
    WIDE,
    fit_height,
    legend_below,
    new_figure,
    shape_of,
    title_above,
)
from .legends import add_legend, leave_room
from .modules import module_map
from .naming import alike_ablations
from .span_grid import SpanRecord
from .span_line import SpanLine, draw_line, line_entries, line_of_spans
from .venues import FigureOptions

_ASPECT, _WIDE_ASPECT = 0.7, 0.42


def plot(
    record: SpanRecord,
    ax: Axes | None = None,
    *,
    tolerance: float = 1.0,
    paper: bool = False,
    notes: bool = True,
) -> Axes:
    """Draw a curve where the spans are a line, the map by module, or a heatmap; arguments as of these."""
    if record.by_module:
        return module_map(record, ax, notes=notes)
    how = heatmap if span_order(record.in_stacks[0].spans) is None else curve
    return how(record, ax, tolerance=tolerance, paper=paper, notes=notes)


def curve(
    record: SpanRecord,
    ax: Axes | None = None,
    *,
    tolerance: float = 1.0,
    paper: bool = False,
    notes: bool = True,
) -> Axes:
    """Draw the drops of spans with a common first layer, a common last layer, or no common end.

    Args:
        record: an ablation, an average or a comparison.
        ax: axes to draw on; by default the current axes.
        tolerance: tolerated drop, in percentage points, marked by the dashed line; ignored for differences.
        paper: whether to draw the published drops of the same spans as well, if there are any.
        notes: whether to add a legend with the task, the scores and the meaning of the marks.

    Raises:
        ResultsError: the spans are a grid.
    """
    lines = [line_of_spans(part, paper=paper) for part in record.in_stacks]
    ax = plt.gca() if ax is None else ax
    for line, place in zip(lines, beside(ax, len(lines))):
        draw_line(line, place, tolerance=tolerance)
        if notes:
            entries = line_entries([line], tolerance)
            leave_room(place, len(line.notes) + len(entries))
            add_legend(place, entries, line.notes)
            place.get_legend().set_frame_on(True)  # it covers no data
    return ax


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figures of the ablations whose spans are lines, side by side, one figure per kind of line.

    Raises:
        ResultsError: the panels do not fit the width.
    """
    for suffix, ablations in alike_ablations(studies):
        orders = [span_order(record.spans) for record in ablations]
        lines = [order for order in dict.fromkeys(orders) if order is not None]
        for order in lines:
            alike = [record for record, one in zip(ablations, orders) if one == order]
            yield _drawing(alike, options).renamed(f"-{order}{suffix}" if len(lines) > 1 else suffix)


def _drawing(records: Sequence[AblationRecord], options: FigureOptions) -> Drawing:
    lines = [line_of_spans(record, paper=options.paper) for record in records]
    names = [study_label(record) for record in records]
    dropped, done = drop_name(common_metric(records)), records[0].summary.done
    title = f"{' and '.join(dict.fromkeys(names))}: {dropped} by span of layers {done}"
    paper = any(line.published is not None for line in lines)
    figure, caption = curve_figure(lines, options), _caption(records, options.tolerance, paper)
    return Drawing("curve", title, figure, _lines_drawn(names, lines), caption, identity_of(records))


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
        aspect = _WIDE_ASPECT if width / columns >= WIDE else _ASPECT
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
        lowest = 1.7 * LOWEST_ROW if rows == 1 else rows * LOWEST_ROW  # a title of several lines
        return fit_height(figure, max(options.venue.tallest, lowest))


def _caption(records: Sequence[AblationRecord], tolerance: float, paper: bool) -> str:
    frames = [record.spans for record in records]
    frame = pd.concat(frames, ignore_index=True)
    metric, said = common_metric(records), records[0].summary
    drop, marked = drop_name(metric), []
    if "ci_low_points" in frame:
        mark, plural = ("Bars are", "s") if span_order(frames[0]) == "apart" else ("The band is the", "")
        note = exact_note(*(one.summary.metric for one in records))
        marked.append(f"{mark} 95% paired bootstrap interval{plural} over {units_of(records)}{note}.")
    if "significant" in frame:
        marked.append(
            f"Filled marks differ from the intact model at 0.05 by {tests_of(records)}, Holm-corrected"
            f"{over_spans(frames)}; hollow ones do not."
        )
    return caption_of(
        [
            *warnings_of(records),
            f"{sentence(drop_label(records, metric))} when "
            f"{of_lines(frames, said.study, said.strength or 0.0)}.",
            f"The dashed line is a {drop} of {tolerance_text(tolerance, metric)}.",
            *checkpoint_sentences(records),
            *marked,
            f"Squares are the drops published by {SOURCE}, BERT-base, in points of validation accuracy."
            if paper
            else "",
            undefined_text(int(frame["delta_points"].isna().sum()), "Crosses at the bottom"),
        ]
    )


def of_lines(frames: Sequence[pd.DataFrame], study: StudyKind, strength: float | str = 0.0) -> str:
    """What was done to the adapters in the spans of curves, as a clause."""
    what = "are the only ones kept on" if study == "kept" else f"are {done_text(study, strength)}"
    return f"the adapters {_which_layers(frames)} {what}, without retraining"


def _which_layers(frames: Sequence[pd.DataFrame]) -> str:
    """The layers whose adapters a point of the curves refers to; all curves have spans of one order."""
    order = span_order(frames[0])
    if order == "prefix":
        firsts = {int(frame["first"].min()) for frame in frames}
        start = f"layer {firsts.pop()}" if len(firsts) == 1 else "the first layer studied"
        return f"from {start} up to the layer on the axis"
    if order == "suffix":
        lasts = {int(frame["last"].max()) for frame in frames}
        end = f"layer {lasts.pop()}" if len(lasts) == 1 else "the last layer studied"
        return f"from the layer on the axis up to {end}"
    single = all((frame["first"] == frame["last"]).all() for frame in frames)
    return f"of the layer{'' if single else 's'} on the axis"
