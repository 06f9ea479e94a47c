"""Log-likelihoods of continuations under every variant of a causal language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.packing import RequestBatch, pack_requests
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.models.adapted import AdaptedModel, NormChoice

from .tree import forward_variants

# Maximum number of logits in memory at a time. A chunk fits into the cache of a CPU core; an accelerator
# needs larger chunks for full use.
LOGITS_PER_CHUNK = {"cpu": 3 << 17, "cuda": 256 << 20}
_ROWS_PER_CHUNK = 1024
LogitsInParts = Callable[[Tensor, int], Iterator[tuple[int, Tensor]]]
"""Given states ``[rows, hidden]`` and a size: a token's number, and the logits of so many from it on."""


def request_outputs(
    model: AdaptedModel,
    encoded: EncodedRequests,
    items: np.ndarray,
    masks: np.ndarray,
    *,
    tokens_per_pass: int,
    norms: NormChoice = "trained",
    each_pass: Callable[[], None] = lambda: None,
) -> dict[str, np.ndarray]:
    """Log-likelihoods of the continuations of some items under every variant.

    Args:
        model: in evaluation mode, on its device.
        encoded: the requests.
        items: int ``[items]``, indices of the items.
        masks: bool ``[variants, sites]``.
        tokens_per_pass: see `forward_variants`.
        norms: see `forward_variants`.
        each_pass: see `forward_variants`.

    Returns:
        ``logits`` float32 ``[variants, items, continuations]``, summed log-likelihoods in nats, 0 where an
        item has fewer continuations; ``greedy`` bool of the same shape, whether every token of the
        continuation is the most likely one.
    """
    batch = pack_requests(encoded, items, model.device)
    scored = forward_variants(
        model,
        batch.packed,
        masks,
        tokens_per_pass=tokens_per_pass,
        norms=norms,
        each_pass=each_pass,
        head=lambda hidden: score_states(model.logits_in_parts, batch, model.final_states(hidden)),
    )
    return summed_by_continuation(batch, scored, len(items))


def summed_by_continuation(batch: RequestBatch, scored: Tensor, n_items: int) -> dict[str, np.ndarray]:
    """The outputs of `request_outputs` from the scores of all tokens.

    Args:
        batch: what is scored.
        scored: see `score_states`, ``[variants, scored, 2]``.
        n_items: number of items.
    """
    shape = (len(scored), n_items, batch.n_continuations)
    sums = torch.zeros(len(scored), n_items * batch.n_continuations, 2, dtype=torch.float64)
    members = scored[:, batch.members].double().cpu()  # [variants, members, 2]
    members[..., 1] = 1 - members[..., 1]
    sums.index_add_(1, batch.slots, members)
    values = sums.view(*shape, 2).numpy()
    return {"logits": values[..., 0].astype(np.float32), "greedy": values[..., 1] == 0}


def score_states(parts: LogitsInParts, batch: RequestBatch, states: Tensor) -> Tensor:
    """Log-likelihood of every scored token, and whether it is the most likely one.

    The logits over the vocabulary are computed for a few positions at a time and not kept.

    Args:
        parts: the output embedding.
        batch: the tokens to score.
        states: ``[read, hidden]``, what the output embedding is given at the positions that are read.

    Returns:
        float ``[scored, 2]``: the log-likelihood in nats, and 1 for the most likely token, else 0.
    """
    dtype = torch.promote_types(states.dtype, torch.float32)
    scores, done = [], 0
    for begin in range(0, len(states), _ROWS_PER_CHUNK):
        some = states[begin : begin + _ROWS_PER_CHUNK]
        end = int(batch.ends[begin + len(some) - 1])
        inside, done = slice(done, end), end
        rows = batch.after[inside] - begin
        chosen, total, top = _normalised(parts, some, rows, batch.targets[inside], dtype)
        scores.append(torch.stack([chosen - total[rows], (chosen >= top[rows]).to(dtype)], dim=1))
    return torch.cat(scores)


def _normalised(
    parts: LogitsInParts, states: Tensor, rows: Tensor, targets: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of `targets` after states `rows`, and the log-sum-exp and the maximum of every state's logits.

    The vocabulary is processed in parts; the largest logit of a part is subtracted before the exponential.
    """
    most = LOGITS_PER_CHUNK.get(states.device.type, LOGITS_PER_CHUNK["cpu"])
    chosen = torch.empty(len(rows), dtype=dtype, device=states.device)
    tops, totals = [], []
    for first, logits in parts(states, max(1, most // len(states))):
        part = logits.to(dtype)
        top = part.amax(dim=-1)
        # Every target is looked up in every part, although only one part contains it: selecting the targets
        # of a part would make the host wait for the accelerator.
        place = targets - first
        found = part[rows, place.clamp(0, part.shape[1] - 1)]
        chosen = torch.where((place >= 0) & (place < part.shape[1]), found, chosen)
        totals.append(part.sub_(top[:, None]).exp_().sum(dim=-1).log_().add_(top))
        tops.append(top)
    return chosen, torch.logsumexp(torch.stack(totals), dim=0), torch.stack(tops).amax(dim=0)


def summed_windows(encoded: EncodedRequests, sums: np.ndarray) -> np.ndarray:
    """Log-likelihoods of examples, as sums over their windows.

    Args:
        encoded: the requests.
        sums: log-likelihoods ``[variants, items, continuations]``; the items are windows.

    Returns:
        float32 ``[variants, examples, continuations]``.
    """
    first = np.flatnonzero(np.diff(encoded.example, prepend=-1))  # the windows of an example are adjacent
    return np.add.reduceat(sums.astype(np.float64), first, axis=1).astype(np.float32)
