"""Single (example, variant) pairs: every example under individual masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import cut_by_tokens, pack
from adapter_probe.models.adapted import AdaptedModel, NormChoice

from .tree import forward_pairs


def pair_logits(
    model: AdaptedModel,
    encoded: Encoded,
    items: np.ndarray,
    masks: np.ndarray,
    *,
    tokens_per_pass: int,
    norms: NormChoice = "trained",
    each_pass: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Logits of pairs, equal to those of separate runs.

    Args:
        model: in evaluation mode, for classification or regression.
        encoded: the dataset.
        items: int ``[pairs]``, the example of each pair; repeats allowed.
        masks: bool ``[pairs, sites]``, the variant of each; True = on.
        tokens_per_pass: maximum number of rows per pass, which bounds memory.
        norms: "pretrained" uses the base's LayerNorm after a switched-off site.
        each_pass: see `forward_variants`.

    Returns:
        float32 ``[pairs, labels]``, in the order given.
    """
    logits = np.empty((len(items), model.base.config.num_labels), np.float32)
    for examples in _alike(model, encoded, np.unique(items), max(1, tokens_per_pass // 4)):
        chosen = np.flatnonzero(np.isin(items, examples))
        out = forward_pairs(
            model,
            pack(encoded, examples).to(model.device),
            np.searchsorted(examples, items[chosen]),
            masks[chosen],
            tokens_per_pass=tokens_per_pass,
            norms=norms,
            each_pass=each_pass,
        )
        logits[chosen] = out.float().cpu().numpy()
    return logits


def _alike(
    model: AdaptedModel, encoded: Encoded, examples: np.ndarray, max_tokens: int
) -> Iterator[np.ndarray]:
    """Groups of bounded size of examples with equal length and equal position read by the head."""
    if not len(examples):
        return
    batch = pack(encoded, examples)
    places = (model.read_positions(batch) - batch.first).numpy()
    keys = np.stack([encoded.lengths[batch.index], places], axis=1)
    for key in np.unique(keys, axis=0):
        alike = np.sort(batch.index[(keys == key).all(axis=1)])
        yield from cut_by_tokens(encoded.lengths, alike, max_tokens)
