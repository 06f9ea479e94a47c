"""Plain evaluation: every adapter on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import PackedBatch, cut_by_tokens, pack

from .adapted import AdaptedModel

TOKENS_PER_BATCH = 4096


def evaluate(
    model: AdaptedModel, encoded: Encoded, forward: Callable[[PackedBatch], Tensor] | None = None
) -> np.ndarray:
    """Logits of a dataset, in its order; leaves the model in evaluation mode.

    Args:
        model: to evaluate.
        encoded: the dataset.
        forward: function that computes a batch's outputs; by default the model.

    Returns:
        float32 ``[examples, labels]``; where the head reads all positions ``[tokens, 2]``, one example's
        tokens after the other's.
    """
    model.eval()
    each = encoded.lengths if model.reads_all_positions else np.ones_like(encoded.lengths)
    start = np.concatenate([[0], np.cumsum(each)])  # [examples + 1], rows of the logits
    order = np.argsort(encoded.lengths, kind="stable")
    logits: np.ndarray | None = None
    with torch.inference_mode():
        for run in cut_by_tokens(encoded.lengths, order, TOKENS_PER_BATCH):
            batch = pack(encoded, run).to(model.device)
            out = (forward or model)(batch).float().cpu().numpy()
            if logits is None:
                logits = np.empty((start[-1], out.shape[1]), np.float32)
            logits[np.concatenate([np.arange(start[i], start[i + 1]) for i in batch.index])] = out
    assert logits is not None, "a dataset has at least one example"
    return logits
