"""`adapter-probe ablate`: switch adapters off over every contiguous layer span, and draw the heatmap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from adapter_probe.studies.summaries import ablation_summary, columns, duration, exchange_rows

from . import options
from .console import command, show, show_json

if TYPE_CHECKING:
    from adapter_probe.studies.ablation import Ablation

_DEEP = 16
"""Number of layers from which `--dry-run` also estimates other choices of spans."""


@command
def ablate(
    checkpoint: options.Checkpoint,
    sites: Annotated[
        Literal["both", "attention", "ffn"],
        typer.Option(help="Which adapters of each layer to switch off."),
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
        str,
        typer.Option(
            help="Restrict the study to these layers, for example 8-23.",
            metavar="FIRST-LAST",
            show_default=False,
        ),
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
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        Literal["train", "validation", "test"],
        typer.Option(help="Split of the checkpoint's own task to evaluate on."),
    ] = "validation",
    metric: options.Metric = None,
    max_examples: Annotated[
        int | None,
        typer.Option(help="Evaluate on a fixed random subset of this many examples.", show_default=False),
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
            "memory. Default: chosen for the device.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of examples that measure an ability of the base model. Each span's drop on the task "
            "is plotted against its change in this ability; repeatable.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    encoding: options.GivenEncoding = "utf-8",
    out: Annotated[
        Path | None,
        typer.Option(help="Results folder. Default: a folder inside the checkpoint.", show_default=False),
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
    from adapter_probe.probe.arguments import AblationArguments, AblationSettings
    from adapter_probe.studies.ablating import plan_from_arguments, run_from_arguments, with_task
    from adapter_probe.studies.comparison import exchange

    options.check_tolerance(tolerance)
    cluster = nodes.choose()
    arguments = AblationArguments(
        str(checkpoint),
        AblationSettings(sites, complement, layernorm, precision, spans, group, layers), base,
        with_task(data or (), task), split, metric, max_examples, tokens_per_pass, encoding,
    )  # fmt: skip
    if dry_run:
        plan = plan_from_arguments(arguments, out, device=device, threads=threads)
        show_json(plan) if json else show(columns(_plan_rows(plan)))
        return
    others = tuple(map(str, against or ()))
    study = run_from_arguments(
        arguments, out, device=device, threads=threads, cluster=cluster, against=others
    )
    report = report_of(study, tolerance)
    show_json(report) if json else show(ablation_summary(report))
    if study.against is not None and not json:
        show("\n" + columns(exchange_rows(exchange(study, study.against).record)))


def report_of(study: Ablation, tolerance: float = 1.0) -> dict[str, Any]:
    """Draw a finished ablation into its folder; its summary with the paths of all files."""
    from adapter_probe.results.schema import GROUPS_CSV, LAYERS_CSV, PREDICTIONS, REMOVABLE_CSV, SPANS_CSV
    from adapter_probe.studies.comparison import exchange
    from adapter_probe.studies.drawing import draw_into_folder

    names = {"spans": SPANS_CSV, "layers": LAYERS_CSV, "removable": REMOVABLE_CSV, "predictions": PREDICTIONS}
    if study.groups is not None:
        names["groups"] = GROUPS_CSV
    files = {name: str(study.folder / file) for name, file in names.items()}
    files |= draw_into_folder(study, tolerance=tolerance)
    if study.against is None:
        return {**study.summary, "files": files}
    files |= {path.stem + path.suffix.replace(".", "_"): str(path) for path in
              exchange(study, study.against).save(study.folder)}  # fmt: skip
    return {**study.summary, "against": report_of(study.against, tolerance), "files": files}


def _plan_rows(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """The estimated cost of an ablation as (name, value) pairs of text."""
    attention, ffn = plan["layer_evaluations"]
    memory = plan["peak_memory_bytes"]
    return [
        ("variants", f"{plan['n_variants']} ({plan['n_spans']} spans)"),
        ("examples", f"{plan['n_examples']:,} ({plan['n_tokens']:,} tokens)"),
        ("layer passes, separate runs", f"{plan['separate_layer_evaluations']:,} per batch"),
        ("layer passes, shared", f"{ffn:,} per batch ({attention:,} of the attention sublayer)"),
        ("parts done", f"{plan['parts_done']} of {plan['parts']}"),
        ("tokens per pass", f"{plan['tokens_per_pass']:,}"),
        ("time left, estimated", duration(plan["seconds_left"])),
        (
            "peak memory, estimated",
            "unknown" if memory is None else f"{memory / 1e9:.1f} GB on {plan['device']}",
        ),
        ("results folder", plan["folder"]),
        *_choice_rows(plan),
    ]


def _choice_rows(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """The estimated cost of other choices of spans, for models with many layers."""
    if plan["separate_layer_evaluations"] // plan["n_variants"] < _DEEP:
        return []
    return [
        (
            f"with --spans {own['spans']}" + (f" --group {own['group']}" if own["group"] > 1 else ""),
            f"{own['n_spans']} spans, {own['layer_evaluations'][1]:,} layer passes per batch, about "
            f"{duration(own['seconds'])}",
        )
        for own in plan["choices"]
    ]
