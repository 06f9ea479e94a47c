"""What the studies share when they are drawn: figures on disk, and a figure with text in a notebook."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapter_probe.errors import ResultsError

if TYPE_CHECKING:
    from adapter_probe.analysis.studies import StudyRecord
    from adapter_probe.figures.gallery import GalleryItem

Style = Literal["paper", "icml", "neurips", "acl", "aaai", "jmlr", "tmlr", "talk"]


def draw_gallery(
    records: Sequence[StudyRecord],
    folder: str | Path,
    *,
    style: str = "paper",
    column: Literal["half", "full"] | None = None,
    formats: Sequence[str] = ("pdf", "svg", "png"),
    tolerance: float = 1.0,
    paper: bool = False,
) -> list[GalleryItem]:
    """Write every figure and table of some studies into one folder.

    Args:
        records: the studies; several ablations stand side by side in one figure.
        folder: made if missing.
        style: sizes and fonts of a venue; see `adapter_probe.figures.venues.VENUES`.
        column: the figure's width; None for what each figure needs.
        formats: some of pdf, svg, png, pgf.
        tolerance: drop in points that an ablation's black line marks.
        paper: overlay the values that Houlsby et al. (2019) published.

    Raises:
        ResultsError: an argument that is not allowed, or a file that cannot be written.
    """
    from adapter_probe.figures.gallery import write_gallery
    from adapter_probe.figures.venues import FORMATS, VENUES, FigureOptions

    if style not in VENUES:
        raise ResultsError(f"style {style!r} is not known; give one of {', '.join(VENUES)}")
    if not tolerance >= 0:
        raise ResultsError(f"tolerance {tolerance} is not allowed; give 0 or more points")
    wanted = tuple(dict.fromkeys(name.strip().lower() for name in formats if name.strip()))
    if not wanted or any(name not in FORMATS for name in wanted):
        given = ",".join(formats)
        raise ResultsError(f"formats {given!r} are not allowed; give some of {', '.join(FORMATS)}")
    return write_gallery(records, folder, FigureOptions(VENUES[style], column, wanted, tolerance, paper))


def save_figures(records: Sequence[Any], folder: str | Path, **options: Any) -> list[Path]:
    """`draw_gallery`, and the paths that it wrote."""
    return [path for made in draw_gallery(records, folder, **options) for path in made.files]


def draw_into_folder(record: StudyRecord, **options: Any) -> dict[str, str]:
    """Draw a finished study into its own folder; paths by name and ending, such as ``heatmap_pdf``."""
    paths = save_figures([record], record.folder, **options)
    return {f"{path.stem}_{path.suffix[1:]}".replace("-", "_"): str(path) for path in paths}


def html_of(draw: Callable[..., Any], text: str) -> str:
    """A figure of one Axes and lines of text, as HTML for a notebook."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    draw(ax=figure.subplots())
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    data = base64.b64encode(picture.getvalue()).decode("ascii")
    return f'<img src="data:image/png;base64,{data}" alt=""/><pre>{html.escape(text)}</pre>'
