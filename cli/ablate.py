"""`adapter-probe ablate`: switch adapters off over every contiguous layer span, and draw the heatmap."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from adapter_probe.studies.summaries import ablation_summary, aligned_columns, exchange_rows

from . import options
from .console import command, show, show_json, show_plan


@command
def ablate(
    checkpoint: options.Checkpoint,
    sites: Annotated[
        Literal["both", "attention", "ffn"], typer.Option(help="Which adapters of each layer to switch off.")
    ] = "both",
    complement: Annotated[
        bool,
        typer.Option(
            "--complement", help="Switch off every adapter outside the span instead of those inside it."
        ),
    ] = False,
    spans: Annotated[
        str,
        typer.Option(
            help="Spans to switch off: all, single, prefix, suffix, or a range of lengths such as 1..4.",
            metavar="SET",
        ),
    ] = "all",
    group: Annotated[int, typer.Option(help="Number of adjacent layers to switch off together.")] = 1,
    layers: Annotated[
        str, typer.Option(help="Restrict the study to these layers, for example 8-23.", metavar="FIRST-LAST")
    ] = "",
    layernorm: Annotated[
        Literal["trained", "pretrained"],
        typer.Option(help="LayerNorm weights to use after an adapter that is switched off."),
    ] = "trained",
    base: options.MovedBase = None,
    data: options.GivenFiles = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Instead of --data: tasks of lm-evaluation-harness (extra: lm-eval) by name, task file or "
            "folder (with a /). Several are groups of one study, scored together.",
            metavar="lm-eval:NAME[,NAME]",
        ),
    ] = None,
    split: Annotated[
        Literal["train", "validation", "test"],
        typer.Option(help="Split of the checkpoint's own task to evaluate on."),
    ] = "validation",
    metric: options.Metric = None,
    max_examples: Annotated[
        int | None, typer.Option(help="Evaluate on a fixed random subset of this many examples.")
    ] = None,
    device: options.Device = "auto",
    threads: Annotated[
        int,
        typer.Option(
            help="Number of CPU threads, and with --slurm of CPUs per job; 0 uses PyTorch's default."
        ),
    ] = 0,
    precision: Annotated[
        Literal["float32", "float64", "bfloat16", "mixed"],
        typer.Option(
            help="Numerical precision. mixed computes in bfloat16 and repeats close decisions in float32."
        ),
    ] = "float32",
    tokens_per_pass: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of tokens, over all variants, per pass through a layer; bounds "
            "memory. Default: chosen for the device."
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of examples that measure an ability of the base model. Each span's drop on the task "
            "is plotted against its change in this ability; repeatable.",
            metavar="FILE",
        ),
    ] = None,
    encoding: options.GivenEncoding = "utf-8",
    out: Annotated[
        Path | None, typer.Option(help="Results folder. Default: a folder inside the checkpoint.")
    ] = None,
    tolerance: options.Tolerance = 1.0,
    nodes: options.ClusterOptions = options.ClusterOptions(),
    json: options.Json = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate the cost without running the study.")
    ] = False,
) -> None:
    """Switch adapters off over every contiguous span of layers, without retraining.

    Deep models have many spans: select some with --spans, --group and --layers, and estimate the cost with
    --dry-run.

    Writes spans.csv, predictions.npz and heatmap.pdf, .svg and .png into the results folder. Run the same
    command again to resume an interrupted run.
    """
    from adapter_probe.studies.ablating import ablate as run
    from adapter_probe.studies.comparison import exchange
    from adapter_probe.studies.gallery import ablation_report

    options.check_tolerance(tolerance)
    study = run(
        checkpoint, sites=sites, complement=complement, spans=spans, group=group, layers=layers,
        layernorm=layernorm, base=base, data=tuple(data or ()), task=task or "", split=split, metric=metric,
        max_examples=max_examples, device=device, threads=threads, precision=precision,
        tokens_per_pass=tokens_per_pass, out=out, against=tuple(against or ()), encoding=encoding,
        cluster=nodes.choose(), dry_run=dry_run,
    )  # fmt: skip
    if dry_run:
        show_plan(study, json)
        return
    report = ablation_report(study, tolerance)
    show_json(report) if json else show(ablation_summary(report))
    if study.against is not None and not json:
        show("\n" + aligned_columns(exchange_rows(exchange(study, study.against).record)))
