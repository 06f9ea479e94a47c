"""`adapter-probe report`: an interactive HTML page or a model card, from results on disk, without torch."""

from __future__ import annotations

from typing import Annotated

import typer

from adapter_probe.errors import ResultsError
from adapter_probe.progress import print_message
from adapter_probe.studies.figure_arguments import Report

from . import options
from .console import command, show


@command
def report(
    asked: Report,
    model_card: Annotated[
        bool,
        typer.Option(
            "--model-card",
            help="Write Markdown for a model card instead, by default to standard output: scores as "
            "model-index metadata, heatmap, removable spans.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
) -> None:
    """Write a self-contained interactive HTML report of one or more studies.

    The report has maps with the numbers of every span, a tolerance slider that shows which layers can be
    pruned at what cost, confusion matrices, layer attributions, sweeps and trade-offs with their runs, curves
    of strengths, and all settings. Ablations of the same spans stand side by side: a span selected in one is
    selected in all.

    Example: adapter-probe report my-checkpoint/ablation --out report.html
    """
    from adapter_probe.studies.report import report as run

    if model_card:
        from adapter_probe.studies.model_card import model_card as card_of

        if asked.examples or asked.checkpoints or asked.data or asked.average or asked.compare or asked.space:
            raise ResultsError(
                "--model-card cannot be combined with --examples, --checkpoint, --data, --average, "
                "--compare or --space"
            )
        text = card_of(asked.folders, asked.out, tolerance=asked.tolerance)
        show(text if asked.out is None else str(asked.out))
        return
    made = run(**vars(asked))
    show(str(made.path))
    if made.n_texts:
        where = "share it only with people who may see the data"
        print_message(
            f"the page contains texts of examples whose prediction changes (of {made.n_texts:,}); {where}"
        )
    elif asked.examples:
        print_message(
            "--examples applies only to labels, tags, choices and question answering; the page contains no "
            "texts"
        )
