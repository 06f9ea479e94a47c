"""Where a figure is to be printed: a venue's widths and letter sizes, and what else is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tueplots import figsizes, fontsizes

Column = Literal["half", "full"]
FORMATS = ("pdf", "svg", "png", "pgf")
DEFAULT_FORMATS = ("pdf", "svg", "png")

_GUTTER = 0.25  # inches between two figures side by side in a single text column
_SMALLEST_TICK = 7.0  # points; some of tueplots' sizes go down to 6, which is hard to read on a light cell
_CM = 1 / 2.54


@dataclass(frozen=True)
class Venue:
    """One venue's sizes.

    Attributes:
        name: as on the command line.
        half: width of a narrow figure, inches: a column of a two-column paper; in a venue of one column, half
            of it less the gap to a neighbour.
        full: width of the text, inches.
        label: size of axis labels, points.
        tick: size of tick labels, notes and legends, points.
        tallest: the height that a figure may fill, inches.
        sans: whether letters have no serifs.
    """

    name: str
    half: float
    full: float
    label: float
    tick: float
    tallest: float = 9.0
    sans: bool = False

    def width(self, column: Column) -> float:
        """Inches."""
        return self.half if column == "half" else self.full


@dataclass(frozen=True)
class FigureOptions:
    """What figures are asked to be; every figure and table of one call shares it.

    Attributes:
        venue: sizes.
        column: narrow or wide; None leaves it to each figure.
        formats: files of each figure, out of `FORMATS`.
        tolerance: points that the black line of an ablation stands for.
        paper: whether the paper's published values stand beside ours.
        labels: of the ablations' panels, in their order; empty for their tasks.
        only: names of the figures and tables to write; empty for all.
    """

    venue: Venue
    column: Column | None = None
    formats: tuple[str, ...] = DEFAULT_FORMATS
    tolerance: float = 1.0
    paper: bool = False
    labels: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def width(self, preferred: Column) -> float:
        """Inches: of the column asked for, else of the one that the figure prefers."""
        return self.venue.width(self.column or preferred)


def _measured(name: str, half: Callable | None, full: Callable, fonts: Callable, **more: float) -> Venue:
    """A venue that tueplots has measured."""
    width = float(full()["figure.figsize"][0])
    narrow = float(half()["figure.figsize"][0]) if half else (width - _GUTTER) / 2
    sizes = fonts()
    tick = max(float(sizes["xtick.labelsize"]), _SMALLEST_TICK)
    return Venue(name, narrow, width, float(sizes["axes.labelsize"]), tick, **more)


ICML = _measured("icml", figsizes.icml2024_half, figsizes.icml2024_full, fontsizes.icml2024)
PAPER = Venue("paper", ICML.half, ICML.full, ICML.label, ICML.tick)  # where no venue is named
VENUES = {
    venue.name: venue
    for venue in (
        PAPER,
        ICML,
        _measured("neurips", None, figsizes.neurips2024, fontsizes.neurips2024),
        Venue("acl", 7.7 * _CM, 16 * _CM, 9.0, 7.0),  # as its style file sets columns and text
        _measured("aaai", figsizes.aaai2024_half, figsizes.aaai2024_full, fontsizes.aaai2024),
        _measured("jmlr", None, figsizes.jmlr2001, fontsizes.jmlr2001),
        _measured("tmlr", None, figsizes.tmlr2023, fontsizes.tmlr2023),
        # A beamer slide of 16:9 is 9 cm tall; its title and a line of text want a quarter of that.
        Venue("talk", 2.4, float(figsizes.beamer_169()["figure.figsize"][0]), 9.0, 8.0, 2.7, sans=True),
    )
}
