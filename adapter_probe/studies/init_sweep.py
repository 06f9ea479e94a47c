"""The initialisation sweep: the function `init_sweep` and its result, `InitSweep`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.studies import SweepRecord
from adapter_probe.analysis.sweeps import init_sweep_table
from adapter_probe.errors import TrainingError
from adapter_probe.results import schema
from adapter_probe.results.atomic import write_csv
from adapter_probe.results.sealing import sealed
from adapter_probe.results.trial_files import study_identity

from .checked import checked
from .gallery import Style, axes_for
from .planning import SweepPlan, plan_sweep, planned_by
from .sweeps import (
    OnTrial,
    Sweep,
    SweepSettings,
    find_trials,
    majority_rows,
    plain_rows,
    run_trials,
    spread_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.slurm_options import SlurmOptions
    from adapter_probe.jobs.trials import Trial

INIT_SWEEP = "init-sweep"
"""Kind of study, as recorded in its folder."""
STDS = tuple(float(f"1e{power}") for power in range(-7, 1))  # as in Houlsby et al. 2019, section 3.6


@dataclass(frozen=True, eq=False, repr=False)
class InitSweep(Sweep):
    """A finished initialisation sweep; what `adapter_probe.init_sweep` and `adapter_probe.load` return.

    Attributes:
        record: tables and identity of the study as plain data.
    """

    record: SweepRecord
    _title = "Initialisation sweep"

    @property
    def table(self) -> pd.DataFrame:
        """One row per task, initialisation std and adapter size, ``sweep.csv``.

        `n`: trials with a score at the chosen learning rate and number of epochs; `mean`, `sem` (standard
        error), `min` and `max` of their scores, in the metric's units; `diverged`: number of trials that
        diverged; `majority_score`: score of always predicting the most frequent class. See
        `adapter_probe.analysis.sweeps.chosen_trials`.
        """
        return self.record.sweep

    @checked
    def plot(self, ax: Axes | None = None, *, paper: bool = False, style: Style | None = None) -> Axes:
        """Draw the score against the standard deviation of the initialisation.

        Args:
            ax: see `adapter_probe.Ablation.heatmap`.
            style: see `adapter_probe.Ablation.heatmap`.
            paper: overlay the values that Houlsby et al. (2019) published.
        """
        from adapter_probe.figures.init_sweep import init_sweep

        with axes_for(ax, style) as place:
            return init_sweep(self.record, place, paper=paper)

    def rows(self) -> list[tuple[str, str]]:
        """The table as (point, score) pairs of text."""
        points = plain_rows(self.table)
        tasks, sizes = ({point.get(name) for point in points} for name in ("task", "size"))
        rows = []
        for point in points:
            name = f"std {point['init_std']:g}"
            name = f"size {point['size']}, {name}" if len(sizes) > 1 else name
            rows.append((f"{point['task']}: {name}" if len(tasks) > 1 else name, spread_text(point)))
        return [*rows, *majority_rows(points)]


@planned_by(SweepPlan)
@checked
def init_sweep(
    base: str | Path,
    task: str | Path,
    out: str | Path,
    *,
    data: str | Path | None = None,
    stds: Sequence[float] = STDS,
    size: int = 64,
    seeds: int = 3,
    learning_rates: Sequence[float] = (3e-4,),
    epochs: Sequence[int] = (3,),
    batch_size: int = 32,
    warmup: float = 0.1,
    metric: str | None = None,
    max_length: int | None = None,
    max_train: int | None = None,
    encoding: str = "utf-8",
    validation_share: float = 0.0,
    dtype: str = "float32",
    workers: int = 0,
    threads: int = 1,
    device: str = "auto",
    cluster: SlurmOptions | None = None,
    on_trial: OnTrial | None = None,
    progress: bool = True,
    dry_run: bool = False,
) -> InitSweep | SweepPlan:
    """Retrain adapters over a range of initialisation stds (Houlsby et al. 2019, Figure 6, right).

    Every trial is kept in `out`: the same call resumes an interrupted sweep, and a wider range only adds the
    missing trials.

    Args:
        base: pretrained base model: a folder or a Hugging Face Hub id.
        task: name of a known task, or a folder with train and validation files.
        out: output folder for trials and tables.
        data: folder with the files of a named task.
        stds: standard deviations of the normal distribution that weights are drawn from, before truncation
            at two standard deviations; the realised one is 0.88 of the nominal one.
        size: bottleneck size of the adapters.
        seeds: number of runs per setting, with seeds 0, 1, ...
        learning_rates: peak learning rates to try; the best at each std is chosen on validation data (by the
            number of seeds that did not diverge, then by mean score).
        epochs: numbers of epochs to try, chosen in the same way.
        batch_size: training batch size.
        warmup: fraction of training steps used for warm-up.
        metric: evaluation metric; by default the metric of the task.
        max_length: truncate examples to this many tokens.
        max_train: train on a fixed random subset of this many examples.
        encoding: text encoding of the data files.
        validation_share: fraction of the training rows to hold out for validation when there is no
            validation file.
        dtype: precision of the frozen base and of matrix products, ``float32`` or ``bfloat16``.
        workers: number of parallel training processes; 0 uses one per CPU core, or one on an accelerator.
        threads: number of threads per process; 0 uses PyTorch's default.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...
        cluster: SLURM cluster to train on; by default this machine.
        on_trial: called with every trial as soon as it has finished (on a cluster, when the jobs have been
            collected), for instance to log it to an experiment tracker. Its argument is a dictionary with
            the columns of ``trials.csv``. Trials that finished before the call are not reported; an
            exception in the function ends the sweep.
        progress: whether to show a progress bar.
        dry_run: whether to estimate the time only, without training: the result is a `SweepPlan`.

    Raises:
        CheckpointError, ModelError, DataError: the base, the data, a size or a std cannot be used.
        TrainingError: a setting is out of range, or trials failed.
        ResultsError: the folder is in use, contains another study, or cannot be written.
        JobsDetached: the jobs were submitted, and `cluster` is set not to wait for them.
    """
    from adapter_probe.jobs.running import Resources
    from adapter_probe.models.methods import Adapters

    resources = Resources(workers, threads, device, cluster)
    settings = SweepSettings(
        learning_rates, epochs, seeds, batch_size, warmup, metric, max_length, max_train, encoding,
        validation_share, dtype,
    )  # fmt: skip
    methods = [Adapters(size, std) for std in stds]
    if not methods:
        raise TrainingError("--stds is empty, so there is nothing to train; give at least one")
    trials = find_trials(base, [task], None if data is None else [data], methods, settings)
    if dry_run:
        return plan_sweep(trials, Path(out), resources, progress)
    return run_init_sweep(trials, Path(out), resources, progress, on_trial)


def run_init_sweep(
    trials: Sequence[Trial],
    out: Path,
    resources: Resources,
    progress: bool = True,
    on_trial: OnTrial | None = None,
) -> InitSweep:
    """Run the missing trials and write ``trials.csv`` and ``sweep.csv``; see `init_sweep`."""
    frame = run_trials(INIT_SWEEP, trials, out, resources, progress, on_trial)
    table = init_sweep_table(frame)
    with sealed(out, (schema.TRIALS_CSV, schema.SWEEP_CSV)):
        write_csv(out / schema.SWEEP_CSV, table)
    return InitSweep(SweepRecord(out, table, frame, study_identity(out / schema.SWEEP_CSV)))
