"""Several ablations together: the mean over seeds, the difference of two, and drops on two data sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from adapter_probe import wording
from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord, DataComparisonRecord
from adapter_probe.analysis.score_changes import span_order
from adapter_probe.analysis.study_records import StudyRecord
from adapter_probe.errors import cut

from . import style
from .ablation_words import Words, about_joint, at_level
from .drawing import Drawing, caption_of
from .grid import NUMBER, numbers_sentence
from .heatmap import PUBLISHED, heatmap_figure
from .layout import one_panel, settle
from .legends import INTERVAL, LegendEntry, PointLabel, label_points, with_legend
from .modules import joint_drawing
from .span_curve import curve_figure, line_of_spans, of_lines
from .span_grid import Grid, drawn_tolerance, grid_of, published_grid, with_spread_apart
from .venues import FigureOptions


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of each average and each comparison, also of two data sets, with its CSV and caption.

    Of means whose cells are too small for two numbers, a second grid shows the spread; on request the
    published grid stands beside that of the means.
    """
    for record in studies:
        if isinstance(record, (AverageRecord, ComparisonRecord)):
            if record.by_module:
                yield joint_drawing(record, options, _test_of(record))
                continue
            stem = "comparison" if isinstance(record, ComparisonRecord) else "average"
            grids = _grids(record, options, apart=False)
            title = f"{grids[0].label}: {', '.join(record.names)}"
            if span_order(record.in_stacks[0].spans) is not None:
                figure = curve_figure([line_of_spans(part) for part in record.in_stacks], options)
            else:
                mixed = grids[-1].record is None and record.metric != "accuracy"
                # drops in two metrics share no unit
                label = f"mean {wording.drop_label(None)}" if mixed else grids[0].label
                metric = None if mixed else record.metric
                figure = heatmap_figure(grids, options, label, metric)
                if isinstance(record, AverageRecord) and not _has_spread(figure):
                    grids = _grids(record, options, apart=True)
                    figure = heatmap_figure(grids, options, label, metric)
            caption = _caption(record, grids, options.tolerance)
            if span_order(record.in_stacks[0].spans) is None:
                caption = caption_of([caption, numbers_sentence(figure, stem)])
            yield Drawing(stem, title, figure, record.spans, caption, {"studies": dict(record.identity)})
        elif isinstance(record, DataComparisonRecord):
            figure = one_panel(partial(_draw, record), options, 0.8, 0.5)
            first, second = map(wording.task_label, record.names)
            title, identity = f"Drop on {first} against drop on {second}", {"studies": dict(record.identity)}
            yield Drawing("data-comparison", title, figure, record.spans, _data_caption(record), identity)


def _grids(record: AverageRecord | ComparisonRecord, options: FigureOptions, apart: bool) -> list[Grid]:
    """A grid for each stack, of a mean with the spread in its cells or `apart`, and the paper's if asked."""
    parts = record.in_stacks
    if isinstance(record, ComparisonRecord) or span_order(parts[0].spans) is not None:
        return [grid_of(part) for part in parts]
    grids = [grid for part in parts for grid in (with_spread_apart(part) if apart else [grid_of(part)])]
    published = published_grid(record.task) if options.paper and len(parts) == 1 else None
    return grids if published is None else [*grids, published]


def _has_spread(figure: Figure) -> bool:
    """Whether the cells of a finished figure print the spread below the means."""
    settle(figure)
    numbers = [text for ax in figure.axes for text in ax.texts if text.get_label() == NUMBER]
    return any(text.get_visible() and "±" in text.get_text() for text in numbers)


