"""Options shared by several commands, and the parsing of lists of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from adapter_probe.errors import ResultsError, TrainingError

if TYPE_CHECKING:
    from adapter_probe.jobs.slurm_options import SlurmOptions

Checkpoint = Annotated[Path, typer.Argument(help="Checkpoint folder.")]
MovedBase = Annotated[
    str | None,
    typer.Option(
        help="Folder or Hugging Face Hub name of the base model, if it differs from the recorded one."
    ),
]
GivenFiles = Annotated[
    list[Path] | None,
    typer.Option(
        help="File of labelled examples to use instead of the checkpoint's own task; repeatable.",
        metavar="FILE",
    ),
]
Results = Annotated[
    list[Path], typer.Argument(help="Results folders, or checkpoints that contain ablations.")
]
Base = Annotated[str, typer.Option(help="Pretrained base model: a folder or a Hugging Face Hub name.")]
TaskHelp = "Task name (cola, glue/mrpc, squad, ...) or a folder with train and validation files."
DataHelp = "Folder with the files of the named task."
LearningRates = Annotated[
    str,
    typer.Option(
        help="Comma-separated peak learning rates; the best is chosen on validation data (by the share of "
        "seeds that did not diverge, then by mean score)."
    ),
]
BatchSize = Annotated[int, typer.Option(help="Training batch size.")]
Warmup = Annotated[float, typer.Option(help="Fraction of training steps used for warm-up.")]
Metric = Annotated[str | None, typer.Option(help="Evaluation metric. Default: the metric of the task.")]
MaxLength = Annotated[int | None, typer.Option(help="Truncate examples to this many tokens.")]
MaxTrain = Annotated[int | None, typer.Option(help="Train on a fixed random subset of this many examples.")]
Encoding = Annotated[str, typer.Option(help="Text encoding of the data files, for example latin-1.")]
ValidationShare = Annotated[
    float,
    typer.Option(
        help="Fraction of the training rows to hold out for validation when there is no validation file."
    ),
]
GivenEncoding = Annotated[
    str, typer.Option(help="Text encoding of the given data files, for example latin-1.")
]
Device = Annotated[str, typer.Option(help="Compute device: auto, cpu, cuda, cuda:1, ...")]
Workers = Annotated[
    int,
    typer.Option(
        help="Number of parallel training processes; 0 uses one per CPU core, or one on an accelerator."
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        help="Number of threads per process (0 uses PyTorch's default). Results are reproducible for a fixed "
        "number."
    ),
]
Tolerance = Annotated[
    float, typer.Option(help="Tolerated drop, in percentage points, marked by the black line of an ablation.")
]
Out = Annotated[Path, typer.Option(help="Output folder for trials, tables and figures.")]
Style = Annotated[
    Literal["paper", "icml", "neurips", "acl", "aaai", "jmlr", "tmlr", "talk"],
    typer.Option(help="Figure sizes and fonts of a publication venue, or of slides."),
]
Formats = Annotated[
    str, typer.Option("--format", help="Comma-separated figure formats: pdf, svg, png, pgf.", metavar="LIST")
]
Paper = Annotated[
    bool, typer.Option("--paper", help="Overlay the results published by Houlsby et al. (2019).")
]
Json = Annotated[bool, typer.Option("--json", help="Print a machine-readable summary (JSON).")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the trials and estimate their time without running them.")
]


def whole_numbers(text: str, option: str) -> list[int]:
    """``1,2,4`` as whole numbers without duplicates, in the order given.

    Raises:
        TrainingError: anything else.
    """
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError:
        raise TrainingError(f"{option} {text!r} is not a list of whole numbers such as 1,2,4") from None


def numbers(text: str, option: str) -> list[float]:
    """``1e-3,3e-4`` as numbers, or ``1e-7:1`` as one number per decade, both ends included.

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
    """The SLURM options of every command that can submit its work to a cluster."""

    slurm: Annotated[
        bool, typer.Option("--slurm", help="Submit the work to a SLURM cluster as a job array.")
    ] = False
    partition: Annotated[str | None, typer.Option(help="SLURM partition.")] = None
    gpus_per_task: Annotated[int | None, typer.Option(help="Number of GPUs per job.")] = None
    time: Annotated[
        str | None,
        typer.Option(
            help="Time limit per job, for example 90 (minutes) or 4:00:00 (the default). Unfinished work is "
            "resubmitted."
        ),
    ] = None
    mem: Annotated[str | None, typer.Option(help="Memory per job, for example 16G.")] = None
    max_parallel: Annotated[
        int | None, typer.Option(help="Maximum number of jobs running at the same time.")
    ] = None
    setup: Annotated[
        list[str] | None,
        typer.Option(
            help="Shell command to run on the node before the job, for example 'module load cuda'; "
            "repeatable.",
            metavar="LINE",
        ),
    ] = None
    slurm_config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with defaults for the SLURM options; a table [sbatch] sets any other sbatch "
            "option.",
            metavar="FILE",
        ),
    ] = None
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Return after submitting the jobs; run the same command again to collect the results.",
        ),
    ] = False

    def choose(self) -> SlurmOptions | None:
        """The cluster described by the options; None without ``--slurm``.

        Raises:
            TrainingError: a SLURM option is given without ``--slurm``, or is invalid.
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given["setup"] = tuple(self.setup or ())
        del given["slurm"]
        if self.slurm:
            from adapter_probe.jobs.slurm_options import choose_options

            return choose_options(given.pop("slurm_config"), given)
        if idle := [name for name, value in given.items() if value not in (None, (), False)]:
            raise TrainingError(f"--{idle[0].replace('_', '-')} applies only to SLURM jobs; add --slurm")
        return None


@dataclass(frozen=True)
class SweepOptions:
    """Training settings of a sweep, and the resources that it uses."""

    seeds: Annotated[int, typer.Option(help="Number of runs per setting, with seeds 0, 1, ...")] = 3
    epochs: Annotated[
        str, typer.Option(help="Comma-separated numbers of epochs; the best is chosen on validation data.")
    ] = "3"
    batch_size: BatchSize = 32
    warmup: Warmup = 0.1
    metric: Metric = None
    max_length: MaxLength = None
    max_train: MaxTrain = None
    encoding: Encoding = "utf-8"
    validation_share: ValidationShare = 0.0
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(help="Precision of the frozen base and of matrix products."),
    ] = "float32"
    workers: Workers = 0
    threads: Threads = 1
    device: Device = "auto"

    def keywords(self, learning_rates: str, nodes: ClusterOptions) -> dict[str, Any]:
        """The keywords of `adapter_probe.init_sweep` and `tradeoff` that both commands set."""
        return {
            **vars(self),
            "learning_rates": numbers(learning_rates, "--learning-rates"),
            "epochs": whole_numbers(self.epochs, "--epochs"),
            "cluster": nodes.choose(),
        }


def check_tolerance(tolerance: float) -> None:
    """Refuse a negative tolerance before anything is computed."""
    if not tolerance >= 0:
        raise ResultsError(f"tolerance {tolerance} is not allowed; give 0 or more points")
