"""`adapter-probe init-sweep`: does the initialisation's scale matter?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import command
from .sweep import show_sweep, show_sweep_plan


@command
def init_sweep(
    base: options.Base,
    task: Annotated[str, typer.Option(help=options.TaskHelp, show_default=False)],
    out: options.Out,
    data: Annotated[Path | None, typer.Option(help=options.DataHelp, show_default=False)] = None,
    stds: Annotated[str, typer.Option(help="Initialisation stds: a list, or a range of decades.")] = "1e-7:1",
    size: Annotated[int, typer.Option(help="Bottleneck width.")] = 64,
    learning_rates: options.LearningRates = "3e-4",
    sweep: options.SweepOptions = options.SweepOptions(),
    nodes: options.ClusterOptions = options.ClusterOptions(),
    paper: options.Paper = False,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Retrain adapters over initialisation stds, and draw the score against the std (Houlsby et al., Fig. 6).

    The std is that of the normal before truncation at two std; the realised one is 0.88 of it. Every trial is
    kept: the same command resumes, and a wider one adds what is new.
    """
    from adapter_probe.studies.drawing import draw_into_folder
    from adapter_probe.studies.init_sweep import init_sweep_requests, run_init_sweep

    resources, settings = sweep.resources(nodes), sweep.settings(learning_rates)
    requests = init_sweep_requests(
        base,
        task,
        data,
        options.numbers(stds, "--stds"),
        size,
        settings,
        sweep.encoding,
        sweep.validation_share,
    )
    if dry_run:
        show_sweep_plan(requests, out, resources, json)
        return
    study = run_init_sweep(requests, out, resources)
    show_sweep(study, draw_into_folder(study, paper=paper), json)
