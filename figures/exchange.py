"""Change of every span on one data set against its change on another, as points."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from adapter_probe.analysis.exchange import ExchangeRecord

from . import style
from .drawing import Drawing
from .layout import fit_height, new_figure
from .venues import FigureOptions
from .wording import metric_name, task_label, unit_name

_MOST_NAMED = 8  # maximum number of frontier spans that are labelled with their layers
_ASPECT = 0.8
_LONGEST_NAME = 24  # letters


def exchange(record: ExchangeRecord, ax: Axes | None = None) -> Axes:
    """Draw the change of every span on the task (x) against its change on the other data (y), in points.

    The intact model is the cross at (0, 0). The line is the Pareto frontier: the points, possibly including
    the intact model, that no other dominates. Thin bars are the frontier's 95 % bootstrap intervals.

    Args:
        record: both changes of every span.
        ax: Axes to draw on; by default the current Axes.
    """
    import seaborn

    ax = plt.gca() if ax is None else ax
    frame, unit = record.spans, style.unit()
    for draw_line in (ax.axhline, ax.axvline):
        draw_line(0, color=style.FAINT, linewidth=0.5 * unit, zorder=0.5)
    seaborn.scatterplot(
        frame, x="task_points", y="other_points", hue="n_layers", palette="crest", s=14 * unit**2,
        linewidth=0.3 * unit, edgecolor=style.WHITE, ax=ax, zorder=2,
    )  # fmt: skip
    ax.legend(title="layers off", loc="upper left", bbox_to_anchor=(1, 1), handletextpad=0.2)
    ax.plot(0, 0, marker="P", color=style.ink(), markersize=5 * unit, linestyle="none", zorder=4)
    _draw_frontier(frame, ax, unit)
    (task, other), (first, second) = record.names, record.metrics
    ax.set_xlabel(f"change on {_short(task)}\n{metric_name(first)} ({unit_name(first)})")
    ax.set_ylabel(f"change on {_short(other)}\n{metric_name(second)} ({unit_name(second)})")
    return ax


def _short(name: str) -> str:
    """The name, shortened to fit an axis label."""
    label = task_label(name)
    return label if len(label) <= _LONGEST_NAME else f"{label[: _LONGEST_NAME - 1]}…"


def _draw_frontier(frame: pd.DataFrame, ax: Axes, unit: float) -> None:
    """The Pareto frontier as a line, with intervals and, for few spans, labels of their layers."""
    best = frame[frame["on_frontier"]].sort_values("task_points")
    points = best[["task_points", "other_points"]]
    if not ((points >= 0).all(axis=1)).any():  # the intact model is on the frontier
        points = pd.concat([points, pd.DataFrame({"task_points": [0.0], "other_points": [0.0]})])
        points = points.sort_values("task_points")
    ax.plot(*points.to_numpy().T, color=style.ink(), linewidth=0.8 * unit, zorder=1.5)
    errors = []
    for side in ("task", "other"):
        low, middle, high = (best[f"{side}_{end}points"] for end in ("low_", "", "high_"))
        errors.append([middle - low, high - middle])
    ax.errorbar(
        best["task_points"], best["other_points"], xerr=errors[0], yerr=errors[1], fmt="none",
        ecolor=style.FAINT, elinewidth=0.5 * unit, zorder=1,
    )  # fmt: skip
    # Of spans at the same point, the longest is labelled.
    named = best.sort_values("n_layers").drop_duplicates(["task_points", "other_points"], keep="last")
    for row in named.itertuples(index=False) if len(named) <= _MOST_NAMED else ():
        ax.annotate(
            f"{row.first}–{row.last}" if row.first != row.last else str(row.first),
            (row.task_points, row.other_points), xytext=(2.5 * unit, 2.5 * unit), textcoords="offset points",
            fontsize=style.tick_size(),
        )  # fmt: skip


def exchange_drawing(record: ExchangeRecord, options: FigureOptions) -> Drawing:
    """The figure of an exchange, with its CSV and caption."""
    width = options.width("half")
    with style.paper_style(options.venue):
        figure = new_figure(width, width)
        ax = exchange(record, figure.add_subplot())
        ax.set_box_aspect(_ASPECT)
        fit_height(figure, options.venue.tallest)
    title = f"Change on {record.names[0]} against change on {record.names[1]}"
    return Drawing(
        "exchange", title, figure, record.spans, _caption(record), {"studies": dict(record.identity)}
    )


def _caption(record: ExchangeRecord) -> str:
    (task, other), (first, second), (n, m) = record.names, record.metrics, record.n_examples
    return (
        f"Each point is a contiguous span of layers: the change of {metric_name(first)} on {task} "
        f"({unit_name(first)}, n = {n:,}) against the change of {metric_name(second)} on {other} "
        f"({unit_name(second)}, n = {m:,}) when the span's adapters are switched off, without retraining. "
        "Positive is better on both axes. The cross marks the intact model; the line is the Pareto frontier; "
        "bars are 95% paired bootstrap intervals. Darker points: more layers off."
    )
