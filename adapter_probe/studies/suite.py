"""The suite: all studies of a TOML file over tasks, methods and seeds; `suite` and its result, `Suite`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from adapter_probe.analysis.summary_text import both_scores
from adapter_probe.argument_checks import checked, planned_by, taking
from adapter_probe.errors import ResultsError, TrainingError
from adapter_probe.jobs.resources import Machine, Resources
from adapter_probe.records import by_field
from adapter_probe.results.atomic import make_folder, write_csv
from adapter_probe.results.schema import PARAMETERS_CSV, plain_rows
from adapter_probe.spans import SITES, Stack
from adapter_probe.units import SUBLAYERS
from adapter_probe.wording import rounded

from .ablate import ablate
from .ablation_study import Ablation
from .checkpoint_arguments import Ablate
from .comparison import average
from .cost_plan import SuitePlan, plan_sweep
from .draw import draw_into_folder
from .init_sweep import INIT_SWEEP, InitSweep, initialised_methods, write_init_sweep
from .suite_file import (
    AblationPart,
    SuiteFile,
    SweepPart,
    check_rates,
    chosen_tasks,
    path_beside_file,
    read_suite,
)
from .sweep_trials import requests_of
from .tradeoff import TRADEOFF, Tradeoff, methods_of, write_tradeoff
from .training_arguments import RunSuite

if TYPE_CHECKING:
    from adapter_probe.models.methods import Method
    from adapter_probe.training.request import TrainingRequest

_CHECKPOINTS, _ABLATIONS = "checkpoints", "ablations"


@dataclass(frozen=True, eq=False, repr=False)
class Suite:
    """A finished suite; what `adapter_probe.suite` returns.

    Attributes:
        folder: output folder, with one subfolder per study.
        tradeoff: the trade-off over all its tasks, or None.
        init_sweep: the initialisation sweep over all its tasks, or None.
        ablations: one ablation per seed, by task.
        parameters: one row per task with a checkpoint, ``parameters.csv``: `in_file`, the number of
            parameters in the checkpoint's file (adapters, LayerNorms, head), and `percent_of_base`. The last
            row, ``all tasks``, is the total of the base and all tasks, with `multiple_of_base`, and
            `multiple_if_whole`, the multiple if every task were a fully fine-tuned model.
    """

    folder: Path
    tradeoff: Tradeoff | None
    init_sweep: InitSweep | None
    ablations: Mapping[str, Sequence[Ablation]]
    parameters: pd.DataFrame | None

    @checked
    def draw(self, *, paper: bool = False) -> list[str]:
        """Draw every study into its folder, and the mean of several seeds; return the paths.

        Args:
            paper: overlay the values that Houlsby et al. (2019) published.
        """
        paths: list[str] = []
        for sweep in (self.tradeoff, self.init_sweep):
            if sweep is not None:
                paths += draw_into_folder(sweep, paper=paper).values()
        for task, seeds in self.ablations.items():
            for study in seeds:
                paths += draw_into_folder(study, paper=paper).values()
            if len(seeds) > 1:
                place = self.folder / _ABLATIONS / task / "mean"
                paths += map(str, average(seeds).save(place))
        return paths

    def report(self, *, paper: bool = False) -> dict[str, Any]:
        """Draw every study into its folder; the tables and summaries as plain JSON with the paths."""
        paths = self.draw(paper=paper)
        sweeps = {"tradeoff": self.tradeoff, "init_sweep": self.init_sweep}
        return {
            **{name: plain_rows(one.table) for name, one in sweeps.items() if one is not None},
            "ablations": {task: [one.facts() for one in seeds] for task, seeds in self.ablations.items()},
            "parameters": [] if self.parameters is None else plain_rows(self.parameters),
            "files": paths,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The main results as (name, value) pairs of text."""
        rows = [
            row for study in (self.tradeoff, self.init_sweep) if study is not None for row in study.rows()
        ]
        for task, seeds in self.ablations.items():
            for seed, study in enumerate(seeds):
                rows.append((f"{task}: seed {seed}", both_scores(study.summary)))
        if self.parameters is not None:
            last = self.parameters.iloc[-1]
            rows.append((
                "parameters for all tasks",
                f"{rounded(last['multiple_of_base'])} times the base model; with full fine-tuning "
                f"{rounded(last['multiple_if_whole'])} times",
            ))  # fmt: skip
        return rows


