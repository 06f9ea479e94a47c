"""Estimated duration of a training, from a few measured steps."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch

from adapter_probe.data.packing import pack
from adapter_probe.models.functional import packed_frozen_maps

from .features import FrozenFeatures
from .loop import precision_of
from .model import TrainingModel
from .objectives import Objective
from .request import TrainingInputs, TrainingRequest, build_model

_STEPS = 3  # the first includes set-up costs and is not counted
_EVALUATED = 64  # examples


def seconds_of(request: TrainingRequest, inputs: TrainingInputs, device: torch.device) -> float:
    """Estimated seconds of a whole training, including evaluations and the passes before the first step."""
    model = build_model(request, replace(inputs.base, model=deepcopy(inputs.base.model)), device)
    objective, settings = inputs.objective, request.settings
    lengths = objective.train.lengths
    middle = objective.train.items(_middle(objective.train.example_lengths, settings.batch_size))
    features = FrozenFeatures(model, objective.train, max_bytes=0)
    kept = model.lowest_trained_layer > 0
    batch = pack(objective.train, middle).to(device)
    precision = precision_of(settings, device)
    with torch.random.fork_rng(devices=[]), precision, packed_frozen_maps(model.layers):
        stored = model.frozen_features(batch) if kept else None
        model.train()
        for step in range(_STEPS):
            if step == 1:
                start = time.perf_counter()
            outputs = features.forward(batch) if stored is None else model.forward_from(stored, batch)
            objective.loss(outputs.float(), batch).backward()
        per_token = (time.perf_counter() - start) / (_STEPS - 1) / float(lengths[middle].sum())
        forward = _seconds_forward(model, objective, device)
    training = settings.epochs * float(lengths.sum()) * per_token
    before = float(lengths.sum()) * forward * (kept + objective.begins_with_pass)
    return training + before + settings.epochs * float(objective.validation.lengths.sum()) * forward


def _seconds_forward(model: TrainingModel, objective: Objective, device: torch.device) -> float:
    """Seconds per token of a pass without gradients."""
    model.eval()
    lengths = objective.validation.lengths
    chosen = _middle(lengths, _EVALUATED)
    batch = pack(objective.validation, chosen).to(device)
    with torch.inference_mode():
        model(batch)
        start = time.perf_counter()
        model(batch)
    return (time.perf_counter() - start) / float(lengths[chosen].sum())


def _middle(lengths: np.ndarray, n: int) -> np.ndarray:
    """Indices of `n` examples of about the median length."""
    order = np.argsort(lengths, kind="stable")
    return order[max(0, len(order) // 2 - n // 2) :][:n]
