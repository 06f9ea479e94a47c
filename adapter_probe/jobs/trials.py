"""Trials: many trainings in one folder, each identified by its settings, so that none is repeated.

``trials/<id>/request.json`` describes a trial; ``trials/<id>/trial.json``, written last, contains its result.
In between, the folder contains the state of the training, so that an interrupted trial can be resumed.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from adapter_probe import metrics
from adapter_probe.checkpoints.base import has_untrained_pooler
from adapter_probe.checkpoints.identity import BaseIdentity
from adapter_probe.checkpoints.native import library_versions
from adapter_probe.errors import Diverged, TrainingError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.methods import TfidfLinear, check_depth
from adapter_probe.results.atomic import make_folder, read_json, remove_leftovers, write_json
from adapter_probe.results.fingerprints import hash_json
from adapter_probe.results.rundir import MANIFEST, PARTS, RunDirectory
from adapter_probe.results.trial_files import (
    TRIAL,
    TRIALS_FOLDER,
    ParameterCounts,
    TrialRecord,
    read_trial,
    write_trial,
)
from adapter_probe.training.baseline import baseline_of, n_fits, seconds_of_baseline
from adapter_probe.training.checkpoint import STATE_FOLDER
from adapter_probe.training.estimate import seconds_of
from adapter_probe.training.loop import OnProgress, Trainer
from adapter_probe.training.request import (
    TrainingInputs,
    TrainingRequest,
    build_model,
    identity_of,
    load_inputs,
    read_request,
    warn_of_untrained_pooler,
)

REQUEST = "request.json"


@dataclass(frozen=True)
class Trial:
    """One training of a study.

    Attributes:
        id: start of the hash of its identity.
        request: the training.
        n_steps: number of optimiser steps, the unit of progress.
        identity: everything that determines what it trains.
    """

    id: str
    request: TrainingRequest
    n_steps: int
    identity: dict[str, Any]

    def folder(self, out: Path) -> Path:
        """The trial's folder in a study's folder."""
        return out / TRIALS_FOLDER / self.id


def plan_trials(requests: Iterable[TrainingRequest]) -> list[Trial]:
    """The trials of some requests, each once; see `identified`."""
    trials: dict[str, Trial] = {}
    for trial in identified(requests):
        trials.setdefault(trial.id, trial)
    return list(trials.values())


def identified(requests: Iterable[TrainingRequest]) -> Iterator[Trial]:
    """Give every request its id; a base and a task are read once for all their trials.

    Yields:
        Trials whose bases are absolute folders, or hub ids with their commit, so that a worker anywhere
        opens the same one.

    Raises:
        CheckpointError, ModelError, DataError: a base or a task cannot be used, or a method does not fit.

    Warns:
        AdapterProbeWarning: a base's pooler was never trained, and a method keeps it frozen.
    """
    known: dict[str, tuple[dict[str, Any], int, BaseIdentity, bool]] = {}
    for request in requests:
        if (key := hash_json(_shared(request))) not in known:
            inputs = load_inputs(request)
            untrained = has_untrained_pooler(inputs.base)
            known[key] = (inputs.fingerprints, len(inputs.objective.train), inputs.base.identity, untrained)
        fingerprints, n_train, base, untrained = known[key]
        check_depth(request.method, base.n_layers)
        if untrained:
            warn_of_untrained_pooler(request, base.n_layers)
        identity = identity_of(request, fingerprints)
        settled = replace(request, base=base.name, revision=base.revision)
        yield Trial(_id_of(identity), settled, _n_steps(request, n_train), identity)


def _id_of(identity: dict[str, Any]) -> str:
    return hash_json(identity)[:16]


def shared_settings(trials: Sequence[Trial]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings shared by all trials of a study, and the identity of each task, as plain JSON.

    Args:
        trials: trials of one command, which have the same base, warm-up and dtype.

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
    shared |= {name: getattr(settings, name) for name in ("warmup", "dtype")}
    return shared, tasks


def estimate_seconds(trials: Iterable[Trial], device: torch.device) -> dict[str, float]:
    """Estimated seconds of each trial, by id, from measured loading of inputs and a few steps.

    Trials that differ only in initialisation, learning rate or seed cost the same, and are measured once.
    """
    known: dict[str, tuple[float, float]] = {}  # seconds of loading, and of an epoch
    last: tuple[str, TrainingInputs, float] | None = None
    estimates = {}
    for trial in trials:
        request = trial.request
        task = hash_json(_shared(request))
        cost = hash_json([task, {**request.method.to_json(), "init_std": None}, request.settings.batch_size])
        if cost not in known:
            if last is None or last[0] != task:
                start = time.monotonic()
                last = (task, load_inputs(request), time.monotonic() - start)
            whole = seconds_of_baseline if isinstance(request.method, TfidfLinear) else seconds_of
            known[cost] = (last[2], whole(request, last[1], device) / request.settings.epochs)
        loading, epoch = known[cost]
        estimates[trial.id] = loading + epoch * request.settings.epochs
    return estimates


def seconds_of_start() -> float:
    """Start-up time of a worker in seconds, measured by starting a process with the same imports."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import {__name__}, transformers"], check=False)
    return time.monotonic() - start


def _shared(request: TrainingRequest) -> dict[str, Any]:
    """The part of a request that determines base and data."""
    return {**request.to_json(), "method": None, "settings": None}


