"""Figures and tables: `draw`, and finished studies drawn into their own folders, as commands report them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.results import schema

from .checked import checked
from .comparison import average as average_of
from .comparison import exchange
from .loading import studies_of
from .rows import as_tuple
from .study_figures import (
    DEFAULT_FORMATS,
    Column,
    DrawnStudy,
    StoredStudy,
    Style,
    draw_gallery,
    draw_into_folder,
)
from .sweeps import Sweep, plain_rows

if TYPE_CHECKING:
    from adapter_probe.figures.gallery import GalleryItem

    from .ablation import Ablation
    from .suite import Suite

SEVERAL = "figures"
"""Output folder for figures of several studies, unless another one is given."""


@checked
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
        out: output folder; by default the results folder of a single study, and otherwise ``figures``.
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
    given = as_tuple(studies)
    found = [average_of(given)] if average else studies_of(given)
    if out is None:
        out = found[0].folder if len(found) == 1 and isinstance(found[0], StoredStudy) else SEVERAL
    return draw_gallery(
        [study.record for study in found], out, style=style, column=column, formats=formats,
        tolerance=tolerance, paper=paper, labels=labels, only=only,
    )  # fmt: skip


def ablation_report(study: Ablation, tolerance: float = 1.0) -> dict[str, Any]:
    """Draw a finished ablation into its folder; its summary with the paths of all files."""
    names = {"spans": schema.SPANS_CSV, "layers": schema.LAYERS_CSV, "removable": schema.REMOVABLE_CSV,
             "predictions": schema.PREDICTIONS}  # fmt: skip
    if study.groups is not None:
        names["groups"] = schema.GROUPS_CSV
    files = {name: str(study.folder / file) for name, file in names.items()}
    files |= draw_into_folder(study, tolerance=tolerance)
    if study.against is None:
        return {**study.summary, "files": files}
    files |= {path.stem + path.suffix.replace(".", "_"): str(path) for path in
              exchange(study, study.against).save(study.folder)}  # fmt: skip
    return {**study.summary, "against": ablation_report(study.against, tolerance), "files": files}


def sweep_report(study: Sweep, paper: bool = False) -> dict[str, Any]:
    """Draw a finished sweep into its folder; its points with the paths of all files."""
    figures = draw_into_folder(study, paper=paper)
    names = (schema.TRIALS_CSV, schema.SWEEP_CSV, schema.TRADEOFF_CSV, schema.SIZES_CSV, schema.AGGREGATE_CSV)
    tables = [path for name in names if (path := study.folder / name).is_file()]
    return {
        "points": plain_rows(study.table),
        "files": {**{path.stem: str(path) for path in tables}, **figures},
    }


def suite_report(study: Suite, paper: bool = False) -> dict[str, Any]:
    """Draw every study of a suite into its folder; the tables and summaries with the paths of the figures."""
    paths = study.draw(paper=paper)
    sweeps = {"tradeoff": study.tradeoff, "init_sweep": study.init_sweep}
    return {
        **{name: plain_rows(one.table) for name, one in sweeps.items() if one is not None},
        "ablations": {task: [one.summary for one in seeds] for task, seeds in study.ablations.items()},
        "parameters": [] if study.parameters is None else plain_rows(study.parameters),
        "files": paths,
    }
