"""The verdicts of a race: a grid of spans with the number of examples that each took, or a line of bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from adapter_probe import wording
from adapter_probe.analysis.deltas import drop_points, span_order
from adapter_probe.analysis.racing import ASSUMED, BEYOND, CHOSEN, LEFT, NEEDLESS, UNDEFINED, WITHIN
from adapter_probe.analysis.study_records import RaceRecord, StudyRecord

from . import style
from .curves import tidy_axes
from .drawing import Drawing, caption_of, identity_of, of_kind, undefined_text
from .grid import Cells, draw_cells, write_notes
from .layout import before_drawing, one_panel, size_in_points
from .legends import LegendEntry, with_legend
from .levels import verdict_scale
from .span_curve import layers_axis
from .venues import FigureOptions

# In order of lightness, so that the verdicts differ in greyscale too; numbers are in black or white.
_LOOKS = {
    WITHIN: (1.0, "#9fd4f0"), CHOSEN: (1.0, "#9fd4f0"), BEYOND: (2.0, "#781f59"), LEFT: (2.0, "#781f59"),
    ASSUMED: (3.0, "#c68aa6"), NEEDLESS: (4.0, "#ececea"), UNDEFINED: (np.nan, "#8c8c8c"),
}  # fmt: skip
_MOST_IN_HALF = 14  # columns of a grid whose cells have room for their numbers in half of a page's width
_NUMBERS = "numbers: examples read"
_MARKS = {1.0: "o", 2.0: "s", 3.0: "d", 4.0: "d"}


def race(record: RaceRecord, ax: Axes | None = None, *, notes: bool = True) -> Axes:
    """Draw the verdict on every span of a race, with a legend, and on request notes in the empty corner."""
    if span_order(record.spans) is not None:
        return with_legend(ax, partial(_draw_line, record))
    ax = plt.gca() if ax is None else ax
    ax.legend(
        *zip(*_draw_grid(record, ax, notes)), loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2,
        frameon=False, fontsize=style.tick_size(), handlelength=1.2,
    )  # fmt: skip
    return ax


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of each race, with its CSV and caption."""
    for record, suffix in of_kind(studies, RaceRecord):
        draw, aspect, wide = partial(_draw_line, record), 0.7, False
        if span_order(record.spans) is None:
            draw, aspect = partial(_draw_grid, record), 1.0
            wide = record.spans["last"].nunique() > _MOST_IN_HALF
        placed = replace(options, column=options.column or ("full" if wide else "half"))
        figure = one_panel(draw, placed, aspect, aspect)
        title = (
            f"{wording.task_label(record.summary.task)}: verdicts on spans of layers {record.summary.done}"
        )
        caption, identity = _caption(record), identity_of([record])
        yield Drawing(f"race{suffix}", title, figure, record.spans, caption, identity)


def _draw_grid(record: RaceRecord, ax: Axes, notes: bool = True) -> list[LegendEntry]:
    """Draw a race without a legend; the legend's entries."""
    frame, cells = record.spans, Cells.of(record.spans)
    looks = [_LOOKS[decision] for decision in frame["decision"]]
    texts = [f"{n:,}" if n else "" for n in frame["n_examples"].tolist()]
    colours = {value: colour for value, colour in _LOOKS.values() if value == value}
    scale = verdict_scale(list(colours.values()))
    done = record.summary.done + (f" ({record.summary.stack})" if record.summary.stack else "")
    verdicts = np.array([value for value, _ in looks])
    numbers = draw_cells(cells, verdicts, ax, scale=scale, texts=texts, studied=done)
    if notes:
        write_notes(ax, _notes(record), cells, of={_NUMBERS: numbers})
    words = _words(record)
    return [
        (Patch(facecolor=colour, edgecolor=style.FAINT, linewidth=0.4), words[name])
        for name, (_, colour) in _LOOKS.items()
        if (frame["decision"] == name).any()
    ]


