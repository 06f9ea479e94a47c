"""What the sweeps share: from requests to trials, run side by side, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.errors import TrainingError
from adapter_probe.models.device import choose_device, use_threads
from adapter_probe.studies.wording import columns, duration, method_text, score_text

from .console import show, show_json

if TYPE_CHECKING:
    import pandas as pd

    from adapter_probe.jobs.job import Failure
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.trials import Trial
    from adapter_probe.training.request import TrainingRequest


def run_sweep(
    study: str, requests: Sequence[TrainingRequest], out: Path, resources: Resources
) -> pd.DataFrame:
    """Train what is missing and return the table of all trials in the folder, which is also written.

    Raises:
        JobsDetached: jobs were sent and not waited for.
        TrainingError: trials failed; the line says how many, why the first did, and where its log is.
        ResultsError: the folder is in use or holds another study.
    """
    from adapter_probe.jobs.running import Jobs, describe_lost, run_jobs
    from adapter_probe.jobs.trials import finished, plan_trials, shared_facts, write_requests
    from adapter_probe.results.atomic import claim
    from adapter_probe.results.trials import claim_study, read_trials, trial_frame, write_trials

    trials = plan_trials(requests)
    failures: list[Failure] = []
    with claim(out):
        claim_study(out, study, *shared_facts(trials))
        write_requests(out, trials)
        done = finished(out, trials)
        left = {trial.folder(out): trial.n_steps for trial in trials if trial.id not in done}
        jobs = Jobs(out, left, len(trials), "trials", "steps")
        try:
            if left:
                failures = run_jobs(jobs, resources, True)
        finally:
            frame = trial_frame(read_trials(out))
            write_trials(out, frame)
    # What counts is what is on the disk: a worker may have been killed after its last word.
    if lost := [trial.folder(out) for trial in trials if trial.id not in finished(out, [trial])]:
        raise TrainingError(describe_lost(jobs, failures, lost))
    return frame


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows for JSON: an empty field is null."""
    import json

    return json.loads(table.to_json(orient="records", double_precision=15))


def spread_text(point: dict[str, Any]) -> str:
    """Mean, s.e.m. and number of a point's trials."""
    metric, n = point["metric"], point["n"]
    lost = f", {point['diverged']} diverged" if point["diverged"] else ""
    if not n:
        return f"no score{lost}"
    around = "" if point["sem"] is None else f" ± {score_text(point['sem'], metric)}"
    return f"{score_text(point['mean'], metric)}{around} (n = {n}{lost}), lr {point['learning_rate']:g}"


def show_plan(requests: Sequence[TrainingRequest], out: Path, resources: Resources, *, json: bool) -> None:
    """Print the trials, which are done, and a measured estimate of the time for the others."""
    from adapter_probe.jobs.trials import estimate_seconds, finished, plan_trials

    where = choose_device("auto" if resources.cluster else resources.device)
    if not resources.cluster:
        use_threads(resources.threads)
    trials = plan_trials(requests)
    done = finished(out, trials)
    left = [trial for trial in trials if trial.id not in done]
    seconds = estimate_seconds(left, where)
    count = resources.at_a_time(len(left))
    wall = sum(seconds.values()) / min(count, max(1, len(left)))
    plan = {
        "trials": [_line(trial, trial.id in done, seconds.get(trial.id)) for trial in trials],
        "done": len(done),
        "left": len(left),
        "workers": count,
        "seconds_left": wall,
        "folder": str(out),
    }
    show_json(plan) if json else show(_plan_text(plan))


def _line(trial: Trial, done: bool, seconds: float | None) -> dict[str, Any]:
    request = trial.request
    chosen = {name: getattr(request.settings, name) for name in ("learning_rate", "epochs", "seed")}
    return {"trial": trial.id, "task": request.task.name, "method": request.method.to_json(), **chosen,
            "done": done, "seconds": seconds}  # fmt: skip


def _plan_text(plan: dict[str, Any]) -> str:
    rows = []
    for line in plan["trials"]:
        method = method_text(line["method"])
        state = "done" if line["done"] else f"about {duration(line['seconds'])}"
        settings = f"lr {line['learning_rate']:g}, {line['epochs']} epochs, seed {line['seed']}"
        rows.append((line["trial"], f"{line['task']}: {method}; {settings}: {state}"))
    rows += [
        ("trials", f"{len(plan['trials'])}, {plan['done']} done, {plan['workers']} at a time"),
        ("time left, estimated", duration(plan["seconds_left"])),
        ("folder", plan["folder"]),
    ]
    return columns(rows)


def grid(
    base: str, tasks: Sequence[Any], methods: Sequence[Any], settings: Any, *,
    learning_rates: Sequence[float], epochs: Sequence[int], seeds: int, max_length: int | None,
    max_train: int | None,
) -> list[TrainingRequest]:  # fmt: skip
    """Every combination of task, method, learning rate, epochs and seed, a task's together.

    Raises:
        TrainingError: an empty list, or fewer than one seed.
    """
    from adapter_probe.training.request import TrainingRequest

    if seeds < 1:
        raise TrainingError(f"--seeds {seeds} is not allowed; give at least 1")
    lists = {"--task": tasks, "methods": methods, "--learning-rates": learning_rates, "--epochs": epochs}
    if empty := [name for name, values in lists.items() if not values]:
        raise TrainingError(f"{empty[0]}: the list is empty, so there is nothing to train")
    return [
        TrainingRequest(
            base,
            task,
            method,
            replace(settings, learning_rate=rate, epochs=n, seed=seed),
            max_length,
            max_train=max_train,
        )
        for task in tasks
        for method in methods
        for rate in learning_rates
        for n in epochs
        for seed in range(seeds)
    ]
