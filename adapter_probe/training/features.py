"""What the frozen layers below everything trained make of each example: computed once, reused every epoch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import PackedBatch, cut_by_tokens, pack
from adapter_probe.models.adapted import AdaptedModel

MAX_BYTES = 4 << 30
TOKENS_PER_BATCH = 4096


class FrozenFeatures:
    """The states that enter the lowest trained layer, for every example of a dataset.

    Frozen layers run without dropout, so a cached example gives what the model would compute anew, up to the
    rounding of differently composed batches.

    Args:
        model: its trained parameters chosen, on its device.
        encoded: the dataset.
        max_bytes: most memory to spend; where the features need more they are computed anew in each batch.
    """

    def __init__(self, model: AdaptedModel, encoded: Encoded, max_bytes: int = MAX_BYTES):
        self._model, self._states = model, None
        frozen = model.lowest_trained_layer
        if frozen < 1:
            return
        one_each = frozen == len(model.layers) and not model.reads_all_positions
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
    def kept(self) -> bool:
        """Whether there are features to keep, and room for them."""
        return self._states is not None

    def _rows(self, batch: PackedBatch) -> Tensor:
        """Where a batch's rows are kept, in packed order."""
        rows = [np.arange(self._start[i], self._start[i + 1]) for i in batch.index]
        return torch.from_numpy(np.concatenate(rows))

    def forward(self, batch: PackedBatch) -> Tensor:
        """The model's outputs for a batch, see `AdaptedModel.forward`."""
        if self._states is None:
            return self._model(batch)
        return self._model.forward_from(self._states[self._rows(batch)].to(self._model.device), batch)
