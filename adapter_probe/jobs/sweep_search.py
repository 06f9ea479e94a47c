"""The trials of a sweep: which of them are trained, in what order, and their training.

With successive halving, learning rates that are out of reach stop after a third of their steps. What is
compared are the beginnings of the very trials that a full search trains, with their schedules, so that those
that go on are the same to the byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from adapter_probe.analysis.sweeps import chosen_trials, go_on, saved_share, steps_to_cut
from adapter_probe.progress import print_message
from adapter_probe.results.atomic import claim_folder, make_folder, read_json, write_csv, write_json
from adapter_probe.results.schema import CUT, HALVING_CSV, REACHED, TRIAL, plain_rows, read_columns
from adapter_probe.results.trial_files import (
    claim_study,
    read_trial,
    read_trials,
    trial_frame,
    write_trial,
    write_trials,
)
from adapter_probe.training.settings import SweepSettings

if TYPE_CHECKING:
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.trials import Trial

OnTrial = Callable[[dict[str, Any]], None]
"""Callback for finished trials; its argument is a dictionary with the columns of ``trials.csv``."""


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
        first = in_reach(study, first, out, resources, progress, on_trial)
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
        lost = set()
        if (out / HALVING_CSV).is_file():
            earlier = read_columns(out / HALVING_CSV, {"trial": "text", "stopped": "flag"})
            stopped = set(earlier.loc[earlier["stopped"], "trial"])
            lost = {_but_seed(trial) for trial in first if trial.id in stopped}
        first = [trial for trial in first if _but_seed(trial) not in lost]
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


def in_reach(
    study: str,
    trials: Sequence[Trial],
    out: Path,
    resources: Resources,
    progress: bool,
    on_trial: OnTrial | None = None,
) -> list[Trial]:
    """The trials at learning rates whose first seed is not out of reach after a third of its steps.

    Writes ``halving.csv``: a row per learning rate, with its score there and whether it was stopped. Rows of
    other trials in the folder stay.

    Raises:
        TrainingError: trials failed.
        JobsDetached: the jobs were submitted and are not waited for.
        ResultsError: the folder is in use or contains another study.
    """
    from adapter_probe.jobs.running import Jobs, run_jobs
    from adapter_probe.jobs.trials import shared_settings, write_requests

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
        folders = [one.folder(out) for one in first]
        left = {one: steps_to_cut(t.n_steps) for one, t in zip(folders, first) if not _has_reached(one)}
        for folder, step in left.items():
            write_json(make_folder(folder) / CUT, {"step": step})
        write_requests(out, first)
        jobs = Jobs(out, left, len(first), "trials", "steps")
        lost = lambda: [one for one in left if not _has_reached(one)]  # noqa: E731
        run_jobs(jobs, resources, progress, lost, _reporter(list(left), on_trial))
        rows = [row for own in compared for row in _cuts(own, trials, out)]
        if not rows:
            return list(trials)
        table, path = pd.DataFrame(rows), out / HALVING_CSV
        earlier = read_columns(path, {"trial": "text"}) if path.is_file() else table.iloc[:0]
        others = earlier[~earlier["trial"].isin(table["trial"])]
        write_csv(path, pd.concat([others, table], ignore_index=True) if len(others) else table)
    stopped = set(table.loc[table["stopped"], "trial"])
    hopeless = {(_but_rate(one), one.request.settings.learning_rate) for one in first if one.id in stopped}
    print_message(
        f"halving: {len(stopped)} of {len(table)} learning rates stopped after a third of their steps, which "
        f"saves {saved_share(table):.0%} of the steps of the search",
        progress,
    )
    return [one for one in trials if (_but_rate(one), one.request.settings.learning_rate) not in hopeless]


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


def run_trials(
    study: str,
    trials: Sequence[Trial],
    out: Path,
    resources: Resources,
    progress: bool,
    on_trial: OnTrial | None = None,
) -> pd.DataFrame:
    """Run the missing trials; write and return the table of all trials in the folder.

    Raises:
        JobsDetached: the jobs were submitted and are not waited for.
        TrainingError: trials failed.
        ResultsError: the folder is in use or contains another study.
    """
    from adapter_probe.jobs.running import Jobs, run_jobs
    from adapter_probe.jobs.trials import finished_trials, shared_settings, write_requests

    with claim_folder(out):
        claim_study(out, study, *shared_settings(trials))
        write_requests(out, trials)
        for trial in trials:  # go on beyond the step after which they were compared
            (trial.folder(out) / CUT).unlink(missing_ok=True)
        done = finished_trials(out, trials)
        for trial in trials:  # which may have another name now
            record, name = done.get(trial.id), trial.request.task.name
            if record is not None and record.task != name:
                write_trial(trial.folder(out), replace(record, task=name))
        left = {trial.folder(out): trial.n_steps for trial in trials if trial.id not in done}
        jobs = Jobs(out, left, len(trials), "trials", "steps")
        if left and progress:
            say_slow_bfloat16(trials, resources)
        try:
            lost = lambda: [t.folder(out) for t in trials if not finished_trials(out, [t])]  # noqa: E731
            run_jobs(jobs, resources, progress, lost, _reporter(list(left), on_trial))
        finally:
            frame = trial_frame(read_trials(out))
            write_trials(out, frame)
    return frame


def say_slow_bfloat16(trials: Sequence[Trial], resources: Resources) -> None:
    """Print a line where trials in bfloat16 on this machine would be faster in float32, as `train` does."""
    from adapter_probe import device

    if resources.cluster is not None or trials[0].request.settings.dtype != "bfloat16":
        return
    if slow := device.say_slow_bfloat16(device.choose_device(resources.device), "--dtype float32"):
        print_message(slow)


def _reporter(folders: Sequence[Path], on_trial: OnTrial | None) -> Callable[[], None]:
    """A function that looks for new trial records and reports each of them once."""
    waiting = dict.fromkeys(folders) if on_trial is not None else {}

    def on_poll() -> None:
        for folder in [folder for folder in waiting if (folder / TRIAL).is_file()]:
            del waiting[folder]
            if on_trial is not None and (record := read_trial(folder)) is not None:
                on_trial(plain_rows(trial_frame([record]))[0])

    return on_poll