def _draw_line(record: RaceRecord, ax: Axes) -> list[LegendEntry]:
    """Spans that form a line: the drop on the examples read, between its bounds, and how many they are."""
    frame, unit, said = record.spans, style.scale_factor(), record.summary
    x, drops = np.arange(len(frame)), drop_points(frame["delta_points"])
    tidy_axes(ax)
    ax.grid(False, axis="x")
    dashes = style.dashed(style.line_colour(), 0.9)
    limit = said.goal.startswith("least")
    if not limit:
        ax.axhline(said.within_points, zorder=1, **dashes)
    entries: list[LegendEntry] = []
    words = _words(record)
    for name, (level, colour) in _LOOKS.items():
        own = (frame["decision"] == name).to_numpy() & ~np.isnan(drops)
        if not (frame["decision"] == name).any():
            continue
        props = {"color": colour, "markeredgecolor": style.INK, "markeredgewidth": 0.4 * unit}
        props |= {"marker": _MARKS.get(level, "x"), "markersize": 3.6 * unit, "linestyle": ""}
        low, high = (-frame[f"bound_{end}_points"].to_numpy()[own] for end in ("high", "low"))
        ax.vlines(x[own], low, high, color=colour, linewidth=1.2 * unit, zorder=2)
        ax.plot(x[own], drops[own], zorder=3, **props)
        entries.append((Line2D([], [], **props), words[name]))
    numbers = [
        ax.annotate(
            f"{n:,}", (place, 1.01), xycoords=("data", "axes fraction"), rotation=90, ha="center",
            va="bottom", size=style.SMALLEST_SIZE,
        )
        for place, n in zip(x, frame["n_examples"].tolist())
    ]  # fmt: skip

    def thin_out(ax: Axes) -> None:
        """Every number, or every second, third, ... where they would touch."""
        each = size_in_points(ax)[0] / np.ptp(ax.get_xlim())
        step = math.ceil(1.2 * style.SMALLEST_SIZE / each)
        for place, number in enumerate(numbers):
            number.set_visible(place % step == 0)

    before_drawing(ax, thin_out)
    layers_axis(ax, frame, said.done)
    ax.set_ylabel(f"{wording.drop_name(said.metric)} ({wording.unit_name(said.metric)})")
    if not limit:
        entries.append((Line2D([], [], **dashes), f"tolerance, {said.tolerance}"))
    return [*entries, (Line2D([], [], linestyle=""), _NUMBERS)]


def _words(record: RaceRecord) -> dict[str, str]:
    """What the decisions are called in the legend."""
    within = record.summary.tolerance
    return {
        WITHIN: f"{wording.drop_name(record.summary.metric)} within {within}", BEYOND: f"beyond {within}",
        ASSUMED: "assumed beyond", NEEDLESS: "not needed", UNDEFINED: "undefined",
        CHOSEN: "among the least", LEFT: "not among the least",
    }  # fmt: skip


def _notes(record: RaceRecord) -> list[str]:
    """The lines in the empty corner: the task, the answer, the risk and the cost."""
    said = record.summary
    answer = [f"longest within: {said.answer}"] if said.goal == "longest" else []
    return [
        f"{style.escape_mathtext(wording.task_label(said.task))}, n = {said.n_examples:,}",
        *answer,
        _NUMBERS,
        f"risk of any error {wording.share_text(100 * said.risk)}%",
        f"{wording.percent_text(100 * said.evaluations_share)} of the map computed",
        *(["verdicts not informative"] if said.warning else []),
    ]


def _caption(record: RaceRecord) -> str:
    said, frame = record.summary, record.spans
    line = span_order(frame) is not None
    drop, on = wording.drop_name(said.metric), wording.printable(said.data or said.split)
    of_all = f"the {drop} on all {said.n_examples:,} examples"
    what = f"the verdict on {of_all} and, where there is room, the number of examples that it took"
    if line:
        what = f"the {drop} on the examples read, with bounds of {of_all}; above, where there is room, "
        what += "how many were read"
    asked = {"longest": f"The longest span within {said.tolerance}: {said.answer}."}
    least = f"{wording.sentence(said.answer)} cost least, up to {said.tolerance}." if said.least else ""
    assumed = ", if no span costs less than its parts" if said.assume_monotone else ""
    pairs = wording.percent_text(100 * said.evaluations_share)
    certain = wording.share_text(100 * (1 - said.risk))
    return caption_of(
        [
            f"{wording.task_label(said.task)}: a race of {said.n_spans} spans of layers {said.done}, without "
            f"retraining, by {wording.metric_name(said.metric)} on {on}: {what}.",
            asked.get(said.goal, least),
            f"All verdicts are right with a probability of at least {certain}% over the random order of the "
            f"examples{assumed}, by betting without replacement (Waudby-Smith and Ramdas 2024) and a union "
            "bound; nothing else is tested.",
            f"{pairs} of all pairs of a span and an example were computed.",
            undefined_text((frame["decision"] == UNDEFINED).sum(), "Crossed-out spans"),
            said.warning,
        ]
    )
