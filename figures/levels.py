"""The colour scales shared by all grids: a few discrete levels, with the same colours in every figure.

The scale of drops is light for small drops and blue for gains. The scale of interactions and of differences
of drops has a neutral middle; its other levels have the colours of drops and gains of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, to_hex
from matplotlib.ticker import Formatter

from adapter_probe.errors import ResultsError, must_be

from . import style
from .layout import size_in_points

DROP_EDGES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0)
GAIN_EDGES = (1.0, 2.0, 3.0, 5.0)
"""Points. A level includes its upper edge, so a drop of exactly 1 point has the colour of 0.5 to 1."""

# seaborn's "rocket" reversed at CIE lightness 92, 81, 71, 60, 50, 39, 28, 17, 6: even steps, hence the same
# order in greyscale. Written out so that no other release of a library can recolour a published figure.
DROP_COLOURS = (
    "#f9e5d4", "#f6bf9d", "#f5966c", "#f16646", "#e03143", "#b41658", "#781f59", "#401b44", "#170f28",
)  # fmt: skip
GAIN_COLOURS = ("#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#1c6099")  # ColorBrewer Blues, and darker

DIVERGING_EDGES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Points, on either side. A level includes its outer edge."""

_NEUTRAL = "#f4f4f2"
_MORE = DROP_COLOURS[1:7]  # colours of the drops between the same edges
_EXTENDED = {(True, True): "both", (True, False): "min", (False, True): "max", (False, False): "neither"}
_LESS = (*GAIN_COLOURS, "#08306b")


@dataclass(frozen=True)
class DropScale:
    """Levels for a set of drops. Drops in points, positive = loss.

    A level is a whole number: 1 is a drop of 0 to 0.5, 2 up to 1, ... 8 up to 50, 9 beyond; -1 is a gain up
    to 1 point, -2 up to 2, ... The last level shown on either side is open.

    Attributes:
        n_gains: gain levels shown; 0 where there cannot be any.
        beyond: whether the level beyond the last edge is shown.
        colormap: a map to take the colours from instead of this project's.
    """

    n_gains: int = 1
    beyond: bool = False
    colormap: Colormap | None = None

    def recoloured(self, colormap: str | Colormap | None) -> DropScale:
        """The same levels in the colours of a map; None for this project's own.

        Raises:
            ResultsError: there is no such map.
        """
        return replace(self, colormap=_map_of(colormap))

    @property
    def below(self) -> bool:
        """Whether there is a level below the first edge."""
        return self.n_gains > 0

    @classmethod
    def spanning(cls, drops: np.ndarray, gains: bool = True) -> DropScale:
        """The smallest scale that covers all `drops` (any shape; NaN is skipped).

        Args:
            gains: whether there can be gains, which distances from the intact model have not.
        """
        finite = np.asarray(drops)[np.isfinite(drops)]
        gain = float(-finite.min(initial=0.0))
        loss = float(finite.max(initial=0.0))
        n_gains = 1 + sum(edge < gain for edge in GAIN_EDGES) if gains else 0
        return cls(n_gains, loss > DROP_EDGES[-1])

    def levels(self, drops: np.ndarray) -> np.ndarray:
        """Level of each drop, int64 of the same shape. NaN is not allowed."""
        drops = np.asarray(drops, dtype=np.float64)
        if np.isnan(drops).any():
            raise ValueError("an undefined drop has no level")
        loss = np.maximum(np.searchsorted(DROP_EDGES, drops, side="left"), 1)
        gain = np.minimum(np.searchsorted(GAIN_EDGES, -drops, side="left") + 1, self.n_gains)
        return np.where((drops < 0) & self.below, -gain, loss)

    def colours(self, drops: np.ndarray) -> list[str]:
        """Colour of each drop `[drops]`, as hex; NaN is not allowed."""
        return _colours(self, drops)

    def is_gain(self, drops: np.ndarray) -> np.ndarray:
        """Where a drop has the colour of a gain, bool of the same shape."""
        return drops < 0

    @property
    def edges(self) -> tuple[float, ...]:
        """Edges on the colour bar in ascending order of drop; gains are negative."""
        return (*(-edge for edge in reversed(GAIN_EDGES[: max(0, self.n_gains - 1)])), *DROP_EDGES)

    @property
    def shown(self) -> list[str]:
        """Colours below the first edge, between the edges and, if there is such a level, above the last."""
        gains = list(reversed(GAIN_COLOURS[: self.n_gains]))
        return _taken_from(self.colormap, [*gains, *DROP_COLOURS[: len(DROP_EDGES) - 1 + self.beyond]])


