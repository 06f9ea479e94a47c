"""The search for the best settings of a sweep: which of its trials are trained, and in what order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.sweeps import chosen_trials
from adapter_probe.results.trial_files import read_trials, trial_frame

from .halving import in_reach, stopped_trials
from .sweeps import run_trials
from .training_arguments import OnTrial, SweepSettings

if TYPE_CHECKING:
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.trials import Trial


def run_search(
    study: str,
    sweep: SweepSettings,
    trials: Sequence[Trial],
    out: Path,
    resources: Resources,
    progress: bool,
    on_trial: OnTrial | None = None,
) -> pd.DataFrame:
    """Train the trials that the search of a sweep needs; return the table of all trials, see `run_trials`.

    With `halving`, learning rates that are out of reach stop after a third of their steps. With
    `tuning_seeds`, the other seeds are trained at the best settings of these.
    """
    first, others = _split(trials, sweep)
    if sweep.halving:
        first = in_reach(study, first, out, resources, progress)
    table = run_trials(study, first, out, resources, progress, on_trial)
    if not others:
        return table
    return run_trials(study, _chosen(trials, first, table), out, resources, progress, on_trial)


def foreseen_trials(sweep: SweepSettings, trials: Sequence[Trial], out: Path) -> list[Trial]:
    """The trials to be trained, without those that halving has stopped.

    While the best settings are unknown, the seeds beyond `tuning_seeds` are counted at the first ones.
    """
    first, others = _split(trials, sweep)
    if sweep.halving:
        lost = stopped_trials(out)
        first = [trial for trial in first if trial.id not in lost]
    if not others:
        return first
    table = trial_frame(read_trials(out))
    if {trial.id for trial in first} <= set(table["trial"]):
        return _chosen(trials, first, table)
    own = {trial.id for trial in first}
    own.update({(*_point(one), one.request.settings.seed): one.id for one in reversed(others)}.values())
    return [trial for trial in trials if trial.id in own]


def _split(trials: Sequence[Trial], sweep: SweepSettings) -> tuple[list[Trial], list[Trial]]:
    """The trials with the seeds that the settings are searched with, and those with the other seeds."""
    parts: tuple[list[Trial], list[Trial]] = ([], [])
    for trial in trials:
        parts[trial.request.settings.seed >= (sweep.tuning_seeds or sweep.seeds)].append(trial)
    return parts


def _chosen(trials: Sequence[Trial], first: Sequence[Trial], table: pd.DataFrame) -> list[Trial]:
    """The searched trials, and the others with the best settings of these in the table."""
    own = {trial.id: trial for trial in first}
    points = {point: number for number, point in enumerate(dict.fromkeys(map(_point, first)))}
    numbers = table["trial"].map({name: points[_point(trial)] for name, trial in own.items()})
    found = table.assign(point=numbers)[numbers.notna()]
    best = {_but_seed(own[name]) for name in chosen_trials(found, ["metric", "point"])["trial"]}
    return [trial for trial in trials if trial.id in own or _but_seed(trial) in best]


def _point(trial: Trial) -> tuple[object, ...]:
    return trial.request.task.name, trial.request.method


def _but_seed(trial: Trial) -> tuple[object, ...]:
    return *_point(trial), replace(trial.request.settings, seed=0)
