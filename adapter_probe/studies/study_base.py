"""The base classes of all studies, their figures on Axes and in files."""

from __future__ import annotations

import base64
import html
import io
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from adapter_probe.analysis.summary_text import aligned_columns
from adapter_probe.argument_checks import as_tuple, checked
from adapter_probe.errors import ResultsError, must_be
from adapter_probe.figure_settings import Look
from adapter_probe.progress import stage
from adapter_probe.settings import DEFAULT_FORMATS, FIGURE_FORMATS, Axis, Column, Style, as_points

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from adapter_probe.figures.gallery import GalleryItem


BYTES_OF_DRAWING = 125_000_000  # libraries of statistics and figures, and what they draw; measured likewise
SECONDS_OF_DRAWING = 3.0  # per study, including its statistics; measured on two cores, used in estimates


def overlay_of(paths: str | Path | Sequence[str | Path]) -> pd.DataFrame | None:
    """The results of other people in some files; None without any."""
    if not (given := as_tuple(paths)):
        return None
    from adapter_probe.analysis.costs import read_overlay

    return read_overlay(given)


def write_figures(studies: Sequence[DrawnStudy], folder: str | Path, look: Look) -> list[GalleryItem]:
    """Write all figures and tables of some studies into one folder."""
    from adapter_probe.figures.gallery import write_gallery
    from adapter_probe.figures.venues import VENUES, FigureOptions

    tolerance = as_points("--tolerance", look.tolerance)
    wanted = tuple(dict.fromkeys(name.strip().lower() for name in as_tuple(look.formats) if name.strip()))
    if not wanted or any(name not in FIGURE_FORMATS for name in wanted):
        given = ",".join(as_tuple(look.formats))
        raise ResultsError(must_be("--format", f"among {', '.join(FIGURE_FORMATS)}", given))
    options = FigureOptions(
        VENUES[look.style], look.column, wanted, tolerance, look.paper, as_tuple(look.labels),
        as_tuple(look.only), look.x, overlay_of(look.overlay),
    )  # fmt: skip
    with stage("drawing figures"):
        return write_gallery([study.record for study in studies], folder, options)


def _given_or_empty(ax: Axes | None) -> Axes:
    """The given Axes, the current ones if nothing is drawn on them, or those of a new figure."""
    from matplotlib import pyplot as plt
    from matplotlib.axes import Axes

    if ax is None:
        current = plt.gca()
        return plt.subplots()[1] if current.has_data() or current.texts else current
    if not isinstance(ax, Axes):
        raise ResultsError(must_be("ax", "one Axes of Matplotlib, such as plt.subplots()[1]", ax))
    return ax


