"""Curves of spans that form a line instead of a grid: prefixes, suffixes, or spans with no common end.

The x-axis shows the end in which the spans differ, or the layers of each span. The y-axis shows the drop of
the score, with losses upwards. The band is the 95 % interval; spans with no common end have bars instead. A
filled mark is a significant difference from the intact model, a hollow mark is not. The dashed line is the
tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from adapter_probe.analysis.comparing import ComparisonRecord
from adapter_probe.analysis.deltas import drop_points, span_order
from adapter_probe.errors import ResultsError

from . import style
from .curves import FOOT, LegendEntry, tidy_axes
from .grid import number_layers
from .heatmap import Grid, Record, grid_of, published_grid
from .layout import before_drawing, size_in_points
from .point_labels import INTERVAL
from .wording import points_text, span_text, test_name

_COLOUR, _BAND = "#0072b2", 0.2
_MARK = 3.6  # units; marks are smaller if there are many layers
_MARGIN = 0.05  # fraction of the range of drops
ASPECT, WIDE_ASPECT = 0.7, 0.42
_MOST_ROOM = 0.6  # fraction of the axes' height that the legend may take


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
        return test_name(self.overview.metric) if self.overview else "bootstrap"

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
        first, last = self.frame["first"], self.frame["last"]
        if (order := span_order(self.frame)) == "prefix":
            return f"last {self.study} layer (first: {first.iloc[0]})"
        if order == "suffix":
            return f"first {self.study} layer (last: {last.iloc[0]})"
        return f"{self.study} layer{'' if (first == last).all() else 's'}"


def span_line(record: Record, *, paper: bool = False) -> SpanLine | None:
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
    if grid.overview and paper and (theirs := published_grid(grid.overview.task, grid.study)) is not None:
        published = _same_spans(theirs, frame)
    return SpanLine(**{**vars(grid), "frame": frame}, published=published)


def line_of_spans(record: Record, *, paper: bool = False) -> SpanLine:
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


def curve(
    record: Record, ax: Axes | None = None, *, tolerance: float = 1.0, paper: bool = False, notes: bool = True
) -> Axes:
    """Draw the drops of spans with a common first layer, a common last layer, or no common end.

    Args:
        record: an ablation, an average or a comparison.
        ax: axes to draw on; by default the current axes.
        tolerance: tolerated drop, in percentage points, marked by the dashed line; ignored for differences.
        paper: whether to draw the published drops of the same spans as well, if there are any.
        notes: whether to add a legend with the task, the scores and the meaning of the marks.

    Raises:
        ResultsError: the spans are a grid.
    """
    line = line_of_spans(record, paper=paper)
    ax = plt.gca() if ax is None else ax
    panel = draw_line(line, ax, tolerance=tolerance)
    if notes:
        panel = panel.with_words(line.notes, line_entries([line], tolerance))
    settle([panel])
    before_drawing(ax, lambda ax: settle([panel]) if ax.get_autoscaley_on() else None)
    return ax


@dataclass(frozen=True, eq=False)
class Panel:
    """Axes with a curve, the range of the curve at each mark, and the legend.

    Attributes:
        ax: the axes.
        low, high: the range of everything drawn at each mark, in points, ``[marks]``.
        words: a legend with the notes as its title, or None.
        notes: lines of the title; those for which there is no room are left out.
    """

    ax: Axes
    low: np.ndarray
    high: np.ndarray
    words: Legend | None = None
    notes: Sequence[str] = ()

    def with_words(self, notes: Sequence[str], entries: Sequence[LegendEntry] = ()) -> Panel:
        """The same panel with a legend that has the notes as its title."""
        size = style.tick_size()
        handles = [handle for handle, _ in entries]
        labels = [label for _, label in entries]
        words = self.ax.legend(
            handles, labels, title=" ", title_fontsize=size, fontsize=size, alignment="left", frameon=True,
            facecolor=self.ax.get_facecolor(), edgecolor="none", framealpha=1.0, fancybox=False,
            borderpad=0.2, borderaxespad=0.3, handlelength=1.6, labelspacing=0.28,
        )  # fmt: skip
        words.set_in_layout(False)
        return Panel(self.ax, self.low, self.high, words, notes)


def settle(panels: Sequence[Panel]) -> None:
    """Set one range of drops for all panels, such that no legend covers a curve."""
    low = min(panel.low.min() for panel in panels)
    high = max(panel.high.max() for panel in panels)
    margin = _MARGIN * (high - low or 1.0)
    bottom, top = low - margin, high + margin
    for panel in panels:
        if panel.words is not None:
            size = _fit_words(panel, panel.words)
            corners = [_top_with_words(panel, bottom, size, side) for side in ("left", "right")]
            top = max(top, min(corners))
            panel.words.set_loc(f"upper {'left' if corners[0] <= corners[1] else 'right'}")
    for panel in panels:
        panel.ax.set_ylim(bottom, top, auto=True)


def _fit_words(panel: Panel, words: Legend) -> np.ndarray:
    """Put as many notes into the legend as fit; return its size as fractions of the axes' size."""
    size = np.zeros(2)
    n_notes = len(panel.notes)
    for n in (n_notes, *range(min(2, n_notes - 1), -1, -1)):
        words.set_title("\n".join(panel.notes[:n]))
        size = words.get_window_extent().size / panel.ax.bbox.size
        if size[1] <= _MOST_ROOM:
            break
    return np.minimum(size, (1.0, _MOST_ROOM))


