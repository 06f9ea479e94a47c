"""Drop of every span on one data set against its drop on another, as points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from adapter_probe.analysis.comparing import DataComparisonRecord
from adapter_probe.analysis.study_records import StudyRecord
from adapter_probe.errors import cut
from adapter_probe.wording import (
    change_of,
    count_text,
    done_text,
    drop_name,
    exact_note,
    is_distance,
    span_text,
    task_label,
    unit_name,
)

from . import style
from .drawing import Drawing
from .layout import one_panel
from .legends import LegendEntry, add_legend
from .point_labels import INTERVAL, PointLabel, label_points
from .venues import FigureOptions

_MOST_NAMED = 8  # maximum number of frontier spans that are labelled with their layers
_PALETTE = "crest"  # seaborn's: darker with more layers
_LONGEST_NAME = 24  # letters


def data_comparison(record: DataComparisonRecord, ax: Axes | None = None) -> Axes:
    """Draw the drop of every span on the task (x) against its drop on the other data (y), in points.

    The intact model is the cross at (0, 0), and gains are negative. The line is the Pareto frontier: the
    points, possibly including the intact model, that no other dominates. Thin bars are the frontier's 95%
    bootstrap intervals.

    Args:
        ax: Axes to draw on; by default the current Axes.
    """
    ax = plt.gca() if ax is None else ax
    add_legend(ax, _draw(record, ax))
    return ax


def _draw(record: DataComparisonRecord, ax: Axes) -> list[LegendEntry]:
    """Everything but the legend; its entries."""
    import seaborn

    frame, unit = _drops(record.spans), style.scale_factor()
    lengths = (frame["n_layers"].min(), frame["n_layers"].max())  # without it, 1 would be a category
    for draw_line in (ax.axhline, ax.axvline):
        draw_line(0, zorder=0.5, **style.grid_props())
    seaborn.scatterplot(
        frame, x="task_points", y="other_points", hue="n_layers", hue_norm=lengths, palette=_PALETTE,
        s=16 * unit**2, linewidth=0.3 * unit, edgecolor=style.WHITE, ax=ax, zorder=3, legend=False,
    )  # fmt: skip
    ax.plot(0, 0, **_intact_props(), zorder=4)
    _draw_frontier(frame, ax, unit)
    (task, other), (first, second) = record.names, record.metrics
    ax.set_xlabel(f"{drop_name(first)} on {cut(task_label(task), _LONGEST_NAME)} ({unit_name(first)})")
    ax.set_ylabel(f"{drop_name(second)} on {cut(task_label(other), _LONGEST_NAME)} ({unit_name(second)})")
    return _entries(record)


def _drops(spans: pd.DataFrame) -> pd.DataFrame:
    """The spans with drops, positive for the worse, in place of changes."""
    return spans.assign(
        **{
            f"{side}_{end}points": -spans[f"{side}_{other}points"]
            for side in ("task", "other")
            for end, other in (("", ""), ("low_", "high_"), ("high_", "low_"))
        }
    )


def _intact_props() -> dict[str, object]:
    return {
        "marker": "P",
        "color": style.line_colour(),
        "markersize": 5 * style.scale_factor(),
        "linestyle": "none",
    }


def _entries(record: DataComparisonRecord) -> list[LegendEntry]:
    """Handles and words: the fewest and the most layers, the intact model, the frontier."""
    import seaborn

    frame = record.spans
    unit, ends = style.scale_factor(), sorted({int(frame["n_layers"].min()), int(frame["n_layers"].max())})
    shades = seaborn.color_palette(_PALETTE, as_cmap=True)([0.0, 1.0][: len(ends)])
    dot = {"linestyle": "none", "marker": "o", "markersize": 4 * unit, "markeredgewidth": 0.0}
    entries: list[LegendEntry] = [
        (Line2D([], [], color=shade, **dot), f"{count_text(n, 'layer')} {_state(record)}")
        for n, shade in zip(ends, shades)
    ]
    interval = {"color": style.FAINT, "linewidth": 0.5 * unit}
    return [
        *entries,
        (Line2D([], [], **_intact_props()), "intact model"),
        (Line2D([], [], color=style.line_colour(), linewidth=0.8 * unit), "frontier"),
        (Line2D([], [], **interval), "95% interval"),
    ]


def _state(record: DataComparisonRecord) -> str:
    return done_text(record.study, record.strength)


def _directions(first: str, second: str) -> str:
    """What left and down mean: a distance from the intact model says nothing of better or worse."""
    left, down = ("closer to the intact model" if is_distance(one) else "better" for one in (first, second))
    if left == down:
        return f"Left and down is {left}{'' if is_distance(first) else '; gains are negative'}."
    return f"Left is {left}, down is {down}; gains are negative."


def _draw_frontier(frame: pd.DataFrame, ax: Axes, unit: float) -> None:
    """The Pareto frontier as a line, with intervals and, for few spans, labels of their layers."""
    best = frame[frame["on_frontier"]].sort_values("task_points")
    points = best[["task_points", "other_points"]]
    if not ((points <= 0).all(axis=1)).any():  # the intact model is on the frontier
        points = pd.concat([points, pd.DataFrame({"task_points": [0.0], "other_points": [0.0]})])
        points = points.sort_values("task_points")
    ax.plot(*points.to_numpy().T, color=style.line_colour(), linewidth=0.8 * unit, zorder=1.5)
    x, y = best["task_points"], best["other_points"]
    props = {"color": style.FAINT, "linewidth": 0.5 * unit, "alpha": 0.6, "zorder": 1, "label": INTERVAL}
    ax.hlines(y, best["task_low_points"], best["task_high_points"], **props)
    ax.vlines(x, best["other_low_points"], best["other_high_points"], **props)
    # Of spans at one point the longest is named.
    named = best.sort_values("n_layers").drop_duplicates(["task_points", "other_points"], keep="last")
    names = [
        PointLabel(
            stack_text(row, span_text(row.first, row.last)),
            row.task_points,
            row.other_points,
            style.line_colour(),
        )
        for row in named.itertuples(index=False)
    ]
    label_points(ax, names if len(names) <= _MOST_NAMED else (), opaque=True)


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of each comparison of two data sets, with its CSV and caption."""
    for record in studies:
        if isinstance(record, DataComparisonRecord):
            figure = one_panel(lambda ax, record=record: _draw(record, ax), options, 0.8, 0.5)
            first, second = map(task_label, record.names)
            title, identity = f"Drop on {first} against drop on {second}", {"studies": dict(record.identity)}
            yield Drawing("data-comparison", title, figure, record.spans, _caption(record), identity)


def stack_text(row: Any, words: str) -> str:
    """Words on a span with its stack before them, if the row of its table has one."""
    stack = getattr(row, "stack", "")
    return f"{stack} {words}" if stack else words


def _caption(record: DataComparisonRecord) -> str:
    shades = (
        f" Darker points: more layers {_state(record)}." if record.spans["n_layers"].nunique() > 1 else ""
    )
    (first, second), (n, m) = record.metrics, record.n_examples
    task, other = map(task_label, record.names)
    off = record.study == "ablated"
    done = f"the span's adapters are {_state(record)}" if off else "only the span's adapters are kept on"
    return (f"{record.warning} " if record.warning else "") + (
        f"Each point is a contiguous span of layers: the {change_of(first)} on"
        f" {task} ({unit_name(first)}, n = {n:,}) against the {change_of(second)} on"
        f" {other} ({unit_name(second)}, n = {m:,}) when {done}, without retraining."
        f" {_directions(first, second)} The cross marks the intact model; the line is the"
        f" Pareto frontier; bars are 95% paired bootstrap intervals{exact_note(first, second)}.{shades}"
    )
