"""What training makes small and validation makes large, one class a kind of task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from adapter_probe import metrics
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import PackedBatch
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.evaluation import evaluate

from .features import FrozenFeatures


class Objective(Protocol):
    """A task as the training loop sees it."""

    @property
    def train(self) -> Encoded:
        """The examples to train on."""

    @property
    def validation(self) -> Encoded:
        """The examples to validate on."""

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """The mean loss of a batch from the model's outputs, a scalar."""

    def score(self, model: AdaptedModel, features: FrozenFeatures) -> float:
        """The validation score, a fraction; NaN where undefined."""


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """Tokens and labels of one split: int64 class numbers or float64 targets ``[examples]``."""

    encoded: Encoded
    labels: np.ndarray


class LabelObjective:
    """Classification by cross-entropy, or regression by the mean squared error.

    Args:
        train, validation: the two splits.
        kind: ``classification`` or ``regression``.
        metric: the validation score.
    """

    def __init__(self, train: LabelledSet, validation: LabelledSet, kind: str, metric: str):
        self.train, self.validation = train.encoded, validation.encoded
        self._kind, self._metric = kind, metric
        self._targets = torch.from_numpy(train.labels)
        self._labels = validation.labels

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`."""
        targets = self._targets[batch.index].to(outputs.device)
        if self._kind == "classification":
            return F.cross_entropy(outputs, targets)
        return F.mse_loss(outputs[:, 0], targets.float())

    def score(self, model: AdaptedModel, features: FrozenFeatures) -> float:
        """See `Objective.score`."""
        logits = evaluate(model, self.validation, forward=features.forward)
        predictions = metrics.predictions_from_logits(logits, self._kind)
        return float(metrics.score(self._metric, predictions, self._labels))
