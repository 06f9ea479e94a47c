"""The trade-off of scores and trained parameters: the function `tradeoff` and its result, `Tradeoff`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.studies import TradeoffRecord
from adapter_probe.analysis.sweeps import aggregate_table, size_table, tradeoff_table
from adapter_probe.results import schema
from adapter_probe.results.atomic import write_csv
from adapter_probe.results.sealing import sealed
from adapter_probe.results.trial_files import study_identity

from .checked import checked
from .gallery import Style, axes_for
from .planning import SweepPlan, plan_sweep, planned_by
from .rows import as_tuple
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
    from adapter_probe.models.methods import Method

TRADEOFF = "tradeoff"
"""Kind of study, as recorded in its folder."""
# Houlsby et al. 2019, sections 3.1 and 3.3, for a base of 12 layers.
ADAPTER_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOP_K = (0, 1, 2, 3, 5, 7, 9, 11, 12)
LEARNING_RATES = (3e-5, 3e-4, 3e-3)


@dataclass(frozen=True, eq=False, repr=False)
class Tradeoff(Sweep):
    """A finished trade-off; what `adapter_probe.tradeoff` and `adapter_probe.load` return.

    Attributes:
        record: tables and identity of the study as plain data.
    """

    record: TradeoffRecord
    _title = "Trade-off"

    @property
    def table(self) -> pd.DataFrame:
        """One row per task and method, ``tradeoff.csv``.

        `n`: trials with a score at the chosen learning rate and number of epochs; `mean`, `sem` (standard
        error), `min` and `max` of their scores, in the metric's units; `diverged`: number of trials that
        diverged; `trained_parameters` with and without the head; `percent_of_base`, without the head.
        """
        return self.record.tradeoff

    @property
    def aggregate(self) -> pd.DataFrame | None:
        """One row per method, ``aggregate.csv``: difference to full fine-tuning over tasks, in points."""
        return self.record.aggregate

    @property
    def sizes(self) -> pd.DataFrame | None:
        """One row per adapter size, ``sizes.csv``: mean scores over tasks."""
        return self.record.sizes

    @checked
    def plot(
        self,
        ax: Axes | None = None,
        *,
        task: str | None = None,
        paper: bool = False,
        style: Style | None = None,
    ) -> Axes:
        """Draw the score against the number of trained parameters.

        Args:
            ax: see `adapter_probe.Ablation.heatmap`.
            style: see `adapter_probe.Ablation.heatmap`.
            task: task to draw; required only when the study has several.
            paper: overlay the values that Houlsby et al. (2019) published.

        Raises:
            ResultsError: there is no such task, or there are several and none is given.
        """
        from adapter_probe.figures.tradeoff import tradeoff

        with axes_for(ax, style) as place:
            return tradeoff(self.record, place, task=task, paper=paper)

    def rows(self) -> list[tuple[str, str]]:
        """The table as (point, score) pairs of text."""
        points = plain_rows(self.table)
        rows = [
            (
                f"{point['task']}: {point['label']}",
                f"{spread_text(point)}, {point['trained_parameters_without_head']:,} parameters"
                + ("" if (share := point["percent_of_base"]) is None else f" ({share:.2f}% of the base)"),
            )
            for point in points
        ]
        return [*rows, *majority_rows(points)]

    def _draw(self, ax: Axes) -> Axes:
        return self.plot(ax, task=str(self.table["task"].iloc[0]))


@planned_by(SweepPlan)
@checked
def tradeoff(
    base: str | Path,
    task: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    data: str | Path | Sequence[str | Path] | None = None,
    sizes: Sequence[int] = ADAPTER_SIZES,
    top_k: Sequence[int] | None = None,
    layernorm: bool = True,
    full: bool = True,
    head_only: bool = False,
    baseline: bool = False,
    init_std: float = 1e-2,
    seeds: int = 3,
    learning_rates: Sequence[float] = LEARNING_RATES,
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
) -> Tradeoff | SweepPlan:
    """Compare scores with numbers of trained parameters (Houlsby et al. 2019, Figures 1, 3, 4 and 5).

    Every trial is kept in `out`: the same call resumes an interrupted study, and a wider grid only adds the
    missing trials.

    Args:
        base: pretrained base model: a folder or a Hugging Face Hub id.
        task: one or several tasks: names of known tasks, or folders with train and validation files.
        out: output folder for trials and tables.
        data: folders with the files of the tasks, one per task.
        sizes: bottleneck sizes of the adapters.
        top_k: numbers of top layers to fine-tune; by default those of the paper that the base has.
        layernorm: whether to include training of LayerNorms and the head alone.
        full: whether to include full fine-tuning, the reference of the aggregate over tasks.
        head_only: whether to include a head on the frozen base model.
        baseline: whether to include a linear model of TF-IDF features, without pretraining (extra
            ``baselines``); tuned by cross-validation on the training rows, once per task.
        init_std: standard deviation of the adapters' initialisation.
        seeds: number of runs per setting, with seeds 0, 1, ...
        learning_rates: peak learning rates to try; the best for each method is chosen on validation data (by
            the number of seeds that did not diverge, then by mean score).
        epochs: numbers of epochs to try, chosen in the same way.
        batch_size: training batch size.
        warmup: fraction of training steps used for warm-up.
        metric: evaluation metric; by default the metric of each task.
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
        on_trial: called with every trial as soon as it has finished; see `adapter_probe.init_sweep`.
        progress: whether to show a progress bar.
        dry_run: whether to estimate the time only, without training: the result is a `SweepPlan`.

    Raises:
        CheckpointError, ModelError, DataError: the base, the data, a size, a k or a std cannot be used.
        TrainingError: a setting is out of range, or trials failed.
        ResultsError: the folder is in use, contains another study, or cannot be written.
        JobsDetached: the jobs were submitted, and `cluster` is set not to wait for them.
    """
    from adapter_probe.jobs.running import Resources

    resources = Resources(workers, threads, device, cluster)
    settings = SweepSettings(
        learning_rates, epochs, seeds, batch_size, warmup, metric, max_length, max_train, encoding,
        validation_share, dtype,
    )  # fmt: skip
    folders = None if data is None else as_tuple(data)
    methods = methods_of(
        base, sizes, top_k, init_std, layernorm=layernorm, full=full, head_only=head_only, baseline=baseline
    )
    trials = find_trials(base, as_tuple(task), folders, methods, settings)
    if dry_run:
        return plan_sweep(trials, Path(out), resources, progress)
    return run_tradeoff(trials, Path(out), resources, progress, on_trial)


def methods_of(
    base: str | Path,
    sizes: Sequence[int],
    top_k: Sequence[int] | None,
    init_std: float,
    *,
    layernorm: bool,
    full: bool,
    head_only: bool,
    baseline: bool = False,
) -> list[Method]:
    """The methods of a trade-off, in order of parameters within each kind; see `tradeoff`."""
    from adapter_probe.checkpoints.base_config import find_base
    from adapter_probe.models.methods import (
        Adapters,
        FullFineTuning,
        HeadOnly,
        LayerNormOnly,
        TfidfLinear,
        TopLayers,
        possible_top_k,
    )

    possible = possible_top_k(find_base(str(base)).layer_names)
    # The default is the paper's list for 12 layers; only a k that the user gave is refused.
    layers = [k for k in TOP_K if k in possible] if top_k is None else top_k
    return [
        *(Adapters(size, init_std) for size in sizes),
        *(TopLayers(k) for k in layers),
        *([LayerNormOnly()] if layernorm else []),
        *([HeadOnly()] if head_only else []),
        *([FullFineTuning()] if full else []),
        *([TfidfLinear()] if baseline else []),
    ]


def run_tradeoff(
    trials: Sequence[Trial],
    out: Path,
    resources: Resources,
    progress: bool = True,
    on_trial: OnTrial | None = None,
) -> Tradeoff:
    """Run the missing trials and write the tables; see `tradeoff`."""
    frame = run_trials(TRADEOFF, trials, out, resources, progress, on_trial)
    table, sizes, aggregate = tradeoff_table(frame), None, None
    names = (schema.TRIALS_CSV, schema.TRADEOFF_CSV, schema.SIZES_CSV, schema.AGGREGATE_CSV)
    with sealed(out, names):
        write_csv(out / schema.TRADEOFF_CSV, table)
        if (table["method"] == "adapters").any():
            sizes = size_table(frame)
            write_csv(out / schema.SIZES_CSV, sizes)
        if table.loc[table["method"] == "full", "mean"].notna().any():
            aggregate = aggregate_table(frame)
            write_csv(out / schema.AGGREGATE_CSV, aggregate)
    identity = study_identity(out / schema.TRADEOFF_CSV)
    return Tradeoff(TradeoffRecord(out, table, aggregate, sizes, frame, identity))
