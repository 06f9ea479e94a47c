"""Language models in the training loop: the loss and the score."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from adapter_probe import metrics
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples
from adapter_probe.data.packing import PackedBatch, cut_by_tokens, pack
from adapter_probe.data.requests import Requests
from adapter_probe.data.requests_encoding import EncodedRequests, count_texts
from adapter_probe.data.training_texts import texts_of
from adapter_probe.predictions import predictions_from_likelihoods

from .features import FrozenFeatures
from .model import TrainingModel

_TOKENS = 1024  # of a batch that is scored: the logits of all of them may be needed


class LanguageObjective:
    """The mean negative log-likelihood of the tokens that are trained on; scores as `ablate` has them.

    Args:
        train: rows and sequences to train on.
        validation: rows and their continuations, which are scored.
        metric: metric of the validation score.
    """

    def __init__(self, train: Examples, validation: Examples, metric: str):
        assert isinstance(train.encoded, Encoded), "what is trained on are sequences"
        assert isinstance(validation.encoded, EncodedRequests), "what is scored are continuations"
        assert isinstance(validation.rows, Requests)
        self.train, self._rows, self._requests = train.encoded, validation.rows, validation.encoded
        self.validation, self._example, self._number = texts_of(validation.encoded)
        self._labels, self._metric = validation.labels, metric
        self.sign = metrics.sign_of(metric)

    def weight(self, indices: np.ndarray) -> float:
        """See `Objective.weight`; the number of tokens that are trained on."""
        assert self.train.scored is not None
        return float(sum(len(self.train.scored[i]) for i in indices))

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`."""
        return F.cross_entropy(outputs, _targets(self.train, batch))

    def score(self, model: TrainingModel, features: FrozenFeatures) -> float:
        """See `Objective.score`."""
        sums, right = self._likelihoods(model)
        counts = count_texts(self._rows, self._requests)
        sizes = metrics.continuation_sizes(self._metric, counts)
        if self._metric == "greedy_accuracy":
            whole = (right == self._requests.n_tokens)[:, 0] & np.isfinite(sums[:, 0])
            return float(whole.mean())
        if self._metric == "token_accuracy":
            predictions = np.where(np.isfinite(sums[:, 0]), right[:, 0], np.nan)
        else:
            predictions = predictions_from_likelihoods(self._metric, sums, sizes)
        labels = sizes[:, 0] if self._metric in metrics.RATIOS else self._labels
        return float(metrics.score(self._metric, predictions, labels))

    def _likelihoods(self, model: TrainingModel) -> tuple[np.ndarray, np.ndarray]:
        """Summed log-likelihoods ``[examples, continuations]``, and how many tokens are the likeliest."""
        model.eval()
        encoded = self.validation
        shape = (len(self._rows), self._requests.n_continuations)
        sums, right = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        order = np.argsort(encoded.lengths, kind="stable")
        with torch.inference_mode():
            for run in cut_by_tokens(encoded.lengths, order, _TOKENS):
                batch = pack(encoded, run).to(model.device)
                logits, targets = model(batch).float(), _targets(encoded, batch)
                chosen = logits.gather(1, targets[:, None])[:, 0]
                likely = (chosen - logits.logsumexp(dim=-1)).double().cpu().numpy()
                best = (chosen >= logits.amax(dim=-1)).cpu().numpy()
                assert encoded.scored is not None
                own = np.repeat(batch.index, [len(encoded.scored[i]) for i in batch.index])
                np.add.at(sums, (self._example[own], self._number[own]), likely)
                np.add.at(right, (self._example[own], self._number[own]), best)
        return sums.astype(np.float32), right


def _targets(encoded: Encoded, batch: PackedBatch) -> Tensor:
    """The tokens that are scored, int64 ``[read]``, in packed order."""
    assert encoded.scored is not None
    found = np.concatenate([encoded.input_ids[i][encoded.scored[i]] for i in batch.index])
    return torch.from_numpy(found).to(batch.input_ids.device)
