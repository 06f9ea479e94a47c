"""Cached outputs of the frozen layers below all trained ones: computed once, reused in every epoch."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import PackedBatch, cut_by_tokens, pack
from adapter_probe.models.evaluation import TOKENS_PER_BATCH, Trainable

MAX_BYTES = 4 << 30
_SHARE = 4  # fraction of the memory for the features of all parallel trainings


def feature_bytes(workers: int = 1) -> int:
    """Memory limit for the features of one training, including the validation set.

    Args:
        workers: number of parallel trainings on this machine.
    """
    given = os.environ
    if "SLURM_MEM_PER_NODE" in given:  # of this task alone, in MiB
        memory = int(given["SLURM_MEM_PER_NODE"]) << 20
    elif "SLURM_MEM_PER_CPU" in given:
        memory = int(given["SLURM_MEM_PER_CPU"]) * int(given.get("SLURM_CPUS_ON_NODE", 1)) << 20
    elif hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        memory = _SHARE * MAX_BYTES
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

    def __init__(self, model: Trainable, encoded: Encoded, max_bytes: int = MAX_BYTES):
        self._model, self._states = model, None
        frozen = model.lowest_trained_layer
        if frozen < 1:
            return
        one_each = frozen == model.n_layers and not model.reads_all_positions
        rows = np.ones_like(encoded.lengths) if one_each else encoded.lengths
        self._start = np.concatenate([[0], np.cumsum(rows)])
        if self._start[-1] * model.hidden_size * 4 > max_bytes:
            return
        states = torch.empty(int(self._start[-1]), model.hidden_size)
        order = np.argsort(encoded.lengths, kind="stable")
        for run in cut_by_tokens(encoded.lengths, order, TOKENS_PER_BATCH):
            batch = pack(encoded, run).to(model.device)
            features = model.frozen_features(batch).float().cpu()
            states[self._rows(batch)] = features
        self._states = states

    @property
    def n_bytes(self) -> int:
        """Memory that the features take; 0 without frozen layers, or if it would be too much."""
        return 0 if self._states is None else self._states.nbytes

    def _rows(self, batch: PackedBatch) -> Tensor:
        """Positions of a batch's rows in the cache, in packed order."""
        rows = [np.arange(self._start[i], self._start[i + 1]) for i in batch.index]
        return torch.from_numpy(np.concatenate(rows))

    def forward(self, batch: PackedBatch) -> Tensor:
        """The model's outputs for a batch, see `AdaptedModel.forward`."""
        if self._states is None:
            return self._model(batch)
        return self._model.forward_from(self._states[self._rows(batch)].to(self._model.device), batch)
