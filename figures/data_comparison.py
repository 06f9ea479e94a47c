"""Drop of every span on one data set against its drop on another, as points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from adapter_probe import wording
from adapter_probe.analysis.comparing import DataComparisonRecord
from adapter_probe.analysis.study_records import StudyRecord
from adapter_probe.errors import cut

from . import style
from .ablation_words import Words
from .drawing import Drawing, caption_of
from .layout import one_panel
from .legends import INTERVAL, LegendEntry, PointLabel, label_points, with_legend
from .venues import FigureOptions

_MOST_NAMED = 8  # maximum number of frontier spans that are labelled with their layers
_PALETTE = "crest"  # seaborn's: darker with more layers
_LONGEST_NAME = 24  # letters


def data_comparison(record: DataComparisonRecord, ax: Axes | None = None) -> Axes:
    """Draw the drop of every span on the task (x) against its drop on the other data (y), in points.

    The intact model is the cross at (0, 0), and gains are negative. The line is the Pareto frontier: the
    points, possibly including the intact model, that no other dominates. Thin bars are the frontier's 95%
    bootstrap intervals.
    """
    return with_legend(ax, partial(_draw, record), room=False)


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
    for name, metric, set_label in ((task, first, ax.set_xlabel), (other, second, ax.set_ylabel)):
        on = cut(wording.task_label(name), _LONGEST_NAME)
        set_label(f"{wording.drop_name(metric)} on {on} ({wording.unit_name(metric)})")
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
    size = 5 * style.scale_factor()
    return {"marker": "P", "color": style.line_colour(), "markersize": size, "linestyle": "none"}


def _entries(record: DataComparisonRecord) -> list[LegendEntry]:
    """Handles and words: the fewest and the most layers, the intact model, the frontier."""
    import seaborn

    frame = record.spans
    unit, ends = style.scale_factor(), sorted({int(frame["n_layers"].min()), int(frame["n_layers"].max())})
    shades = seaborn.color_palette(_PALETTE, as_cmap=True)([0.0, 1.0][: len(ends)])
    dot = {"linestyle": "none", "marker": "o", "markersize": 4 * unit, "markeredgewidth": 0.0}
    entries: list[LegendEntry] = [
        (Line2D([], [], color=shade, **dot), f"{wording.count_text(n, 'layer')} {Words.of(record).done}")
        for n, shade in zip(ends, shades)
    ]
    interval = {"color": style.FAINT, "linewidth": 0.5 * unit}
    return [
        *entries,
        (Line2D([], [], **_intact_props()), "intact model"),
        (Line2D([], [], color=style.line_colour(), linewidth=0.8 * unit), "frontier"),
        (Line2D([], [], **interval), "95% interval"),
    ]


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
    names = []
    for row in named.itertuples(index=False):
        text = f"{getattr(row, 'stack', '')} {wording.span_text(row.first, row.last)}".strip()
        names.append(PointLabel(text, row.task_points, row.other_points, style.line_colour()))
    label_points(ax, names if len(names) <= _MOST_NAMED else (), opaque=True)


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of each comparison of two data sets, with its CSV and caption."""
    for record in studies:
        if isinstance(record, DataComparisonRecord):
            figure = one_panel(partial(_draw, record), options, 0.8, 0.5)
            first, second = map(wording.task_label, record.names)
            title, identity = f"Drop on {first} against drop on {second}", {"studies": dict(record.identity)}
            yield Drawing("data-comparison", title, figure, record.spans, _caption(record), identity)


def _caption(record: DataComparisonRecord) -> str:
    (first, second), words = record.metrics, Words.of(record)
    task, other = (
        f"{wording.change_of(metric)} on {wording.task_label(name)} ({wording.unit_name(metric)}, n = {n:,})"
        for metric, name, n in zip(record.metrics, record.names, record.n_examples)
    )
    done = f"only the span's {words.adapters} are kept on"
    if words.study == "ablated":
        done = f"the span's {words.adapters} are {words.done}"
    left, down = (
        "closer to the intact model" if wording.is_distance(one) else "better" for one in (first, second)
    )
    directions = f"Left is {left}, down is {down}; gains are negative."
    if left == down:
        gains = "" if wording.is_distance(first) else "; gains are negative"
        directions = f"Left and down is {left}{gains}."
    return caption_of(
        [
            record.warning,
            f"Each point is a contiguous span of layers: the {task} against the {other} when {done}, without "
            "retraining.",
            directions,
            "The cross marks the intact model; the line is the Pareto frontier; bars are 95% paired"
            f" bootstrap intervals{wording.exact_note(first, second)}.",
            record.spans["n_layers"].nunique() > 1 and f"Darker points: more layers {words.done}.",
        ]
    )
