"""Training losses and validation scores, one class per kind of task."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from adapter_probe import metrics
from adapter_probe.data.answers import choose_windows, decode_windows, score_answers
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples
from adapter_probe.data.packing import PackedBatch, in_batches
from adapter_probe.data.requests_encoding import count_texts
from adapter_probe.data.tagged import count_tags
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.data.training_texts import texts_of
from adapter_probe.kinds.table import scored_of

from .model import TrainingModel


class Objective(ABC):
    """A task for the training loop.

    Args:
        task: the task, whose metric is that of the validation score.
        train, validation: the two splits.

    Attributes:
        train, validation: the items to train on and to validate on.
        sign: -1 for a score of which less is better, else 1.
    """

    def __init__(self, task: TaskSpec, train: Examples, validation: Examples):
        assert isinstance(train.encoded, Encoded), "what is trained on are texts"
        assert isinstance(validation.encoded, Encoded)
        self.train, self.validation = train.encoded, validation.encoded
        self._task, self._metric, self._labels = task, task.metric, validation.labels
        self.sign = metrics.sign_of(task.metric)

    def weight(self, indices: np.ndarray) -> float:
        """How much the mean loss of some examples counts in that of a batch with others."""
        return float(len(indices))

    @abstractmethod
    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """The mean loss of a batch from the model's outputs, a scalar."""

    @abstractmethod
    def score(self, model: TrainingModel) -> float:
        """The validation score, a fraction; NaN where undefined."""


_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classification": F.cross_entropy,
    "multilabel": lambda outputs, labels: F.binary_cross_entropy_with_logits(outputs, labels.float()),
    "regression": lambda outputs, numbers: F.mse_loss(outputs[:, 0], numbers.float()),
}


class LabelObjective(Objective):
    """Classification by cross-entropy, several labels by a binary one each, regression by squared errors."""

    def __init__(self, task: TaskSpec, train: Examples, validation: Examples):
        super().__init__(task, train, validation)
        self._targets = torch.from_numpy(train.labels)

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        return _LOSSES[self._task.kind](outputs, self._targets[batch.index].to(outputs.device))

    def score(self, model: TrainingModel) -> float:
        own = {"outputs": model.evaluate(self.validation)[None], "scored_with": self._labels}
        scored = scored_of(self._task.kind, self._metric, self._task.label_names, own)
        return float(metrics.score(self._metric, scored.predicted(0)[0], self._labels))


class TagObjective(Objective):
    """Tags of words: cross-entropy at each word's first piece, its other pieces left out."""

    def __init__(self, task: TaskSpec, train: Examples, validation: Examples):
        assert train.words is not None, "sentences have words"
        assert validation.words is not None
        super().__init__(task, train, validation)
        self._words, self._scored = train.words, validation.words

    def weight(self, indices: np.ndarray) -> float:
        """See `Objective.weight`; the number of words."""
        return float(sum(len(self._words.tags[i]) for i in indices))

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        examples = list(zip(batch.index, batch.rows))
        places = np.concatenate([self._words.positions[i] + own.start for i, own in examples])
        tags = np.concatenate([self._words.tags[i] for i, _ in examples])
        read, targets = (torch.from_numpy(one).to(outputs.device) for one in (places, tags))
        return F.cross_entropy(outputs[read], targets)

    def score(self, model: TrainingModel) -> float:
        logits = model.evaluate(self.validation)
        examples = np.split(logits, np.cumsum(self.validation.lengths)[:-1])
        tags = [self._scored.predicted(np.array([i]), own[None, None]) for i, own in enumerate(examples)]
        found, there = count_tags(
            self._metric, self._scored, self._task.label_names, np.concatenate(tags, axis=1)
        )
        return float(metrics.score(self._metric, found[0].reshape(*there.shape, 2).astype(np.float64), there))


