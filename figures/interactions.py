"""The grid of interactions: what each span costs beyond its parts, gains blue as in the grid of drops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import BoundaryNorm, ListedColormap

from adapter_probe.analysis.deltas import span_grid

from . import style
from .grid import draw_cells, draw_outlines, draw_undefined, number_size, place_notes, prepare_axes
from .levels import DROP_COLOURS, GAIN_COLOURS

EDGES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Points, on either side. A level holds its outer edge."""

_NEUTRAL = "#f4f4f2"
_EXTRA = DROP_COLOURS[1:7]  # colours of the drops between the same edges
_LESS = (*GAIN_COLOURS, "#1c6099", "#08306b")
_VAGUE = 0.24  # cells: how far an interaction that may be 0 is drawn in on each side
TELLING = EDGES[0]  # where no interval tells, smaller interactions get no number


@dataclass(frozen=True)
class InteractionScale:
    """Levels for a set of interactions, points; positive = the span costs beyond its parts.

    A level is a whole number: 0 up to half a point on either side, 1 up to 1 point, ... The last level shown
    on either side is open.

    Attributes:
        n_less: levels below 0, at least 1.
        n_extra: levels above 0, at least 1.
    """

    n_less: int = 1
    n_extra: int = 1

    @classmethod
    def spanning(cls, values: np.ndarray) -> InteractionScale:
        """The smallest scale that is true of all `values` (any shape; NaN is skipped)."""
        finite = np.asarray(values)[np.isfinite(values)]
        counts = (int(np.searchsorted(EDGES, side * finite, side="left").max(initial=1)) for side in (-1, 1))
        return cls(*(max(1, count) for count in counts))

    def colours(self, values: np.ndarray) -> list[str]:
        """Colour of each interaction `[values]`, as hex; NaN is not allowed."""
        values = np.round(np.asarray(values, dtype=float), 9)
        sizes = np.searchsorted(EDGES, np.abs(values), side="left")
        bound = np.where(values < 0, self.n_less, self.n_extra)
        signed = np.where(values < 0, -1, 1) * np.minimum(sizes, bound)
        return [_colour(int(level)) for level in signed]

    @property
    def edges(self) -> tuple[float, ...]:
        """Edges on the colour bar, ascending."""
        return (*(-edge for edge in reversed(EDGES[: self.n_less])), *EDGES[: self.n_extra])


def _colour(level: int) -> str:
    if level == 0:
        return _NEUTRAL
    return _EXTRA[level - 1] if level > 0 else _LESS[-level - 1]


def draw(
    frame: pd.DataFrame,
    ax: Axes,
    *,
    notes: Sequence[str] = (),
    scale: InteractionScale | None = None,
    studied: str = "ablated",
) -> Axes:
    """Draw one grid, without its colour bar.

    An interaction is clear where its interval `interaction_low_points` to `interaction_high_points` excludes
    0; without intervals, from half a point on. Those that are not are small squares, those that are have
    their number where it fits. Others below -0.5 points carry a minus, as blue and red look alike in
    greyscale.

    Args:
        frame: columns `first`, `last`, `interaction_points`; NaN is crossed out.
        ax: within `style.paper_style`, already at its place.
        notes: lines for the empty corner.
        scale: the levels; by default the smallest scale that is true of the frame.
        studied: what happened to the spans; it names the axes.

    Raises:
        ResultsError: the frame is not a grid of spans.
    """
    grid = span_grid(frame, "interaction_points")
    scale = InteractionScale.spanning(grid) if scale is None else scale
    cells = frame[["first", "last"]].to_numpy(int)  # [cells, 2]
    values = grid[cells[:, 0], cells[:, 1]]  # [cells]
    known = ~np.isnan(values)
    cell = prepare_axes(ax, len(grid), f"last {studied} layer", f"first {studied} layer")
    clear = known & is_clear(frame)
    draw_cells(ax, cells[clear], scale.colours(values[clear]), cell)
    vague = known & ~clear
    draw_cells(ax, cells[vague], scale.colours(values[vague]), cell, inset=_VAGUE)
    draw_undefined(ax, cells[~known], cell)
    draw_outlines(ax, cells, cell)
    _draw_numbers(ax, cells[known], values[known], clear[known], scale, cell)
    legend = [] if known.all() else ["crossed out: undefined"]
    if "interaction_low_points" in frame and vague.any():
        legend.append("small: 95% interval includes 0")
    place_notes(ax, [*notes, *legend], len(grid), cell)
    return ax


