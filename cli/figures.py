"""`adapter-probe figures`: draw every figure and table of finished studies again, from their tables alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from adapter_probe.errors import ResultsError

from .console import command, say, show, show_json

if TYPE_CHECKING:
    from adapter_probe.figures.drawing import Drawing
    from adapter_probe.figures.studies import Study
    from adapter_probe.figures.venues import Look

_SEVERAL = "figures"  # where the figures of several folders go, unless told


@command
def figures(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of ablations and sweeps, or checkpoints with ablations inside.", show_default=False
        ),
    ],
    style: Annotated[
        Literal["paper", "icml", "neurips", "acl", "aaai", "jmlr", "tmlr", "talk"],
        typer.Option(help="Widths and letter sizes of a venue, or of slides."),
    ] = "paper",
    column: Annotated[
        Literal["half", "full"] | None,
        typer.Option(
            help="Narrow or as wide as the text. Default: what each figure needs.", show_default=False
        ),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Out of pdf, svg, png, pgf, comma-separated.", metavar="LIST")
    ] = "pdf,svg,png",
    tolerance: Annotated[
        float, typer.Option(help="Points of drop that an ablation's black line marks.")
    ] = 1.0,
    paper: Annotated[
        bool, typer.Option("--paper", help="Set the values published by Houlsby et al. 2019 beside.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write into. Default: the results' own; with several, ./figures.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Captions and paths as JSON.")] = False,
) -> None:
    """Draw the figures and tables of results again, from their tables on disk.

    Several ablations stand side by side in one figure, several sweeps of the initialisation in one axes. Each
    figure comes with its numbers as CSV and a caption; tables come as LaTeX, Markdown and CSV.
    """
    from adapter_probe.figures.studies import open_studies
    from adapter_probe.figures.venues import VENUES, Look

    if not tolerance >= 0:
        raise ResultsError(f"tolerance {tolerance} is not allowed; give 0 or more points")
    look = Look(VENUES[style], column, _formats(formats), tolerance, paper)
    studies = open_studies(results)
    folder = out or (studies[0].folder if len(studies) == 1 else Path(_SEVERAL))
    report = _write(studies, folder, look)
    if json:
        show_json(report)
        return
    for made in (*report["figures"], *report["tables"]):
        show("\n".join(made["files"]))


def _formats(text: str) -> tuple[str, ...]:
    """``pdf,png`` as formats, each once, in the order given.

    Raises:
        ResultsError: an unknown one, or none.
    """
    from adapter_probe.figures.venues import FORMATS

    found = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    if not found or any(name not in FORMATS for name in found):
        raise ResultsError(f"--format {text!r} is not allowed; give some of {', '.join(FORMATS)}")
    return found


def _write(studies: list[Study], folder: Path, look: Look) -> dict[str, Any]:
    """Write everything into the folder; what it is, with its caption and files."""
    from adapter_probe.figures.gallery import figures_of, tables_of

    drawings: list[Drawing] = []
    try:
        drawings.extend(figures_of(studies, look))
    except ValueError as error:  # of the layout: more grids than the width holds
        raise ResultsError(f"--style {look.venue.name}: {error}") from None
    if look.paper and not any("Houlsby et al. (2019)" in drawing.caption for drawing in drawings):
        say("the paper has no values for these tasks and scores; nothing stands beside")
    figures = [
        {"figure": drawing.stem, "caption": drawing.caption, "files": _names(drawing.write(folder, look))}
        for drawing in drawings
    ]
    tables = [
        {"table": table.stem, "caption": table.caption, "files": _names(table.write(folder))}
        for table in tables_of(studies, look.paper)
    ]
    return {"folder": str(folder), "figures": figures, "tables": tables}


def _names(paths: tuple[Path, ...]) -> list[str]:
    return [str(path) for path in paths]
