"""The options of ``--slurm``, as every command has them that can send its work to a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapter_probe.errors import TrainingError
from adapter_probe.studies.summaries import columns

if TYPE_CHECKING:
    from adapter_probe.jobs.slurm_options import SlurmOptions

Slurm = Annotated[bool, typer.Option("--slurm", help="Send the work to a SLURM cluster as an array of jobs.")]
Partition = Annotated[str | None, typer.Option(help="Of the cluster.", show_default=False)]
GpusPerTask = Annotated[int | None, typer.Option(help="GPUs of each job.", show_default=False)]
Time = Annotated[
    str | None,
    typer.Option(help="Limit of each job, such as 90 or 4:00:00 (the default); it goes on in another turn.",
                 show_default=False),
]  # fmt: skip
Mem = Annotated[str | None, typer.Option(help="Memory of each job, such as 16G.", show_default=False)]
MaxParallel = Annotated[int | None, typer.Option(help="Most jobs at a time.", show_default=False)]
Setup = Annotated[
    list[str] | None,
    typer.Option(help="Shell line to run on the node first, such as 'module load cuda'; repeatable.",
                 metavar="LINE", show_default=False),
]  # fmt: skip
SlurmConfig = Annotated[
    Path | None,
    typer.Option(help="TOML file of these options, which flags override; a table [sbatch] for any others.",
                 metavar="FILE", show_default=False),
]  # fmt: skip
Detach = Annotated[
    bool, typer.Option("--detach", help="Do not wait for the jobs; the same command collects later.")
]


def choose_cluster(
    slurm: bool, config: Path | None, detach: bool, *, partition: str | None, gpus_per_task: int | None,
    time: str | None, mem: str | None, max_parallel: int | None, setup: list[str] | None,
) -> SlurmOptions | None:  # fmt: skip
    """The cluster that the options ask for; None without ``--slurm``.

    Raises:
        TrainingError: an option of ``--slurm`` without it, or an unfit one.
    """
    flags: dict[str, Any] = {
        "partition": partition, "gpus_per_task": gpus_per_task, "time": time, "mem": mem,
        "max_parallel": max_parallel, "setup": tuple(setup or ()),
    }  # fmt: skip
    if slurm:
        from adapter_probe.jobs.slurm_options import choose_options

        return choose_options(config, {**flags, "detach": detach})
    given = {**flags, "slurm_config": config, "detach": detach}
    if idle := [name for name, value in given.items() if value not in (None, (), False)]:
        raise TrainingError(f"--{idle[0].replace('_', '-')} says something about SLURM jobs; add --slurm")
    return None


def detached_text(report: dict[str, Any]) -> str:
    """Where a study stands whose jobs are left to themselves."""
    return columns(
        [
            ("jobs", f"{report['jobs']}, {report['done']} done"),
            ("in the queue", f"{report['sent_now']} sent now, {report['sent_earlier']} earlier"),
            ("to watch them", f"squeue --name={report['job_name']}"),
            ("to collect", "the same command again, with or without --detach"),
            ("folder", report["folder"]),
        ]
    )
