"""Options that several commands share, and how a list of numbers is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from adapter_probe.errors import ResultsError, TrainingError

if TYPE_CHECKING:
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.slurm_options import SlurmOptions
    from adapter_probe.studies.sweeps import SweepSettings

Checkpoint = Annotated[Path, typer.Argument(help="Folder of a trained checkpoint.", show_default=False)]
MovedBase = Annotated[
    str | None, typer.Option(help="Folder or hub id of the base, if it has moved.", show_default=False)
]
GivenFiles = Annotated[
    list[Path] | None,
    typer.Option(
        help="File with labelled examples in place of the remembered ones; repeatable.",
        metavar="FILE",
        show_default=False,
    ),
]
Results = Annotated[
    list[Path],
    typer.Argument(
        help="Folders of ablations and sweeps, or checkpoints with ablations inside.", show_default=False
    ),
]
Base = Annotated[str, typer.Option(help="Pretrained encoder: a folder or a hub id.", show_default=False)]
TaskHelp = "Task by name (cola, glue/mrpc, squad, ...) or a folder with train and validation files."
DataHelp = "Folder with the files of a task that is named."
LearningRates = Annotated[
    str,
    typer.Option(
        help="Peaks to try, comma-separated; the best on validation counts (seeds left, then mean)."
    ),
]
MaxTrain = Annotated[
    int | None, typer.Option(help="Train on a fixed random subset of this size.", show_default=False)
]
Encoding = Annotated[str, typer.Option(help="Encoding of the data files, such as latin-1.")]
ValidationShare = Annotated[
    float,
    typer.Option(help="Share of the training rows to validate on, where there are no validation files."),
]
GivenEncoding = Annotated[
    str, typer.Option(help="Encoding of the files that are given here, such as latin-1.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Out = Annotated[Path, typer.Option(help="Folder of the trials, tables and figures.", show_default=False)]
Style = Annotated[
    Literal["paper", "icml", "neurips", "acl", "aaai", "jmlr", "tmlr", "talk"],
    typer.Option(help="Figure sizes and fonts of a venue, or of slides."),
]
Formats = Annotated[
    str, typer.Option("--format", help="Comma-separated list of pdf, svg, png, pgf.", metavar="LIST")
]
Paper = Annotated[
    bool,
    typer.Option("--paper", help="Set the values published by Houlsby et al. 2019 beside."),
]
Json = Annotated[bool, typer.Option("--json", help="Summary as JSON.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the trials with an estimate of the time, and stop.")
]


def whole_numbers(text: str, option: str) -> list[int]:
    """``1,2,4`` as whole numbers, each once, in the order given.

    Raises:
        TrainingError: anything else.
    """
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError:
        raise TrainingError(f"{option} {text!r} is not a list of whole numbers such as 1,2,4") from None


def numbers(text: str, option: str) -> list[float]:
    """``1e-3,3e-4`` as numbers, or ``1e-7:1`` as one a decade between both, ends included.

    Raises:
        TrainingError: anything else.
    """
    try:
        if ":" in text:
            low, high = (float(part) for part in text.split(":"))
            steps = round(math.log10(high / low))
            if steps < 1 or not math.isclose(low * 10**steps, high):
                raise ValueError
            return [float(f"{low * 10**k:.12g}") for k in range(steps + 1)]
        return list(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except (ValueError, ZeroDivisionError):
        raise TrainingError(
            f"{option} {text!r} is neither a list of numbers such as 1e-3,1e-2 nor a range of whole decades "
            "such as 1e-7:1"
        ) from None


@dataclass(frozen=True)
class ClusterOptions:
    """The options of ``--slurm``, as every command has them that can send its work to a cluster."""

    slurm: Annotated[
        bool, typer.Option("--slurm", help="Send the work to a SLURM cluster as an array of jobs.")
    ] = False
    partition: Annotated[str | None, typer.Option(help="Of the cluster.", show_default=False)] = None
    gpus_per_task: Annotated[int | None, typer.Option(help="GPUs of each job.", show_default=False)] = None
    time: Annotated[
        str | None,
        typer.Option(
            help="Limit of each job, such as 90 or 4:00:00 (the default); it goes on in another turn.",
            show_default=False,
        ),
    ] = None
    mem: Annotated[str | None, typer.Option(help="Memory of each job, such as 16G.", show_default=False)] = (
        None
    )
    max_parallel: Annotated[int | None, typer.Option(help="Most jobs at a time.", show_default=False)] = None
    setup: Annotated[
        list[str] | None,
        typer.Option(
            help="Shell line to run on the node first, such as 'module load cuda'; repeatable.",
            metavar="LINE",
            show_default=False,
        ),
    ] = None
    slurm_config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of these options, which flags override; a table [sbatch] for any others.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not wait for the jobs; the same command collects later.")
    ] = False

    def choose(self) -> SlurmOptions | None:
        """The cluster that the options ask for; None without ``--slurm``.

        Raises:
            TrainingError: an option of ``--slurm`` without it, or an unfit one.
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given["setup"] = tuple(self.setup or ())
        del given["slurm"]
        if self.slurm:
            from adapter_probe.jobs.slurm_options import choose_options

            return choose_options(given.pop("slurm_config"), given)
        if idle := [name for name, value in given.items() if value not in (None, (), False)]:
            raise TrainingError(f"--{idle[0].replace('_', '-')} says something about SLURM jobs; add --slurm")
        return None


@dataclass(frozen=True)
class SweepOptions:
    """How the trainings of a sweep are set, and what they run on."""

    seeds: Annotated[int, typer.Option(help="Runs a point, with seeds 0, 1, ...")] = 3
    epochs: Annotated[str, typer.Option(help="Numbers of epochs to try, comma-separated.")] = "3"
    batch_size: Annotated[int, typer.Option(help="Examples a step.")] = 32
    warmup: Annotated[float, typer.Option(help="Share of the steps.")] = 0.1
    metric: Annotated[str | None, typer.Option(help="Score, if not the task's own.", show_default=False)] = (
        None
    )
    max_length: Annotated[
        int | None, typer.Option(help="Cut examples to this many tokens.", show_default=False)
    ] = None
    max_train: MaxTrain = None
    encoding: Encoding = "utf-8"
    validation_share: ValidationShare = 0.0
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Of the frozen base and the products.")
    ] = "float32"
    workers: Annotated[
        int,
        typer.Option(help="Processes that train side by side; 0 for one a core, or one on an accelerator."),
    ] = 0
    threads: Annotated[
        int,
        typer.Option(
            help="Threads of each process (0: torch's own choice); the same number gives the same digits."
        ),
    ] = 1
    device: Device = "auto"

    def settings(self, learning_rates: str) -> SweepSettings:
        """With the learning rates, as the studies take them."""
        from adapter_probe.studies.sweeps import SweepSettings

        return SweepSettings(
            numbers(learning_rates, "--learning-rates"), whole_numbers(self.epochs, "--epochs"), self.seeds,
            self.batch_size, self.warmup, self.metric, self.max_length, self.max_train, self.dtype,
        )  # fmt: skip

    def resources(self, nodes: ClusterOptions) -> Resources:
        """What the trainings run on."""
        from adapter_probe.jobs.running import Resources

        return Resources(self.workers, self.threads, self.device, nodes.choose())


def check_tolerance(tolerance: float) -> None:
    """Refuse a negative one, before anything is computed.

    Raises:
        ResultsError: it is, or it is no number.
    """
    if not tolerance >= 0:
        raise ResultsError(f"tolerance {tolerance} is not allowed; give 0 or more points")