def _caption(record: AverageRecord | ComparisonRecord, grids: Sequence[Grid], tolerance: float) -> str:
    metric, names, frame = record.metric, record.names, record.in_stacks[0].spans
    is_grid, words, drop = span_order(frame) is None, Words.of(record), wording.drop_label(record.metric)
    about, apart = about_joint(record), any(grid.shows == "spread" for grid in grids)
    done = words.done_to_span() if is_grid else of_lines([frame], words)
    within = wording.tolerance_text(tolerance, metric)
    if isinstance(record, ComparisonRecord):
        what = "difference"
        drawn = f"Difference of the {drop} when {done}: {names[1]} minus {names[0]} ({about})."
        marks = [f"Red cells: the {words.drop} is larger in {names[1]}, blue cells: smaller."]
    else:
        what = "mean"
        drawn = f"Mean {drop} over {len(names)} studies ({', '.join(names)}; {about}) when {done}."
        marks = [
            "The standard deviation over the studies is "
            + ("drawn as a second grid on the same scale." if apart else "printed below each mean."),
            drawn_tolerance(grids, tolerance) is not None
            and f"The black line separates spans with a mean of at most {within} from the others.",
        ]
    if not is_grid:
        mark = "Blue bars show" if span_order(frame) == "apart" else "The band is"
        note = wording.interval_method(metric, parts=True)
        note = "over studies and examples" if isinstance(record, AverageRecord) else note
        marks = ["ci_low_points" in record.spans and f"{mark} the 95% interval {note}."]
        if isinstance(record, AverageRecord):
            marks.append("Grey bars are one standard deviation over the studies.")
            marks.append(f"The dashed line is a mean {words.drop} of {within}.")
    return caption_of(
        [
            record.warning,
            drawn,
            *marks,
            "significant" in record.spans
            and f"{'A ring' if is_grid else 'A hollow dot'} marks a span whose {what} is not significant "
            f"{at_level(_test_of(record), [record.spans])}.",
            grids[-1].record is None and PUBLISHED,
        ]
    )


def _test_of(record: AverageRecord | ComparisonRecord) -> str:
    if isinstance(record, ComparisonRecord):
        return wording.named_test(record.metric, parts=True)
    return f"a two-sided test over studies (Student) and {wording.drawn_units(record.metric)}"


_MOST_NAMED = 8  # maximum number of frontier spans that are labelled with their layers
_PALETTE = "crest"  # seaborn's: darker with more layers
_LONGEST_NAME = 24  # letters


def data_comparison(record: DataComparisonRecord, ax: Axes | None = None) -> Axes:
    """Draw the drop of every span on the task (x) against its drop on the other data (y), in points.

    The intact model is the cross at (0, 0), and gains are negative. The line is the Pareto frontier: the
    points, possibly including the intact model, that no other dominates. Thin bars are the frontier's 95%
    intervals.
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
        parts = getattr(row, "stack", ""), getattr(row, "module", ""), wording.span_text(row.first, row.last)
        text = " ".join(filter(None, parts))
        names.append(PointLabel(text, row.task_points, row.other_points, style.line_colour()))
    label_points(ax, names if len(names) <= _MOST_NAMED else (), opaque=True)


def _data_caption(record: DataComparisonRecord) -> str:
    (first, second), words = record.metrics, Words.of(record)
    task, other = (
        f"{wording.change_of(metric)} on {wording.task_label(name)} ({wording.unit_name(metric)}, n = {n:,})"
        for metric, name, n in zip(record.metrics, record.names, record.n_examples)
    )
    point, whose = "a contiguous span of layers", "the span's"
    if "module" in record.spans:
        point, whose = f"a {record.unit} of a layer, of a group of layers or of all", "its"
    done = f"only {whose} {words.adapters} are kept on"
    if words.study == "ablated":
        done = f"{whose} {words.adapters} are {words.done}"
    scores = [
        f"{wording.metric_name(metric)} {wording.score_text(score, metric)} on {wording.task_label(name)}"
        for metric, score, name in zip(record.metrics, record.intact_scores, record.names)
        if not wording.is_distance(metric)
    ]
    about = f" ({', '.join(filter(None, [record.model, *scores]))})" if record.model or scores else ""
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
            f"Each point is {point}: the {task} against the {other} when {done}, without retraining.",
            directions,
            f"The cross marks the intact model{about}; the line is the Pareto frontier; bars are 95%"
            f" intervals {wording.interval_method(first, second)}.",
            record.spans["n_layers"].nunique() > 1 and f"Darker points: more layers {words.done}.",
        ]
    )
