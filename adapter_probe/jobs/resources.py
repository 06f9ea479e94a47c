"""What a study may use: processes and threads of this machine, its device, or a SLURM cluster."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, get_origin

from adapter_probe.device import check_threads, choose_device
from adapter_probe.errors import AdapterProbeError, TrainingError, must_be, reason_of
from adapter_probe.settings import OnDevice, Settings, annotations_of, flag_of, kinds_of, required, setting

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
# Options that identify tasks, and options with a separate flag.
_TAKEN = ("job-name", "array", "output", "error", "open-mode", "signal", "dependency", "ntasks", "wrap",
          "wait", "partition", "gpus-per-task", "time", "mem")  # fmt: skip

_WORDS = {int: "a whole number", str: "text in quotes", tuple: "a line in quotes or a list of lines",
          Mapping: "a table, [sbatch]"}  # fmt: skip
_ALLOWED: dict[Any, tuple[Any, str]] = {
    str: (str, "a string"), int: (Integral, "a whole number"), bool: (bool, "True or False"),
    tuple: ((tuple, list), "a list of strings"), Mapping: (Mapping, "a mapping from option to value"),
}  # fmt: skip


@dataclass(frozen=True)
class SlurmOptions(Settings):
    """SLURM options of each task of an array."""

    panel = "SLURM"
    error: ClassVar[type[AdapterProbeError]] = TrainingError

    partition: str | None = setting(None, "partition; by default the cluster's.", metavar="NAME")
    gpus_per_task: int | None = setting(None, "number of GPUs per job.", least=0)
    time: str = setting(
        "4:00:00", "time limit per job, as ``sbatch --time`` takes it, such as 90 (minutes) or 4:00:00. Work "
        "that needs longer saves its state and is submitted again.", metavar="LIMIT",
    )  # fmt: skip
    mem: str | None = setting(None, "memory per job, such as 16G; by default the cluster's.", metavar="SIZE")
    max_parallel: int | None = setting(None, "maximum number of jobs that run at the same time.", least=1)
    setup: tuple[str, ...] = setting(
        (), "shell commands to run on the node before the job, such as 'module load cuda'.",
        metavar="COMMAND", shell=list[str],
    )  # fmt: skip
    sbatch: Mapping[str, str | int | bool] = field(
        default_factory=dict,
        metadata=required('other long options of sbatch, such as ``{"account": "lab"}``.', shell=NoneType),
    )
    detach: bool = setting(
        False, "return after submitting the jobs; the same call or command collects the results later."
    )

    @classmethod
    def read(cls, file: str | Path) -> SlurmOptions:
        """The options in a TOML file, whose keys have the names of the command's options.

        Raises:
            TrainingError: the file cannot be read, or an option is unknown or invalid.
        """
        given: dict[str, Any] = {}
        types = annotations_of(SlurmOptions)
        kinds = {one.name: types[one.name] for one in fields(cls) if one.name != "detach"}
        for key, value in parse_toml(Path(file)).items():
            name = key.replace("-", "_")
            if name not in kinds:
                allowed = ", ".join(flag_of(name)[2:] for name in sorted(kinds))
                raise TrainingError(f"{file}: {key!r} is unknown; allowed are {allowed}")
            kind = next(get_origin(one) or one for one in kinds_of(kinds[name]))
            taken: dict[Any, Any] = {
                tuple: (str, list),
                Mapping: dict,
                str: (str, int) if name in ("time", "mem") else str,
            }
            if not isinstance(value, taken.get(kind, kind)) or isinstance(value, bool):
                raise TrainingError(f"{file}: {key} is {value!r}; give {_WORDS[kind]}")
            given[name] = str(value) if kind is str else value
        setup = given.pop("setup", ())
        lines = (setup,) if isinstance(setup, str) else tuple(setup)
        extra = {key.replace("_", "-"): value for key, value in given.pop("sbatch", {}).items()}
        if wrong := [item for item in (*lines, *extra.values()) if not isinstance(item, (str, int))]:
            raise TrainingError(f"{file}: {wrong[0]!r} is neither text nor a number")
        try:
            return cls(setup=tuple(map(str, lines)), sbatch=extra, **given)
        except TrainingError as error:
            raise TrainingError(f"{file}: {error}") from error

    def __post_init__(self) -> None:
        kinds = annotations_of(SlurmOptions)
        for one in fields(self):
            value, (kind, *others) = getattr(self, one.name), kinds_of(kinds[one.name])
            taken, words = _ALLOWED[get_origin(kind) or kind]
            fits = isinstance(value, taken) and isinstance(value, bool) == (kind is bool)
            fits &= not isinstance(value, (tuple, list)) or all(isinstance(line, str) for line in value)
            if not fits and not (others and value is None):
                raise TrainingError(must_be(one.name, words, value))
        super().__post_init__()
        minutes(self.time)
        for name in self.sbatch:
            if name in _TAKEN:
                own = "; it is a separate key outside [sbatch]" if name.replace("-", "_") in kinds else ""
                raise TrainingError(f"[sbatch] {name} is not allowed, because the command sets it{own}")
        for name, value in {"partition": self.partition, **self.sbatch}.items():
            plain = value is None or isinstance(value, (str, int))
            if not _NAME.fullmatch(name) or not plain or not str(value).isprintable():
                wanted = "a name such as mail-type with a value on one line"
                raise TrainingError(must_be(f"the sbatch option {name!r}", wanted, value))
        if self.mem is not None and not _MEMORY.fullmatch(self.mem):
            raise TrainingError(f"mem {self.mem!r} is not a size such as 16G or 500M")


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


def choose_options(file: Path | None, flags: Mapping[str, Any]) -> SlurmOptions:
    """Options from a TOML file, overridden by flags.

    The keys of the file are the names of the flags; a table ``[sbatch]`` contains other options of sbatch.

    Args:
        file: path of the file, or None.
        flags: values of flags by the names of `SlurmOptions`; None or empty if not given.
    """
    options = SlurmOptions() if file is None else SlurmOptions.read(file)
    return replace(options, **{name: value for name, value in flags.items() if value not in (None, (), [])})


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
