"""The initialisation sweep: the function `init_sweep` and its result, `InitSweep`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.study_records import SweepRecord, write_record
from adapter_probe.analysis.sweeps import init_sweep_table
from adapter_probe.argument_checks import checked, planned_by, taking
from adapter_probe.errors import ModelError, TrainingError
from adapter_probe.jobs.resources import Resources
from adapter_probe.results import schema
from adapter_probe.results.trial_files import study_identity
from adapter_probe.settings import Style

from .cost_plan import SweepPlan, plan_sweep
from .sweep_trials import Sweep, find_trials, majority_rows, spread_text
from .training_arguments import InitSweepSettings, RunInitSweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adapter_probe.jobs.trials import Trial
    from adapter_probe.models.methods import Method

INIT_SWEEP = "init-sweep"
"""Kind of study, as recorded in its folder."""


@dataclass(frozen=True, eq=False, repr=False)
class InitSweep(Sweep):
    """A finished initialisation sweep; what `adapter_probe.init_sweep` and `adapter_probe.load` return."""

    record: SweepRecord
    _title = "Initialisation sweep"

    @property
    def table(self) -> pd.DataFrame:
        """One row per task, initialisation and size, ``sweep.csv``.

        `method`: the adapters or the LoRA; `size`: their bottleneck or rank; `init_std`, or `init`, the name
        of PEFT's initialisation.

        `n`: trials with a score at the chosen learning rate and number of epochs; `mean`, `sem` (standard
        error), `min` and `max` of their scores, in the metric's units; `diverged`: number of trials that
        diverged; `majority_score`: score of always predicting the most frequent class. See
        `adapter_probe.analysis.sweeps.chosen_trials`.
        """
        return self.record.sweep

    @checked
    def plot(self, ax: Axes | None = None, *, paper: bool = False, style: Style | None = None) -> Axes:
        """Draw the score against the standard deviation of the initialisation.

        Arguments as of `adapter_probe.Ablation.heatmap`; `paper` overlays the published values.
        """
        from adapter_probe.figures.init_sweep import init_sweep

        return self._on(init_sweep, ax, style, paper=paper)

    def rows(self) -> list[tuple[str, str]]:
        """The table as (point, score) pairs of text."""
        points = schema.plain_rows(self.table)
        tasks, sizes = ({point.get(name) for point in points} for name in ("task", "size"))
        rows = []
        for point in points:
            name = point.get("init") or f"std {point['init_std']:g}"
            name = f"size {point['size']}, {name}" if len(sizes) > 1 else name
            rows.append((f"{point['task']}: {name}" if len(tasks) > 1 else name, spread_text(point)))
        return [*rows, *majority_rows(points)]


def _trials(call: RunInitSweep) -> list[Trial]:
    """The trials of a sweep."""
    methods = initialised_methods(call)
    if not methods:
        raise TrainingError("--stds is empty, so there is nothing to train; give at least one")
    return find_trials(
        call.base, [call.task], None if call.data is None else [call.data], methods, call, call
    )


def initialised_methods(chosen: InitSweepSettings) -> list[Method]:
    """The adapters or the LoRA of a sweep with all of its initialisations.

    Raises:
        ModelError: the method has no initialisation to compare.
    """
    from adapter_probe.models.methods import Adapters
    from adapter_probe.training.peft_methods import initialised

    if chosen.method != Adapters.name:
        found: list[Method] = [*initialised(chosen.method, chosen.stds, chosen.inits)]
        if chosen.size != InitSweepSettings.size:
            raise ModelError(
                f"--size {chosen.size} applies only to adapters; give the rank of a LoRA with --method, such "
                "as lora:r=8"
            )
        return found
    if chosen.inits:
        raise ModelError(
            "--inits are PEFT's names for a LoRA's; give --method lora:r=8, say, or leave them out"
        )
    return [Adapters(chosen.size, std) for std in chosen.stds]


@taking(RunInitSweep)
def plan(call: RunInitSweep) -> SweepPlan:
    """Estimate the time of `init_sweep` without training.

    Raises:
        AdapterProbeError: see `init_sweep`.
    """
    return plan_sweep(_trials(call), Path(call.out), Resources.of(call))


@planned_by(plan)
@taking(RunInitSweep)
def init_sweep(call: RunInitSweep) -> InitSweep:
    """Retrain adapters or a LoRA over a range of initialisation stds (Houlsby et al. 2019, Figure 6, right).

    A LoRA also with PEFT's initialisations by name.

    Every trial is kept in `out`: the same call resumes an interrupted sweep, and a wider range only adds the
    missing trials. ``ap.init_sweep.plan(...)`` with the same arguments estimates the time.

    Raises:
        CheckpointError, ModelError, DataError: the base, the data, a size or a std cannot be used.
        TrainingError: a setting is out of range, or trials failed.
        ResultsError: the folder is in use, contains another study, or cannot be written.
        JobsDetached: the jobs were submitted, and `cluster` is set not to wait for them.
    """
    from adapter_probe.jobs.trials import run_trials

    out = Path(call.out)
    return write_init_sweep(out, run_trials(INIT_SWEEP, _trials(call), out, Resources.of(call)))


def write_init_sweep(out: Path, trials: pd.DataFrame) -> InitSweep:
    """Write ``trials.csv`` and ``sweep.csv``."""
    table = init_sweep_table(trials)
    record = SweepRecord(out, table, trials, {})
    write_record(record)
    return InitSweep(replace(record, identity=study_identity(out / record.known_by)))
