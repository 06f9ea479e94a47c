"""Shared parts of the sweeps: the grid of settings as trials, and the table of all trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapter_probe.analysis.summary_text import aligned_columns, score_text
from adapter_probe.errors import DataError, TrainingError
from adapter_probe.results.schema import plain_rows

from .study_base import StoredStudy
from .training_arguments import SweepSettings, TaskOptions

if TYPE_CHECKING:
    import pandas as pd

    from adapter_probe.analysis.study_records import SweepRecord, TradeoffRecord
    from adapter_probe.data.tasks import TaskSpec
    from adapter_probe.jobs.trials import Trial
    from adapter_probe.models.methods import Method
    from adapter_probe.training.request import TrainingRequest


MOST_TRIALS = 100_000
"""The most trials of a sweep; planning so many takes minutes."""


def requests_of(
    sweep: SweepSettings,
    base: str | Path,
    tasks: Sequence[TaskSpec],
    methods: Sequence[Method],
    options: TaskOptions,
) -> list[TrainingRequest]:
    """Every combination of task, method, learning rate, epochs and seed, ordered by task.

    Raises:
        TrainingError: there is no task or nothing to try, or a setting is out of range.
    """
    from adapter_probe.training.request import TrainingRequest
    from adapter_probe.training.settings import StepSettings, TrainingSettings

    lists = {"--task": tasks, "--learning-rates": sweep.learning_rates, "--epochs": sweep.epochs}
    if empty := [name for name, values in lists.items() if not values]:
        raise TrainingError(f"{empty[0]} is empty, so there is nothing to train; give at least one")
    number = math.prod((len(tasks), len(methods), len(sweep.learning_rates), len(sweep.epochs), sweep.seeds))
    if number > MOST_TRIALS:
        raise TrainingError(
            f"the sweep has {number:,} trials, more than {MOST_TRIALS:,}; give fewer --seeds "
            f"({sweep.seeds:,} now), --learning-rates or --epochs"
        )
    steps = StepSettings.of(sweep)
    chosen = [
        TrainingSettings.of(steps, epochs=n, learning_rate=rate, seed=seed)
        for rate in sweep.learning_rates
        for n in sweep.epochs
        for seed in range(sweep.seeds)
    ]
    return [
        TrainingRequest(str(base), task, method, one, options.max_length, max_train=options.max_train)
        for task in tasks
        for method in methods
        for one in chosen
    ]


class Sweep(StoredStudy):
    """Base class of the studies that train: a table of points, and the trials behind it."""

    record: SweepRecord | TradeoffRecord
    _title: ClassVar[str]

    @property
    def trials(self) -> pd.DataFrame | None:
        """One row per training run, ``trials.csv``: settings, `score`, `diverged`, numbers of parameters."""
        return self.record.trials

    def facts(self) -> dict[str, Any]:
        """See `StoredStudy.facts`."""
        return {"points": plain_rows(self.record.table)}

    def __repr__(self) -> str:
        tasks = ", ".join(map(str, self.record.table["task"].unique()))
        return f"{self._title} on {tasks}\n{aligned_columns(self.rows())}"


def find_trials(
    base: str | Path,
    tasks: Sequence[str | Path],
    data: Sequence[str | Path] | None,
    methods: Sequence[Method],
    sweep: SweepSettings,
    options: TaskOptions,
) -> list[Trial]:
    """The trials of a sweep; see `find_one_task`, `requests_of` and `plan_trials` for other errors.

    `tasks` are names of known tasks or folders, and `data` the folders of their data, one per task.

    Raises:
        TrainingError: there is no method.
        DataError: the number of data folders differs from that of tasks.
    """
    from adapter_probe.jobs.trials import plan_trials

    if not methods:
        raise TrainingError(
            "no method is chosen, so there is nothing to train; give at least one of --sizes, --top-k, "
            "--lora-ranks, --method, --layernorm, --head-only and --full"
        )
    if data and len(data) != len(tasks):
        raise DataError(f"{len(data)} --data for {len(tasks)} --task; give one per --task, in the same order")
    folders = [Path(folder) for folder in data] if data else [None] * len(tasks)
    specs = [find_one_task(str(name), folder, options) for name, folder in zip(tasks, folders)]
    return plan_trials(requests_of(sweep, base, specs, methods, options))


def find_one_task(task: str, data: Path | None, options: TaskOptions, name: str | None = None) -> TaskSpec:
    """Find one task; `name` is its name in tables and figures, by default the task's own."""
    from adapter_probe.data.forms import columns_named
    from adapter_probe.data.tasks import find_task, locate_task

    preset, folder = locate_task(task, data)
    return find_task(
        folder, preset=preset, metric=options.metric, name=name, encoding=options.encoding,
        validation_share=options.validation_share, reads=columns_named(options.columns),
    )  # fmt: skip


def spread_text(point: Mapping[str, Any]) -> str:
    """Mean, standard error and number of trials of a point, as text."""
    metric, n = point["metric"], point["n"]
    lost = f", {point['diverged']} diverged" if point["diverged"] else ""
    if not n:
        return f"no score{lost}"
    around = "" if point["sem"] is None else f" ± {score_text(point['sem'], metric)}"
    rate = "" if point["learning_rate"] is None else f", lr {point['learning_rate']:g}"
    return f"{score_text(point['mean'], metric)}{around} (n = {n}{lost}){rate}"


def majority_rows(points: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """One row per task with classes: the score of the most frequent, and how many points do not exceed it."""
    rows = []
    for task in dict.fromkeys(point["task"] for point in points):
        own = [point for point in points if point["task"] == task]
        majority, metric = own[0]["majority_score"], own[0]["metric"]
        if majority is None:  # there are no classes
            continue
        text = score_text(majority, metric)
        poor = [p for p in own if p["mean"] is None or p["mean"] <= majority]
        several = len({point["task"] for point in points}) > 1
        rows.append(
            (
                f"{task}: majority class" if several else "majority class",
                f"{text}; {len(poor)} of {len(own)} points are no better" if poor else text,
            )
        )
    return rows
