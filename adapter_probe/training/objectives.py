"""Training losses and validation scores, one class per kind of task."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

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
from adapter_probe.data.tagged import count_tags
from adapter_probe.predictions import labels_from_logits, predictions_from_logits, scores_of_pairs

from .features import FrozenFeatures, evaluate
from .model import TrainingModel

_SCALE = 20.0  # of cosines, in the losses of sentence-transformers


class Objective(ABC):
    """A task for the training loop.

    Args:
        train, validation: the items to train on and to validate on.
        metric: metric of the validation score.

    Attributes:
        sign: -1 for a score of which less is better, else 1.
    """

    def __init__(self, train: Encoded, validation: Encoded, metric: str):
        self.train, self.validation, self._metric = train, validation, metric
        self.sign = metrics.sign_of(metric)

    def begin(self, model: TrainingModel) -> None:  # noqa: B027  # most need nothing
        """Take from a model that has not been trained yet what the loss compares with."""

    def weight(self, indices: np.ndarray) -> float:
        """How much the mean loss of some examples counts in that of a batch with others."""
        return float(len(indices))

    @abstractmethod
    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """The mean loss of a batch from the model's outputs, a scalar."""

    @abstractmethod
    def score(self, model: TrainingModel, features: FrozenFeatures) -> float:
        """The validation score, a fraction; NaN where undefined."""


class LabelObjective(Objective):
    """Classification by cross-entropy, several labels by a binary one each, regression by the squared error.

    Args:
        train, validation: the two splits.
        kind: ``classification``, ``multilabel`` or ``regression``.
        metric: metric of the validation score.
    """

    def __init__(self, train: Examples, validation: Examples, kind: str, metric: str):
        super().__init__(_encoded(train), _encoded(validation), metric)
        self._kind = kind
        self._targets = torch.from_numpy(train.labels)
        self._labels = validation.labels

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`."""
        targets = self._targets[batch.index].to(outputs.device)
        if self._kind == "classification":
            return F.cross_entropy(outputs, targets)
        if self._kind == "multilabel":
            return F.binary_cross_entropy_with_logits(outputs, targets.float())
        return F.mse_loss(outputs[:, 0], targets.float())

    def score(self, model: TrainingModel, features: FrozenFeatures) -> float:
        """See `Objective.score`."""
        logits = evaluate(model, self.validation, forward=features.forward)
        several = self._kind == "multilabel"
        predictions = labels_from_logits(logits) if several else predictions_from_logits(logits, self._kind)
        return float(metrics.score(self._metric, predictions, self._labels))


class TagObjective(Objective):
    """Tags of words: cross-entropy at each word's first piece, its other pieces left out.

    Args:
        train, validation: the two splits.
        metric: metric of the validation score, ``entity_f1`` or ``tag_accuracy``.
        names: the tags.
    """

    def __init__(self, train: Examples, validation: Examples, metric: str, names: Sequence[str]):
        assert train.words is not None, "sentences have words"
        assert validation.words is not None
        super().__init__(_encoded(train), _encoded(validation), metric)
        self._words, self._scored, self._names = train.words, validation.words, names

    def weight(self, indices: np.ndarray) -> float:
        """See `Objective.weight`; the number of words."""
        return float(sum(len(self._words.tags[i]) for i in indices))

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`."""
        examples = list(zip(batch.index, batch.rows))
        places = np.concatenate([self._words.positions[i] + own.start for i, own in examples])
        tags = np.concatenate([self._words.tags[i] for i, _ in examples])
        read, targets = (torch.from_numpy(one).to(outputs.device) for one in (places, tags))
        return F.cross_entropy(outputs[read], targets)

    def score(self, model: TrainingModel, features: FrozenFeatures) -> float:
        """See `Objective.score`."""
        logits = evaluate(model, self.validation, forward=features.forward)
        examples = np.split(logits, np.cumsum(self.validation.lengths)[:-1])
        tags = [self._scored.predicted(np.array([i]), own[None, None]) for i, own in enumerate(examples)]
        found, there = count_tags(self._metric, self._scored, self._names, np.concatenate(tags, axis=1))
        return float(metrics.score(self._metric, found[0].reshape(*there.shape, 2).astype(np.float64), there))


class AnswerObjective(Objective):
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
        super().__init__(_encoded(train), _encoded(validation), metric)
        self._targets = torch.from_numpy(train.windows.labels)
        self._questions, self._windows = validation.rows, validation.windows

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`; the mean over windows of the mean of start and end."""
        targets = self._targets[batch.index].to(outputs.device)  # [windows, 2]
        total = outputs.new_zeros(())
        for windows, logits in batch.by_example(outputs):  # [windows, length, 2]
            total = total + F.cross_entropy(logits.transpose(1, 2).flatten(0, 1), targets[windows].flatten(),
                                            reduction="sum")  # fmt: skip
        return total / (2 * len(batch.index))

    def score(self, model: TrainingModel, features: FrozenFeatures) -> float:
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


class EmbeddingObjective(Objective):
    """Embeddings: in-batch negatives of queries, or of pairs with a number the order of their similarities.

    The losses are those of sentence-transformers at their defaults: MultipleNegativesRankingLoss and
    CoSENTLoss, which does not depend on the scale of the numbers.

    Args:
        train: texts, several to an example.
        validation: texts, and what makes the examples' outputs of their embeddings.
        kind: ``ranking``, ``pairwise``, or ``regression`` of pairs with a number.
        metric: metric of the validation score.
    """

    def __init__(self, train: Examples, validation: Examples, kind: str, metric: str):
        assert validation.combine is not None, "embeddings are compared"
        super().__init__(_encoded(train), _encoded(validation), metric)
        assert self.train.firsts is not None, "an example is several texts"
        sizes = np.diff(self.train.firsts)
        self._place = np.arange(len(self.train)) - np.repeat(self.train.firsts[:-1], sizes)  # [items]
        self._example = np.repeat(np.arange(len(sizes)), sizes)  # [items]
        self._kind, self._labels, self._scores = kind, validation.labels, torch.from_numpy(train.labels)
        self._combine = validation.combine

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`."""
        order = np.argsort(batch.index)
        items = batch.index[order]
        vectors = F.normalize(outputs[torch.from_numpy(order).to(outputs.device)], dim=-1)  # [items, width]
        first, second, others = (
            vectors[torch.from_numpy(own).to(outputs.device)]
            for own in (np.minimum(self._place[items], 2) == number for number in range(3))
        )
        if self._kind != "regression":
            similar = _SCALE * first @ torch.cat([second, others]).T  # [examples, texts]
            return F.cross_entropy(similar, torch.arange(len(first), device=outputs.device))
        scores = self._scores[self._example[items[::2]]].to(outputs.device)
        similar = _SCALE * (first * second).sum(dim=-1)
        apart = (similar[:, None] - similar)[scores[:, None] < scores]  # of all pairs in the wrong order
        return torch.cat([apart.new_zeros(1), apart]).logsumexp(dim=0)

    def score(self, model: TrainingModel, features: FrozenFeatures) -> float:
        """See `Objective.score`."""
        outputs = self._combine(evaluate(model, self.validation)[None])[0].astype(np.float64)
        if self._kind == "ranking":
            predictions = outputs[:, metrics.METRICS["ranking"].index(self._metric)]
        elif self._kind == "pairwise":
            predictions = scores_of_pairs(self._metric, outputs)
        else:
            predictions = outputs[:, 0]
        return float(metrics.score(self._metric, predictions, self._labels))


def _encoded(examples: Examples) -> Encoded:
    assert isinstance(examples.encoded, Encoded), "a language model's requests are not trained on"
    return examples.encoded
