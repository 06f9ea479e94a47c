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
    from adapter_probe.studies.drawing import draw_into_folder
    from adapter_probe.studies.init_sweep import init_sweep_trials, run_init_sweep

    resources, settings = sweep.resources(nodes), sweep.settings(learning_rates)
    trials = init_sweep_trials(base, task, data, options.numbers(stds, "--stds"), size, settings)
    if dry_run:
        show_sweep_plan(trials, out, resources, json)
        return
    study = run_init_sweep(trials, out, resources)
    show_sweep(study, draw_into_folder(study, paper=paper), json)