class AnswerObjective(Objective):
    """Extractive question answering: cross-entropy of the answer's first and last token in each window.

    The target of a window without the answer is its first token.
    """

    def __init__(self, task: TaskSpec, train: Examples, validation: Examples):
        assert train.windows is not None, "questions are cut into windows"
        assert validation.windows is not None
        super().__init__(task, train, validation)
        self._targets = torch.from_numpy(train.windows.labels)
        self._questions: Any = validation.rows
        self._windows = validation.windows

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`; the mean over windows of the mean of start and end."""
        targets = self._targets[batch.index].to(outputs.device)  # [windows, 2]
        total = outputs.new_zeros(())
        for windows, logits in batch.by_length(outputs):  # [windows, length, 2]
            total = total + F.cross_entropy(logits.transpose(1, 2).flatten(0, 1), targets[windows].flatten(),
                                            reduction="sum")  # fmt: skip
        return total / (2 * len(batch.index))

    def score(self, model: TrainingModel) -> float:
        logits = model.evaluate(self.validation)
        if not np.isfinite(logits).all():
            return math.nan
        ends = np.cumsum(self.validation.lengths)
        rows = [slice(end - length, end) for end, length in zip(ends, self.validation.lengths)]
        decoded = decode_windows(self._windows, np.arange(len(rows)), rows, logits[None])
        exact, f1 = score_answers(self._questions, choose_windows(self._windows, decoded))
        scores = {"exact_match": exact, "squad_f1": f1}[self._metric]
        return float(metrics.score(self._metric, scores[0], self._questions.paragraph))


_TOKENS = 1024  # of a batch that is scored: the logits of all of them may be needed


class LanguageObjective(Objective):
    """The mean negative log-likelihood of the tokens that are trained on; scores as `ablate` has them."""

    def __init__(self, task: TaskSpec, train: Examples, validation: Examples):
        self._rows: Any = validation.rows
        requests: Any = validation.encoded
        self._requests = requests
        texts, self._example, self._number = texts_of(requests)
        super().__init__(task, train, replace(validation, encoded=texts))

    def weight(self, indices: np.ndarray) -> float:
        """See `Objective.weight`; the number of tokens that are trained on."""
        assert self.train.scored is not None
        return float(sum(len(self.train.scored[i]) for i in indices))

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        return F.cross_entropy(outputs, _targets(self.train, batch))

    def score(self, model: TrainingModel) -> float:
        shape = (len(self._rows), self._requests.n_continuations)
        sums, right = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        items, likely, best = token_likelihoods(model, self.validation)
        places = self._example[items], self._number[items]
        np.add.at(sums, places, likely)
        np.add.at(right, places, best)
        sums = sums.astype(np.float32)
        counts = count_texts(self._rows, self._requests)
        sizes = metrics.continuation_sizes(self._metric, counts)[:, 0]
        labels = sizes if metrics.about(self._metric).is_ratio else self._labels
        own = {
            "outputs": sums[None], "scored_with": labels, "counts": counts, "right": right[None, :, 0],
            "greedy": (right == self._requests.n_tokens)[None, :, 0],
        }  # fmt: skip
        scored = scored_of(self._task.kind, self._metric, (), own)
        return float(metrics.score(self._metric, scored.predicted(0)[0], labels))


def token_likelihoods(model: TrainingModel, encoded: Encoded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every scored token its item, its log-likelihood in nats, and whether it is the likeliest.

    Leaves the model in evaluation mode.
    """
    found = []
    model.eval()
    with torch.inference_mode():
        for batch in in_batches(encoded, _TOKENS, model.device):
            logits, targets = model(batch).float(), _targets(encoded, batch)
            chosen = logits.gather(1, targets[:, None])[:, 0]
            likely = (chosen - logits.logsumexp(dim=-1)).double().cpu().numpy()
            best = (chosen >= logits.amax(dim=-1)).cpu().numpy()
            found.append((np.repeat(batch.index, _counts(encoded, batch)), likely, best))
    items, sums, right = map(np.concatenate, zip(*found))
    return items, sums, right


def _counts(encoded: Encoded, batch: PackedBatch) -> list[int]:
    """How many tokens of each item are scored, in packed order."""
    assert encoded.scored is not None
    return [len(encoded.scored[item]) for item in batch.index]


def _targets(encoded: Encoded, batch: PackedBatch) -> Tensor:
    """The tokens that are scored, int64 ``[read]``, in packed order."""
    assert encoded.scored is not None
    found = np.concatenate([encoded.input_ids[i][encoded.scored[i]] for i in batch.index])
    return torch.from_numpy(found).to(batch.input_ids.device)


def objective_of(task: TaskSpec, train: Examples, validation: Examples) -> Objective:
    """The objective of a task."""
    kinds: dict[str, Callable[[TaskSpec, Examples, Examples], Objective]] = {
        "extractive": AnswerObjective, "causal": LanguageObjective, "tokens": TagObjective,
    }  # fmt: skip
    return kinds.get(task.kind, LabelObjective)(task, train, validation)
