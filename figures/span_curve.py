"""Curves of the drop of spans that form a line instead of a grid: prefixes, suffixes, or single layers.

The x-axis shows the end in which the spans differ, or the layers of each span. The y-axis shows the drop of
the score, with losses upwards. The band is the 95% interval; spans with no common end have bars instead. A
filled mark is a significant difference from the intact model, a hollow mark is not. The dashed line is the
tolerance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from adapter_probe.analysis.comparing import ComparisonRecord
from adapter_probe.analysis.score_changes import drop_points, span_order
from adapter_probe.analysis.study_records import AblationRecord, StudyRecord
from adapter_probe.errors import ResultsError
from adapter_probe.wording import drop_name, interval_method, sentence, span_text, tolerance_text

from . import ablation_words, layout, style
from .ablation_words import SpanRecord, Words
from .curves import FOOT, tidy_axes
from .drawing import SOURCE, Drawing, caption_of, identity_of, joined, undefined_text
from .grid import number_layers
from .heatmap import beside, heatmap
from .legends import INTERVAL, LegendEntry, add_legend, leave_room
from .modules import module_map
from .span_grid import Grid, grid_of, published_grid
from .venues import FigureOptions

_COLOUR, _BAND = "#0072b2", 0.2
_MARK = 3.6  # units; marks are smaller if there are many layers
_COMPARED = re.compile(r" (from|with) the intact model.*?(?= \()")  # what the caption says is left out
_ASPECT, _WIDE_ASPECT = 0.7, 0.42


@dataclass(frozen=True, eq=False)
class SpanLine(Grid):
    """Spans that form a line, in order; optionally with the intervals `ci_low_points`, `ci_high_points`.

    Attributes:
        published: the published results of the same spans, with the column `grid`, which names the task and
            the paper; None if there are none.
    """

    published: pd.DataFrame | None = None


def line_of_spans(record: SpanRecord, *, paper: bool = False) -> SpanLine:
    """The line that the spans of a record form, on request with the published drops of the same spans.

    Raises:
        ResultsError: the spans are a grid.
    """
    if span_order(record.spans) is None:
        raise ResultsError("these spans are a grid, which is drawn as a heatmap")
    grid, published = grid_of(record), None
    frame = grid.frame.sort_values(["first", "last"], ignore_index=True)
    if isinstance(record, ComparisonRecord):
        frame["ci_low_points"], frame["ci_high_points"] = -frame["ci_high_points"], -frame["ci_low_points"]
    if isinstance(record, AblationRecord) and paper:
        theirs = published_grid(record.summary.task, record.summary.study)
        if theirs is not None and frame["last"].max() == theirs.frame["last"].max():
            found = frame[["first", "last"]].merge(
                theirs.frame.assign(grid=theirs.name), on=["first", "last"]
            )
            published = found if len(found) == len(frame) else None
    return SpanLine(frame, grid.notes, record, grid.label, grid.shows, published)


def layers_axis(ax: Axes, frame: pd.DataFrame, done: str) -> None:
    """The axis of layers: of each span the end in which they differ, or its first and last layer."""
    first, last, order = frame["first"], frame["last"], span_order(frame)
    places = (last if order == "prefix" else first).to_numpy()
    label = f"layer{'' if (first == last).all() else 's'} {done}"
    if order == "prefix":
        label = f"last layer {done} (first: {first.iloc[0]})"
    elif order == "suffix":
        label = f"first layer {done} (last: {last.iloc[0]})"
    else:
        places = np.array([span_text(*ends) for ends in zip(first.tolist(), last.tolist())])
    ax.set_xlim(-0.6, len(frame) - 0.4)
    number_layers(ax.xaxis, places, 0.0)
    ax.set_xlabel(label)


def draw_line(line: SpanLine, ax: Axes, *, tolerance: float) -> None:
    """Draw one curve with the labels of its axes, but without a legend."""
    frame, unit, ink = line.frame, style.scale_factor(), style.line_colour()
    drops = drop_points(frame["delta_points"])
    x, known = np.arange(len(drops)), ~np.isnan(drops)
    tidy_axes(ax)
    ax.grid(False, axis="x")
    ax.axhline(0, color=ink, linewidth=0.6 * unit, zorder=1)
    if line.shows == "drops":
        ax.axhline(tolerance, zorder=1.5, label="tolerance", **style.dashed(ink, 0.9))
    joined = span_order(frame) != "apart"
    if "ci_low_points" in frame:
        low, high = -frame["ci_high_points"], -frame["ci_low_points"]
        look = {"color": _COLOUR, "label": INTERVAL}
        if joined:
            ax.fill_between(x, low, high, alpha=_BAND, linewidth=0, zorder=0.8, **look)
        else:
            ax.vlines(x, low, high, linewidth=0.8 * unit, zorder=2, **look)
    if "sd_points" in frame:
        ends = drops - frame["sd_points"], drops + frame["sd_points"]
        ax.vlines(x, *ends, zorder=2, label="s.d.", color=style.FAINT, linewidth=0.6 * unit)
    if line.published is not None:
        ax.plot(x, drop_points(line.published["delta_points"]), zorder=2, **_published_props())
    if joined:
        ax.plot(x, drops, color=_COLOUR, linewidth=1.1 * unit, zorder=3)
    _draw_marks(ax, x[known], drops[known], _is_sure(frame)[known])
    foot, across = np.full((~known).sum(), FOOT), ax.get_xaxis_transform()
    ax.plot(x[~known], foot, transform=across, label="undefined", zorder=4, **_cross_props())
    layers_axis(ax, frame, line.words.done)
    ax.set_ylabel(_COMPARED.sub("", line.label).replace(" (", "\n("))  # the panels are low


def _is_sure(frame: pd.DataFrame) -> np.ndarray:
    """Whether each difference is significant, bool ``[spans]``; True for all spans if no test was made."""
    return frame["significant"].to_numpy(bool) if "significant" in frame else np.ones(len(frame), bool)


def _draw_marks(ax: Axes, x: np.ndarray, drops: np.ndarray, sure: np.ndarray) -> None:
    """Draw one dot per span, filled if the difference is significant and small enough not to overlap."""
    marks = [
        ax.scatter(x[chosen], drops[chosen], facecolors=fill, edgecolors=_COLOUR, zorder=zorder, label=label)
        for chosen, fill, zorder, label in (
            (sure, _COLOUR, 4.1, "significant"), (~sure, ax.get_facecolor(), 4, "not significant"),
        )
    ]  # fmt: skip

    def fit(ax: Axes) -> None:
        left, right = ax.get_xlim()
        size = min(_MARK * style.scale_factor(), 0.85 * layout.size_in_points(ax)[0] / (right - left))
        for mark in marks:
            mark.set_sizes([size**2])
            mark.set_linewidth(min(0.7 * style.scale_factor(), 0.25 * size))

    layout.before_drawing(ax, fit)


def _cross_props() -> dict[str, object]:
    return {"linestyle": "", "marker": "x", "color": style.FAINT, "markersize": 3 * style.scale_factor()}


def _published_props() -> dict[str, object]:
    unit = style.scale_factor()
    return {
        "color": style.FAINT, "marker": "s", "markersize": 2.6 * unit, "markerfacecolor": style.WHITE,
        "markeredgewidth": 0.5 * unit, "linewidth": 0.7 * unit, "linestyle": ":",
    }  # fmt: skip


def line_entries(lines: Sequence[SpanLine], tolerance: float) -> list[LegendEntry]:
    """Legend handles and labels for everything that the curves contain."""
    unit, frames = style.scale_factor(), [line.frame for line in lines]
    dot = {"linestyle": "", "marker": "o", "markeredgecolor": _COLOUR}
    dot |= {"markersize": _MARK * unit, "markeredgewidth": 0.7 * unit}
    entries: list[LegendEntry] = []
    tested = [frame for frame in frames if "significant" in frame]
    sure = np.concatenate([_is_sure(frame)[frame["delta_points"].notna()] for frame in frames])
    alone = [line for line in lines if isinstance(line.record, AblationRecord)]
    tests = dict.fromkeys([one.test for one in alone if one.test] or ["paired test"] * (not alone))
    how = f" ({' or '.join(tests)}, Holm)" if tests else ""
    for chosen, fill, word in ((sure, _COLOUR, "significant"), (~sure, "none", "not significant")):
        if tested and chosen.any():
            entries.append((Line2D([], [], markerfacecolor=fill, **dot), f"{word}{how}"))
    if any("ci_low_points" in frame for frame in frames):
        joined = any(span_order(frame) != "apart" for frame in frames)
        upright = {"marker": "|", "markersize": 7 * unit, "markeredgewidth": 0.8 * unit}
        bar = Line2D([], [], linestyle="", color=_COLOUR, **upright)
        band = Patch(facecolor=_COLOUR, alpha=_BAND, linewidth=0)
        entries.append((band if joined else bar, "95% interval"))
    if any("sd_points" in frame for frame in frames):
        entries.append((Line2D([], [], color=style.FAINT, linewidth=0.6 * unit), "s.d. over studies"))
    if any(line.shows == "drops" for line in lines):
        within = tolerance_text(tolerance, lines[0].words.metric)
        entries.append((Line2D([], [], **style.dashed(style.line_colour(), 0.9)), f"tolerance, {within}"))
    if any(line.published is not None for line in lines):
        entries.append((Line2D([], [], **_published_props()), "Houlsby et al. 2019"))
    if any(frame["delta_points"].isna().any() for frame in frames):
        entries.append((Line2D([], [], **_cross_props()), "undefined"))
    return entries


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
    """Draw the drops of spans that form a line; arguments as of `adapter_probe.Ablation.plot`.

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
    """The figures of the ablations whose spans are lines, side by side, one figure per kind of line."""
    for suffix, ablations in ablation_words.alike_ablations(studies):
        orders = [span_order(record.spans) for record in ablations]
        orders_drawn = [order for order in dict.fromkeys(orders) if order is not None]
        for order in orders_drawn:
            alike = [record for record, one in zip(ablations, orders) if one == order]
            stem = f"curve{f'-{order}' if len(orders_drawn) > 1 else ''}{suffix}"
            lines = [line_of_spans(record, paper=options.paper) for record in alike]
            published = [line.published for line in lines if line.published is not None]
            theirs = pd.concat(published).drop_duplicates() if published else None
            names = [ablation_words.study_label(record) for record in alike]
            metric = ablation_words.common_metric(alike)
            title = f"{' and '.join(dict.fromkeys(names))}: {drop_name(metric)} by span of layers "
            title += alike[0].summary.done
            numbers = joined([(name, line.frame) for name, line in zip(names, lines)], theirs)
            caption = _caption(alike, options.tolerance, bool(published))
            yield Drawing(stem, title, curve_figure(lines, options), numbers, caption, identity_of(alike))


