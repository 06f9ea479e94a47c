"""Publication venues: widths and font sizes of figures, and the options of one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd
from tueplots import figsizes, fontsizes

from adapter_probe.settings import DEFAULT_FORMATS, Axis, Column

_GUTTER = 0.25  # inches between two figures side by side in a single text column
_SMALLEST_TICK = 7.0  # points; some sizes in tueplots are as small as 6, hard to read on a light cell
_CM = 1 / 2.54


@dataclass(frozen=True)
class Venue:
    """Sizes of one venue.

    Attributes:
        half: width of a narrow figure, inches: one column of a two-column paper; in a one-column venue, half
            the text width minus the gap between two figures.
        full: width of the text, inches.
        label: size of axis labels, points.
        tick: size of tick labels, notes and legends, points.
        tallest: maximum height of a figure, inches.
        sans: whether to use a sans-serif font.
    """

    name: str
    half: float
    full: float
    label: float
    tick: float
    tallest: float = 9.0
    sans: bool = False


@dataclass(frozen=True)
class FigureOptions:
    """Options shared by all figures and tables of one call; see `adapter_probe.figure_settings.Look`.

    Attributes:
        overlay: results of other people, see `adapter_probe.analysis.costs.read_overlay`; or None.
    """

    venue: Venue
    column: Column | None = None
    formats: tuple[str, ...] = DEFAULT_FORMATS
    tolerance: float = 1.0
    paper: bool = False
    labels: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    x: Axis = "parameters"
    overlay: pd.DataFrame | None = field(default=None, compare=False)

    def width(self, preferred: Column) -> float:
        """Width in inches: of the requested column, or else of the one that the figure prefers."""
        return self.venue.half if (self.column or preferred) == "half" else self.venue.full


def _measured(name: str, half: Callable | None, full: Callable, fonts: Callable) -> Venue:
    """A venue with the sizes given by tueplots."""
    width = float(full()["figure.figsize"][0])
    narrow = float(half()["figure.figsize"][0]) if half else (width - _GUTTER) / 2
    sizes = fonts()
    tick = max(float(sizes["xtick.labelsize"]), _SMALLEST_TICK)
    return Venue(name, narrow, width, float(sizes["axes.labelsize"]), tick)


ICML = _measured("icml", figsizes.icml2024_half, figsizes.icml2024_full, fontsizes.icml2024)
PAPER = Venue("paper", ICML.half, ICML.full, ICML.label, ICML.tick)  # the default, without a venue
VENUES = {
    venue.name: venue
    for venue in (
        PAPER,
        ICML,
        _measured("neurips", None, figsizes.neurips2024, fontsizes.neurips2024),
        Venue("acl", 7.7 * _CM, 16 * _CM, 9.0, 7.0),  # sizes of the venue's style file
        _measured("aaai", figsizes.aaai2024_half, figsizes.aaai2024_full, fontsizes.aaai2024),
        _measured("jmlr", None, figsizes.jmlr2001, fontsizes.jmlr2001),
        _measured("tmlr", None, figsizes.tmlr2023, fontsizes.tmlr2023),
        # A 16:9 beamer slide is 9 cm tall; its title and a line of text need a quarter of that.
        Venue("talk", 2.4, float(figsizes.beamer_169()["figure.figsize"][0]), 9.0, 8.0, 2.7, sans=True),
    )
}