def is_clear(frame: pd.DataFrame) -> np.ndarray:
    """Where an interaction differs from 0 by its interval, or without one is large enough, bool `[rows]`."""
    if "interaction_low_points" not in frame:
        return frame["interaction_points"].abs().to_numpy(float) >= TELLING
    low, high = (frame[f"interaction_{end}_points"].to_numpy(float) for end in ("low", "high"))
    return (low > 0) | (high < 0)


def interaction_text(value: float) -> str:
    """`1.2`, `−0.7`, from 10 on `12`."""
    size = f"{abs(value):.1f}" if abs(value) < 9.95 else f"{abs(value):.0f}"
    return f"−{size}" if value < 0 and float(size) else size


def _draw_numbers(
    ax: Axes, cells: np.ndarray, values: np.ndarray, clear: np.ndarray, scale: InteractionScale, cell: float
) -> None:
    """Write the clear ones, and a minus into whatever else is coloured as less."""
    texts = [interaction_text(value) for value in values]
    size = number_size(["−0.0", *texts], cell)
    for (first, last), value, text, full, colour in zip(cells, values, texts, clear, scale.colours(values)):
        if not (full and size):
            text = "−" if value < -TELLING else ""
        if text:
            ink = style.text_colour(colour)
            fits = size if full and size else min(0.65 * cell, style.tick_size())
            ax.text(last, first, text, size=fits, color=ink, ha="center", va="center_baseline")


def draw_interaction_scale(scale: InteractionScale, cax: Axes, label: str) -> Colorbar:
    """Draw the horizontal colour bar into `cax`; both ends are open."""
    shown = [_colour(level) for level in range(-scale.n_less, scale.n_extra + 1)]
    inner = ListedColormap(shown[1:-1]).with_extremes(under=shown[0], over=shown[-1])
    bar = Colorbar(
        cax,
        cmap=inner,
        norm=BoundaryNorm(scale.edges, inner.N),
        extend="both",
        extendfrac=0.06,
        orientation="horizontal",
        ticks=scale.edges,
        spacing="uniform",
    )
    bar.set_ticklabels(_edge_labels(scale, cax))
    bar.outline.set_linewidth(0.6 * style.unit())
    across, box = cax.figure.get_figwidth(), cax.get_position()
    # Below the bar's middle, but within the figure.
    half = style.text_width(label, style.label_size()) / 144 / across
    place = (min(box.x0 + box.width / 2, 0.995 - half) - box.x0) / box.width
    bar.set_label(label, labelpad=3 * style.unit(), linespacing=0.95, x=place)
    return bar


def _edge_labels(scale: InteractionScale, cax: Axes) -> list[str]:
    """The edges in words; where they would touch, those next to 0 have none, then more of them."""
    labels = [f"{edge:g}".replace("-", "−") for edge in scale.edges]
    between = 72 * cax.get_position().width * cax.figure.get_figwidth() / (len(labels) - 1)
    inner = [label if abs(edge) != EDGES[0] else "" for edge, label in zip(scale.edges, labels)]
    second = [label if abs(edge) in EDGES[1::2] else "" for edge, label in zip(scale.edges, labels)]
    ends = [label if abs(edge) in (EDGES[1], EDGES[-1]) else "" for edge, label in zip(scale.edges, labels)]
    return next((some for some in (labels, inner, second) if not _touch(some, between)), ends)


def _touch(labels: list[str], between: float) -> bool:
    """Whether labels that stand so many points apart meet; an empty one leaves its place to the others."""
    shown = [(index, style.text_width(text, style.tick_size())) for index, text in enumerate(labels) if text]
    return any((j - i) * between < (one + other) / 2 + 3 for (i, one), (j, other) in pairwise(shown))
