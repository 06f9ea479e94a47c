"""Spans that form a line instead of a grid, and the drawing of it: prefixes, suffixes, or no common end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from adapter_probe.analysis.comparing import ComparisonRecord
from adapter_probe.analysis.deltas import drop_points, span_order
from adapter_probe.errors import ResultsError
from adapter_probe.wording import significance_test, span_text, tolerance_text

from . import style
from .curves import FOOT, tidy_axes
from .grid import number_layers
from .layout import before_drawing, size_in_points
from .legends import LegendEntry
from .point_labels import INTERVAL
from .span_grid import Grid, SpanRecord, grid_of, published_grid

_COLOUR, _BAND = "#0072b2", 0.2
_MARK = 3.6  # units; marks are smaller if there are many layers
_COMPARED = re.compile(r" (from|with) the intact model.*?(?= \()")  # what the caption says is left out


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
        first, last, done = self.frame["first"], self.frame["last"], self.done
        if (order := span_order(self.frame)) == "prefix":
            return f"last layer {done} (first: {first.iloc[0]})"
        if order == "suffix":
            return f"first layer {done} (last: {last.iloc[0]})"
        return f"layer{'' if (first == last).all() else 's'} {done}"


def span_line(record: SpanRecord, *, paper: bool = False) -> SpanLine | None:
    """The line that the spans of a record form; None if they do not form one.

    Args:
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


def draw_line(line: SpanLine, ax: Axes, *, tolerance: float) -> None:
    """Draw one curve with the labels of its axes, but without a legend."""
    frame, unit, ink = line.frame, style.scale_factor(), style.line_colour()
    drops = drop_points(frame["delta_points"])
    x, known = np.arange(len(drops)), ~np.isnan(drops)
    tidy_axes(ax)
    ax.grid(False, axis="x")
    ax.axhline(0, color=ink, linewidth=0.6 * unit, zorder=1)
    if line.shows == "drops":
        ax.axhline(tolerance, zorder=1.5, label="tolerance", **_tolerance_props())
    joined = span_order(frame) != "apart"
    if "ci_low_points" in frame:
        low, high, look = (
            -frame["ci_high_points"],
            -frame["ci_low_points"],
            {"color": _COLOUR, "label": INTERVAL},
        )
        if joined:
            ax.fill_between(x, low, high, alpha=_BAND, linewidth=0, zorder=0.8, **look)
        else:
            ax.vlines(x, low, high, linewidth=0.8 * style.scale_factor(), zorder=2, **look)
    if "sd_points" in frame:
        ends = drops - frame["sd_points"], drops + frame["sd_points"]
        ax.vlines(x, *ends, zorder=2, label="s.d.", **_spread_props())
    if line.published is not None:
        ax.plot(x, drop_points(line.published["delta_points"]), zorder=2, **_published_props())
    if joined:
        ax.plot(x, drops, color=_COLOUR, linewidth=1.1 * unit, zorder=3)
    _draw_marks(ax, x[known], drops[known], _is_sure(frame)[known])
    foot, across = np.full((~known).sum(), FOOT), ax.get_xaxis_transform()
    ax.plot(x[~known], foot, transform=across, label="undefined", zorder=4, **_cross_props())
    ax.set_xlim(-0.6, len(x) - 0.4)
    number_layers(ax.xaxis, line.places, 0.0)
    ax.set_xlabel(line.axis)
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
        size = min(_MARK * style.scale_factor(), 0.85 * size_in_points(ax)[0] / (right - left))
        for mark in marks:
            mark.set_sizes([size**2])
            mark.set_linewidth(min(0.7 * style.scale_factor(), 0.25 * size))

    before_drawing(ax, fit)


def _tolerance_props() -> dict[str, object]:
    return {"color": style.line_colour(), "linewidth": 0.9 * style.scale_factor(), "linestyle": (0, (4, 2))}


def _spread_props() -> dict[str, object]:
    return {"color": style.FAINT, "linewidth": 0.6 * style.scale_factor()}


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
    dot = {
        "marker": "o",
        "markeredgecolor": _COLOUR,
        "markersize": _MARK * unit,
        "markeredgewidth": 0.7 * unit,
    }
    entries: list[LegendEntry] = []
    tested = [frame for frame in frames if "significant" in frame]
    sure = np.concatenate([_is_sure(frame)[frame["delta_points"].notna()] for frame in frames])
    tests = dict.fromkeys(line.test for line in lines if line.test)
    how = f" ({' or '.join(tests)}, Holm)" if tests else ""
    for chosen, fill, word in ((sure, _COLOUR, "significant"), (~sure, "none", "not significant")):
        if tested and chosen.any():
            entries.append((Line2D([], [], linestyle="", markerfacecolor=fill, **dot), f"{word}{how}"))
    if any("ci_low_points" in frame for frame in frames):
        joined = any(span_order(frame) != "apart" for frame in frames)
        upright = {"marker": "|", "markersize": 7 * unit, "markeredgewidth": 0.8 * unit}
        bar = Line2D([], [], linestyle="", color=_COLOUR, **upright)
        band = Patch(facecolor=_COLOUR, alpha=_BAND, linewidth=0)
        entries.append((band if joined else bar, "95% interval"))
    if any("sd_points" in frame for frame in frames):
        entries.append((Line2D([], [], **_spread_props()), "s.d. over studies"))
    if any(line.shows == "drops" for line in lines):
        within = tolerance_text(tolerance, lines[0].metric)
        entries.append((Line2D([], [], **_tolerance_props()), f"tolerance, {within}"))
    if any(line.published is not None for line in lines):
        entries.append((Line2D([], [], **_published_props()), "Houlsby et al. 2019"))
    if any(frame["delta_points"].isna().any() for frame in frames):
        entries.append((Line2D([], [], **_cross_props()), "undefined"))
    return entries
