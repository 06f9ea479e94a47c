"""Training losses and validation scores, one class per kind of task."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from adapter_probe import metrics
from adapter_probe.data.answers import choose_windows, decode_windows, score_answers
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples
from adapter_probe.data.packing import PackedBatch
from adapter_probe.data.questions import Questions
from adapter_probe.models.evaluation import Trainable, evaluate
from adapter_probe.predictions import predictions_from_logits

from .features import FrozenFeatures


class Objective(Protocol):
    """Interface of a task for the training loop."""

    @property
    def train(self) -> Encoded:
        """The examples to train on."""

    @property
    def validation(self) -> Encoded:
        """The examples to validate on."""

    sign: int
    """-1 for a score of which less is better, else 1."""

    def weight(self, indices: np.ndarray) -> float:
        """How much the mean loss of some examples counts in that of a batch with others."""

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """The mean loss of a batch from the model's outputs, a scalar."""

    def score(self, model: Trainable, features: FrozenFeatures) -> float:
        """The validation score, a fraction; NaN where undefined."""


class LabelObjective:
    """Classification by cross-entropy, or regression by the mean squared error.

    Args:
        train, validation: the two splits.
        kind: ``classification`` or ``regression``.
        metric: metric of the validation score.
    """

    def __init__(self, train: Examples, validation: Examples, kind: str, metric: str):
        self.train, self.validation = _encoded(train), _encoded(validation)
        self._kind, self._metric, self.sign = kind, metric, metrics.sign_of(metric)
        self._targets = torch.from_numpy(train.labels)
        self._labels = validation.labels

    def weight(self, indices: np.ndarray) -> float:
        """See `Objective.weight`."""
        return float(len(indices))

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`."""
        targets = self._targets[batch.index].to(outputs.device)
        if self._kind == "classification":
            return F.cross_entropy(outputs, targets)
        return F.mse_loss(outputs[:, 0], targets.float())

    def score(self, model: Trainable, features: FrozenFeatures) -> float:
        """See `Objective.score`."""
        logits = evaluate(model, self.validation, forward=features.forward)
        predictions = predictions_from_logits(logits, self._kind)
        return float(metrics.score(self._metric, predictions, self._labels))


class AnswerObjective:
    """Extractive question answering: cross-entropy of the answer's first and last token in each window.

    The target of a window without the answer is its first token.

    Args:
        train, validation: the two splits.
        metric: the validation score, ``squad_f1`` or ``exact_match``.
    """

    def __init__(self, train: Examples, validation: Examples, metric: str):
        assert train.windows is not None, "questions are cut into windows"
        assert validation.windows is not None
        assert isinstance(validation.rows, Questions)
        self.train, self.validation = _encoded(train), _encoded(validation)
        self._targets = torch.from_numpy(train.windows.labels)
        self._questions, self._windows = validation.rows, validation.windows
        self._metric, self.sign = metric, metrics.sign_of(metric)

    def weight(self, indices: np.ndarray) -> float:
        """See `Objective.weight`."""
        return float(len(indices))

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`; the mean over windows of the mean of start and end."""
        targets = self._targets[batch.index].to(outputs.device)  # [windows, 2]
        total = outputs.new_zeros(())
        for windows, logits in batch.by_example(outputs):  # [windows, length, 2]
            total = total + F.cross_entropy(logits.transpose(1, 2).flatten(0, 1), targets[windows].flatten(),
                                            reduction="sum")  # fmt: skip
        return total / (2 * len(batch.index))

    def score(self, model: Trainable, features: FrozenFeatures) -> float:
        """See `Objective.score`."""
        logits = evaluate(model, self.validation, forward=features.forward)
        if not np.isfinite(logits).all():
            return math.nan
        ends = np.cumsum(self.validation.lengths)
        rows = [slice(end - length, end) for end, length in zip(ends, self.validation.lengths)]
        decoded = decode_windows(self._windows, np.arange(len(rows)), rows, logits[None])
        exact, f1 = score_answers(self._questions, choose_windows(self._windows, decoded))
        scores = {"exact_match": exact, "squad_f1": f1}[self._metric]
        return float(metrics.score(self._metric, scores[0], self._questions.paragraph))


def _encoded(examples: Examples) -> Encoded:
    assert isinstance(examples.encoded, Encoded), "a language model's requests are not trained on"
    return examples.encoded
