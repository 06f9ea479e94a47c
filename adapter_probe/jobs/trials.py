"""The trials of a study: trainings in one folder, each identified by its settings, so that none is repeated.

``trials/<id>/request.json`` describes a trial; `adapter_probe.jobs.trial_run` runs it. Checkpoints are jobs
too, whose folders get the checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import safe_open

from adapter_probe.checkpoints.base import has_untrained_pooler
from adapter_probe.checkpoints.base_config import find_any_base
from adapter_probe.checkpoints.files import DESCRIPTION
from adapter_probe.checkpoints.identity import BaseIdentity
from adapter_probe.device import available_memory, choose_device, say_slow_bfloat16
from adapter_probe.errors import CheckpointError, DataError, TrainingError
from adapter_probe.hub_names import name_of_base
from adapter_probe.models.methods import PeftMethod, check_depth
from adapter_probe.progress import print_message, stage
from adapter_probe.results.atomic import claim_folder, make_folder, write_json
from adapter_probe.results.fingerprints import hash_json
from adapter_probe.results.trial_files import (
    TRIAL,
    TRIAL_COLUMNS,
    TRIALS_FOLDER,
    TrialRecord,
    claim_study,
    read_trial,
    read_trials,
    trial_frame,
    write_trial,
    write_trials,
)
from adapter_probe.training.checkpoint import refuse_other
from adapter_probe.training.loop import seconds_of
from adapter_probe.training.own_methods import refuse_method
from adapter_probe.training.request import (
    TrainingInputs,
    TrainingRequest,
    identity_of,
    load_inputs,
    warn_of_untrained_pooler,
)

from .running import Jobs, Resources, run_jobs

REQUEST, CHECKPOINT_REQUEST = "request.json", "checkpoint-request.json"
_FLOAT32 = 4  # bytes
_IMPORTED_BY_WORKERS = "adapter_probe.jobs.trial_run"


@dataclass(frozen=True)
class Trial:
    """One training of a study.

    Attributes:
        id: start of the hash of its identity.
        n_steps: number of optimiser steps.
        identity: everything that determines what it trains.
        n_examples: number of examples of its splits, ``train`` and ``validation``.
    """

    id: str
    request: TrainingRequest
    n_steps: int
    identity: dict[str, Any]
    n_examples: Mapping[str, int]

    def folder(self, out: Path) -> Path:
        """The trial's folder in a study's folder."""
        return out / TRIALS_FOLDER / self.id


def plan_trials(requests: Iterable[TrainingRequest]) -> list[Trial]:
    """The trials of some requests, each once; see `identify_trials`."""
    trials: dict[str, Trial] = {}
    for trial in identify_trials(requests):
        one, other = (each.request.task.name for each in (trials.setdefault(trial.id, trial), trial))
        if one != other:
            raise DataError(f"tasks {one} and {other} have the same examples and settings; omit one of them")
    return list(trials.values())


def identify_trials(requests: Iterable[TrainingRequest]) -> Iterator[Trial]:
    """Give every request its id; a base and a task are read once for all their trials.

    Yields:
        Trials whose bases are absolute folders, or hub ids with their commit, so that a worker anywhere
        opens the same one.

    Raises:
        CheckpointError, ModelError, DataError: a base or a task cannot be used, or a method does not fit.

    Warns:
        AdapterProbeWarning: a base's pooler was never trained, and a method keeps it frozen.
    """
    known: dict[str, tuple[dict[str, Any], int, dict[str, int], BaseIdentity, bool]] = {}
    fit: set[tuple[object, ...]] = set()
    last: tuple[str, TrainingInputs] | None = None
    for request in requests:
        if (key := hash_json(_shared(request))) not in known:
            refuse_too_large(request)
            inputs = load_inputs(request)
            last = key, inputs
            untrained = has_untrained_pooler(inputs.base.model, inputs.base.missing)
            n_train = len(inputs.objective.train.lengths)
            n_examples = {name: len(split.labels) for name, split in inputs.splits.items()}
            known[key] = (inputs.fingerprints, n_train, n_examples, inputs.base.identity, untrained)
        fingerprints, n_train, n_examples, base, untrained = known[key]
        check_depth(request.method, base.n_layers)
        task = request.task
        refuse_method(request.method, task.kind, str(base.config.get("model_type")))
        case = base.weights_sha256, task.kind, request.method
        if isinstance(request.method, PeftMethod) and case not in fit and last and last[0] == key:
            from adapter_probe.training.peft_tuners import refuse_unfit  # whose import takes seconds

            refuse_unfit(last[1].base, request.method, task)
            fit.add(case)
        if untrained:
            warn_of_untrained_pooler(request, base.n_layers, in_study=True)
        identity = identity_of(request, fingerprints)
        settled = replace(request, base=base.name, revision=base.revision)
        yield Trial(trial_id(identity), settled, request.settings.n_steps(n_train), identity, n_examples)


def refuse_too_large(request: TrainingRequest) -> None:
    """Refuse a base whose weights alone do not fit into memory, before they are read."""
    found = find_any_base(request.base, request.revision)
    folder = Path(found.name)
    files = (
        sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    )  # those of the Hub are loaded later
    needed, free = 0, available_memory(torch.device("cpu"))
    for file in files:
        with contextlib.suppress(Exception):  # a damaged file, which is told of when it is read
            needed += _FLOAT32 * numbers_in(file)
    if free and needed > free:
        raise CheckpointError(
            f"base {request.base} takes {needed / 1e9:.1f} GB in float32, and {free / 1e9:.1f} GB of memory "
            "are free; run the command on a larger machine, or take a smaller base"
        )


def numbers_in(file: Path) -> int:
    """The number of parameters in a safetensors file, by its header."""
    with safe_open(file, "pt") as opened:
        return sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118


def trial_id(identity: dict[str, Any]) -> str:
    """The id of the trial with this identity, the name of its folder."""
    return hash_json(identity)[:16]


def shared_settings(trials: Sequence[Trial]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings shared by all trials of a study, and the identity of each task, as plain JSON.

    Args:
        trials: trials of one command, which have the same base, warm-up, dtype and the like.

    Raises:
        TrainingError: two tasks have the same name.
    """
    tasks: dict[str, Any] = {}
    for trial in trials:
        task = trial.request.task
        own = {
            "metric": task.metric,
            "data": dict(task.fingerprints),
            "max_length": trial.request.max_length,
            "max_train": trial.request.max_train,
        }
        if tasks.setdefault(task.name, own) != own:
            raise TrainingError(
                f"two different tasks are named {task.name!r}; rename the folder of one of them"
            )
    settings = trials[0].request.settings
    shared = {part: trials[0].identity[part] for part in ("base", "tokenizer")}
    # The table of trials has no columns for these, so trials that differ in them would be indistinguishable.
    shared |= {name: value for name, value in settings.to_json().items() if name not in TRIAL_COLUMNS}
    return shared, tasks


