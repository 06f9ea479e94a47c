"""The colour scales shared by all grids: a few discrete levels, with the same colours in every figure.

The scale of drops is light for small drops and blue for gains. The scale of interactions and of differences
of drops has a neutral middle; its other levels have the colours of drops and gains of the same size. Changes
in a unit of their own, such as nats or perplexities, have no upper end, so that their levels fit their size.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap, to_hex
from matplotlib.ticker import Formatter

from adapter_probe.errors import ResultsError, must_be
from adapter_probe.wording import is_distance, own_unit, with_minus

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
class Scale:
    """Levels for a set of values, mostly in points; positive = loss. A level includes its outer edge.

    Attributes:
        shown: the colours below the first edge, between the edges, and above the last.
        below: whether there is a level below the first edge, which is open.
        beyond: likewise above the last.
        gains_below: values below this have the colours of gains.
    """

    edges: tuple[float, ...]
    shown: tuple[str, ...]
    below: bool = False
    beyond: bool = False
    gains_below: float = -np.inf

    def recoloured(self, colormap: str | Colormap | None) -> Scale:
        """The same levels in the colours of a map, from end to end; None for the same colours.

        Raises:
            ResultsError: there is no such map.
        """
        if colormap is None:
            return self
        if not isinstance(colormap, Colormap):
            if not isinstance(colormap, str) or colormap not in colormaps:
                raise ResultsError(must_be("cmap", "a name, such as 'viridis', or a Colormap", colormap))
            colormap = colormaps[colormap]
        return replace(self, shown=tuple(map(to_hex, colormap(np.linspace(0, 1, len(self.shown))))))

    def colours(self, values: np.ndarray) -> list[str]:
        """Colour of each value `[values]`, as hex; NaN is not allowed."""
        colours = mappable(self)
        return [to_hex(colours.to_rgba(value)) for value in as_drawn(values)]

    def is_gain(self, values: np.ndarray) -> np.ndarray:
        """Where a value has the colour of a gain, bool of the same shape."""
        return np.round(values, 9) < self.gains_below


def drop_scale(drops: np.ndarray, metrics: Collection[str | None] = ()) -> Scale:
    """The smallest scale that covers all `drops` (any shape; NaN is skipped), or most in a unit of their own.

    Args:
        metrics: what was measured; by default a score. Distances from the intact model have no gains; if most
            of them are below the first edge, the scale is logarithmic, since no amount of a distance has a
            meaning.
    """
    finite = np.asarray(drops)[np.isfinite(drops)]
    positive, gains = finite[finite > 0], not _are_distances(metrics)
    if not gains and len(positive) and np.median(positive) < DROP_EDGES[1]:
        return _logarithmic(positive)
    gain_edges, drop_edges = _enlarged((GAIN_EDGES, DROP_EDGES), finite, metrics)
    gain, beyond = float(-finite.min(initial=0.0)), bool(finite.max(initial=0.0) > drop_edges[-1])
    n_gains = 1 + sum(edge < gain for edge in gain_edges) if gains else 0
    edges = (*(-edge for edge in reversed(gain_edges[: max(0, n_gains - 1)])), *drop_edges)
    colours = (*reversed(GAIN_COLOURS[:n_gains]), *DROP_COLOURS[: len(drop_edges) - 1 + beyond])
    return Scale(edges, colours, gains, beyond, 0.0)


def _are_distances(metrics: Collection[str | None]) -> bool:
    return bool(metrics) and all(map(is_distance, metrics))


def _enlarged(
    edges: Sequence[tuple[float, ...]], values: np.ndarray, metrics: Collection[str | None], least: int = 0
) -> list[tuple[float, ...]]:
    """Edges times the least power of ten, from `least` up, by which most values are within the last one.

    Those of points of a score are the same in all figures. Most are three quarters.
    """
    sizes = np.abs(values[values != 0])
    most = 9 if metrics and all(map(own_unit, metrics)) else 0
    power = math.ceil(math.log10(np.quantile(sizes, 0.75) / edges[-1][-1])) if len(sizes) else 0
    power = min(max(power, least), most)
    return [tuple(float(f"{edge}e{power}") for edge in each) for each in edges]


def _logarithmic(values: np.ndarray) -> Scale:
    """Levels of positive values, as fine as the colours allow for all but the lowest fifth and few others."""
    low, high = np.quantile(values, (0.2, 0.98))
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        edges = [float(f"{mantissa}e{power}") for power in range(-9, 5) for mantissa in mantissas]
        first = max(0, bisect_left(edges, low) - 1)  # a value on an edge is below it
        if bisect_left(edges, high) - first < len(DROP_COLOURS):
            break
    last = max(first + 1, bisect_left(edges, values.max()))
    inside = edges[first:last][: len(DROP_COLOURS) - 1]
    return Scale((0.0, *inside), DROP_COLOURS[: len(inside) + 1], beyond=True)


def difference_scale(values: np.ndarray, metrics: Collection[str | None] = ()) -> Scale:
    """The smallest scale with a neutral middle and two levels or more on either side that covers `values`."""
    finite = np.round(np.asarray(values)[np.isfinite(values)], 9)
    (levels,) = _enlarged((DIVERGING_EDGES,), finite, metrics, -9 if _are_distances(metrics) else 0)
    less, more = (
        max(2, int(np.searchsorted(levels, side * finite, side="left").max(initial=1))) for side in (-1, 1)
    )
    edges = (*(-edge for edge in reversed(levels[:less])), *levels[:more])
    return Scale(edges, (*reversed(_LESS[:less]), _NEUTRAL, *_MORE[:more]), True, True, -levels[0])


def mappable(scale: Scale) -> ScalarMappable:
    """The scale as Matplotlib's norm and colour map, for values that went through `as_drawn`."""
    inner = ListedColormap(scale.shown[scale.below : len(scale.shown) - scale.beyond])
    inner = inner.with_extremes(under=scale.shown[0], over=scale.shown[-1])
    return ScalarMappable(BoundaryNorm(scale.edges, inner.N), inner)


def as_drawn(values: np.ndarray) -> np.ndarray:
    """Values for `mappable`: Matplotlib's levels include their lower edge, ours the edge farther from 0."""
    values = np.round(np.asarray(values, dtype=np.float64), 9)
    return np.where(values > 0, np.nextafter(values, -np.inf), values)


class _EdgeFormatter(Formatter):
    """Tick labels of the edges; only every second or third, counted from 0, if they would overlap."""

    def __init__(self, edges: Sequence[float]):
        self._labels = [with_minus(f"{edge:g}") for edge in edges]
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
    label is broken into lines of at most `length` points, by default four fifths of the axes' height;
    `layout.fit_height` breaks it anew. `tolerance` is None where the grids have no black line.
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
            line(min(tolerance, scale.edges[-1]), color=colour, linewidth=width * style.scale_factor())
    bar.set_label(label, linespacing=1.1)
    if scale.below and scale.gains_below == 0:
        at = {"xy": (1, -0.05), "xytext": (2, 0), "ha": "left", "va": "top"}
        if not upright:
            at = {"xy": (-0.05, 0.5), "xytext": (-3, 0), "ha": "right", "va": "center"}
        at |= {"xycoords": "axes fraction", "textcoords": "offset points", "size": style.tick_size()}
        bar.ax.annotate("gain (−)", **at)
    return bar