class DrawnStudy:
    """Base class of all studies: saves figures to disk, and shows a figure with text in a notebook.

    Attributes:
        record: tables, main results and identity of the study as plain data.
    """

    record: Any

    @checked
    def save(
        self,
        folder: str | Path,
        *,
        style: Style = "paper",
        column: Column | None = None,
        formats: Sequence[str] = DEFAULT_FORMATS,
        tolerance: float = 1.0,
        paper: bool = False,
        labels: Sequence[str] = (),
        only: Sequence[str] = (),
        x: Axis = "parameters",
        overlay: str | Path | Sequence[str | Path] = (),
    ) -> list[Path]:
        """Write the figures with their numbers and captions, and the tables; return the paths written.

        The results of a model in memory are copied as well: `load` reads them from there.

        Args:
            folder: output folder, created if missing.
            style: sizes and fonts of a venue; see `adapter_probe.figures.venues.VENUES`.
            column: figure width, one column or the full text width; None chooses per figure.
            formats: some of pdf, svg, png, pgf, or one of them.
            tolerance: tolerated drop, in percentage points, marked by the black line of an ablation.
            paper: overlay the values that Houlsby et al. (2019) published.
            labels: panel labels, one per ablation; by default the tasks, and the settings where they differ.
            only: names of the figures and tables to write, such as ``heatmap``; by default all.
            x: what a trade-off's score is drawn against; see `Tradeoff.plot`.
            overlay: results of other people to draw beside a trade-off's; see `Tradeoff.plot`.

        Raises:
            ResultsError: an argument is not allowed, or a file cannot be written.
        """
        look = Look(style=style, column=column, formats=formats, tolerance=tolerance, paper=paper,
                    labels=labels, only=only, x=x, overlay=overlay)  # fmt: skip
        items = write_figures([self], folder, look)
        self._keep(folder)
        return [path for item in items for path in item.files]

    def _keep(self, folder: str | Path) -> None:
        """Keep in a folder what would be lost with the study."""

    def rows(self) -> list[tuple[str, str]]:
        """The main results as (name, value) pairs of text."""
        raise NotImplementedError

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the main figure of the study."""
        raise NotImplementedError

    def _on(self, draw: Callable[..., Axes], ax: Axes | None, style: Style | None, **options: Any) -> Axes:
        """Draw on the given Axes, the current ones if they are empty, or those of a new figure."""
        if style is None:
            return draw(self.record, _given_or_empty(ax), **options)
        if ax is not None:
            raise ResultsError(f"style {style!r} draws a new figure and cannot be combined with ax; omit one")
        from matplotlib import pyplot as plt

        from adapter_probe.figures.style import paper_style
        from adapter_probe.figures.venues import VENUES

        venue = VENUES[Look(style=style).style]
        with paper_style(venue):
            place = plt.figure(figsize=(venue.half, venue.half), layout="constrained").add_subplot()
            return draw(self.record, place, **options)

    def _draw(self, ax: Axes) -> Axes:
        """The figure that a notebook shows."""
        return self.plot(ax)

    def __repr__(self) -> str:
        return aligned_columns(self.rows())

    def _repr_html_(self) -> str:
        """A figure with one Axes, followed by lines of text."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.2, 4.2), layout="constrained")
        self._draw(figure.subplots())
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=110)
        data, text = base64.b64encode(picture.getvalue()).decode("ascii"), aligned_columns(self.rows())
        return f'<img src="data:image/png;base64,{data}" alt=""/><pre>{html.escape(text)}</pre>'


@dataclass(frozen=True, eq=False, repr=False)
class StoredStudy(DrawnStudy):
    """Base class of the studies that have a results folder, unlike comparisons and averages of them."""

    record: Any
    # Of a model in memory, its results folder; a temporary one goes with the study.
    _temporary: TemporaryDirectory[str] | Path | None = field(default=None, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: the files of a temporary folder, which another process does not have, as well."""
        state = dict(vars(self))
        if isinstance(self._temporary, TemporaryDirectory):
            files = (path for path in self.folder.rglob("*") if path.is_file())
            state["_temporary"] = {str(path.relative_to(self.folder)): path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Write the files of a temporary folder into a new one."""
        if isinstance(files := state["_temporary"], dict):
            made = TemporaryDirectory(prefix="adapter-probe-")
            for name, content in files.items():
                path = Path(made.name) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            state = {**state, "_temporary": made, "record": replace(state["record"], folder=Path(made.name))}
        vars(self).update(state)

    @property
    def folder(self) -> Path:
        """The results folder."""
        return self.record.folder

    @property
    def question(self) -> tuple[str, ...]:
        """What the study asks of which rows, what is cut, left out or added, and what is not read.

        One line each, as they are said before it runs; empty of a folder of an older version.
        """
        return getattr(self.record.summary, "question", None) or ()

    def facts(self) -> dict[str, Any]:
        """The main results as plain JSON, which the commands print with ``--json``."""
        return self.record.summary.to_dict()

    def _keep(self, folder: str | Path) -> None:
        """Copy the results of a model in memory, unless the folder is in theirs."""
        if self._temporary is not None and self.folder.resolve() not in (
            place := Path(folder).resolve(), *place.parents
        ):  # fmt: skip
            from adapter_probe.results.atomic import make_folder

            without = shutil.ignore_patterns(".lock")
            shutil.copytree(self.folder, make_folder(folder), ignore=without, dirs_exist_ok=True)
