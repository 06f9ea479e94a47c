"""Cached outputs of the frozen layers below all trained ones: computed once, reused in every epoch."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.encoding import Encoded, rows_of
from adapter_probe.data.packing import PackedBatch, in_batches
from adapter_probe.device import memory_limit

from .model import TrainingModel

MAX_BYTES = 4 << 30
TOKENS_PER_BATCH = 4096  # in evaluation
_SHARE = 4  # fraction of the memory for the features of all parallel trainings


def feature_bytes(workers: int = 1) -> int:
    """Memory limit for the features of one training, including the validation set.

    Args:
        workers: number of parallel trainings on this machine.
    """
    memory = memory_limit()
    if memory is None:
        known = hasattr(os, "sysconf")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else _SHARE * MAX_BYTES
    return min(MAX_BYTES, memory // (_SHARE * workers))


class FrozenFeatures:
    """The input of the lowest trained layer, for every example of a dataset.

    Frozen layers run without dropout, so cached states equal those that the model would compute, up to the
    rounding of differently composed batches.

    Args:
        model: model on its device, with its trained parameters chosen.
        encoded: the dataset.
        max_bytes: memory limit; features that need more are recomputed in each batch.
    """

    def __init__(self, model: TrainingModel, encoded: Encoded, max_bytes: int = MAX_BYTES):
        self._model, self._encoded, self._states = model, encoded, None
        frozen = model.lowest_trained_layer
        if frozen < 1:
            return
        one_each = frozen == model.n_layers and not model.reads_all_positions
        rows = np.ones_like(encoded.lengths) if one_each else encoded.lengths
        self._start = np.concatenate([[0], np.cumsum(rows)])
        if self._start[-1] * model.hidden_size * 4 > max_bytes:
            return
        states = torch.empty(int(self._start[-1]), model.hidden_size)
        for batch in in_batches(encoded, TOKENS_PER_BATCH, model.device):
            states[self._rows(batch)] = model.frozen_features(batch).float().cpu()
        self._states = states

    @property
    def n_bytes(self) -> int:
        """Memory that the features take; 0 without frozen layers, or if it would be too much."""
        return 0 if self._states is None else self._states.nbytes

    def _rows(self, batch: PackedBatch) -> Tensor:
        """Positions of a batch's rows in the cache, in packed order."""
        return torch.from_numpy(rows_of(self._start, batch.index))

    def forward(self, batch: PackedBatch) -> Tensor:
        """The model's outputs for a batch, see `TrainingModel.forward`."""
        if self._states is None:
            return self._model(batch)
        return self._model.forward_from(self._states[self._rows(batch)].to(self._model.device), batch)

    def evaluate(self) -> np.ndarray:
        """Logits of the dataset, in its order; leaves the model in evaluation mode.

        Returns:
            float32 ``[examples, labels]``; where the head reads all positions ``[tokens, 2]``, one example's
            tokens after the other's.
        """
        model, encoded = self._model.eval(), self._encoded
        each = encoded.lengths if model.reads_all_positions else np.ones_like(encoded.lengths)
        start = np.concatenate([[0], np.cumsum(each)])  # [examples + 1], rows of the logits
        logits: np.ndarray | None = None
        with torch.inference_mode():
            for batch in in_batches(encoded, TOKENS_PER_BATCH, model.device):
                out = self.forward(batch).float().cpu().numpy()
                if logits is None:
                    logits = np.empty((start[-1], out.shape[1]), np.float32)
                logits[rows_of(start, batch.index)] = out
        assert logits is not None, "a dataset has at least one example"
        return logits