def told_of(trials: Sequence[Trial]) -> dict[str, Any]:
    """What captions say of a study besides its tables: the base's name, and numbers of examples by task."""
    base = name_of_base(trials[0].request.base)
    return {"base": base, "examples": {one.request.task.name: dict(one.n_examples) for one in trials}}


def estimate_seconds(trials: Iterable[Trial], device: torch.device) -> dict[str, float]:
    """Estimated seconds of each trial, by id, from measured loading of inputs and a few steps.

    Trials that differ only in initialisation, learning rate or seed cost the same, and are measured once.
    """
    trials = list(trials)
    tasks = [hash_json(_shared(trial.request)) for trial in trials]
    costs = [
        hash_json([task, {**one.method.to_json(), "init_std": None}, one.settings.batch_size])
        for task, one in zip(tasks, (trial.request for trial in trials))
    ]
    known: dict[str, tuple[float, float]] = {}  # seconds of loading, and of an epoch
    last: tuple[str, TrainingInputs, float] | None = None
    estimates = {}
    for trial, task, cost in zip(trials, tasks, costs):
        request = trial.request
        if cost not in known:
            with stage(f"measuring a few training steps, {len(known) + 1} of {len({*costs})} settings"):
                if last is None or last[0] != task:
                    start = time.monotonic()
                    last = (task, load_inputs(request), time.monotonic() - start)
                known[cost] = (last[2], seconds_of(request, last[1], device) / request.settings.epochs)
        loading, epoch = known[cost]
        estimates[trial.id] = loading + epoch * request.settings.epochs
    return estimates


