"""`adapter-probe suite`: all studies listed in a TOML file, over tasks, methods and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adapter_probe.studies.summaries import aligned_columns

from . import options
from .console import command, show, show_json, show_plan


@command
def suite(
    file: Annotated[Path, typer.Argument(help="TOML file with the base, the tasks and the studies.")],
    out: options.Out,
    workers: options.Workers = 0,
    threads: options.Threads = 1,
    device: options.Device = "auto",
    nodes: options.ClusterOptions = options.ClusterOptions(),
    paper: options.Paper = False,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Train and ablate over the tasks, methods and seeds of a file, and make the tables and figures.

    The file names a base, tasks ([[tasks]]) and studies ([tradeoff], [init_sweep], [ablation]) with the
    options of the commands of these names. The same command resumes an interrupted run, and a longer file
    only adds the missing trials.
    """
    from adapter_probe.studies.gallery import suite_report
    from adapter_probe.studies.suite import suite as run

    study = run(
        file, out, workers=workers, threads=threads, device=device, cluster=nodes.choose(), dry_run=dry_run
    )
    if dry_run:
        show_plan(study, json)
        return
    report = suite_report(study, paper)
    if json:
        show_json(report)
    else:
        written = f"figures and tables: {len(report['files'])} files in {study.folder}"
        show(f"{aligned_columns(study.rows())}\n\n{written}")