def _top_with_words(panel: Panel, bottom: float, size: np.ndarray, side: str) -> float:
    """The upper limit of the y-axis at which the legend, in one corner, does not cover the curve."""
    pad = 0.6 * style.tick_size() / size_in_points(panel.ax)[1]
    covered = 1 + int(np.ceil(size[0] * (len(panel.high) + 0.2)))
    below = panel.high[:covered] if side == "left" else panel.high[-covered:]
    return float(bottom + (below.max() - bottom) / (1 - size[1] - pad))


def draw_line(line: SpanLine, ax: Axes, *, tolerance: float) -> Panel:
    """Draw one curve with the labels of its axes, but without a legend."""
    frame, unit, ink = line.frame, style.unit(), style.ink()
    drops = drop_points(frame["delta_points"])
    x, known = np.arange(len(drops)), ~np.isnan(drops)
    tidy_axes(ax)
    ax.grid(False, axis="x")
    ax.axhline(0, color=ink, linewidth=0.6 * unit, zorder=1)
    reach = [np.where(known, drops, 0.0), np.zeros(len(drops))]
    if line.shows == "drops":
        ax.axhline(
            tolerance, color=ink, linewidth=0.9 * unit, linestyle=(0, (4, 2)), zorder=1.5, label="tolerance"
        )
        reach.append(np.full(len(drops), tolerance))
    joined = span_order(frame) != "apart"
    if "ci_low_points" in frame:
        ends = [-frame["ci_high_points"].to_numpy(float), -frame["ci_low_points"].to_numpy(float)]
        _draw_interval(ax, x, *ends, joined)
        reach += [np.nan_to_num(end) for end in ends]
    if "sd_points" in frame:
        deviation = frame["sd_points"].to_numpy(float)
        reach += [np.nan_to_num(drops - deviation), np.nan_to_num(drops + deviation)]
        ax.vlines(x, *reach[-2:], color=style.FAINT, linewidth=0.6 * unit, zorder=2, label="s.d.")
    if line.published is not None:
        theirs = drop_points(line.published["delta_points"])
        ax.plot(x, theirs, zorder=2, **_published_props())
        reach.append(theirs)
    if joined:
        ax.plot(x, drops, color=_COLOUR, linewidth=1.1 * unit, zorder=3)
    _draw_marks(ax, x[known], drops[known], _is_sure(frame)[known])
    ax.plot(x[~known], np.full((~known).sum(), FOOT), "x", color=style.FAINT, markersize=3 * unit,
            transform=ax.get_xaxis_transform(), label="undefined", zorder=4)  # fmt: skip
    ax.set_xlim(-0.6, len(x) - 0.4)
    number_layers(ax.xaxis, line.places, 0.0)
    ax.set_xlabel(line.axis)
    ax.set_ylabel(line.label.replace(" (", "\n("))  # the panels are low
    return Panel(ax, np.min(reach, axis=0), np.max(reach, axis=0))


def _is_sure(frame: pd.DataFrame) -> np.ndarray:
    """Whether each difference is significant, bool ``[spans]``; True for all spans if no test was made."""
    return frame["significant"].to_numpy(bool) if "significant" in frame else np.ones(len(frame), bool)


def _draw_interval(ax: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, joined: bool) -> None:
    if joined:
        ax.fill_between(x, low, high, color=_COLOUR, alpha=_BAND, linewidth=0, zorder=0.8, label=INTERVAL)
    else:
        ax.vlines(x, low, high, color=_COLOUR, linewidth=0.8 * style.unit(), zorder=2, label=INTERVAL)


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
        _set_size(marks, min(_MARK * style.unit(), 0.85 * size_in_points(ax)[0] / (right - left)))

    before_drawing(ax, fit)


def _set_size(marks: Sequence[PathCollection], size: float) -> None:
    for mark in marks:
        mark.set_sizes([size**2])
        mark.set_linewidth(min(0.7 * style.unit(), 0.25 * size))


def _published_props() -> dict[str, object]:
    unit = style.unit()
    return {
        "color": style.FAINT, "marker": "s", "markersize": 2.6 * unit, "markerfacecolor": style.WHITE,
        "markeredgewidth": 0.5 * unit, "linewidth": 0.7 * unit, "linestyle": ":",
    }  # fmt: skip


def line_entries(lines: Sequence[SpanLine], tolerance: float) -> list[LegendEntry]:
    """Legend handles and labels for everything that the curves contain."""
    unit, frames = style.unit(), [line.frame for line in lines]
    dot = {
        "marker": "o",
        "markeredgecolor": _COLOUR,
        "markersize": _MARK * unit,
        "markeredgewidth": 0.7 * unit,
    }
    entries: list[tuple[Artist, str]] = []
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
        entries.append((Line2D([], [], color=style.FAINT, linewidth=0.6 * unit), "s.d. over studies"))
    if any(line.shows == "drops" for line in lines):
        dashed = {"color": style.ink(), "linewidth": 0.9 * unit, "linestyle": (0, (4, 2))}
        entries.append((Line2D([], [], **dashed), f"tolerance, {points_text(tolerance)}"))
    if any(line.published is not None for line in lines):
        entries.append((Line2D([], [], **_published_props()), "Houlsby et al. 2019"))
    if any(frame["delta_points"].isna().any() for frame in frames):
        cross = {"linestyle": "", "marker": "x", "color": style.FAINT, "markersize": 3 * unit}
        entries.append((Line2D([], [], **cross), "undefined"))
    return entries
