"""What a suite is: a TOML file with tasks and the studies to do on them, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapter_probe.errors import AdapterProbeError, DataError
from adapter_probe.records import RecordError, from_record

from .init_sweep import STDS
from .sweeps import SweepSettings
from .tradeoff import SIZES

if TYPE_CHECKING:
    from adapter_probe.data.tasks import TaskSpec
    from adapter_probe.models.methods import Method
    from adapter_probe.training.settings import TrainingSettings

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class SuiteTask:
    """One ``[[tasks]]``.

    Attributes:
        task: name of a known task, or a folder with train and validation files.
        data: folder with the files of a task that is named.
        name: in tables and figures, and in the other tables of the file; by default the task's own.
        metric: the score, if not the task's own.
        max_length: cut examples to this many tokens.
        max_train: train on a fixed random subset of this size.
        validation_share: share of the training rows to validate on, where there are no validation files.
        epochs: numbers of epochs to try on this task, in place of the studies' own.
        batch_size: likewise.
    """

    task: str
    data: str | None = None
    name: str | None = None
    metric: str | None = None
    max_length: int | None = None
    max_train: int | None = None
    validation_share: float = 0.0
    epochs: tuple[int, ...] = ()
    batch_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """How the trials of a sweep train; see `adapter_probe.studies.sweeps.SweepSettings`.

    Attributes:
        tasks: names of some of the suite's tasks; all where there are none.
        tuning_seeds: try every learning rate and number of epochs with so many seeds, and train the others at
            the best of each method and task alone; by default all settings with all seeds.
    """

    tasks: tuple[str, ...] = ()
    epochs: tuple[int, ...] = (3,)
    seeds: int = 3
    tuning_seeds: int | None = None
    batch_size: int = 32
    warmup: float = 0.1
    dtype: Dtype = "float32"
    learning_rates: tuple[float, ...] = ()

    def rates_of(self, method: Method) -> tuple[float, ...]:
        """Those to try for one method; empty where the file gives none."""
        return self.learning_rates

    def settings(self, task: SuiteTask, rates: tuple[float, ...]) -> SweepSettings:
        """Of one task's trials with these learning rates."""
        return SweepSettings(
            rates, task.epochs or self.epochs, self.seeds, task.batch_size or self.batch_size, self.warmup,
            None, task.max_length, task.max_train, self.dtype,
        )  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """``[tradeoff.rates]``: learning rates to try of one family of methods, in place of `learning_rates`."""

    adapters: tuple[float, ...] = ()
    top_layers: tuple[float, ...] = ()
    layernorm_only: tuple[float, ...] = ()
    head_only: tuple[float, ...] = ()
    full: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TradeoffPart(Grid):
    """``[tradeoff]``; see `adapter_probe.tradeoff`.

    Attributes:
        rates: see `Rates`; of the families that it leaves out, `learning_rates`.
    """

    sizes: tuple[int, ...] = SIZES
    top_k: tuple[int, ...] | None = None
    layernorm: bool = True
    full: bool = True
    head_only: bool = False
    baseline: bool = False
    init_std: float = 1e-2
    rates: Rates = Rates()

    def rates_of(self, method: Method) -> tuple[float, ...]:
        """See `Grid.rates_of`."""
        return getattr(self.rates, method.name, ()) or self.learning_rates


@dataclass(frozen=True, kw_only=True)
class InitSweepPart(Grid):
    """``[init_sweep]``; see `adapter_probe.init_sweep`."""

    stds: tuple[float, ...] = STDS
    size: int = 64