@dataclass(frozen=True)
class DivergingScale:
    """Levels for values around 0, points; positive = more loss.

    A level is a whole number: 0 up to half a point on either side, 1 up to 1 point, ... The last level shown
    on either side is open.

    Attributes:
        n_less: levels below 0, at least 1.
        n_more: likewise above 0.
        colormap: a map to take the colours from instead of this project's.
    """

    n_less: int = 1
    n_more: int = 1
    colormap: Colormap | None = None

    def recoloured(self, colormap: str | Colormap | None) -> DivergingScale:
        """The same levels in other colours; see `DropScale.recoloured`."""
        return replace(self, colormap=_map_of(colormap))

    @property
    def below(self) -> bool:
        """Always: the level below the first edge is shown."""
        return True

    @property
    def beyond(self) -> bool:
        """Always: the level beyond the last edge is shown."""
        return True

    @classmethod
    def spanning(cls, values: np.ndarray) -> DivergingScale:
        """The smallest scale, of at least two levels on either side, that covers all `values` but NaN."""
        finite = np.round(np.asarray(values)[np.isfinite(values)], 9)
        counts = (
            int(np.searchsorted(DIVERGING_EDGES, side * finite, side="left").max(initial=1))
            for side in (-1, 1)
        )
        return cls(*(max(2, count) for count in counts))

    @property
    def edges(self) -> tuple[float, ...]:
        """Edges on the colour bar, ascending."""
        return (
            *(-edge for edge in reversed(DIVERGING_EDGES[: self.n_less])),
            *DIVERGING_EDGES[: self.n_more],
        )

    @property
    def shown(self) -> list[str]:
        """Colours below the first edge, between the edges, and above the last."""
        own = [*reversed(_LESS[: self.n_less]), _NEUTRAL, *_MORE[: self.n_more]]
        return _taken_from(self.colormap, own)

    def is_gain(self, values: np.ndarray) -> np.ndarray:
        """Where a value has one of the colours below 0, bool of the same shape."""
        return np.round(values, 9) < -DIVERGING_EDGES[0]

    def colours(self, values: np.ndarray) -> list[str]:
        """Colour of each value `[values]`, as hex; NaN is not allowed."""
        return _colours(self, values)


@dataclass(frozen=True)
class LevelScale:
    """One colour for each of the values 1, 2, ..., which are no amounts.

    Attributes:
        shown: the colours.
    """

    shown: tuple[str, ...]
    below: ClassVar = False
    beyond: ClassVar = False

    @property
    def edges(self) -> tuple[float, ...]:
        """Edges between the values."""
        return tuple(level + 0.5 for level in range(len(self.shown) + 1))

    def is_gain(self, values: np.ndarray) -> np.ndarray:
        """Nowhere, bool of the same shape."""
        return np.zeros(np.shape(values), dtype=bool)

    def colours(self, values: np.ndarray) -> list[str]:
        """Colour of each value `[values]`, as hex; NaN is not allowed."""
        return _colours(self, values)


Scale = DropScale | DivergingScale | LevelScale


def _map_of(colormap: str | Colormap | None) -> Colormap | None:
    if colormap is None or isinstance(colormap, Colormap):
        return colormap
    if not isinstance(colormap, str) or colormap not in colormaps:
        raise ResultsError(must_be("cmap", "a name, such as 'viridis', or a Colormap", colormap))
    return colormaps[colormap]


def _taken_from(colormap: Colormap | None, own: list[str]) -> list[str]:
    """As many colours of a map, from end to end, as there are own ones; without a map the own ones."""
    return own if colormap is None else [to_hex(c) for c in colormap(np.linspace(0, 1, len(own)))]


def _colours(scale: Scale, values: np.ndarray) -> list[str]:
    colours = mappable(scale)
    return [to_hex(colours.to_rgba(value)) for value in as_drawn(values)]


