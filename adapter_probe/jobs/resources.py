"""What a study may use: processes and threads of this machine, its device, or a SLURM cluster."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, get_origin

from adapter_probe.device import check_threads, choose_device
from adapter_probe.errors import AdapterProbeError, TrainingError, must_be, reason_of
from adapter_probe.settings import OnDevice, Settings, annotations_of, required, setting, types_of

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
_NAME = re.compile(r"[a-z][a-z0-9-]*")
# Options by which tasks are found again.
_TAKEN = ("job-name", "array", "output", "error", "open-mode", "signal", "dependency", "ntasks", "wrap",
          "wait")  # fmt: skip
USUAL_TIME = "4:00:00"
_ALLOWED: dict[Any, tuple[Any, str]] = {
    int: (Integral, "a whole number"), bool: (bool, "True or False"),
    tuple: ((tuple, list), "a list of strings"), Mapping: (Mapping, "a mapping from option to value"),
}  # fmt: skip


@dataclass(frozen=True)
class SlurmOptions(Settings):
    """A SLURM cluster, and what every task of an array asks of it."""

    panel = "SLURM"
    error: ClassVar[type[AdapterProbeError]] = TrainingError

    sbatch: Mapping[str, str | int | bool] = field(
        default_factory=dict,
        metadata=required(
            "long option of sbatch for every job: partition=gpu, gpus-per-task=1, mem=16G, account=lab, "
            f"time=1:00:00 (by default {USUAL_TIME}; work that needs longer saves its state and is "
            "submitted again).", metavar="NAME=VALUE",
        ),
    )  # fmt: skip
    max_parallel: int | None = setting(None, "maximum number of jobs that run at the same time.", least=1)
    setup: tuple[str, ...] = setting(
        (), "shell commands to run on the node before the job, such as 'module load cuda'.",
        metavar="COMMAND", shell=list[str],
    )  # fmt: skip
    detach: bool = setting(
        False, "return after submitting the jobs; the same call or command collects the results later."
    )

    def __post_init__(self) -> None:
        types = annotations_of(SlurmOptions)
        for one in fields(self):
            value, (wanted, *others) = getattr(self, one.name), types_of(types[one.name])
            taken, words = _ALLOWED[get_origin(wanted) or wanted]
            fits = isinstance(value, taken) and isinstance(value, bool) == (wanted is bool)
            fits &= not isinstance(value, (tuple, list)) or all(isinstance(line, str) for line in value)
            if not fits and not (others and value is None):
                raise TrainingError(must_be(one.name, words, value))
        super().__post_init__()
        for name, value in self.sbatch.items():
            if name in _TAKEN:
                raise TrainingError(f"the sbatch option {name!r} is not allowed, because the study sets it")
            fits = isinstance(value, (str, int)) and str(value).isprintable()
            if not isinstance(name, str) or not _NAME.fullmatch(name) or not fits:
                wanted = "a name such as mail-type with a value on one line"
                raise TrainingError(must_be(f"the sbatch option {name!r}", wanted, value))
        minutes(self.time)

    @property
    def time(self) -> str:
        """The time limit of each job, in SLURM's notation."""
        return str(self.sbatch.get("time", USUAL_TIME))

    @property
    def gpus(self) -> bool:
        """Whether the jobs ask for GPUs."""
        counts = (value for name, value in self.sbatch.items() if name.startswith("gpus"))
        return any(str(n) != "0" for n in counts) or str(self.sbatch.get("gres", "")).startswith("gpu")


def minutes(time: str) -> int:
    """A limit in SLURM's notation as whole minutes, rounded up.

    The notations are ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds``, ``days-hours``,
    ``days-hours:minutes`` and ``days-hours:minutes:seconds``.
    """
    match = _TIME.fullmatch(time)
    if match is None:
        raise TrainingError(
            f"time {time!r} is not a time limit such as 90, 1:30:00 or 1-12 (a day and 12 hours)"
        )
    first, second, third = (int(match[name] or 0) for name in ("first", "second", "third"))
    if match["days"]:
        seconds = ((int(match["days"]) * 24 + first) * 60 + second) * 60 + third
    elif match["third"]:
        seconds = (first * 60 + second) * 60 + third
    else:
        seconds = first * 60 + second
    if seconds == 0:
        raise TrainingError(must_be("time", "at least one minute", time))
    return math.ceil(seconds / 60)


def parse_toml(file: Path) -> dict[str, Any]:
    """The contents of a TOML file."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    if file.exists() and not file.is_file() and not file.is_dir():
        raise TrainingError(f"cannot read {file}: it is a pipe, socket or device; a regular file is needed")
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise TrainingError(f"cannot read {file}: {reason_of(error)}") from error
    except RecursionError:
        raise TrainingError(f"{file} is nested too deeply; give keys and tables of keys") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise TrainingError(f"{file} is not TOML: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Machine(OnDevice):
    """Where a study computes."""

    panel = "Running"

    threads: int = setting(
        0, "number of CPU threads, for the whole process (with a cluster: of CPUs per job); 0 uses PyTorch's "
        "default.",
    )  # fmt: skip
    cluster: SlurmOptions | None = setting(None, "SLURM cluster to compute on; by default this machine.")


@dataclass(frozen=True, kw_only=True)
class Resources(Machine):
    """Resources for the jobs of a study."""

    error: ClassVar[type[AdapterProbeError]] = TrainingError

    workers: int = setting(
        0,
        "number of parallel training processes; 0 uses one per CPU core, or one on an accelerator.",
        least=0,
    )
    threads: int = setting(
        1, "number of threads per process; 0 uses PyTorch's default. Results are reproducible for a fixed "
        "number.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cluster is None or self.threads < 0:
            check_threads(self.threads)
        if self.cluster is not None and self.workers:
            raise TrainingError("--workers applies only to this machine; with --slurm, use --max-parallel")

    def at_a_time(self, n_jobs: int) -> int:
        """Maximum number of parallel jobs."""
        if self.cluster is not None:
            return self.cluster.max_parallel or max(1, n_jobs)
        on_cpu = choose_device(self.device).type == "cpu"
        return self.workers or (max(1, (os.cpu_count() or 1) // max(1, self.threads)) if on_cpu else 1)