@dataclass(frozen=True, kw_only=True)
class AblationPart:
    """``[ablation]``: one checkpoint a task and seed, trained, kept and ablated; see `adapter_probe.ablate`.

    Attributes:
        tasks: names of some of the suite's tasks; all where there are none.
        learning_rate: by default the one that the trade-off chose for adapters of that size, or 3e-4.
        epochs: likewise, or 3.
        max_examples: judge on a fixed random subset of this size.
    """

    tasks: tuple[str, ...] = ()
    size: int = 64
    init_std: float = 1e-2
    seeds: int = 1
    learning_rate: float | None = None
    epochs: int | None = None
    batch_size: int = 32
    warmup: float = 0.1
    dtype: Dtype = "float32"
    max_examples: int | None = None
    precision: Literal["float32", "bfloat16", "mixed"] = "float32"

    def settings(self, task: SuiteTask, seed: int) -> TrainingSettings:
        """Of one checkpoint's training on a task, as far as the file says."""
        from adapter_probe.training.settings import TrainingSettings

        epochs, batch_size = self.epochs or max(task.epochs, default=3), task.batch_size or self.batch_size
        return TrainingSettings(epochs, batch_size, self.learning_rate or 3e-4, self.warmup, seed, self.dtype)


@dataclass(frozen=True)
class SuiteFile:
    """A whole file.

    Attributes:
        base: pretrained model: a folder or a Hugging Face hub id.
        tasks: at least one.
    """

    base: str
    tasks: tuple[SuiteTask, ...]
    tradeoff: TradeoffPart | None = None
    init_sweep: InitSweepPart | None = None
    ablation: AblationPart | None = None

    def found(self, folder: Path) -> dict[str, tuple[SuiteTask, TaskSpec]]:
        """The tasks with their data, by name. Paths are looked for beside the file first.

        Raises:
            DataError: a task cannot be found, or two are of one name.
        """
        from adapter_probe.data.tasks import find_task, locate_task

        found: dict[str, tuple[SuiteTask, TaskSpec]] = {}
        for number, one in enumerate(self.tasks):
            data = None if one.data is None else Path(beside(folder, one.data))
            try:
                preset, place = locate_task(beside(folder, one.task), data)
                spec = find_task(
                    place,
                    preset=preset,
                    metric=one.metric,
                    name=one.name,
                    validation_share=one.validation_share,
                )
            except AdapterProbeError as error:
                raise DataError(f"tasks[{number}]: {error}") from error
            if spec.name in found:
                raise DataError(f"tasks[{number}]: there are two tasks {spec.name!r}; give one another name")
            found[spec.name] = (one, spec)
        return found


def read_suite(file: str | Path) -> SuiteFile:
    """Read a suite's file.

    Raises:
        TrainingError: it cannot be read or is not TOML.
        RecordError: a key is missing, unknown or of the wrong type; it is named.
    """
    from adapter_probe.jobs.slurm_options import parse_toml

    document = parse_toml(Path(file))
    if isinstance(document.get("init-sweep"), Mapping):
        document["init_sweep"] = document.pop("init-sweep")
    try:
        suite = from_record(SuiteFile, {key: _plain(value) for key, value in document.items()})
    except AdapterProbeError as error:
        raise RecordError(f"{file}: {error}") from error
    if not suite.tasks:
        raise RecordError(f"{file}: tasks is empty; give one [[tasks]] or more")
    for name, part in (("tradeoff", suite.tradeoff), ("init_sweep", suite.init_sweep)):
        if part and part.tuning_seeds is not None and not 1 <= part.tuning_seeds <= part.seeds:
            raise RecordError(
                f"{file}: {name}.tuning_seeds is {part.tuning_seeds}, expected 1 to {part.seeds}, the seeds"
            )
    if not (suite.tradeoff or suite.init_sweep or suite.ablation):
        raise RecordError(f"{file}: there is no study; give [tradeoff], [init_sweep] or [ablation]")
    return suite


def chosen_tasks(part: Grid | AblationPart, names: list[str], where: str) -> list[str]:
    """The names of a study's tasks.

    Raises:
        RecordError: one is none of the suite's.
    """
    if unknown := [name for name in part.tasks if name not in names]:
        raise RecordError(f"{where}.tasks holds {unknown[0]!r}; the suite's tasks are {', '.join(names)}")
    return list(part.tasks) or names


def beside(folder: Path, name: str) -> str:
    """A path beside the suite's file if there is one, else the name as it is."""
    place = folder / Path(name).expanduser()
    return str(place) if place.exists() else name


def _plain(value: Any) -> Any:
    """TOML's own kinds, such as dates, as text; what is nested likewise."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, (str, int, float, bool)) else str(value)