def _n_steps(request: TrainingRequest, n_train: int) -> int:
    """Number of optimiser steps, or of fitted models for the baseline without pretraining."""
    if isinstance(request.method, TfidfLinear):
        return n_fits(request.task.kind, request.task.metric)
    return request.settings.n_steps(n_train)


def write_requests(out: Path, trials: Iterable[Trial]) -> None:
    """Write the request of each trial, so that a worker needs only the folder.

    The identity of a trial does not include paths of base and data: an unfinished trial of an earlier command
    gets the paths of the current one, because the old ones may no longer exist.

    Raises:
        ResultsError: the folder cannot be written.
    """
    for trial in trials:
        folder = make_folder(trial.folder(out))
        if not (folder / TRIAL).exists() or not (folder / REQUEST).exists():
            write_json(folder / REQUEST, trial.request.to_json())


def finished(out: Path, trials: Iterable[Trial]) -> dict[str, TrialRecord]:
    """The records of the finished trials, by id.

    Raises:
        ResultsError: a record is damaged or of another schema.
    """
    found = {trial.id: read_trial(trial.folder(out)) for trial in trials}
    return {identity: record for identity, record in found.items() if record is not None}


def run_trial(folder: Path, device: torch.device, report: OnProgress, workers: int = 1) -> TrialRecord:
    """Run or resume one trial; the record of a finished one is returned unchanged.

    Args:
        folder: folder with ``request.json``.
        device: device to run on.
        report: called after every step.
        workers: number of parallel trials on this machine.

    Raises:
        AdapterProbeError: the request, the base or the data cannot be used, or the folder cannot be written.
    """
    if (record := read_trial(folder)) is not None:
        return record
    request = read_request(folder / REQUEST)
    task, inputs, state = request.task, load_inputs(request), folder / STATE_FOLDER
    identity = identity_of(request, inputs.fingerprints)
    if folder.name != _id_of(identity) and not (state / MANIFEST).exists():
        raise TrainingError(
            f"trial {folder.name} was planned for another base or other data, which have changed since then; "
            "run the command again"
        )
    with RunDirectory(state, identity, plan={}) as run:
        remove_leftovers(folder)
        clock = _Clock(folder)
        if isinstance(request.method, TfidfLinear):
            result = _fit(request, inputs, report, clock)
        else:
            model = build_model(request, inputs.base, device)
            trainer = Trainer(
                model, inputs.objective, settings=request.settings, run=run, report=report, workers=workers
            )
            result = {**_train(trainer, clock), "counts": count_parameters(model, inputs.base.missing)}
        common = {
            "trial": folder.name,
            "task": task.name,
            "metric": task.metric,
            "method": request.method.to_json(),
            "settings": request.settings.to_json(),
            "majority_score": inputs.majority_score(task.metric),
            "seconds": clock.seconds,
            "versions": library_versions(),
        }
        record = TrialRecord(**{**common, **result})
        write_trial(folder, record)
        shutil.rmtree(run.path / PARTS, ignore_errors=True)
    return record


def _train(trainer: Trainer, clock: _Clock) -> dict[str, Any]:
    """Train; returns the fields of the trial's record that are the outcome."""
    diverged = False
    try:
        with clock:
            trainer.train()
    except Diverged:
        diverged = True
    scores = tuple(None if math.isnan(score) else score for score in trainer.scores)
    return {"scores": scores, "diverged": diverged}


def _fit(
    request: TrainingRequest, inputs: TrainingInputs, report: OnProgress, clock: _Clock
) -> dict[str, Any]:
    """Fit the baseline without pretraining; returns the fields of its record that differ from a training's.

    All of its parameters belong to the task.
    """
    with clock:
        fitted = baseline_of(request, inputs, report)
    score = float(metrics.score(request.task.metric, fitted.predictions, inputs.splits["validation"].labels))
    base = count_parameters(AdaptedModel(inputs.base.model, check=False), inputs.base.missing)
    return {
        "method": {**request.method.to_json(), "chosen": asdict(fitted.setting)},
        "scores": (None if math.isnan(score) else score,),
        "diverged": False,
        "counts": replace(base, trained=fitted.parameters, trained_without_head=fitted.parameters),
        "versions": {**library_versions(), "scikit-learn": version("scikit-learn")},
    }


def count_parameters(model: AdaptedModel, missing: frozenset[str]) -> ParameterCounts:
    """Count trained parameters and those of the base, from the tensors.

    Args:
        model: model with its trained parameters chosen.
        missing: names of parameters that the base lacks; they count as head.
    """
    trained = without_head = base = 0
    for group, name, parameter in model.named_roles():
        of_head = group == "head" or name in missing
        base += parameter.numel() * (not of_head and group != "adapters")
        if parameter.requires_grad:
            trained += parameter.numel()
            without_head += parameter.numel() * (not of_head)
    return ParameterCounts(trained, without_head, base, len(model.layers))


class _Clock:
    """Seconds spent in the ``with`` block, summed over interruptions in a file of the folder."""

    def __init__(self, folder: Path):
        self._path = folder / STATE_FOLDER / "seconds.json"
        self.seconds = float(read_json(self._path)["seconds"]) if self._path.exists() else 0.0

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._start
        write_json(self._path, {"seconds": self.seconds})
