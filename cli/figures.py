"""`adapter-probe figures`: draw every figure and table of finished studies again, from their tables alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from adapter_probe.errors import ResultsError

from . import options
from .console import command, say, show, show_json
from .wording import file_lists

if TYPE_CHECKING:
    from adapter_probe.figures.gallery import Made

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
    paper: options.Paper = False,
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
    from adapter_probe.analysis.studies import load_records
    from adapter_probe.figures.gallery import write_gallery
    from adapter_probe.figures.venues import VENUES, Look

    if not tolerance >= 0:
        raise ResultsError(f"tolerance {tolerance} is not allowed; give 0 or more points")
    look = Look(VENUES[style], column, _formats(formats), tolerance, paper)
    studies = load_records(results)
    folder = out or (studies[0].folder if len(studies) == 1 else Path(_SEVERAL))
    made = write_gallery(studies, folder, look)
    if look.paper and not any("Houlsby et al. (2019)" in one.caption for one in made):
        say("the paper has no values for these tasks and scores; nothing stands beside")
    show_json(_report(folder, made)) if json else show(file_lists(one.files for one in made))


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


def draw_results(folder: Path, tolerance: float = 1.0, *, paper: bool = False) -> dict[str, str]:
    """Draw a finished study into its own folder, in the default style; paths by name and ending."""
    from adapter_probe.analysis.studies import load_record
    from adapter_probe.figures.gallery import write_gallery
    from adapter_probe.figures.venues import PAPER, Look

    made = write_gallery([load_record(folder)], folder, Look(PAPER, tolerance=tolerance, paper=paper))
    files = [path for one in made for path in one.files]
    return {f"{path.stem}_{path.suffix[1:]}".replace("-", "_"): str(path) for path in files}


def _report(folder: Path, made: list[Made]) -> dict[str, Any]:
    def told(kind: str) -> list[dict[str, Any]]:
        return [
            {kind: one.stem, "caption": one.caption, "files": [str(path) for path in one.files]}
            for one in made
            if one.kind == kind
        ]

    return {"folder": str(folder), "figures": told("figure"), "tables": told("table")}
