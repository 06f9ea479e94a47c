"""The trade-off of scores and trained parameters: the function `tradeoff` and its result, `Tradeoff`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.study_records import TradeoffRecord, write_record
from adapter_probe.analysis.sweeps import aggregate_table, size_table, tradeoff_table
from adapter_probe.argument_checks import as_tuple, checked, planned_by, taking
from adapter_probe.jobs.resources import Resources
from adapter_probe.results import schema
from adapter_probe.results.trial_files import cost_frame, read_trials, study_identity
from adapter_probe.settings import Axis, Style
from adapter_probe.wording import percent_text

from .cost_plan import SweepPlan, plan_sweep
from .study_base import overlay_of
from .sweep_trials import Sweep, find_trials, majority_rows, spread_text
from .training_arguments import TOP_K, RunTradeoff, TradeoffSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adapter_probe.jobs.trials import Trial
    from adapter_probe.models.methods import Method

TRADEOFF = "tradeoff"
"""Kind of study, as recorded in its folder."""


@dataclass(frozen=True, eq=False, repr=False)
class Tradeoff(Sweep):
    """A finished trade-off; what `adapter_probe.tradeoff` and `adapter_probe.load` return."""

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

    @property
    def costs(self) -> pd.DataFrame | None:
        """One row per trial, ``costs.csv``; None where no trial recorded its costs.

        `seconds_per_step`: mean time of an optimiser step, without evaluation; `peak_memory_bytes`: tensors
        on an accelerator, else the memory of the whole process; `checkpoint_bytes`: size of the file with the
        trained tensors.
        """
        return self.record.costs

    @checked
    def pareto(self, x: Axis = "parameters") -> pd.DataFrame:
        """Every method's mean score over tasks against a cost, and whether it is on the Pareto frontier.

        Args:
            x: the cost: trained parameters, bytes of memory, seconds per step, or bytes of the checkpoint.

        Returns:
            one row per method that all tasks have, by cost: `method`, `size`, `k`, `label`; `cost` and
            `mean`, means over tasks of the means over seeds; `ci_low`, `ci_high`, the 95% interval of `mean`
            over other seeds on these tasks, NaN where a task has one seed; `on_frontier`, no method is at
            least as good at no more cost; `n_tasks` and `n_trials`.

        Raises:
            ResultsError: the trials did not record this cost, or no method has a score on every task.
        """
        from adapter_probe.analysis.costs import pareto_table

        return pareto_table(self.record, x)

    @checked
    def plot(
        self,
        ax: Axes | None = None,
        *,
        task: str | None = None,
        x: Axis = "parameters",
        paper: bool = False,
        overlay: str | Path | Sequence[str | Path] = (),
        style: Style | None = None,
    ) -> Axes:
        """Draw the score against the number of trained parameters, or another cost.

        Args:
            ax: see `adapter_probe.Ablation.heatmap`.
            style: see `adapter_probe.Ablation.heatmap`.
            task: task to draw; required only when the study has several.
            x: what the score is drawn against: the number of trained parameters, the peak of memory in
                training, the seconds per step, or the bytes of a checkpoint.
            paper: overlay the values that Houlsby et al. (2019) published.
            overlay: files with results of other people, drawn as hollow marks: CSV with the columns `method`,
                `size`, `parameters`, `score` (a fraction), `task` and `seed`, JSON of PEFT's method
                comparison, or folders of such JSON.

        Raises:
            ResultsError: there is no such task, or there are several and none is given; or the trials did not
                record this cost; or a file of the overlay cannot be used.
        """
        from adapter_probe.figures.tradeoff import tradeoff

        given = overlay_of(overlay)
        return self._on(tradeoff, ax, style, task=task, x=x, paper=paper, overlay=given)

    def rows(self) -> list[tuple[str, str]]:
        """The table as (point, score) pairs of text."""
        points, rows = schema.plain_rows(self.table), []
        for point in points:
            count, share = point["trained_parameters_without_head"], point["percent_of_base"]
            of_base = "" if share is None else f" ({percent_text(share)} of the base)"
            trained = f"{count:,} parameters{of_base}"
            if not count:
                part = "pooler and head" if point["method"] == "top_layers" else "the head"
                trained = f"{point['trained_parameters']:,} parameters, all in {part}"
            rows.append((f"{point['task']}: {point['label']}", f"{spread_text(point)}, {trained}"))
        return [*rows, *majority_rows(points)]

    def _draw(self, ax: Axes) -> Axes:
        return self.plot(ax, task=str(self.table["task"].iloc[0]))


def _trials(call: RunTradeoff) -> list[Trial]:
    """The trials of a trade-off."""
    folders = None if call.data is None else as_tuple(call.data)
    return find_trials(call.base, as_tuple(call.task), folders, methods_of(call.base, call), call, call)


@taking(RunTradeoff)
def plan(call: RunTradeoff) -> SweepPlan:
    """Estimate the time of `tradeoff` without training.

    Raises:
        AdapterProbeError: see `tradeoff`.
    """
    return plan_sweep(_trials(call), Path(call.out), Resources.of(call))


@planned_by(plan)
@taking(RunTradeoff)
def tradeoff(call: RunTradeoff) -> Tradeoff:
    """Compare scores with numbers of trained parameters (Houlsby et al. 2019, Figures 1, 3, 4 and 5).

    Every trial is kept in `out`: the same call resumes an interrupted study, and a wider grid only adds the
    missing trials. ``ap.tradeoff.plan(...)`` with the same arguments estimates the time.

    Raises:
        CheckpointError, ModelError, DataError: the base, the data, a size, a k or a std cannot be used.
        TrainingError: a setting is out of range, or trials failed.
        ResultsError: the folder is in use, contains another study, or cannot be written.
        JobsDetached: the jobs were submitted, and `cluster` is set not to wait for them.
    """
    from adapter_probe.jobs.trials import run_trials

    out = Path(call.out)
    return write_tradeoff(out, run_trials(TRADEOFF, _trials(call), out, Resources.of(call)))


def methods_of(base: str | Path, chosen: TradeoffSettings) -> list[Method]:
    """The methods of a trade-off, in order of parameters within each kind."""
    from adapter_probe.checkpoints.base_config import layers_of
    from adapter_probe.models.methods import (
        Adapters,
        FullFineTuning,
        HeadOnly,
        LayerNormOnly,
        TopLayers,
        possible_top_k,
    )
    from adapter_probe.training.peft_methods import method_of

    possible = possible_top_k(layers_of(str(base)))
    # The default is the paper's list for 12 layers; only a k that the user gave is refused.
    layers = [k for k in TOP_K if k in possible] if chosen.top_k is None else chosen.top_k
    return [
        *(Adapters(size, chosen.init_std) for size in chosen.sizes),
        *(TopLayers(k) for k in layers),
        *(method_of(f"lora:r={rank}", "--lora-ranks") for rank in chosen.lora_ranks),
        *map(method_of, chosen.method),
        *([LayerNormOnly()] if chosen.layernorm else []),
        *([HeadOnly()] if chosen.head_only else []),
        *([FullFineTuning()] if chosen.full else []),
    ]


def write_tradeoff(out: Path, trials: pd.DataFrame) -> Tradeoff:
    """Write the tables of a trade-off."""
    table = tradeoff_table(trials)
    sizes = size_table(trials) if (table["method"] == "adapters").any() else None
    full = table.loc[table["method"] == "full", "mean"].notna().any()
    aggregate = aggregate_table(trials) if full else None
    record = TradeoffRecord(out, table, aggregate, sizes, trials, {}, cost_frame(read_trials(out)))
    write_record(record)
    return Tradeoff(replace(record, identity=study_identity(out / record.known_by)))
