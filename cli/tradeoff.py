"""`adapter-probe tradeoff`: what does each trained parameter buy?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import command
from .sweep import show_sweep, show_sweep_plan

_SIZES = "1,2,4,8,16,32,64,128,256,512"
_TOP_K = "0,1,2,3,5,7,9,11,12"


@command
def tradeoff(
    base: options.Base,
    task: Annotated[
        list[str],
        typer.Option(
            help=f"{options.TaskHelp} Repeatable.",
            show_default=False,
            metavar="TASK",
        ),
    ],
    out: options.Out,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help=f"{options.DataHelp} One for each --task, in the same order.",
            show_default=False,
            metavar="FOLDER",
        ),
    ] = None,
    sizes: Annotated[str, typer.Option(help="Adapter sizes; empty for none.")] = _SIZES,
    top_k: Annotated[
        str, typer.Option(help="Layers to fine-tune from the top; those above the depth are left out.")
    ] = _TOP_K,
    layernorm: Annotated[bool, typer.Option(help="LayerNorms and head alone.")] = True,
    full: Annotated[bool, typer.Option(help="Full fine-tuning, which the aggregate compares with.")] = True,
    head_only: Annotated[bool, typer.Option(help="A head on the frozen encoder.")] = False,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline",
            help="Also a linear model of TF-IDF features, without pretraining (extra baselines).",
        ),
    ] = False,
    init_std: Annotated[float, typer.Option(help="Std of the adapters' initialisation.")] = 1e-2,
    learning_rates: options.LearningRates = "3e-5,3e-4,3e-3",
    sweep: options.SweepOptions = options.SweepOptions(),
    nodes: options.ClusterOptions = options.ClusterOptions(),
    paper: options.Paper = False,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Score against trained parameters: adapter sizes, top-k fine-tuning, LayerNorms alone, full fine-tuning.

    For every point the best learning rate and number of epochs on validation counts, by the share of seeds
    that did not diverge, then by their mean (Houlsby et al. 2019, Figures 1, 3, 4 and 5). Every trial is
    kept: the same command resumes, and a wider one adds what is new.
    """
    from adapter_probe.studies.drawing import draw_into_folder
    from adapter_probe.studies.sweeps import find_tasks
    from adapter_probe.studies.tradeoff import methods_of, run_tradeoff

    resources, settings = sweep.resources(nodes), sweep.settings(learning_rates)
    methods = methods_of(
        base, options.whole_numbers(sizes, "--sizes"),
        None if top_k == _TOP_K else options.whole_numbers(top_k, "--top-k"), init_std,
        layernorm=layernorm, full=full, head_only=head_only, baseline=baseline,
    )  # fmt: skip
    found = find_tasks(task, data, sweep.metric, sweep.encoding, sweep.validation_share)
    requests = settings.requests(base, found, methods)
    if dry_run:
        show_sweep_plan(requests, out, resources, json)
        return
    study = run_tradeoff(requests, out, resources)
    show_sweep(study, draw_into_folder(study, paper=paper), json)
