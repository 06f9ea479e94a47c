"""Train one method on one task and leave a checkpoint behind."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from adapter_probe.checkpoints.base import load_base, load_tokenizer, refuse_unknown_tokens
from adapter_probe.checkpoints.description import DESCRIPTION, Description, read_description
from adapter_probe.checkpoints.native import save_checkpoint
from adapter_probe.data.encoding import encode
from adapter_probe.data.tasks import TaskSpec, load_split
from adapter_probe.errors import ResultsError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.anatomy import length_limit
from adapter_probe.models.methods import Adapters
from adapter_probe.results.atomic import remove_leftovers
from adapter_probe.results.rundir import MANIFEST, PARTS, RunDirectory

from .loop import LabelledSet, Report, Trainer
from .settings import TrainingSettings

STATE_FOLDER = "training"
CODE_SCHEMA = 1  # raised when a change of the code changes what the same settings train


@dataclass(frozen=True)
class TrainingRequest:
    """Everything that determines a trained checkpoint.

    Attributes:
        base: folder or hub id; `revision` is the hub's.
        task: data, labels, metric; needs the splits ``train`` and ``validation``.
        method: what to add and train.
        settings: how.
        max_length: cut examples to this many tokens; None for the model's own limit.
    """

    base: str
    task: TaskSpec
    method: Adapters
    settings: TrainingSettings
    max_length: int | None = None
    revision: str | None = None


def train_checkpoint(
    request: TrainingRequest, out: Path, device: torch.device, report: Report
) -> Description:
    """Train, or go on training, and save the best epoch to `out`.

    A folder that already holds this very checkpoint is left as it is.

    Raises:
        CheckpointError, ModelError, DataError: the base or the data cannot be used.
        ResultsError: the folder cannot be written, is in use, or belongs to another training.
        TrainingError: training diverged.
    """
    settings, task = request.settings, request.task
    _refuse_foreign(out)
    base = load_base(request.base, len(task.label_names) or 1, revision=request.revision, seed=settings.seed)
    tokenizer = load_tokenizer(base.identity.name, base.identity.revision)
    limit = length_limit(request.max_length, base.model.config, tokenizer.model_max_length)
    splits = {}
    for name in ("train", "validation"):
        split = load_split(task, name, expect_fingerprint=True)
        splits[name] = LabelledSet(encode(tokenizer, split, limit), split.labels)
        refuse_unknown_tokens(splits[name].encoded, base.identity)
    identity = {
        "code_schema": CODE_SCHEMA,
        "base": {"weights_sha256": base.identity.weights_sha256},
        "method": request.method.to_json(),
        "settings": settings.to_json(),
        "task": {"kind": task.kind, "metric": task.metric, "label_names": list(task.label_names)},
        "tokens": {name: s.encoded.fingerprint for name, s in splits.items()},
        "data": dict(task.fingerprints),
    }
    with RunDirectory(out / STATE_FOLDER, identity, plan={}) as run:
        remove_leftovers(out)
        if (out / DESCRIPTION).exists():
            shutil.rmtree(run.path / PARTS, ignore_errors=True)
            return read_description(out)
        model = AdaptedModel(base.model)
        model.install(request.method, torch.Generator().manual_seed(settings.seed))
        trained = model.choose_trained(base.missing)
        _place(model, device, settings.dtype)
        best, scores = Trainer(
            model, trained, splits["train"], splits["validation"],
            kind=task.kind, metric=task.metric, settings=settings, run=run, report=report,
        ).train()  # fmt: skip
        description = Description(
            method=request.method,
            base=base.identity,
            task=task,
            max_length=limit,
            delta_sha256="",
            training={**settings.to_json(), "optimizer": "Adam", "validation_scores": scores},
            scores={task.metric: best_score(scores)},
        )
        save_checkpoint(out, best, description)
        shutil.rmtree(run.path / PARTS, ignore_errors=True)
        return read_description(out)


def best_score(scores: Sequence[float]) -> float | None:
    """The greatest epoch's score; None if all are undefined."""
    return max((score for score in scores if not math.isnan(score)), default=None)


def _refuse_foreign(out: Path) -> None:
    """A folder that something else wrote is not trained into, nor taken for this training's result."""
    if (out / MANIFEST).exists():
        raise ResultsError(f"{out} holds the results of another study ({MANIFEST}); choose another --out")
    if (out / DESCRIPTION).exists() and not (out / STATE_FOLDER / MANIFEST).exists():
        raise ResultsError(
            f"{out} holds a checkpoint without the record of its training ({STATE_FOLDER}/{MANIFEST}); "
            "choose another --out"
        )


def _place(model: AdaptedModel, device: torch.device, dtype: str) -> None:
    """Move to the device; frozen weights to the training dtype, trained ones stay float32."""
    model.to(device)
    for parameter in model.base.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(getattr(torch, dtype))
