"""`adapter-probe suite`: all studies listed in a TOML file, over tasks, methods and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import command, show, show_json
from .sweep import plan_text


@command
def suite(
    file: Annotated[
        Path, typer.Argument(help="TOML file with the base, the tasks and the studies.", show_default=False)
    ],
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
    from adapter_probe.jobs.running import Resources
    from adapter_probe.studies.suite import plan_suite, run_suite
    from adapter_probe.studies.summaries import columns
    from adapter_probe.studies.sweeps import plain_rows

    resources = Resources(workers, threads, device, nodes.choose())
    if dry_run:
        plan = plan_suite(file, out, resources)
        if json:
            show_json(plan)
            return
        sweeps = [f"{name}\n{plan_text(one)}" for name, one in plan.items() if name != "checkpoints"]
        folders = [("", folder) for folder in plan.get("checkpoints", [])]
        show("\n\n".join(sweeps + ([f"checkpoints\n{columns(folders)}"] if folders else [])))
        return
    study = run_suite(file, out, resources)
    paths = study.draw(paper=paper)
    if json:
        tables = {"tradeoff": study.tradeoff, "init_sweep": study.init_sweep}
        found = {name: plain_rows(one.table) for name, one in tables.items() if one is not None}
        ablations = {task: [one.summary for one in seeds] for task, seeds in study.ablations.items()}
        counted = [] if study.parameters is None else plain_rows(study.parameters)
        show_json({**found, "ablations": ablations, "parameters": counted, "files": paths})
    else:
        show(f"{columns(study.rows())}\n\nfigures and tables: {len(paths)} files in {study.folder}")
