"""`adapter-probe init-sweep`: does the initialisation's scale matter?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapter_probe.studies.wording import columns, file_lists, score_text

from . import options
from . import slurm as cluster
from .console import command, show, show_json
from .figures import draw_results
from .sweep import grid, plain_rows, run_sweep, show_plan, spread_text

if TYPE_CHECKING:
    import pandas as pd


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
    from adapter_probe.models.methods import Adapters
    from adapter_probe.training.settings import TrainingSettings

    resources = Resources(workers, threads, device, cluster.choose_cluster(
        slurm, slurm_config, detach, partition=partition, gpus_per_task=gpus_per_task, time=time, mem=mem,
        max_parallel=max_parallel, setup=setup,
    ))  # fmt: skip
    tasks = options.find_tasks([task], [data] if data else None, metric)
    methods = [Adapters(size, std) for std in options.numbers(stds, "--stds")]
    requests = grid(
        base, tasks, methods, TrainingSettings(batch_size=batch_size, warmup=warmup, dtype=dtype),
        learning_rates=options.numbers(learning_rates, "--learning-rates"),
        epochs=options.whole_numbers(epochs, "--epochs"), seeds=seeds, max_length=max_length,
        max_train=max_train,
    )  # fmt: skip
    if dry_run:
        show_plan(requests, out, resources, json=json)
        return
    report = _write(run_sweep("init-sweep", requests, out, resources), out, paper)
    show_json(report) if json else show(_text(report))


def _write(frame: pd.DataFrame, out: Path, paper: bool) -> dict[str, Any]:
    """Write ``sweep.csv`` and its figure; return what to say."""
    from adapter_probe.analysis.sweeps import init_sweep_table
    from adapter_probe.results.atomic import write_csv
    from adapter_probe.results.schema import SWEEP_CSV, SWEEP_TABLES, TRIALS_CSV
    from adapter_probe.results.sealing import sealed

    table = init_sweep_table(frame)
    with sealed(out, SWEEP_TABLES):
        write_csv(out / SWEEP_CSV, table)
    files = {"trials": str(out / TRIALS_CSV), "sweep": str(out / SWEEP_CSV), **draw_results(out, paper=paper)}
    return {"points": plain_rows(table), "files": files}


def _text(report: dict[str, Any]) -> str:
    rows = []
    for point in report["points"]:
        rows.append((f"std {point['init_std']:g}", spread_text(point)))
    first = report["points"][0]
    rows.append(("majority class", score_text(first["majority_score"], first["metric"])))
    return f"{columns(rows)}\n\n{file_lists([report['files'].values()])}"
