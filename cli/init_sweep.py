"""`adapter-probe init-sweep`: does the initialisation's scale matter?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import command, show_plan
from .sweep import show_sweep


@command
def init_sweep(
    base: options.Base,
    task: Annotated[str, typer.Option(help=options.TaskHelp)],
    out: options.Out,
    data: Annotated[Path | None, typer.Option(help=options.DataHelp)] = None,
    stds: Annotated[
        str,
        typer.Option(
            help="Standard deviations of the initialisation: a comma-separated list, or a range of decades."
        ),
    ] = "1e-7:1",
    size: Annotated[int, typer.Option(help="Bottleneck size of the adapters.")] = 64,
    learning_rates: options.LearningRates = "3e-4",
    sweep: options.SweepOptions = options.SweepOptions(),
    nodes: options.ClusterOptions = options.ClusterOptions(),
    paper: options.Paper = False,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Retrain adapters over a range of initialisation standard deviations (Houlsby et al. 2019, Figure 6).

    Weights are drawn from a normal distribution truncated at two standard deviations; the realised standard
    deviation is 0.88 of the nominal one. Every trial is kept: the same command resumes an interrupted sweep,
    and a wider range only adds the missing trials.
    """
    from adapter_probe.studies.init_sweep import init_sweep as run

    study = run(
        base, task, out, data=data, stds=options.numbers(stds, "--stds"), size=size, dry_run=dry_run,
        **sweep.keywords(learning_rates, nodes),
    )  # fmt: skip
    show_plan(study, json) if dry_run else show_sweep(study, paper, json)
