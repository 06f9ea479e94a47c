"""Plain evaluation: every adapter on."""

from __future__ import annotations

import numpy as np
import torch

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import cut_by_tokens, pack
from adapter_probe.models.adapted import AdaptedModel

TOKENS_PER_BATCH = 4096


def evaluate(model: AdaptedModel, encoded: Encoded, tokens_per_batch: int = TOKENS_PER_BATCH) -> np.ndarray:
    """Logits float32 ``[examples, labels]`` in the dataset's order; the model is left in evaluation mode."""
    model.eval()
    order = np.argsort(encoded.lengths, kind="stable")
    logits: np.ndarray | None = None
    with torch.inference_mode():
        for run in cut_by_tokens(encoded.lengths, order, tokens_per_batch):
            batch = pack(encoded, run).to(model.device)
            out = model(batch).float().cpu().numpy()
            if logits is None:
                logits = np.empty((len(encoded.lengths), out.shape[1]), np.float32)
            logits[batch.index] = out
    assert logits is not None, "a dataset has at least one example"
    return logits
