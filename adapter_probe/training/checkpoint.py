"""Train one method on one task and save a checkpoint."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from adapter_probe.checkpoints.adapter_folder import WEIGHTS
from adapter_probe.checkpoints.base import has_untrained_pooler
from adapter_probe.checkpoints.base_config import silent_transformers
from adapter_probe.checkpoints.files import DESCRIPTION, Unsupported
from adapter_probe.checkpoints.native import (
    Description,
    library_versions,
    read_description,
    save_checkpoint,
    write_description,
)
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.tokenizer import load_tokenizer
from adapter_probe.errors import ResultsError, one_line
from adapter_probe.metrics import sign_of
from adapter_probe.results.atomic import remove_leftovers
from adapter_probe.results.fingerprints import refuse_changes, sha256_of
from adapter_probe.results.rundir import MANIFEST, PARTS, RunDirectory, read_manifest

from .loop import OnProgress, Trainer
from .model import TrainingModel
from .request import (
    TrainingInputs,
    TrainingRequest,
    build_model,
    identity_of,
    load_inputs,
    warn_of_untrained_pooler,
)

STATE_FOLDER = "training"
_WHOLE = "model.safetensors"


def train_checkpoint(
    request: TrainingRequest, out: Path, device: torch.device, report: OnProgress,
    say: Callable[[str], None] = lambda _: None,
) -> Description:  # fmt: skip
    """Start or resume a training, and save the best epoch to `out`.

    A folder that already contains this checkpoint is not changed.

    Args:
        request: what is trained, on what.
        out: the folder.
        device: the device.
        report: called after every step.
        say: called with each line of the question, once all checks have passed.

    Raises:
        CheckpointError, ModelError, DataError: the base or the data cannot be used.
        ResultsError: the folder cannot be written, is in use, or belongs to another training.
        Diverged: the loss became NaN or infinite.

    Warns:
        AdapterProbeWarning: the base's pooler was never trained, and the method keeps it frozen.
    """
    task = request.task
    refuse_other(out)
    inputs = load_inputs(request)
    with RunDirectory(out / STATE_FOLDER, identity_of(request, inputs.fingerprints), plan={}) as run:
        remove_leftovers(out)
        if (out / DESCRIPTION).exists():
            shutil.rmtree(run.path / PARTS, ignore_errors=True)
            return read_description(out)
        if has_untrained_pooler(inputs.base.model, inputs.base.missing):
            warn_of_untrained_pooler(request, inputs.base.identity.n_layers)
        model = build_model(request, inputs.base, device)
        for line in (question := inputs.question(task.metric)):
            say(line)
        best, scores = Trainer(
            model, inputs.objective, settings=request.settings, run=run, report=report
        ).train()
        description = _describe(request, inputs, question, scores)
        if model.is_tuned or task.about.is_language_model:
            (out / DESCRIPTION).unlink(missing_ok=True)
            model.restore(best)
            (save_tuned if model.is_tuned else save_model)(out, model, description)
        else:
            save_checkpoint(out, best, description)
        shutil.rmtree(run.path / PARTS, ignore_errors=True)
        return read_description(out)


def _describe(
    request: TrainingRequest, inputs: TrainingInputs, question: Sequence[str], scores: Sequence[float]
) -> Description:
    """The record of a training, before its tensors are written."""
    task = request.task
    return Description(
        method=request.method,
        base=inputs.base.identity,
        task=task,
        max_length=inputs.max_length,
        delta_sha256="",
        tokenizer=inputs.fingerprints["tokenizer"],
        training={
            **request.settings.to_json(),
            "optimizer": "Adam",
            "question": question,
            "validation_scores": scores,
            "majority_score": inputs.majority_score(task.metric),
        },
        scores={task.metric: best_score(scores, task.metric)},
    )


def save_tuned(out: Path, model: TrainingModel, description: Description) -> None:
    """Write a folder of PEFT, and beside it the record of its training.

    The record names the adapters as they are opened. A type that has no switch in the layers is recorded as
    it was trained, and the error of opening it says what it is.
    """
    from .peft_tuners import save_tuner  # whose import takes seconds

    save_tuner(model.base, out, description.base)
    training = {**description.training, "method": description.method.to_json()}
    try:
        opened = open_any(out, description.base.name).description
    except Unsupported:
        opened = replace(description, delta_sha256=sha256_of(out / WEIGHTS[0]))
    written = replace(
        description, method=opened.method, delta_sha256=opened.delta_sha256, training=training,
        versions=library_versions(),
    )  # fmt: skip
    write_description(out, written)


def save_model(out: Path, model: TrainingModel, description: Description) -> None:
    """Write a folder of Transformers, and the record of its training."""
    try:
        with silent_transformers():
            model.base.float().save_pretrained(out)
            load_tokenizer(description.base.name, description.base.revision).save_pretrained(out)
    except OSError as error:
        raise ResultsError(f"cannot write {out}: {one_line(error)}") from error
    written = replace(description, delta_sha256=sha256_of(out / _WHOLE), versions=library_versions())
    write_description(out, written)


def best_score(scores: Sequence[float], metric: str) -> float | None:
    """The best score of all epochs; None if all are undefined."""
    best = min if sign_of(metric) < 0 else max
    return best((score for score in scores if not math.isnan(score)), default=None)


def refuse_other(out: Path, identity: Mapping[str, Any] | None = None) -> None:
    """Refuse a folder that contains other results than those of a training.

    Args:
        identity: identity of the training; None to leave the comparison to `RunDirectory`.
    """
    record = out / STATE_FOLDER / MANIFEST
    if (out / MANIFEST).exists():
        raise ResultsError(f"{out} contains the results of another study ({MANIFEST}); choose another --out")
    if not (out / DESCRIPTION).exists():
        return
    if not record.exists():
        raise ResultsError(
            f"{out} contains a checkpoint without the record of its training ({STATE_FOLDER}/{MANIFEST}); "
            "choose another --out"
        )
    if identity:
        refuse_changes(
            read_manifest(record)["identity"], identity, f"{out} contains a checkpoint of another training",
            ". Choose another --out or remove the folder",
        )  # fmt: skip