def seconds_of_start() -> float:
    """Start-up time of a worker in seconds, measured by starting a process with the same imports."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import {_IMPORTED_BY_WORKERS}, transformers"], check=False)
    return time.monotonic() - start


def _shared(request: TrainingRequest) -> dict[str, Any]:
    """The part of a request that determines base and data."""
    return {**request.to_json(), "method": None, "settings": None}


def write_requests(out: Path, trials: Iterable[Trial]) -> None:
    """Write the request of each trial, so that a worker needs only the folder.

    The identity of a trial does not include paths of base and data: an unfinished trial of an earlier command
    gets the paths of the current one, because the old ones may no longer exist.
    """
    for trial in trials:
        folder = make_folder(trial.folder(out))
        if not (folder / TRIAL).exists() or not (folder / REQUEST).exists():
            write_json(folder / REQUEST, trial.request.to_json())


def finished_trials(out: Path, trials: Iterable[Trial]) -> dict[str, TrialRecord]:
    """The records of the finished trials, by id."""
    found = {trial.id: read_trial(trial.folder(out)) for trial in trials}
    return {identity: record for identity, record in found.items() if record is not None}


def run_trials(study: str, trials: Sequence[Trial], out: Path, resources: Resources) -> pd.DataFrame:
    """Run the missing trials; write and return the table of all trials in the folder.

    Raises:
        JobsDetached: the jobs were submitted and are not waited for.
        TrainingError: trials failed.
        ResultsError: the folder is in use or contains another study.
    """
    with claim_folder(out):
        claim_study(out, study, *shared_settings(trials), told_of(trials))
        write_requests(out, trials)
        done = finished_trials(out, trials)
        for trial in trials:  # which may have another name now
            record, name = done.get(trial.id), trial.request.task.name
            if record is not None and record.task != name:
                write_trial(trial.folder(out), replace(record, task=name))
        steps = {trial.folder(out): trial.n_steps for trial in trials}
        jobs = Jobs(out, steps, TRIAL, "trials", "steps")
        if jobs.left() and resources.progress:
            say_if_slow(trials, resources)
        try:
            run_jobs(jobs, resources)
        finally:
            frame = trial_frame(read_trials(out))
            write_trials(out, frame)
    return frame


def say_if_slow(trials: Sequence[Trial], resources: Resources) -> None:
    """Print a line where trials in bfloat16 on this machine would be faster in float32, as `train` does."""
    if resources.cluster is not None or trials[0].request.settings.dtype != "bfloat16":
        return
    if slow := say_slow_bfloat16(choose_device(resources.device), "--dtype float32"):
        print_message(slow)


def train_checkpoints(out: Path, requests: Mapping[Path, TrainingRequest], resources: Resources) -> None:
    """Train what is missing of some checkpoints; those that are there have to be what is asked for.

    Args:
        out: folder of all checkpoints, which also holds the logs.

    Raises:
        JobsDetached: jobs were sent and not waited for.
        TrainingError: some failed.
        ResultsError: the folder is in use or cannot be written, or one of them holds another checkpoint.
    """
    with claim_folder(out):
        steps = {}
        for folder, trial in zip(requests, identify_trials(requests.values())):
            if (folder / DESCRIPTION).exists():
                refuse_other(folder, trial.identity)
            else:
                write_json(make_folder(folder) / CHECKPOINT_REQUEST, trial.request.to_json())
            steps[folder] = trial.n_steps
        run_jobs(Jobs(out, steps, DESCRIPTION, "checkpoints", "steps"), resources)
