"""The TOML file of a suite: tasks and the studies to run on them, with every key checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.checkpoints.files import CONFIG
from adapter_probe.errors import AdapterProbeError, DataError
from adapter_probe.models.methods import Adapters
from adapter_probe.records import RecordError, by_field, from_record
from adapter_probe.settings import Sampled, fixed
from adapter_probe.training.settings import StepSettings, TrainingSettings

from .sweep_trials import MOST_TRIALS, find_one_task
from .training_arguments import InitSweepSettings, SweepSettings, TaskOptions, TradeoffSettings

if TYPE_CHECKING:
    from adapter_probe.data.tasks import TaskSpec
    from adapter_probe.models.methods import Method


@dataclass(frozen=True, kw_only=True)
class SuiteTask(TaskOptions):
    """One task, a table ``[[tasks]]``.

    Attributes:
        name: name in tables and figures, and in the rest of the file; by default the task's name.
        epochs: numbers of epochs to try on this task; they override those of the sweeps. Checkpoints to
            ablate take the number of `AblationPart.epochs`, if it is given.
        batch_size: batch size for this task; it overrides that of the studies.
    """

    task: str
    data: str | None = None
    name: str | None = None
    epochs: tuple[int, ...] = ()
    batch_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class SweepPart(SweepSettings):
    """What the table of a sweep has besides the settings of the sweep.

    Attributes:
        tasks: names of tasks of the suite; empty for all tasks.
    """

    tasks: tuple[str, ...] = ()

    def on(self, task: SuiteTask, method: Method) -> SweepSettings:
        """The settings of one task's trials with one method."""
        size = self.batch_size if task.batch_size is None else task.batch_size
        return replace(self, epochs=task.epochs or self.epochs, batch_size=size)


@dataclass(frozen=True, kw_only=True)
class TradeoffPart(TradeoffSettings, SweepPart):
    """``[tradeoff]``: the settings of `adapter_probe.tradeoff`.

    Attributes:
        rates: learning rates by family of methods, such as ``adapters``, ``top_layers`` or ``lora``; of the
            families that it leaves out, `learning_rates`.
    """

    rates: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def on(self, task: SuiteTask, method: Method) -> SweepSettings:
        """See `SweepPart.on`."""
        given = [self.rates[name] for name in families_of(method) if self.rates.get(name)]
        rates = given[0] if given else self.learning_rates
        return replace(super().on(task, method), learning_rates=rates)


@dataclass(frozen=True, kw_only=True)
class InitSweepPart(InitSweepSettings, SweepPart):
    """``[init_sweep]``: the settings of `adapter_probe.init_sweep`."""


@dataclass(frozen=True, kw_only=True)
class AblationPart(Sampled, AblationSettings, StepSettings):
    """``[ablation]``: train and ablate one checkpoint per task and seed, with the settings of both.

    Attributes:
        tasks: names of tasks of the suite; empty for all tasks.
        method: adapters, of which `size` and `init_std` are, or a method of PEFT, such as ``lora:r=8``.
        learning_rate: by default the one that the trade-off chose for this method and size, or 3e-4.
        epochs: by default the number that the trade-off chose for this method and size, or else the largest
            of the task, or 3.
    """

    rank: int = fixed(0)
    tasks: tuple[str, ...] = ()
    method: str = Adapters.name
    size: int = 64
    init_std: float = 1e-2
    seeds: int = 1
    learning_rate: float | None = None
    epochs: int | None = None

    def training(self, task: SuiteTask, seed: int) -> TrainingSettings:
        """Of one checkpoint's training on a task, as far as the file says."""
        return TrainingSettings.of(
            self, epochs=max(task.epochs, default=3) if self.epochs is None else self.epochs, seed=seed,
            batch_size=self.batch_size if task.batch_size is None else task.batch_size,
            learning_rate=3e-4 if self.learning_rate is None else self.learning_rate,
        )  # fmt: skip


