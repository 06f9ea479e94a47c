"""Options that several commands share, and how a list of numbers is written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from adapter_probe.errors import TrainingError

Base = Annotated[str, typer.Option(help="Pretrained encoder: a folder or a hub id.", show_default=False)]
TaskHelp = "Task by name (cola, glue/mrpc, squad, ...) or a folder with train and validation files."
DataHelp = "Folder with the files of a task that is named."
LearningRates = Annotated[
    str,
    typer.Option(
        help="Peaks to try, comma-separated; the best on validation counts (seeds left, then mean)."
    ),
]
Epochs = Annotated[str, typer.Option(help="Numbers of epochs to try, comma-separated.")]
Seeds = Annotated[int, typer.Option(help="Runs a point, with seeds 0, 1, ...")]
BatchSize = Annotated[int, typer.Option(help="Examples a step.")]
Warmup = Annotated[float, typer.Option(help="Share of the steps.")]
Dtype = Annotated[Literal["float32", "bfloat16"], typer.Option(help="Of the frozen base and the products.")]
Metric = Annotated[str | None, typer.Option(help="Score, if not the task's own.", show_default=False)]
MaxLength = Annotated[int | None, typer.Option(help="Cut examples to this many tokens.", show_default=False)]
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
Workers = Annotated[
    int, typer.Option(help="Processes that train side by side; 0 for one a core, or one on an accelerator.")
]
Threads = Annotated[
    int,
    typer.Option(
        help="Threads of each process (0: torch's own choice); the same number gives the same digits."
    ),
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
