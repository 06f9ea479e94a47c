"""`adapter-probe report`: one page to explore results in, drawn again from disk without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import command, say, show


@command
def report(
    results: options.Results,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
    examples: Annotated[
        bool,
        typer.Option(
            "--examples", help="Put the texts that flip into the page; leave them out where data is private."
        ),
    ] = False,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            help="Checkpoint of an ablation that does not lie inside or beside it; repeatable.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="File with the examples, if the ablation was given files of its own; repeatable.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    encoding: options.GivenEncoding = "utf-8",
    tolerance: Annotated[float, typer.Option(help="Points of drop at which the slider begins.")] = 1.0,
) -> None:
    """Write one HTML file in which to explore results: it holds everything and loads nothing.

    Heatmaps with every span's numbers, a slider that says which layers can go at what cost, layer shares,
    sweeps and trade-offs with their runs, and the settings that made them.
    """
    from adapter_probe.studies import reporting

    made = reporting.report(
        results, out, examples=examples, checkpoints=checkpoint or (), data=data or (), encoding=encoding,
        tolerance=tolerance,
    )  # fmt: skip
    show(str(made.path))
    if made.n_texts:
        where = "share it only where the data may go"
        say(f"the page holds the texts that flip, out of {made.n_texts:,}; {where}")
    elif examples:
        say("only examples with classes or answers to questions can flip, so there are no texts to show")