@dataclass(frozen=True)
class SuiteFile:
    """The contents of a suite's file."""

    base: str
    tasks: tuple[SuiteTask, ...]
    tradeoff: TradeoffPart | None = None
    init_sweep: InitSweepPart | None = None
    ablation: AblationPart | None = None

    def found(self, folder: Path) -> dict[str, tuple[SuiteTask, TaskSpec]]:
        """The tasks with their data, by name. Paths are resolved relative to the file first.

        Raises:
            DataError: a task cannot be found, or two tasks have the same name.
        """
        from adapter_probe.known_tasks import known_task

        found: dict[str, tuple[SuiteTask, TaskSpec]] = {}
        for number, one in enumerate(self.tasks):
            task = path_beside_file(folder, one.task)
            data = None if one.data is None else Path(path_beside_file(folder, one.data))
            if data is None and known_task(one.task) is not None and task != one.task:
                data = Path(task)  # a known task with its files beside the suite
            try:
                spec = find_one_task(task if data is None else one.task, data, one, one.name)
            except AdapterProbeError as error:
                where = f"tasks[{number}]"
                raise DataError(f"{where}: {by_field(str(error), SuiteTask, '')}") from error
            if spec.name in (".", "..") or any(sign in spec.name for sign in "/\\"):
                raise DataError(
                    f"tasks[{number}]: the name {spec.name!r} is no name of a folder; give another `name`"
                )
            if spec.name in found:
                raise DataError(f"tasks[{number}]: there are two tasks {spec.name!r}; rename one of them")
            found[spec.name] = (one, spec)
        return found


def families_of(method: Method) -> tuple[str, ...]:
    """The names under which a table of rates may have a method: its own, and that of its kind."""
    family = getattr(method, "family", method.name)
    return family, family.partition(":")[0]


def check_rates(part: TradeoffPart, methods: Sequence[Method], file: Path) -> None:
    """Refuse learning rates of a family that the trade-off does not have."""
    known = dict.fromkeys(name for method in methods for name in families_of(method))
    if unknown := [name for name in part.rates if name not in known]:
        raise RecordError(
            f"{file}: tradeoff.rates has {unknown[0]!r}; the methods of this trade-off are {', '.join(known)}"
        )


def read_suite(file: str | Path) -> SuiteFile:
    """Read and check the file of a suite.

    Raises:
        TrainingError: the file cannot be read or is not TOML.
        RecordError: a key is missing, unknown or of the wrong type; the message names it.
    """
    from adapter_probe.jobs.resources import parse_toml

    document = parse_toml(Path(file))
    for part, name in (("tradeoff", "method"), ("ablation", "method"), ("ablation", "strength")):
        if isinstance(given := document.get(part), dict) and name in given:
            given[name] = _files_beside(Path(file).parent, given[name])
    if isinstance(document.get("init-sweep"), Mapping):
        document["init_sweep"] = document.pop("init-sweep")
    try:
        suite = from_record(SuiteFile, document)
    except AdapterProbeError as error:
        raise RecordError(f"{file}: {error}") from error
    if not suite.tasks:
        raise RecordError(f"{file}: tasks is empty; add at least one table [[tasks]]")
    if (one := suite.ablation) and not 1 <= one.seeds <= MOST_TRIALS:
        raise RecordError(f"{file}: ablation.seeds is {one.seeds}, expected 1 to {MOST_TRIALS:,}")
    if not (suite.tradeoff or suite.init_sweep or suite.ablation):
        raise RecordError(f"{file}: no study is listed; add a table [tradeoff], [init_sweep] or [ablation]")
    return suite


def chosen_tasks(
    part: SweepPart | AblationPart, found: Mapping[str, tuple[SuiteTask, TaskSpec]], where: str
) -> list[tuple[SuiteTask, TaskSpec]]:
    """The tasks of a study, out of those of the suite.

    Raises:
        RecordError: a name is not a task of the suite.
    """
    if unknown := [name for name in part.tasks if name not in found]:
        raise RecordError(f"{where}.tasks contains {unknown[0]!r}; the suite's tasks are {', '.join(found)}")
    return [found[name] for name in part.tasks or found]


def _files_beside(folder: Path, given: Any) -> Any:
    """A method or strengths, with the path of a file or of PEFT's folder relative to the suite's file."""
    if isinstance(given, list):
        return [_files_beside(folder, one) for one in given]
    with suppress(OSError, TypeError, ValueError):  # what is no path
        place = folder / Path(given).expanduser()
        if place.is_file() or (place / CONFIG).is_file():
            return str(place)
    return given


def path_beside_file(folder: Path, name: str) -> str:
    """The path relative to the suite's file if it exists, else the unchanged name."""
    place = folder / Path(name).expanduser()
    return str(place) if place.exists() else name
