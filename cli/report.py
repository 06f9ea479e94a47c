"""`adapter-probe report`: an interactive HTML page or a model card, from results on disk, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adapter_probe.errors import ResultsError
from adapter_probe.progress import print_message

from . import options
from .console import command, show


@command
def report(
    results: options.Results,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Output file; by default report.html, or with --model-card standard output.",
            metavar="FILE",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    model_card: Annotated[
        bool,
        typer.Option(
            "--model-card",
            help="Write Markdown for a model card instead: scores as model-index metadata, heatmap, "
            "removable spans.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    examples: Annotated[
        bool,
        typer.Option(
            "--examples",
            help="Include the texts of examples whose prediction changes. Omit it for private data.",
            rich_help_panel=options.DATA,
        ),
    ] = False,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            help="Checkpoint of an ablation whose results folder is no longer inside it. Repeatable.",
            metavar="FOLDER",
            rich_help_panel=options.DATA,
        ),
        options.PLACES["checkpoint"],
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of the evaluated examples, if the ablation was run with --data. Repeatable.",
            metavar="FILE",
            rich_help_panel=options.DATA,
        ),
        options.PLACES["file"],
    ] = None,
    encoding: options.GivenEncoding = "utf-8",
    tolerance: Annotated[
        float,
        typer.Option(
            help="Initial position of the tolerance slider, in percentage points.",
            metavar="POINTS",
            rich_help_panel=options.OUTPUT,
        ),
    ] = 1.0,
    average: Annotated[
        bool,
        typer.Option(
            "--average",
            help="Begin with the mean over ablations that differ in the training seed.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Begin with the difference of two ablations, second minus first.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
) -> None:
    """Write a self-contained interactive HTML report of one or more studies.

    The report has maps with the numbers of every span, a tolerance slider that shows which layers can be
    pruned at what cost, confusion matrices, layer attributions, sweeps and trade-offs with their runs, and
    all settings. Ablations of the same spans stand side by side: a span selected in one is selected in all.

    Example: adapter-probe report my-checkpoint/ablation --out report.html
    """
    from adapter_probe.studies import reporting

    if model_card:
        from adapter_probe.studies.model_card import model_card as card_of

        if examples or checkpoint or data or average or compare:
            raise ResultsError(
                "--model-card cannot be combined with --examples, --checkpoint, --data, --average or "
                "--compare"
            )
        text = card_of(results, out, tolerance=tolerance)
        show(text if out is None else str(out))
        return
    out = out or Path("report.html")
    made = reporting.report(
        results, out, examples=examples, checkpoints=checkpoint or (), data=data or (), encoding=encoding,
        tolerance=tolerance, average=average, compare=compare,
    )  # fmt: skip
    show(str(made.path))
    if made.n_texts:
        where = "share it only with people who may see the data"
        print_message(
            f"the page contains texts of examples whose prediction changes (of {made.n_texts:,}); {where}"
        )
    elif examples:
        print_message(
            "--examples applies only to classification, choices and question answering; the page contains no "
            "texts"
        )
