"""Figures as wide as a venue requires and as high as their content, by Matplotlib's constrained layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from adapter_probe.errors import ResultsError

from . import style
from .venues import FigureOptions

WIDE = 4.5  # inches: minimum width for panels next to each other
LOWEST_ROW = 2.0  # inches: of a grid with its words
_NARROWEST = 1.5  # inches: of a grid with its labels
_LOWEST_PANEL = 0.7  # inches: without its words
LINE = 1.5  # of a tick's size: a row with a name
_ROUNDS, _SETTLED = 5, 0.01  # of layout; inches
_DIGITS = 9  # of inches and of shares of the figure
_LEGEND_PAD = 0.4  # of its letters' size: above and below a legend
_WIDEST = 0.8  # of the figure: notes above a panel, the label of a colour bar
_WIDEST_NAME = 0.75  # of a grid's place: a longer name stands above it
_EDGE = 3.0  # points: what stays free at the figure's edges


class BeforeDrawing(Artist):
    """Calls a function whenever axes are drawn, when their position and size are final."""

    def __init__(self, adjust: Callable[[Axes], None]):
        """`adjust` receives the axes and may move, resize or hide the artists in them."""
        super().__init__()
        self._adjust, self._style = adjust, style.in_force()
        self.set_zorder(-100)
        self.set_in_layout(False)

    def draw(self, renderer: RendererBase) -> None:
        """Call `adjust`; draws nothing itself."""
        self.adjust()

    def adjust(self) -> None:
        """What is called."""
        with matplotlib.rc_context(self._style):  # drawing and saving may use different renderers
            self._adjust(self.axes)


def before_drawing(ax: Axes, adjust: Callable[[Axes], None]) -> None:
    """Register `adjust(ax)` to be called whenever the axes are about to be drawn."""
    ax.add_artist(BeforeDrawing(adjust))


def settle(figure: Figure) -> None:
    """Adjust what depends on final sizes now, and not when the figure is drawn."""
    for ax in figure.axes:
        ax.apply_aspect()
        for artist in ax.artists:
            if isinstance(artist, BeforeDrawing):
                artist.adjust()


def shape_of(n_grids: int, width: float) -> tuple[int, int]:
    """Rows and columns of grids: up to three in a row if there is room, and four as two by two.

    Raises:
        ResultsError: a grid with its labels would be narrower than an inch and a half.
    """
    columns = 1 if width < WIDE else 2 if n_grids == 4 else min(n_grids, 3)
    if width / columns < _NARROWEST:
        raise ResultsError(f"{n_grids} grids do not fit {width:g} inches: each needs {_NARROWEST} inches")
    return -(-n_grids // columns), columns


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of the given width in inches, of provisional height, unknown to pyplot."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=36)  # seaborn draws it again and again
    FigureCanvasAgg(figure)
    return figure


def size_in_points(ax: Axes) -> tuple[float, float]:
    """Current width and height of axes, points."""
    width, height = 72 / ax.get_figure(root=True).dpi * ax.bbox.size
    return float(width), float(height)


def legend_below(figure: Figure, entries: Sequence[tuple[Artist, str]], axis: str = "") -> None:
    """A legend below everything, in as few rows as fit, and above it the label of an axis of all panels."""
    size, handles = style.tick_size(), [handle for handle, _ in entries]
    gap = 4.5 * size  # points: a handle and what is around it
    labels = [style.wrap_text(label, size, 72 * figure.get_figwidth() - gap) for _, label in entries]
    widths = [max(style.text_width(line, size) for line in label.split("\n")) + gap for label in labels]
    for rows in range(1, len(labels) + 1):
        columns = np.array_split(widths, -(-len(labels) // rows))  # as Matplotlib fills them
        if sum(map(max, columns)) <= 72 * figure.get_figwidth():
            break
    if labels:
        legend = figure.legend(
            handles, labels, loc="outside lower center", ncols=len(columns), handlelength=2.4,
            handletextpad=0.5, columnspacing=1.6, labelspacing=0.35, borderpad=0, borderaxespad=_LEGEND_PAD,
            title=style.wrap_text(axis, style.label_size(), 72 * figure.get_figwidth()) or None,
            title_fontsize=style.label_size(),
        )  # fmt: skip
        legend.get_title().set_multialignment("center")


def title_above(ax: Axes, notes: Sequence[str]) -> None:
    """The first note on a line above the axes, and below it the others, in lines that end after commas."""
    text = "\n".join([notes[0], ", ".join(notes[1:]).replace(":, ", ": ")]).rstrip()
    ax.set_title(text, loc="left", fontsize=style.tick_size())
    ax._left_title.set_label(text)  # which line breaks do not change
    _wrap_title(ax, size_in_points(ax)[0], size_in_points(ax)[0])


def name_above(ax: Axes, notes: Sequence[str], place: float) -> Sequence[str]:
    """Put the first note above a grid if it is too long for the empty corner; the notes that are left.

    With its labels the grid may be `place` points wide.
    """
    if not notes or style.text_width(notes[0], style.tick_size()) <= _WIDEST_NAME * place:
        return notes
    title_above(ax, notes[:1])
    return notes[1:]


def one_panel(
    draw: Callable[[Axes], Sequence[tuple[Artist, str]]],
    options: FigureOptions,
    aspect: float,
    wide_aspect: float,
    lowest: float = 0.0,
) -> Figure:
    """A figure with one panel and its legend below; narrow, it may be `lowest` inches high in any venue."""
    width, tallest = options.width("half"), options.venue.tallest
    with style.paper_style(options.venue):
        figure = new_figure(width, 2 * width)
        ax = figure.add_subplot()
        entries = draw(ax)
        ax.set_box_aspect(wide_aspect if width >= WIDE else aspect)
        legend_below(figure, entries)
        return fit_height(figure, tallest if width >= WIDE else max(tallest, lowest))


def fit_height(figure: Figure, tallest: float) -> Figure:
    """Give the figure the height that its panels need, at most `tallest` inches, and fix all places.

    Every panel has an aspect, so its height follows from its width, which does not depend on the figure's
    height. Labels around the panels depend slightly on the height, so the computation is iterated.
    """
    figure.set_dpi(style.PNG_DPI)
    panels = [(ax, ax.get_box_aspect() or ax.get_data_ratio()) for ax in figure.axes if ax.get_subplotspec()]
    held = [(ax, ax.get_aspect(), ax.get_box_aspect()) for ax, _ in panels]
    for ax, _ in panels:  # let panels fill their places, because margins are measured from what is drawn
        ax.set_box_aspect(None)
        ax.set_aspect("auto")
    for _ in range(_ROUNDS):
        figure.get_layout_engine().execute(figure)
        texts = _texts(figure, panels)
        height = _needed_height(figure, panels, tallest)
        if abs(height - figure.get_figheight()) < _SETTLED and texts == _texts(figure, panels):
            break
        figure.set_figheight(height)
    else:
        figure.get_layout_engine().execute(figure)  # of words whose lines have just changed
    for ax, aspect, box_aspect in held:
        ax.set_aspect(aspect)
        ax.set_box_aspect(box_aspect)
    figure.set_layout_engine("none")
    _lift(figure)
    # The layout's solver adds its terms in the order of memory addresses, so the last digits differ between
    # runs, and SVG files name clipping areas by their exact size.
    figure.set_figheight(round(figure.get_figheight(), _DIGITS))
    for ax in figure.axes:
        ax.set_position(np.round(ax.get_position(original=True).bounds, _DIGITS), which="original")
    for ax, _ in panels:
        ax.apply_aspect()
        ax._left_title.set_x(-_beside(ax) / size_in_points(ax)[0])
    # Any remaining layout engine would make Matplotlib draw once more before writing each file.
    figure._layout_engine = None
    return figure


def _needed_height(figure: Figure, panels: Sequence[tuple[Axes, float]], tallest: float) -> float:
    """Height in inches that gives every row the height of its panels' aspects; also sets height ratios.

    It is at most `tallest`, unless a panel would then be too low, or its rows lower than their names.
    """
    width, height = figure.get_size_inches()
    grid = panels[0][0].get_gridspec()
    needed, given, least = np.zeros((3, grid.nrows))  # inches
    for ax, aspect in panels:
        row, place = ax.get_subplotspec().rowspan.start, ax.get_position(original=True)
        wide, given[row] = place.width * width, place.height * height
        needed[row] = max(needed[row], aspect * wide)
        lines = LINE * style.tick_size() / 72 * len(_names(ax))
        least[row] = min(needed[row], max(least[row], _LOWEST_PANEL, lines))
        box = min(wide, given[row] / aspect)
        _wrap_title(ax, 36 * (wide + box), 72 * box)  # from the centred box's left
        for one in (ax, *ax.child_axes):  # of an upper axis too: what sticks out makes the panel narrower
            _wrap_label(one.xaxis, 72 * wide)
        _wrap_label(ax.yaxis, 72 * min(aspect * wide, given[row]))
    for bar in _colour_bars(figure):
        _wrap_bar_label(bar)
    grid.set_height_ratios(needed)
    words = height - given.sum()
    return float(max(min(words + needed.sum(), tallest), words + least.sum()))


def _lift(figure: Figure) -> None:
    """Make a figure higher at its foot where the label of a colour bar ends below it.

    The layout places a bar by what its last round drew, which need not be the last height.
    """
    labels = [bar.xaxis.label for bar in _colour_bars(figure) if bar.get_xlabel()]
    if labels:
        figure.draw_without_rendering()
    ends = [label.get_window_extent().y0 / figure.dpi for label in labels]
    more, height = _EDGE / 72 - min(ends, default=1.0), float(figure.get_figheight())  # inches
    if more <= 0:
        return
    figure.set_figheight(height + more)
    for ax in figure.axes:
        left, bottom, width, high = ax.get_position(original=True).bounds
        place = (left, (bottom * height + more) / (height + more), width, high * height / (height + more))
        ax.set_position(place, which="original")


def _colour_bars(figure: Figure) -> list[Axes]:
    return [ax for ax in figure.axes if hasattr(ax, "_colorbar")]


def _wrap_bar_label(ax: Axes) -> None:
    """Break the label of a colour bar into lines that, centred on the bar, end inside the figure."""
    upright = ax._colorbar.orientation == "vertical"
    place = ax.get_position(original=True)
    low, high = (place.y0, place.y1) if upright else (place.x0, place.x1)
    middle, length = (low + high) / 2, 72 * float(ax.get_figure(root=True).get_size_inches()[int(upright)])
    room = min(_WIDEST, 2 * min(middle, 1 - middle)) * length - 2 * _EDGE
    _wrap_label(ax.yaxis if upright else ax.xaxis, room)


def _wrap_label(axis: Axis, length: float) -> None:
    """Break an axis label into lines that fit its `length` in points, with a small margin."""
    text = " ".join(axis.label.get_text().split())
    axis.label.set_text(style.wrap_text(text, axis.label.get_fontsize(), length))


def _wrap_title(ax: Axes, length: float, box: float) -> None:
    """Break a title into lines of at most `length` points, after commas and after the first note.

    What is too long for a line by itself is broken between words. The lines begin above the names of rows,
    where there are some, left of the axes, which are `box` points wide.
    """
    size, beside = ax._left_title.get_fontsize(), _beside(ax)
    length = min(length + beside, 72 * _WIDEST * ax.get_figure(root=True).get_figwidth())
    head, _, text = ax._left_title.get_label().partition("\n")
    parts = [
        style.in_lines(part.replace(", ", ",\n").split("\n"), size, length) for part in (head, text) if part
    ]
    lines = [style.wrap_text(line, size, length) for part in parts for line in part.split("\n")]
    ax.set_title("\n".join(lines), loc="left", fontsize=size, x=-beside / box)


def _names(ax: Axes) -> list[str]:
    """The names of rows beside axes; empty where rows have numbers or axes a scale."""
    return [text for label in ax.get_yticklabels() if (text := label.get_text())[:1].isalpha()]


def _beside(ax: Axes) -> float:
    """The points that names of rows take beside axes."""
    return max((style.text_width(name, style.tick_size()) for name in _names(ax)), default=0.0)


def _texts(figure: Figure, panels: Sequence[tuple[Axes, float]]) -> list[str]:
    """The axes' titles and labels with their current line breaks."""
    labels = [one.get_xlabel() for ax, _ in panels for one in (ax, *ax.child_axes)]
    labels += [text for bar in _colour_bars(figure) for text in (bar.get_xlabel(), bar.get_ylabel())]
    return labels + [text for ax, _ in panels for text in (ax.get_title("left"), ax.get_ylabel())]
