"""`adapter-probe init-sweep`: does the initialisation's scale matter?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from . import slurm as cluster
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
    seeds: options.Seeds = 3,
    learning_rates: options.LearningRates = "3e-4",
    epochs: options.Epochs = "3",
    batch_size: options.BatchSize = 32,
    warmup: options.Warmup = 0.1,
    metric: options.Metric = None,
    max_length: options.MaxLength = None,
    max_train: options.MaxTrain = None,
    encoding: options.Encoding = "utf-8",
    validation_share: options.ValidationShare = 0.0,
    dtype: options.Dtype = "float32",
    workers: options.Workers = 0,
    threads: options.Threads = 1,
    device: options.Device = "auto",
    slurm: cluster.Slurm = False,
    partition: cluster.Partition = None,
    gpus_per_task: cluster.GpusPerTask = None,
    time: cluster.Time = None,
    mem: cluster.Mem = None,
    max_parallel: cluster.MaxParallel = None,
    setup: cluster.Setup = None,
    slurm_config: cluster.SlurmConfig = None,
    detach: cluster.Detach = False,
    paper: options.Paper = False,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Retrain adapters over initialisation stds, and draw the score against the std (Houlsby et al., Fig. 6).

    The std is that of the normal before truncation at two std; the realised one is 0.88 of it. Every trial is
    kept: the same command resumes, and a wider one adds what is new.
    """
    from adapter_probe.jobs.running import Resources
    from adapter_probe.studies.drawing import draw_into_folder
    from adapter_probe.studies.init_sweep import init_sweep_requests, run_init_sweep
    from adapter_probe.studies.sweeps import SweepSettings

    resources = Resources(workers, threads, device, cluster.choose_cluster(
        slurm, slurm_config, detach, partition=partition, gpus_per_task=gpus_per_task, time=time, mem=mem,
        max_parallel=max_parallel, setup=setup,
    ))  # fmt: skip
    settings = SweepSettings(
        options.numbers(learning_rates, "--learning-rates"), options.whole_numbers(epochs, "--epochs"),
        seeds, batch_size, warmup, metric, max_length, max_train, dtype,
    )  # fmt: skip
    requests = init_sweep_requests(
        base, task, data, options.numbers(stds, "--stds"), size, settings, encoding, validation_share
    )
    if dry_run:
        show_sweep_plan(requests, out, resources, json)
        return
    study = run_init_sweep(requests, out, resources)
    show_sweep(study, draw_into_folder(study.record, paper=paper), json)