def curve_figure(lines: Sequence[SpanLine], options: FigureOptions) -> Figure:
    """Panels in rows, with what the marks mean below them."""
    width = options.width("full" if len(lines) > 1 else "half")
    with style.paper_style(options.venue):
        rows, columns = layout.shape_of(len(lines), width)
        aspect = _WIDE_ASPECT if width / columns >= layout.WIDE else _ASPECT
        figure = layout.new_figure(width, width * aspect * (rows / columns + 0.5))
        first = None
        for index, line in enumerate(lines):
            ax = figure.add_subplot(rows, columns, index + 1, sharey=first)
            first = first or ax
            draw_line(line, ax, tolerance=options.tolerance)
            layout.title_above(ax, line.notes)
            ax.set_box_aspect(aspect)
            ax.set_ylabel("" if index % columns else ax.get_ylabel())
        layout.legend_below(figure, line_entries(lines, options.tolerance))
        lowest = (
            1.7 * layout.LOWEST_ROW if rows == 1 else rows * layout.LOWEST_ROW
        )  # a title of several lines
        return layout.fit_height(figure, max(options.venue.tallest, lowest))


def _caption(records: Sequence[AblationRecord], tolerance: float, paper: bool) -> str:
    frames = [record.spans for record in records]
    frame, metric = pd.concat(frames, ignore_index=True), ablation_words.common_metric(records)
    mark, plural = ("Bars are", "s") if span_order(frames[0]) == "apart" else ("The band is the", "")
    done, tests = of_lines(frames, Words.of(records[0])), ablation_words.tests_of(records)
    method = interval_method(*(one.summary.metric for one in records))
    return caption_of(
        [
            *ablation_words.warnings_of(records),
            f"{sentence(ablation_words.drop_label(records, metric))} when {done}.",
            f"The dashed line is a {drop_name(metric)} of {tolerance_text(tolerance, metric)}.",
            *ablation_words.checkpoint_sentences(records),
            "ci_low_points" in frame
            and frame["ci_low_points"].notna().any()
            and f"{mark} 95% interval{plural} {method}.",
            "significant" in frame
            and f"Filled marks differ from the intact model {ablation_words.at_level(tests, frames)};"
            " hollow ones do not.",
            paper
            and f"Squares are the drops published by {SOURCE}, BERT-base, in points of validation accuracy.",
            undefined_text(frame["delta_points"].isna().sum(), "Crosses at the bottom"),
        ]
    )


def of_lines(frames: Sequence[pd.DataFrame], words: Words) -> str:
    """What was done to the adapters in the spans of curves, which have one order, as a clause."""
    order = span_order(frames[0])
    if order == "prefix":
        firsts = {int(frame["first"].min()) for frame in frames}
        start = f"layer {firsts.pop()}" if len(firsts) == 1 else "the first layer studied"
        return words.done_to(f"from {start} up to the layer on the axis")
    if order == "suffix":
        lasts = {int(frame["last"].max()) for frame in frames}
        end = f"layer {lasts.pop()}" if len(lasts) == 1 else "the last layer studied"
        return words.done_to(f"from the layer on the axis up to {end}")
    single = all((frame["first"] == frame["last"]).all() for frame in frames)
    return words.done_to(f"of the layer{'' if single else 's'} on the axis")
