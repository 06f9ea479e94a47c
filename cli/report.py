"""`adapter-probe report`: one page to explore results in, drawn again from disk without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adapter_probe.errors import ResultsError

from . import options
from .console import command, say, show


@command
def report(
    results: options.Results,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write. Default: report.html; with --model-card, standard output.",
            show_default=False,
        ),
    ] = None,
    model_card: Annotated[
        bool,
        typer.Option(
            "--model-card",
            help="Write Markdown for a model card instead: scores as model-index metadata, heatmap, "
            "removable spans.",
        ),
    ] = False,
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

    if model_card:
        from adapter_probe.studies.model_card import model_card as card_of

        if examples or checkpoint or data:
            raise ResultsError("--model-card takes none of --examples, --checkpoint and --data")
        text = card_of(results, out, tolerance=tolerance)
        show(text if out is None else str(out))
        return
    out = out or Path("report.html")
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