@taking(RunSuite)
def plan(call: RunSuite) -> SuitePlan:
    """Estimate the time of the sweeps of `suite`, without running anything.

    Raises:
        AdapterProbeError: see `suite`.
    """
    about, requests = _read(Path(call.file))

    from adapter_probe.jobs.trials import plan_trials

    out, plans = Path(call.out), {}
    for name, part in ((TRADEOFF, about.tradeoff), (INIT_SWEEP, about.init_sweep)):
        if part:
            trials = plan_trials(requests[name])
            plans[name] = plan_sweep(trials, out / name, Resources.of(call))
    folders = _checkpoints(about.ablation, requests[_CHECKPOINTS], out, None) if about.ablation else {}
    return SuitePlan(plans.get(TRADEOFF), plans.get(INIT_SWEEP), list(folders))


@planned_by(plan)
@taking(RunSuite)
def suite(call: RunSuite) -> Suite:
    """Run every study of a TOML file over its tasks, methods and seeds.

    Each study keeps its trials and checkpoints in a subfolder of `out`. The same call resumes an interrupted
    suite, and a longer file only adds the missing trials. ``ap.suite.plan(...)`` with the same arguments
    estimates the time of the sweeps.

    Raises:
        AdapterProbeError: a key of the file is unknown, missing or invalid (the message names it), or any
            error of `adapter_probe.tradeoff`, `init_sweep` or `ablate`.
        JobsDetached: the jobs were submitted, and `cluster` is set not to wait for them.
    """
    out, resources = Path(call.out), Resources.of(call)
    about, requests = _read(Path(call.file))

    from adapter_probe.jobs.trials import plan_trials, run_trials

    trade = sweep = None
    for name, part in ((TRADEOFF, about.tradeoff), (INIT_SWEEP, about.init_sweep)):
        if part:
            trials = run_trials(name, plan_trials(requests[name]), out / name, resources)
            if name == TRADEOFF:
                trade = write_tradeoff(out / name, trials)
            else:
                sweep = write_init_sweep(out / name, trials)
    ablations: dict[str, list[Ablation]] = {}
    parameters = None
    if about.ablation:
        folders = _checkpoints(about.ablation, requests[_CHECKPOINTS], out, trade)
        parameters = _trained(out, folders, resources)
        for folder, request in folders.items():
            place = out / _ABLATIONS / request.task.name / f"seed-{request.settings.seed}"
            where = vars(Machine.of(resources))
            asked = Ablate.of(about.ablation, checkpoint=folder, out=place, **where)
            ablations.setdefault(request.task.name, []).append(ablate(**vars(asked)))
    return Suite(out, trade, sweep, ablations, parameters)


def _read(file: Path) -> tuple[SuiteFile, dict[str, list[TrainingRequest]]]:
    """The file's contents, and the training requests of each of its studies."""
    about = read_suite(file)  # before what takes seconds to load

    from adapter_probe.training.request import TrainingRequest

    base, found = path_beside_file(file.parent, about.base), about.found(file.parent)
    requests: dict[str, list[TrainingRequest]] = {}

    def of(part: SweepPart, where: str, methods: Sequence[Method]) -> list[TrainingRequest]:
        if not methods:
            raise TrainingError(f"{file}: [{where}] selects no method, so there is nothing to train")
        lists = [
            requests_of(part.on(task, method), base, [spec], [method], task)
            for task, spec in chosen_tasks(part, found, where)
            for method in methods
        ]
        return [request for one in lists for request in one]

    if part := about.tradeoff:
        methods = methods_of(base, part)
        requests[TRADEOFF] = of(part, "tradeoff", methods)
        check_rates(part, methods, file)
    if sweep := about.init_sweep:
        requests[INIT_SWEEP] = of(sweep, "init_sweep", initialised_methods(sweep))
    if one := about.ablation:
        method = _ablated_method(one, base, file)
        requests[_CHECKPOINTS] = [
            TrainingRequest(
                base, spec, method, one.training(task, seed), task.max_length, max_train=task.max_train
            )
            for task, spec in chosen_tasks(one, found, "ablation")
            for seed in range(one.seeds)
        ]
    return about, requests


