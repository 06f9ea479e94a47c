"""Language models in the training loop: the loss and the score."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adapter_probe import metrics
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples
from adapter_probe.data.packing import PackedBatch, cut_by_tokens, pack
from adapter_probe.data.requests import Requests
from adapter_probe.data.requests_encoding import EncodedRequests, count_texts
from adapter_probe.data.training_texts import texts_of
from adapter_probe.predictions import predictions_from_likelihoods, scores_of_pairs

from .features import FrozenFeatures
from .model import TrainingModel
from .objectives import Objective

_TOKENS = 1024  # of a batch that is scored: the logits of all of them may be needed


class LanguageObjective(Objective):
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
        self._rows, self._requests = validation.rows, validation.encoded
        texts, self._example, self._number = texts_of(validation.encoded)
        super().__init__(train.encoded, texts, metric)
        self._labels = validation.labels

    def weight(self, indices: np.ndarray) -> float:
        """See `Objective.weight`; the number of tokens that are trained on."""
        assert self.train.scored is not None
        return float(sum(len(self.train.scored[i]) for i in indices))

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`."""
        return F.cross_entropy(outputs, _targets(self.train, batch))

    def score(self, model: TrainingModel, features: FrozenFeatures) -> float:
        """See `Objective.score`."""
        shape = (len(self._rows), self._requests.n_continuations)
        sums, right = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        items, likely, best = token_likelihoods(model, self.validation)
        places = self._example[items], self._number[items]
        np.add.at(sums, places, likely)
        np.add.at(right, places, best)
        sums = sums.astype(np.float32)
        if self._rows.form == "preference":
            given = [row.reference for row in self._rows.rows]
            scored = scores_of_pairs(self._metric, sums, np.array(given) if all(given) else None)
            return float(metrics.score(self._metric, scored, self._labels))
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


class PreferenceObjective(LanguageObjective):
    """DPO (Rafailov et al. 2023, eq. 7) with a fixed reference, as TRL has it; scores as `ablate` has them.

    The reference's log-likelihoods are those in the rows, or of the base. Dropout is off, as in TRL, so that
    they are comparable.

    Args:
        train: rows, and both answers of each as sequences.
        validation: rows and their continuations, which are scored.
        metric: metric of the validation score.
        beta: factor of the implicit rewards.
    """

    def __init__(self, train: Examples, validation: Examples, metric: str, beta: float):
        super().__init__(train, validation, metric)
        assert isinstance(train.rows, Requests)
        given = [row.reference for row in train.rows.rows]
        self._given, self._beta = all(given), beta
        self._reference = np.array(given).ravel() if self._given else np.zeros(len(self.train))  # [items]

    def begin(self, model: TrainingModel) -> None:
        """See `Objective.begin`."""
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        if self._given:
            return
        self._reference = np.zeros(len(self.train))
        with model.as_base():
            items, likely, _ = token_likelihoods(model, self.train)
        np.add.at(self._reference, items, likely)

    def weight(self, indices: np.ndarray) -> float:
        """See `Objective.weight`."""
        return float(len(indices))

    def loss(self, outputs: Tensor, batch: PackedBatch) -> Tensor:
        """See `Objective.loss`."""
        likely = -F.cross_entropy(outputs, _targets(self.train, batch), reduction="none")
        place = np.argsort(np.argsort(batch.index))  # of each item among those of the batch, in their order
        owner = torch.from_numpy(np.repeat(place, _counts(self.train, batch))).to(outputs.device)
        sums = outputs.new_zeros(len(place)).index_add(0, owner, likely)
        reference = torch.from_numpy(self._reference[np.sort(batch.index)]).to(sums)
        chosen, rejected = (sums - reference).view(-1, 2).unbind(dim=1)
        return -F.logsigmoid(self._beta * (chosen - rejected)).mean()


def token_likelihoods(model: TrainingModel, encoded: Encoded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every scored token its item, its log-likelihood in nats, and whether it is the likeliest.

    Leaves the model in evaluation mode.
    """
    found = []
    model.eval()
    order = np.argsort(encoded.lengths, kind="stable")
    with torch.inference_mode():
        for run in cut_by_tokens(encoded.lengths, order, _TOKENS):
            batch = pack(encoded, run).to(model.device)
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
