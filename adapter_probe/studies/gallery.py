"""Figures and tables of one or several studies together: the function `draw`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.analysis.studies import StudyRecord, load_records

from .comparison import average as average_of
from .drawing import DEFAULT_FORMATS, Column, DrawnStudy, Style, draw_gallery
from .rows import several

if TYPE_CHECKING:
    from adapter_probe.figures.gallery import GalleryItem

SEVERAL = "figures"
"""Output folder for figures of several studies, unless another one is given."""


def draw(
    studies: DrawnStudy | str | Path | Sequence[DrawnStudy | str | Path],
    out: str | Path | None = None,
    *,
    average: bool = False,
    style: Style = "paper",
    column: Column | None = None,
    formats: str | Sequence[str] = DEFAULT_FORMATS,
    tolerance: float = 1.0,
    paper: bool = False,
    labels: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
) -> list[GalleryItem]:
    """Write the figures and tables of one or several studies into one folder.

    Several ablations become panels of one figure, several initialisation sweeps lines in one plot.

    Args:
        studies: studies, results folders, or checkpoints that contain ablations.
        out: output folder; by default the results folder of a single study, and ``figures`` for several.
        average: whether to draw the mean over ablations that differ in the training seed.
        style: sizes and fonts of a venue; this and the other arguments are those of `DrawnStudy.save`.
        column: figure width.
        formats: some of pdf, svg, png, pgf.
        tolerance: tolerated drop, in percentage points.
        paper: overlay the values that Houlsby et al. (2019) published.
        labels: panel labels, one per ablation, in the order of the studies.
        only: names of the figures and tables to write; by default all.

    Returns:
        one entry per figure and table, with its `kind`, `stem`, `caption` and `files`.

    Raises:
        ResultsError: a study cannot be read, an argument is not allowed, the studies cannot be drawn together
            or averaged, or a file cannot be written.
    """
    given = several(studies)
    records: list[Any] = [average_of(given).record] if average else _records(given)
    if out is None:
        out = records[0].folder if len(records) == 1 and not average else SEVERAL
    return draw_gallery(
        records, out, style=style, column=column, formats=formats, tolerance=tolerance, paper=paper,
        labels=labels, only=only,
    )  # fmt: skip


def _records(given: Sequence[DrawnStudy | str | Path]) -> list[StudyRecord]:
    """The records of studies and of those in folders, in the order given."""
    folders = [one for one in given if not isinstance(one, DrawnStudy)]
    if len(folders) == len(given):
        return load_records(folders)  # which drops folders that are given twice
    lists = ([one.record] if isinstance(one, DrawnStudy) else load_records([one]) for one in given)
    return [record for found in lists for record in found]
