"""The one scale of drops that all grids share: a few discrete levels, the same colours in every figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.transforms import blended_transform_factory

from . import style

DROP_EDGES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
GAIN_EDGES = (1.0, 2.0, 5.0)
"""Points. A level holds its upper edge, so a drop of exactly 1 point is within 1 point in colour too."""

# seaborn's "rocket" reversed at CIE lightness 92, 80, 68, 56, 44, 32, 19, 6: even steps, hence the same order
# in greyscale. Written out so that no other release of a library can recolour a published figure.
DROP_COLOURS = ("#f9e5d4", "#f6b995", "#f58860", "#ed4e3e", "#ca1a50", "#8b1d5b", "#491d49", "#170f28")
GAIN_COLOURS = ("#c6dbef", "#9ecae1", "#6baed6", "#3182bd")  # ColorBrewer Blues

_TIP = 0.05  # length of the bar's open ends, in lengths of the part between them
_LABEL_DROP = 1.55  # from a horizontal bar's foot to its label, in thicknesses of the bar


@dataclass(frozen=True)
class DropScale:
    """Levels for a set of drops. Drops in points, positive = loss.

    A level is a whole number: 1 is a drop of 0 to 0.5, 2 up to 1, ... 7 up to 50, 8 beyond; -1 is a gain up
    to 1 point, -2 up to 2, ... The last level shown on either side is open.

    Attributes:
        n_gains: gain levels shown, at least 1.
        beyond: whether the level beyond the last edge is shown.
    """

    n_gains: int = 1
    beyond: bool = False

    @classmethod
    def spanning(cls, drops: np.ndarray) -> DropScale:
        """The smallest scale that is true of all `drops` (any shape; NaN is skipped)."""
        finite = np.asarray(drops)[np.isfinite(drops)]
        gain = float(-finite.min(initial=0.0))
        loss = float(finite.max(initial=0.0))
        return cls(1 + sum(edge < gain for edge in GAIN_EDGES), loss > DROP_EDGES[-1])

    def levels(self, drops: np.ndarray) -> np.ndarray:
        """Level of each drop, int64 of the same shape. NaN is not allowed."""
        drops = np.asarray(drops, dtype=np.float64)
        if np.isnan(drops).any():
            raise ValueError("an undefined drop has no level")
        loss = np.maximum(np.searchsorted(DROP_EDGES, drops, side="left"), 1)
        gain = np.minimum(np.searchsorted(GAIN_EDGES, -drops, side="left") + 1, self.n_gains)
        return np.where(drops < 0, -gain, loss)

    def colours(self, drops: np.ndarray) -> list[str]:
        """Colour of each drop `[drops]`, as hex."""
        return [colour_of(int(level)) for level in self.levels(drops)]

    @property
    def edges(self) -> tuple[float, ...]:
        """Edges on the colour bar in ascending order of drop; gains are negative."""
        return (*(-edge for edge in reversed(GAIN_EDGES[: self.n_gains - 1])), *DROP_EDGES)


def colour_of(level: int) -> str:
    """Colour of a level, the same on every scale."""
    return GAIN_COLOURS[-level - 1] if level < 0 else DROP_COLOURS[level - 1]


def draw_scale(
    scale: DropScale, cax: Axes, *, label: str, tolerance: float, vertical: bool = False
) -> Colorbar:
    """Draw the colour bar into `cax`, with the tolerance marked as it is in the grid.

    The gain end is always there and open; the other end is open only if a drop lies beyond the last edge.
    A horizontal bar's label is centred on the figure.
    """
    shown = [*range(-scale.n_gains, 0), *range(1, len(DROP_EDGES) + scale.beyond)]
    colours = [colour_of(level) for level in shown]
    inner = ListedColormap(colours[1:-1] if scale.beyond else colours[1:])
    inner = inner.with_extremes(under=colours[0], over=colours[-1])
    bar = Colorbar(
        cax,
        cmap=inner,
        norm=BoundaryNorm(scale.edges, inner.N),
        extend="both" if scale.beyond else "min",
        extendfrac=_TIP,
        orientation="vertical" if vertical else "horizontal",
        ticks=scale.edges,
        spacing="uniform",
    )
    bar.set_ticklabels(_edge_labels(scale, cax, vertical))
    bar.outline.set_linewidth(0.6 * style.unit())
    line = cax.axhline if vertical else cax.axvline
    line(tolerance, color=style.WHITE, linewidth=style.BORDER_HALO * style.unit())
    line(tolerance, color=style.INK, linewidth=style.BORDER * style.unit())
    _write_labels(bar, label, vertical)
    return bar


def _edge_labels(scale: DropScale, cax: Axes, vertical: bool) -> list[str]:
    """The edges in words; every second one, counted from 0, where they would touch."""
    labels = [f"+{-edge:g}" if edge < 0 else f"{edge:g}" for edge in scale.edges]
    size, zero = style.tick_size(), scale.edges.index(0.0)
    widest = size if vertical else max(style.text_width(label, size) for label in labels) + 2
    box, figure = cax.get_position(), cax.figure
    length = 72 * (box.height * figure.get_figheight() if vertical else box.width * figure.get_figwidth())
    if widest * (len(labels) - 1) > length:
        labels = [label if (index - zero) % 2 == 0 else "" for index, label in enumerate(labels)]
    return labels


def _write_labels(bar: Colorbar, label: str, vertical: bool) -> None:
    bar.set_label(label, labelpad=3 * style.unit(), linespacing=0.95)
    tip = {"xytext": (0, -2), "ha": "center", "va": "top", "xy": (0.5, -_TIP)}
    if not vertical:
        tip = {"xytext": (-3, 0), "ha": "right", "va": "center", "xy": (-_TIP, 0.5)}
        across = blended_transform_factory(bar.ax.figure.transFigure, bar.ax.transAxes)
        bar.ax.xaxis.set_label_coords(0.5, -_LABEL_DROP, transform=across)
    bar.ax.annotate(
        "gain (+)", xycoords="axes fraction", textcoords="offset points", size=style.tick_size(), **tip
    )
