"""Spans that form a line instead of a grid: prefixes, suffixes, or spans with no common end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from adapter_probe.analysis.comparing import ComparisonRecord
from adapter_probe.analysis.deltas import span_order
from adapter_probe.errors import ResultsError
from adapter_probe.wording import significance_test, span_text

from .ablation_words import axis_words
from .span_grid import Grid, SpanRecord, grid_of, published_grid


@dataclass(frozen=True, eq=False)
class SpanLine(Grid):
    """Spans that form a line, in order; optionally with the intervals `ci_low_points`, `ci_high_points`.

    Attributes:
        published: the published results of the same spans, with the column `grid`, which names the task and
            the paper; None if there are none.
    """

    published: pd.DataFrame | None = None

    @property
    def test(self) -> str | None:
        """Name of the significance test; None if it is not known."""
        return significance_test(self.metric) if self.metric else "bootstrap"

    @property
    def places(self) -> np.ndarray:
        """The tick label of each mark: a layer, or the first and last of several layers."""
        first, last, order = self.frame["first"], self.frame["last"], span_order(self.frame)
        if order != "apart":
            return (last if order == "prefix" else first).to_numpy()
        return np.array([span_text(*ends) for ends in zip(first.tolist(), last.tolist())])

    @property
    def axis(self) -> str:
        """The label of the axis of layers."""
        first, last, done = self.frame["first"], self.frame["last"], axis_words(self.study)
        if (order := span_order(self.frame)) == "prefix":
            return f"last layer {done} (first: {first.iloc[0]})"
        if order == "suffix":
            return f"first layer {done} (last: {last.iloc[0]})"
        return f"layer{'' if (first == last).all() else 's'} {done}"


def span_line(record: SpanRecord, *, paper: bool = False) -> SpanLine | None:
    """The line that the spans of a record form; None if they do not form one.

    Args:
        record: an ablation, an average or a comparison.
        paper: whether to include the published drops of the same spans and task; only for an ablation.
    """
    if span_order(record.spans) is None:
        return None
    grid, published = grid_of(record), None
    frame = grid.frame.sort_values(["first", "last"], ignore_index=True)
    if isinstance(record, ComparisonRecord):
        frame["ci_low_points"], frame["ci_high_points"] = -frame["ci_high_points"], -frame["ci_low_points"]
    if grid.record and paper:
        theirs = published_grid(grid.record.summary.task, grid.study)
        published = None if theirs is None else _same_spans(theirs, frame)
    return SpanLine(**{**vars(grid), "frame": frame}, published=published)


def line_of_spans(record: SpanRecord, *, paper: bool = False) -> SpanLine:
    """The line that the spans of a record form; arguments as for `span_line`.

    Raises:
        ResultsError: the spans are a grid.
    """
    line = span_line(record, paper=paper)
    if line is None:
        raise ResultsError("these spans are a grid, which is drawn as a heatmap")
    return line


def _same_spans(published: Grid, frame: pd.DataFrame) -> pd.DataFrame | None:
    """The published drops of the frame's spans; None unless all are there and the highest layers agree."""
    theirs = published.frame.assign(grid=published.name)
    found = frame[["first", "last"]].merge(theirs, on=["first", "last"])
    same = len(found) == len(frame) and frame["last"].max() == theirs["last"].max()
    return found if same else None