def mappable(scale: Scale) -> ScalarMappable:
    """The scale as Matplotlib's norm and colour map, for values that went through `as_drawn`."""
    shown = scale.shown
    inner = ListedColormap(shown[scale.below : len(shown) - scale.beyond])
    inner = inner.with_extremes(under=shown[0], over=shown[-1])
    return ScalarMappable(BoundaryNorm(scale.edges, inner.N), inner)


def as_drawn(values: np.ndarray) -> np.ndarray:
    """Values for `mappable`: Matplotlib's levels include their lower edge, ours the edge farther from 0."""
    values = np.round(np.asarray(values, dtype=np.float64), 9)
    return np.where(values > 0, np.nextafter(values, -np.inf), values)


class _EdgeFormatter(Formatter):
    """Tick labels of the edges; only every second or third, counted from 0, if they would overlap."""

    def __init__(self, edges: Sequence[float]):
        self._labels = [f"{edge:g}".replace("-", "−") for edge in edges]
        self._zero = int(np.searchsorted(edges, 0.0))
        size = style.tick_size()
        self._widest = max(style.text_width(label, size) for label in self._labels) + 3, 1.1 * size

    def __call__(self, value: float, position: int | None = None) -> str:
        upright = self.axis.axis_name == "y"
        needed = self._widest[upright] * (len(self._labels) - 1)
        step = next(
            n for n in (1, 2, 3, 4) if needed <= n * size_in_points(self.axis.axes)[upright] or n == 4
        )
        return self._labels[position] if position is not None and (position - self._zero) % step == 0 else ""


def draw_colorbar(
    scale: Scale,
    axes: Sequence[Axes],
    label: str,
    tolerance: float | None = None,
    *,
    location: str = "right",
    length: float | None = None,
) -> Colorbar:
    """A colour bar that takes its space from the given axes, with the tolerance marked as in the grid.

    The lower end is open where there can be gains, the other one if a value lies beyond the last edge. The
    label is broken into lines of at most `length` points, by default four fifths of the axes' height.
    `tolerance` is None where the grids have no black line.
    """
    length = 0.8 * size_in_points(axes[0])[1] if length is None else length
    label = style.wrap_text(label, style.label_size(), length)
    upright, room = location == "right", {}
    if axes[0].figure.get_layout_engine() is None:  # nothing else makes room for the labels next to the bar
        words = 3.5 * style.tick_size() + (2 + label.count("\n")) * 1.2 * style.label_size()
        room = {"fraction": min(0.5, words / size_in_points(axes[0])[not upright])}
    bar = axes[0].figure.colorbar(
        mappable(scale), ax=axes[0] if len(axes) == 1 else tuple(axes), location=location, ticks=scale.edges,
        format=_EdgeFormatter(scale.edges), extend=_EXTENDED[scale.below, scale.beyond], extendfrac=0.05,
        spacing="uniform", shrink=0.8 if upright or len(axes) > 1 else 1.0, aspect=25 if upright else 35,
        **room,
    )  # fmt: skip
    bar.outline.set_linewidth(0.6 * style.scale_factor())
    if tolerance is not None:
        for colour, width in ((style.WHITE, style.BORDER_HALO), (style.INK, style.BORDER)):
            line = bar.ax.axhline if upright else bar.ax.axvline
            line(tolerance, color=colour, linewidth=width * style.scale_factor())
    bar.set_label(label, linespacing=1.1)
    if isinstance(scale, DropScale) and scale.below:
        at = {"xy": (1, -0.05), "xytext": (2, 0), "ha": "left", "va": "top"}
        if not upright:
            at = {"xy": (-0.05, 0.5), "xytext": (-3, 0), "ha": "right", "va": "center"}
        bar.ax.annotate(
            "gain (−)",
            xycoords="axes fraction",
            textcoords="offset points",
            size=style.tick_size(),
            **at,
        )
    return bar


def add_bar(
    scale: Scale, axes: Sequence[Axes], label: str, where: str, tolerance: float | None = None
) -> None:
    """The colour bar of several grids; its label fits the figure's width, or half of it next to a grid."""
    length = (0.4 if where == "right" else 0.74) * 72 * axes[0].figure.get_figwidth()
    draw_colorbar(scale, axes, label, tolerance, location=where, length=length)
