"""The SLURM options of jobs, from command line options, a TOML file, or both."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adapter_probe.errors import TrainingError, reason_of

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
# Options that identify tasks, and options with a separate flag.
_TAKEN = ("job-name", "array", "output", "error", "open-mode", "signal", "dependency", "ntasks", "wrap",
          "wait", "partition", "gpus-per-task", "time", "mem")  # fmt: skip
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "gpus_per_task": (int, "a whole number"),
    "max_parallel": (int, "a whole number"),
    "setup": ((str, list), "a line in quotes or a list of lines"),
    "sbatch": (dict, "a table, [sbatch]"),
    "time": ((str, int), "a limit in quotes, such as '1:30:00'"),
    "mem": ((str, int), "a size in quotes, such as '16G'"),
    "partition": (str, "a name in quotes"),
}


@dataclass(frozen=True)
class SlurmOptions:
    """SLURM options of each task of an array.

    Attributes:
        partition: SLURM partition; None for the cluster's default.
        gpus_per_task: number of GPUs per task; None for none.
        time: limit of a task, as ``sbatch --time`` takes it. A training that needs longer saves its state
            and goes on in a second turn.
        mem: memory per task in the notation of ``sbatch --mem``; None for the cluster's default.
        max_parallel: maximum number of tasks running at the same time; None for no limit.
        setup: shell commands to run on the node first.
        sbatch: other long options of sbatch, such as ``{"account": "lab"}``.
        detach: whether to return after submitting; the same call collects the results later.
    """

    partition: str | None = None
    gpus_per_task: int | None = None
    time: str = "4:00:00"
    mem: str | None = None
    max_parallel: int | None = None
    setup: tuple[str, ...] = ()
    sbatch: Mapping[str, str | int | bool] = field(default_factory=dict)
    detach: bool = False

    @classmethod
    def read(cls, file: str | Path) -> SlurmOptions:
        """The options in a TOML file, whose keys have the names of the command's options.

        Raises:
            TrainingError: the file cannot be read, or an option is unknown or invalid.
        """
        return _read(Path(file))

    def __post_init__(self) -> None:
        minutes(self.time)
        for name, value in {"partition": self.partition, **self.sbatch}.items():
            if not _NAME.fullmatch(name) or not str(value).isprintable():
                raise TrainingError(
                    f"sbatch option {name!r} = {value!r} is not allowed; give a value on one line"
                )
        if self.mem is not None and not _MEMORY.fullmatch(self.mem):
            raise TrainingError(f"mem {self.mem!r} is not a size such as 16G or 500M")
        for name, least in (("max_parallel", 1), ("gpus_per_task", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise TrainingError(f"{name.replace('_', '-')} {value} is not allowed; give at least {least}")


def minutes(time: str) -> int:
    """A limit in SLURM's notation as whole minutes, rounded up.

    The notations are ``minutes``, ``minutes:seconds``, ``hours:minutes:seconds``, ``days-hours``,
    ``days-hours:minutes`` and ``days-hours:minutes:seconds``.

    Raises:
        TrainingError: anything else, or no time at all.
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
        raise TrainingError(f"time {time!r} is not allowed; give at least one minute")
    return math.ceil(seconds / 60)


def choose_options(file: Path | None, flags: Mapping[str, Any]) -> SlurmOptions:
    """Options from a TOML file, overridden by flags.

    The keys of the file are the names of the flags; a table ``[sbatch]`` contains other options of sbatch.

    Args:
        file: path of the file, or None.
        flags: values of flags by the names of `SlurmOptions`; None or empty if not given.

    Raises:
        TrainingError: the file cannot be read, or an option is unknown or invalid.
    """
    options = SlurmOptions() if file is None else SlurmOptions.read(file)
    return replace(options, **{name: value for name, value in flags.items() if value not in (None, (), [])})


def _read(file: Path) -> SlurmOptions:
    given: dict[str, Any] = {}
    for key, value in parse_toml(file).items():
        name = key.replace("-", "_")
        if name not in _KINDS:
            allowed = ", ".join(name.replace("_", "-") for name in sorted(_KINDS))
            raise TrainingError(f"{file}: {key!r} is unknown; allowed are {allowed}")
        kind, words = _KINDS[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TrainingError(f"{file}: {key} is {value!r}; give {words}")
        given[name] = str(value) if name in ("time", "mem") else value
    setup = given.pop("setup", ())
    lines = (setup,) if isinstance(setup, str) else tuple(setup)
    extra = {key.replace("_", "-"): value for key, value in given.pop("sbatch", {}).items()}
    if wrong := [item for item in (*lines, *extra.values()) if not isinstance(item, (str, int))]:
        raise TrainingError(f"{file}: {wrong[0]!r} is neither text nor a number")
    if taken := [key for key in extra if key in _TAKEN]:
        own = "; it is a separate key outside [sbatch]" if taken[0].replace("-", "_") in _KINDS else ""
        raise TrainingError(f"{file}: [sbatch] {taken[0]} is not allowed, because the command sets it{own}")
    try:
        return SlurmOptions(setup=tuple(map(str, lines)), sbatch=extra, **given)
    except TrainingError as error:
        raise TrainingError(f"{file}: {error}") from error


def parse_toml(file: Path) -> dict[str, Any]:
    """The contents of a TOML file.

    Raises:
        TrainingError: the file cannot be read, or is not TOML.
    """
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
