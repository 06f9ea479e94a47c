"""Single (example, variant) pairs: every example of a batch under a mask of its own."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import PackedBatch, cut_by_tokens, pack
from adapter_probe.models.adapted import AdaptedModel, NormChoice
from adapter_probe.models.layer import Layer


def pair_logits(
    model: AdaptedModel,
    encoded: Encoded,
    items: np.ndarray,
    masks: np.ndarray,
    *,
    tokens_per_pass: int,
    norms: NormChoice = "trained",
) -> np.ndarray:
    """Logits of pairs, each as a run of its own would give them.

    Args:
        model: in evaluation mode, for classification or regression.
        encoded: the dataset.
        items: int ``[pairs]``, the example of each; repeats allowed.
        masks: bool ``[pairs, sites]``, the variant of each; True = on.
        tokens_per_pass: bound on memory.
        norms: "pretrained" gives a switched-off site the base's own LayerNorm.

    Returns:
        float32 ``[pairs, labels]``, in the order given.
    """
    lengths = encoded.lengths[items]
    order = np.argsort(lengths, kind="stable")
    logits = np.empty((len(items), model.base.config.num_labels), np.float32)
    for chosen in cut_by_tokens(lengths, order, tokens_per_pass):
        batch = pack(encoded, items[chosen]).to(model.device)  # already by length, so packing keeps the order
        logits[chosen] = forward_pairs(model, batch, masks[chosen], norms).float().cpu().numpy()
    return logits


def forward_pairs(model: AdaptedModel, batch: PackedBatch, masks: np.ndarray, norms: NormChoice) -> Tensor:
    """Logits ``[examples, labels]`` of a packed batch whose examples have masks ``[examples, sites]``.

    Nothing is shared between the examples. Each site is run both ways and every example takes its own.
    """
    model.check_norms(norms)
    lengths = [group.length for group in batch.groups for _ in range(group.n)]
    all_on = masks.all(axis=0)  # [sites]
    on = torch.from_numpy(masks).to(model.device)  # [examples, sites]
    of_token = torch.from_numpy(np.repeat(masks, lengths, axis=0)).to(model.device)  # [tokens, sites]
    with torch.inference_mode():
        hidden = model.embed(batch)
        for index, layer in enumerate(model.layers):
            wanted = model.wanted_positions(index, batch)
            rows = on if wanted is not None else of_token
            for ffn in (0, 1):
                site = 2 * index + ffn
                chosen = None if all_on[site] else rows[:, site]
                hidden = _both_ways(layer, ffn, hidden, batch, wanted, chosen, norms)
        return model.head(model.read(hidden, batch)[0])


def _both_ways(
    layer: Layer,
    ffn: int,
    hidden: Tensor,
    batch: PackedBatch,
    wanted: Tensor | None,
    on: Tensor | None,
    norms: NormChoice,
) -> Tensor:
    """States after a site ``[1, rows, hidden]``, with its adapter for the rows that `on` ``[rows]`` says.

    None is for all rows: told by the host's masks, so that nothing waits for the device.
    """
    site = layer.sites[ffn]

    def sublayer() -> tuple[Tensor, Tensor]:
        return layer.ffn(hidden) if ffn else layer.attention(hidden, batch.groups, wanted)

    entering = None if site.forks_early else sublayer()
    if on is None or not site.modules:
        return site.finish(*(entering or sublayer()), batch.groups)
    states = []
    for state in (True, False):
        norm = site.norm if state or norms == "trained" else site.pretrained_norm
        with site.switched(state):
            states.append(site.finish(*(entering or sublayer()), batch.groups, norm))
    return torch.where(on[None, :, None], *states)
