"""`adapter-probe tradeoff`: what does each trained parameter buy?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapter_probe.studies.wording import columns, file_lists

from . import options
from . import slurm as cluster
from .console import command, show, show_json
from .figures import draw_results
from .sweep import grid, plain_rows, run_sweep, show_plan, spread_text

if TYPE_CHECKING:
    import pandas as pd

    from adapter_probe.models.methods import Method

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
    init_std: Annotated[float, typer.Option(help="Std of the adapters' initialisation.")] = 1e-2,
    seeds: options.Seeds = 3,
    learning_rates: options.LearningRates = "3e-5,3e-4,3e-3",
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
    """Score against trained parameters: adapter sizes, top-k fine-tuning, LayerNorms alone, full fine-tuning.

    For every point the best learning rate and number of epochs on validation counts, by the mean over seeds
    (Houlsby et al. 2019, Figures 1, 3, 4 and 5). Every trial is kept: the same command resumes, and a wider
    one adds what is new.
    """
    from adapter_probe.jobs.running import Resources
    from adapter_probe.training.settings import TrainingSettings

    resources = Resources(workers, threads, device, cluster.choose_cluster(
        slurm, slurm_config, detach, partition=partition, gpus_per_task=gpus_per_task, time=time, mem=mem,
        max_parallel=max_parallel, setup=setup,
    ))  # fmt: skip
    requests = grid(
        base, options.find_tasks(task, data, metric), _methods(base, sizes, top_k, init_std, layernorm, full,
                                                               head_only),
        TrainingSettings(batch_size=batch_size, warmup=warmup, dtype=dtype),
        learning_rates=options.numbers(learning_rates, "--learning-rates"),
        epochs=options.whole_numbers(epochs, "--epochs"), seeds=seeds, max_length=max_length,
        max_train=max_train,
    )  # fmt: skip
    if dry_run:
        show_plan(requests, out, resources, json=json)
        return
    report = _write(run_sweep("tradeoff", requests, out, resources), out, paper)
    show_json(report) if json else show(_text(report))


def _write(frame: pd.DataFrame, out: Path, paper: bool) -> dict[str, Any]:
    """Write the tables and their figures; there is an aggregate where a task has full fine-tuning."""
    from adapter_probe.analysis.sweeps import aggregate_table, size_table, tradeoff_table
    from adapter_probe.results.atomic import write_csv
    from adapter_probe.results.schema import AGGREGATE_CSV, SIZES_CSV, SWEEP_TABLES, TRADEOFF_CSV, TRIALS_CSV
    from adapter_probe.results.sealing import sealed

    table = tradeoff_table(frame)
    tables = {TRADEOFF_CSV: table}
    if (table["method"] == "adapters").any():
        tables[SIZES_CSV] = size_table(frame)
    if table.loc[table["method"] == "full", "mean"].notna().any():
        tables[AGGREGATE_CSV] = aggregate_table(frame)
    with sealed(out, SWEEP_TABLES):
        for name, content in tables.items():
            write_csv(out / name, content)
    files = {Path(name).stem: str(out / name) for name in (TRIALS_CSV, *tables)}
    return {"points": plain_rows(table), "files": {**files, **draw_results(out, paper=paper)}}


def _text(report: dict[str, Any]) -> str:
    rows = [
        (
            f"{point['task']}: {point['label']}",
            f"{spread_text(point)}, {point['trained_parameters_without_head']:,} parameters "
            f"({point['percent_of_base']:.2f} % of the base)",
        )
        for point in report["points"]
    ]
    return f"{columns(rows)}\n\n{file_lists([report['files'].values()])}"


def _methods(
    base: str, sizes: str, top_k: str, init_std: float, layernorm: bool, full: bool, head_only: bool
) -> list[Method]:
    """The methods asked for, fewest parameters first within each kind.

    Raises:
        TrainingError: a list cannot be read, or a k is above the base's depth.
    """
    from adapter_probe.checkpoints.base import load_config
    from adapter_probe.models.bases.anatomy import anatomy_for
    from adapter_probe.models.methods import (
        Adapters,
        FullFineTuning,
        HeadOnly,
        LayerNormOnly,
        TopLayers,
        possible_top_k,
    )

    config = load_config(base)
    possible = possible_top_k(anatomy_for(config).layer_names(config))
    # The default is the paper's list for 12 layers; a k that was asked for and is not possible is refused.
    asked = options.whole_numbers(top_k, "--top-k")
    layers = [k for k in asked if k in possible] if top_k == _TOP_K else asked
    return [
        *(Adapters(size, init_std) for size in options.whole_numbers(sizes, "--sizes")),
        *(TopLayers(k) for k in layers),
        *([LayerNormOnly()] if layernorm else []),
        *([HeadOnly()] if head_only else []),
        *([FullFineTuning()] if full else []),
    ]
