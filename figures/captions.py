"""Captions for a paper: quantity, number of examples, meaning of bars and marks, undefined values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import StudyKind, drop_points, span_order
from adapter_probe.analysis.studies import ALL_REMOVED, AblationOverview, AblationRecord
from adapter_probe.metrics import METRICS

from .wording import (
    bare_score,
    common_metric,
    common_value,
    count_text,
    drop_label,
    drop_name,
    metric_name,
    points_text,
    study_label,
    test_name,
    unit_name,
    why_spans_mean_nothing,
)

if TYPE_CHECKING:
    from .heatmap import Grid

_MCNEMAR = "an exact two-sided McNemar test of its predictions against the intact model's"
_STUDIES = {
    "ablated": "the adapters in a contiguous span of layers are switched off, without retraining",
    "kept": "only the adapters in a contiguous span of layers are kept on, without retraining",
}
SOURCE = "Houlsby et al. (2019)"
_PUBLISHED_GRIDS = (
    f"Grids labelled {SOURCE} show the published values (BERT-base, points of validation accuracy)."
)


def heatmap_caption(grids: Sequence[Grid], tolerance: float) -> str:
    """Caption of one or several grids of spans."""
    own = [grid for grid in grids if grid.overview is not None]
    overviews = [grid.overview for grid in own]
    frame = pd.concat([grid.frame for grid in grids], ignore_index=True)
    study = overviews[0].study
    metric = common_value(overview.metric for overview in overviews)
    parts = [
        *_warnings(overviews),
        f"{drop_name(metric).capitalize()} in {overviews[0].split} {metric_name(metric)}"
        f" ({unit_name(metric)}) when {_STUDIES[study]}.",
        f"Rows give the first, columns the last {study} layer; green frames mark single layers.",
        f"The black line separates spans with a {drop_name(metric)} of at most {points_text(tolerance)} from"
        " the others.",
        *(_checkpoint_sentence(overview) for overview in overviews),
    ]
    if (drop_points(frame["delta_points"]) < 0).any():
        parts.append("Blue cells, with a minus sign: the score improves.")
    if "significant" in frame:
        parts.append(_test_sentence(own))
    if "non_monotone" in frame and frame["non_monotone"].eq(True).any():
        parts.append(
            f"A triangle marks a span with a smaller {drop_name(metric)} than a shorter span inside it"
            " (simultaneous 95 % paired bootstrap bound over the spans inside it; not corrected over spans)."
        )
    if len(own) < len(grids):
        parts.append(_PUBLISHED_GRIDS)
    return " ".join([*parts, undefined_text(int(frame["delta_points"].isna().sum()), "Crossed-out spans")])


def curve_caption(records: Sequence[AblationRecord], tolerance: float, *, paper: bool) -> str:
    """Caption of one or several ablations drawn as curves; `paper` if published drops are included."""
    overviews = [record.overview for record in records]
    frame = pd.concat([record.spans for record in records], ignore_index=True)
    said, metric = overviews[0], common_metric(records)
    parts = [
        *_warnings(overviews),
        f"{drop_name(metric).capitalize()} in {said.split} {metric_name(metric)} ({unit_name(metric)}) when"
        f" {_of_lines([record.spans for record in records], said.study)}.",
        f"The dashed line is a {drop_name(metric)} of {points_text(tolerance)}.",
        *(_checkpoint_sentence(overview) for overview in overviews),
    ]
    if "ci_low_points" in frame:
        mark = "Bars are" if span_order(records[0].spans) == "apart" else "The band is the"
        units = " or ".join(dict.fromkeys(_units(one) for one in overviews))
        parts.append(f"{mark} 95 % paired bootstrap interval{'s' * mark.startswith('Bars')} over {units}.")
    if "significant" in frame:
        parts.append(
            f"Filled marks differ from the intact model at 0.05 by {_tests(overviews)}, Holm-corrected"
            f"{_over_spans([record.spans for record in records])}; hollow ones do not."
        )
    if paper:
        parts.append(
            f"Squares are the drops published by {SOURCE}, BERT-base, in points of validation accuracy."
        )
    return " ".join(
        [*parts, undefined_text(int(frame["delta_points"].isna().sum()), "Crosses at the bottom")]
    )


def _of_lines(frames: Sequence[pd.DataFrame], study: StudyKind) -> str:
    """What was done to the adapters in the spans of curves, as a clause."""
    what = {"ablated": "are switched off", "kept": "are the only ones kept on"}[study]
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


def _over_spans(frames: Sequence[pd.DataFrame]) -> str:
    """The number of spans that the correction is over."""
    counts = {int(frame["p_holm"].notna().sum()) for frame in frames if "p_holm" in frame}
    return f" over {' or '.join(map(str, sorted(counts)))} spans" if counts else ""


def joint_caption(record: AverageRecord | ComparisonRecord, tolerance: float, *, paper: bool = False) -> str:
    """Caption of means over studies, or of differences between two, as a grid or as a curve.

    With `paper`, the published grid stands beside the means.
    """
    metric, names, is_grid = record.metric, record.names, span_order(record.spans) is None
    drop = f"{drop_name(metric)} in {metric_name(metric)} ({unit_name(metric)})"
    scores = ", ".join(bare_score(score, metric) for score in record.intact_scores)
    about = f"{count_text(record.n_examples, 'example')}, intact {scores}"
    done = _STUDIES[record.study] if is_grid else _of_lines([record.spans], record.study)
    mark = "A ring" if is_grid else "A hollow dot"
    if isinstance(record, ComparisonRecord):
        what, test = "difference", "a two-sided paired bootstrap test over examples"
        drawn = f"Difference of the {drop} when {done}: {names[1]} minus {names[0]} ({about})."
    else:
        what, test = "mean", "a two-sided bootstrap test over studies and examples"
        drawn = f"Mean {drop} over {len(names)} studies ({', '.join(names)}; {about}) when {done}."
    marks = _joint_grid_marks(record, tolerance) if is_grid else _joint_curve_marks(record, tolerance)
    return " ".join(
        [
            drawn,
            *marks,
            f"{mark} marks a span whose {what} is not significant at 0.05 by {test},"
            f" Holm-corrected{_over_spans([record.spans])}.",
            *([_PUBLISHED_GRIDS] if paper else []),
        ]
    )


def _joint_grid_marks(record: AverageRecord | ComparisonRecord, tolerance: float) -> list[str]:
    """Sentences on the cells and the line of a grid of means or differences."""
    if isinstance(record, ComparisonRecord):
        return [f"In red cells {record.names[1]} loses more, in blue cells less."]
    return [
        "The standard deviation over the studies is printed below each mean or, where cells are too small,"
        " drawn as a second grid on the same scale.",
        f"The black line separates spans with a mean of at most {points_text(tolerance)} from the others.",
    ]


def _joint_curve_marks(record: AverageRecord | ComparisonRecord, tolerance: float) -> list[str]:
    """Sentences on the band, the bars and the line of a curve of means or differences."""
    marks = []
    if "ci_low_points" in record.spans:
        apart = span_order(record.spans) == "apart"
        marks.append(f"{'Blue bars show' if apart else 'The band is'} the 95 % bootstrap interval.")
    if isinstance(record, AverageRecord):
        marks.append("Grey bars are one standard deviation over the studies.")
        marks.append(f"The dashed line is a mean {drop_name(record.metric)} of {points_text(tolerance)}.")
    return marks


def _warnings(overviews: Iterable[AblationOverview]) -> list[str]:
    """A sentence for each study whose spans are not informative."""
    return [
        f"{study_label(one)}: the intact model is {reason}, so its spans are not informative."
        for one in overviews
        if (reason := why_spans_mean_nothing(one))
    ]


def _whole(overviews: Sequence[AblationOverview]) -> str:
    """What is off with everything off: all adapters, or those of some layers or of one sublayer."""
    told = dict.fromkeys(one.removed for one in overviews)
    return " or ".join("all adapters off" if one == ALL_REMOVED else one for one in told)


def _checkpoint_sentence(overview: AblationOverview) -> str:
    """A sentence on one checkpoint."""
    intact = "undefined" if overview.intact is None else bare_score(overview.intact, overview.metric)
    said = [count_text(overview.n_examples, "example"), f"intact {metric_name(overview.metric)} {intact}"]
    if overview.majority is not None:
        said.append(f"{overview.baseline} {bare_score(overview.majority, overview.metric)}")
    return f"{study_label(overview)}: one trained checkpoint, {', '.join(said)}."


def _test_sentence(own: Sequence[Grid]) -> str:
    tests, over = _tests(grid.overview for grid in own), _over_spans([grid.frame for grid in own])
    ring = "A ring marks a span that does not differ significantly from the intact model at 0.05 by"
    return f"{ring} {tests}, Holm-corrected{over}."


def _tests(overviews: Iterable[AblationOverview]) -> str:
    """The names of the tests behind the p-values."""
    found = dict.fromkeys(
        _MCNEMAR
        if test_name(one.metric) == "McNemar"
        else f"a two-sided paired bootstrap test over {_units(one)}"
        for one in overviews
        if one.metric is not None
    )
    return " or ".join(found) or "a two-sided test"


def _units(overview: AblationOverview) -> str:
    """Units that the bootstrap resamples; questions on one paragraph are not independent."""
    return "paragraphs" if overview.metric in METRICS["extractive"] else "examples"


def undefined_text(n: int, what: str) -> str:
    """The number of undefined values and how they are shown, even if it is 0."""
    return f"{what} are undefined ({n})." if n else "No value is undefined."


def attribution_caption(records: Sequence[AblationRecord]) -> str:
    """Caption of the layer shares and interactions of one or several ablations."""
    overviews = [record.overview for record in records]
    layers = pd.concat([record.shares for record in records], ignore_index=True)
    spans = pd.concat([record.spans for record in records], ignore_index=True)
    metric = common_metric(records)
    drop = drop_name(metric)
    parts = [
        *_warnings(overviews),
        f"Attribution to layers of the {drop_label(metric, overviews[0].split)} with {_whole(overviews)}.",
        f"Grid: interaction of each span of layers, the part of its {drop} that shorter spans do not explain,"
        f" m(a,b) = d(a,b) − d(a+1,b) − d(a,b−1) + d(a+1,b−1) with d(a,b) the {drop} of span a to b; red:"
        " additional loss, blue: less loss.",
        "Bars: each layer's share, the sum of m(a,b)/(b−a+1) over the spans that contain it (the Myerson"
        f" value on the chain of layers); the shares sum to the total {drop}.",
        f"Diamonds: the {drop} of the layer alone.",
        *(_checkpoint_sentence(one) for one in overviews),
    ]
    if "share_low_points" in layers:
        units = " or ".join(dict.fromkeys(_units(one) for one in overviews))
        parts.append(
            f"Error bars are 95 % paired bootstrap intervals over {units}; in the grid, squares whose"
            " interval includes 0 are small, and the others show their value where it fits."
        )
    if "p_holm" in layers:
        parts.append(
            f"Filled diamonds: significant at 0.05 by {_tests(overviews)}, Holm-corrected over all spans."
        )
    missing = int(layers["share_points"].isna().sum() + spans["interaction_points"].isna().sum())
    return " ".join([*parts, undefined_text(missing, "Values left out")])
