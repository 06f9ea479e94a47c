"""`adapter-probe tradeoff`: what does each trained parameter buy?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import command, show_plan
from .sweep import show_sweep

_SIZES = "1,2,4,8,16,32,64,128,256,512"
_TOP_K = "0,1,2,3,5,7,9,11,12"


@command
def tradeoff(
    base: options.Base,
    task: Annotated[list[str], typer.Option(help=f"{options.TaskHelp} Repeatable.", metavar="TASK")],
    out: options.Out,
    data: Annotated[
        list[Path] | None,
        typer.Option(help=f"{options.DataHelp} One for each --task, in the same order.", metavar="FOLDER"),
    ] = None,
    sizes: Annotated[str, typer.Option(help="Comma-separated adapter sizes; empty for none.")] = _SIZES,
    top_k: Annotated[
        str,
        typer.Option(
            help="Comma-separated numbers of top layers to fine-tune; numbers that exceed the base's "
            "number of layers are left out."
        ),
    ] = _TOP_K,
    layernorm: Annotated[
        bool, typer.Option(help="Include training of only the LayerNorms and the head.")
    ] = True,
    full: Annotated[
        bool, typer.Option(help="Include full fine-tuning, the reference of the aggregate over tasks.")
    ] = True,
    head_only: Annotated[
        bool, typer.Option(help="Include training of the head alone, on the frozen base model.")
    ] = False,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline",
            help="Include a linear model of TF-IDF features, without pretraining (extra: baselines).",
        ),
    ] = False,
    init_std: Annotated[
        float, typer.Option(help="Standard deviation of the adapters' initialisation.")
    ] = 1e-2,
    learning_rates: options.LearningRates = "3e-5,3e-4,3e-3",
    sweep: options.SweepOptions = options.SweepOptions(),
    nodes: options.ClusterOptions = options.ClusterOptions(),
    paper: options.Paper = False,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Compare the scores of adapters of many sizes, top-k fine-tuning, LayerNorm-only and full tuning.

    The learning rate and number of epochs of each method are chosen on validation data, by the share of seeds
    that did not diverge, then by their mean score (Houlsby et al. 2019, Figures 1, 3, 4 and 5). Every trial
    is kept: the same command resumes an interrupted study, and a wider grid only adds the missing trials.
    """
    from adapter_probe.studies.tradeoff import tradeoff as run

    study = run(
        base, task, out, data=data or None, sizes=options.whole_numbers(sizes, "--sizes"),
        top_k=None if top_k == _TOP_K else options.whole_numbers(top_k, "--top-k"), layernorm=layernorm,
        full=full, head_only=head_only, baseline=baseline, init_std=init_std, dry_run=dry_run,
        **sweep.keywords(learning_rates, nodes),
    )  # fmt: skip
    show_plan(study, json) if dry_run else show_sweep(study, paper, json)
