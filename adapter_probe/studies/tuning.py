"""The trials of a sweep whose settings are chosen on some of the seeds and kept for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.sweeps import TRADEOFF_POINT, chosen_trials
from adapter_probe.results.trial_files import read_trials, trial_frame

from .halving import in_reach
from .suite_file import SweepPart
from .sweeps import run_trials

if TYPE_CHECKING:
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.trials import Trial
    from adapter_probe.training.request import TrainingRequest


def tuned_trials(
    study: str,
    part: SweepPart,
    requests: Sequence[TrainingRequest],
    out: Path,
    resources: Resources,
    progress: bool,
) -> list[Trial]:
    """The trials of a sweep; those to tune on run first, if the other seeds depend on them."""
    from adapter_probe.jobs.trials import plan_trials

    trials, tuning = plan_trials(requests), part.tuning_seeds or part.seeds
    if part.halving:
        trials = in_reach(study, trials, out, resources, progress)
    first = _first(trials, tuning)
    if len(first) == len(trials):
        return trials
    return _trials_to_run(trials, tuning, run_trials(study, first, out, resources, progress))


def _first(trials: Sequence[Trial], tuning: int) -> list[Trial]:
    """The trials with the seeds to tune on."""
    return [trial for trial in trials if trial.request.settings.seed < tuning]


def _trials_to_run(trials: Sequence[Trial], tuning: int, table: pd.DataFrame) -> list[Trial]:
    """All settings with the first `tuning` seeds, and the best of these in the table with the other seeds."""
    first = {trial.id: trial for trial in _first(trials, tuning)}
    chosen = chosen_trials(table[table["trial"].isin(first)], [*TRADEOFF_POINT, "init_std"])
    best = {_but_seed(first[name]) for name in chosen["trial"]}
    return [trial for trial in trials if trial.id in first or _but_seed(trial) in best]


def _but_seed(trial: Trial) -> tuple[object, ...]:
    request = trial.request
    return request.task.name, request.method, replace(request.settings, seed=0)


def foreseen_trials(trials: Sequence[Trial], part: SweepPart, out: Path) -> list[Trial]:
    """As many trials as will be trained, and the very ones once it is known which."""
    tuning = part.tuning_seeds or part.seeds
    table = trial_frame(read_trials(out))
    if {trial.id for trial in _first(trials, tuning)} <= set(table["trial"]):
        return _trials_to_run(trials, tuning, table)
    kept, seen = [], set()
    for trial in trials:
        request = trial.request
        point = (request.task.name, request.method, request.settings.seed)
        if request.settings.seed < tuning or point not in seen:
            kept.append(trial)
        seen.add(point)
    return kept
