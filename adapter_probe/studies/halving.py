"""Successive halving of a sweep's learning rates: what is out of reach stops after a third of its steps.

What is compared are the beginnings of the very trials that a full search trains, with their schedules, so
that those that go on are the same to the byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.halving import go_on, saved_share, steps_to_cut
from adapter_probe.errors import TrainingError
from adapter_probe.progress import print_message
from adapter_probe.results.atomic import claim_folder, make_folder, read_json, write_csv, write_json
from adapter_probe.results.schema import CUT, HALVING_CSV, REACHED, TRIAL, read_columns
from adapter_probe.results.trial_files import claim_study

if TYPE_CHECKING:
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.trials import Trial


def in_reach(
    study: str, trials: Sequence[Trial], out: Path, resources: Resources, progress: bool
) -> list[Trial]:
    """The trials at learning rates whose first seed is not out of reach after a third of its steps.

    Writes ``halving.csv``: a row per learning rate, with its score there and whether it was stopped.

    Args:
        study: kind of study.
        trials: the trials of the full search.
        out: the study's folder.
        resources: what they may use.
        progress: whether to show progress.

    Raises:
        TrainingError: trials failed.
        JobsDetached: the jobs were submitted and are not waited for.
        ResultsError: the folder is in use or contains another study.
    """
    from adapter_probe.jobs.trials import shared_settings

    groups: dict[tuple[object, ...], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.request.settings.seed == 0:
            groups[_but_rate(trial)].append(trial)
    compared = [own for own in groups.values() if len(own) > 1]
    if not compared:
        return list(trials)
    first = [trial for own in compared for trial in own]
    with claim_folder(out):
        claim_study(out, study, *shared_settings(trials))
        _reach(first, out, resources, progress)
        rows = [row for own in compared for row in _cuts(own, trials, out)]
        if not rows:
            return list(trials)
        table = pd.DataFrame(rows)
        write_csv(out / HALVING_CSV, table)
    stopped = set(table.loc[table["stopped"], "trial"])
    lost = {(_but_rate(one), one.request.settings.learning_rate) for one in first if one.id in stopped}
    print_message(
        f"halving: {len(stopped)} of {len(table)} learning rates stopped after a third of their steps, which "
        f"saves {saved_share(table):.0%} of the steps of the search",
        progress,
    )
    return [one for one in trials if (_but_rate(one), one.request.settings.learning_rate) not in lost]


def stopped_trials(out: Path) -> set[str]:
    """The ids of the trials that an earlier run has stopped.

    Raises:
        ResultsError: ``halving.csv`` is damaged.
    """
    if not (out / HALVING_CSV).is_file():
        return set()
    table = read_columns(out / HALVING_CSV, {"trial": "text", "stopped": "flag"})
    return set(table.loc[table["stopped"], "trial"])


def release_cuts(folders: Iterable[Path]) -> None:
    """Let trials go on beyond the step after which they were compared."""
    for folder in folders:
        (folder / CUT).unlink(missing_ok=True)


def _reach(trials: Sequence[Trial], out: Path, resources: Resources, progress: bool) -> None:
    """Run the trials to the cut, unless they have been there."""
    from adapter_probe.jobs.running import Jobs, describe_lost, run_jobs
    from adapter_probe.jobs.trials import write_requests

    left = {one.folder(out): steps_to_cut(one.n_steps) for one in trials if not _has_reached(one.folder(out))}
    for folder, step in left.items():
        write_json(make_folder(folder) / CUT, {"step": step})
    write_requests(out, trials)
    jobs = Jobs(out, left, len(trials), "trials", "steps")
    failures = run_jobs(jobs, resources, progress) if left else []
    if lost := [folder for folder in left if not _has_reached(folder)]:
        raise TrainingError(describe_lost(jobs, failures, lost))


def _has_reached(folder: Path) -> bool:
    return (folder / REACHED).exists() or (folder / TRIAL).exists()


def _cuts(own: Sequence[Trial], trials: Sequence[Trial], out: Path) -> list[dict[str, object]]:
    """One row per learning rate of a method on a task."""
    reached = [one.folder(out) / REACHED for one in own]
    if not all(path.exists() for path in reached):  # trained by an earlier command, so nothing is saved
        return []
    found = [read_json(path) for path in reached]
    task = own[0].request.task
    kept = go_on([one["score"] for one in found], task.metric, int(found[0]["n_examples"]))
    seeds = len({one.request.settings.seed for one in trials if _but_rate(one) == _but_rate(own[0])})
    return [
        {
            "trial": trial.id, "task": task.name, "metric": task.metric,
            "method": getattr(trial.request.method, "text", trial.request.method.name),
            "size": getattr(trial.request.method, "size", None),
            "k": getattr(trial.request.method, "k", None),
            "learning_rate": trial.request.settings.learning_rate, "epochs": trial.request.settings.epochs,
            "step": one["step"], "n_steps": trial.n_steps, "seeds": seeds, "score": one["score"],
            "stopped": not goes_on,
        }
        for trial, one, goes_on in zip(own, found, kept)
    ]  # fmt: skip


def _but_rate(trial: Trial) -> tuple[object, ...]:
    """Everything that trials at other learning rates and seeds share."""
    request = trial.request
    return request.task.name, request.method, replace(request.settings, seed=0, learning_rate=1.0)