def _ablated_method(part: AblationPart, base: str, file: Path) -> Method:
    """What is trained to be ablated; spans that the base does not have are refused before that."""
    from adapter_probe.checkpoints.base_config import layers_of
    from adapter_probe.models.methods import Adapters
    from adapter_probe.training.peft_methods import peft_method

    try:
        if part.by == "span" and part.sites in ("both", *SUBLAYERS):  # other modules are not known yet
            part.variants((Stack("", len(layers_of(base))),), SITES)
    except ResultsError as error:
        raise ResultsError(f"{file}: [ablation] {by_field(str(error), AblationPart, '')}") from error
    if part.method == Adapters.name:
        return Adapters(part.size, part.init_std)
    return peft_method(part.method, "[ablation] method")


def _checkpoints(
    part: AblationPart, requests: Sequence[TrainingRequest], out: Path, trade: Tradeoff | None
) -> dict[Path, TrainingRequest]:
    """The trainings for the ablations, by folder, with the settings that the trade-off chose."""
    folders = {}
    for request in requests:
        settings, name = request.settings, request.task.name
        if trade is not None:
            table = trade.table
            own = request.method.to_json()
            of_method = table["method"] == own.get("family", own["name"])
            sized = table["size"].isna() if own.get("size") is None else table["size"] == own["size"]
            row = table[(table["task"] == name) & of_method & sized.fillna(False)]
            if len(row):
                rate, epochs = float(row["learning_rate"].iloc[0]), int(row["epochs"].iloc[0])
                settings = replace(
                    settings, learning_rate=part.learning_rate or rate, epochs=part.epochs or epochs
                )
        folders[out / _CHECKPOINTS / name / f"seed-{settings.seed}"] = replace(request, settings=settings)
    return folders


def _trained(out: Path, folders: Mapping[Path, TrainingRequest], resources: Resources) -> pd.DataFrame:
    """Train what is missing, and count the parameters of the first seed of each task from the files."""
    import torch

    from adapter_probe.checkpoints.adapter_folder import WEIGHTS
    from adapter_probe.checkpoints.files import DELTA
    from adapter_probe.jobs.trial_run import count_parameters
    from adapter_probe.jobs.trials import numbers_in, train_checkpoints
    from adapter_probe.models.methods import PeftMethod
    from adapter_probe.training.request import build_model, load_inputs

    train_checkpoints(make_folder(out / _CHECKPOINTS), folders, resources)
    first = {request.task.name: folder for folder, request in reversed(folders.items())}
    one = next(iter(folders.values()))
    loaded = load_inputs(one).base
    base = count_parameters(build_model(one, loaded, torch.device("cpu")), loaded.missing).base
    file = WEIGHTS[0] if isinstance(one.method, PeftMethod) else DELTA
    rows = [{"task": name, "in_file": numbers_in(first[name] / file)} for name in reversed(first)]
    table = pd.DataFrame(rows)
    table["percent_of_base"] = 100 * table["in_file"] / base
    total = base + int(table["in_file"].sum())
    last = {"task": "all tasks", "in_file": total, "percent_of_base": 100 * total / base,
            "multiple_of_base": total / base, "multiple_if_whole": float(len(rows))}  # fmt: skip
    table = pd.concat([table, pd.DataFrame([last])], ignore_index=True)
    write_csv(out / PARAMETERS_CSV, table)
    return table
