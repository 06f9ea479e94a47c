"""Several ablations together: the mean over seeds with its spread, or the difference of two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import span_order
from adapter_probe.analysis.study_records import StudyRecord
from adapter_probe.wording import (
    drawn_units,
    drop_label,
    examples_text,
    is_distance,
    score_text,
    tolerance_text,
)

from . import style
from .ablation_words import Words, at_level
from .drawing import Drawing, caption_of
from .heatmap import PUBLISHED, heatmap_figure, spread_fits
from .modules import joint_drawing
from .span_curve import curve_figure, line_of_spans, of_lines
from .span_grid import Grid, drawn_tolerance, grid_of, published_grid, spread_grid
from .venues import FigureOptions

_MARGIN = 0.5  # inches: width of the labels next to a grid


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of each average and each comparison, with its CSV and caption.

    Of means whose cells are too small for two numbers, a second grid shows the spread; on request the
    published grid stands beside that of the means.
    """
    for record in studies:
        if isinstance(record, (AverageRecord, ComparisonRecord)):
            if record.by_module:
                yield joint_drawing(record, options)
                continue
            stem = "comparison" if isinstance(record, ComparisonRecord) else "average"
            grids = _grids(record, options)
            title = f"{grids[0].label}: {', '.join(record.names)}"
            if span_order(record.in_stacks[0].spans) is not None:
                figure = curve_figure([line_of_spans(part) for part in record.in_stacks], options)
            else:
                mixed = _has_published(record, grids) and record.metric != "accuracy"
                label = f"mean {drop_label(None)}" if mixed else grids[0].label  # drops in two metrics
                figure = heatmap_figure(grids, options, label, None if mixed else record.metric)
            caption = _caption(record, grids, options.tolerance)
            yield Drawing(stem, title, figure, record.spans, caption, {"studies": dict(record.identity)})


def _grids(record: AverageRecord | ComparisonRecord, options: FigureOptions) -> list[Grid]:
    """The record's grid and, of a mean, those of the spread and of the paper where they are drawn."""
    if len(parts := record.in_stacks) > 1:
        return [grid for part in parts for grid in _grids(part, options)]
    grids = [grid_of(record)]
    if isinstance(record, AverageRecord) and span_order(record.spans) is None:
        with style.paper_style(options.venue):
            if not spread_fits(record, 72 * (options.width("half") - _MARGIN)):
                grids.append(spread_grid(record))
        if options.paper and not record.stack and (published := published_grid(record.task)) is not None:
            grids.append(published)
    return grids


def _has_published(record: AverageRecord | ComparisonRecord, grids: Sequence[Grid]) -> bool:
    return len(grids) > 1 and grids[-1].shows == "drops" and len(record.in_stacks) == 1


def _caption(record: AverageRecord | ComparisonRecord, grids: Sequence[Grid], tolerance: float) -> str:
    metric, names, frame = record.metric, record.names, record.in_stacks[0].spans
    is_grid, words, drop = span_order(frame) is None, Words.of(record), drop_label(record.metric)
    scores = ", ".join(score_text(score, metric) for score in record.intact_scores)
    about = examples_text(record.n_examples, metric)
    about += "" if is_distance(metric) else f", intact {scores}"
    done, within = (
        words.done_to_span() if is_grid else of_lines([frame], words),
        tolerance_text(tolerance, metric),
    )
    if isinstance(record, ComparisonRecord):
        what, test = "difference", f"a two-sided paired bootstrap test over {drawn_units(metric)}"
        drawn = f"Difference of the {drop} when {done}: {names[1]} minus {names[0]} ({about})."
        marks = [f"Red cells: the {words.drop} is larger in {names[1]}, blue cells: smaller."]
    else:
        what, test = "mean", f"a two-sided bootstrap test over studies and {drawn_units(metric)}"
        drawn = f"Mean {drop} over {len(names)} studies ({', '.join(names)}; {about}) when {done}."
        marks = [
            "The standard deviation over the studies is printed below each mean or, where cells are too"
            " small, drawn as a second grid on the same scale.",
            drawn_tolerance(grids, tolerance) is not None
            and f"The black line separates spans with a mean of at most {within} from the others.",
        ]
    if not is_grid:
        mark = "Blue bars show" if span_order(frame) == "apart" else "The band is"
        marks = ["ci_low_points" in record.spans and f"{mark} the 95% bootstrap interval."]
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
            f"{at_level(test, [record.spans])}.",
            _has_published(record, grids) and PUBLISHED,
        ]
    )
