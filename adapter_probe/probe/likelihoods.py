"""Log-likelihoods of continuations under every variant of a causal language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.data.batches import NO_TAG
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.device import size_for
from adapter_probe.replay.tensors import split

# Maximum number of logits in memory at a time. A chunk fits into the cache of a CPU core; an accelerator
# needs larger chunks for full use.
LOGITS_PER_CHUNK = {"cpu": 3 << 17, "accelerator": 256 << 20}
_ROWS_PER_CHUNK = 1024
LogitsInParts = Callable[[Tensor, int], Iterator[tuple[int, Tensor]]]
"""Given states ``[rows, hidden]`` and a size: a token's number, and the logits of so many from it on."""


@dataclass(frozen=True, eq=False)
class Scored:
    """What is scored in the rows of some items.

    Attributes:
        after, targets: int64 ``[scored]``, on the model's device: the tokens `targets` are scored after the
            positions ``Rows.read[after]``; `after` is in ascending order.
        ends: int64 ``[read]``, on the host: number of tokens scored up to each position that is read, so that
            finding the tokens of some positions requires no synchronization with the device.
        members: int64 ``[members]``, on the device: indices of scored tokens, grouped by continuation.
        slots: int64 ``[members]``, on the host: the continuation of each member: index of the item in the
            batch, in the order given, times `n_continuations`, plus the continuation's number.
        n_continuations: number of slots per item.
    """

    after: Tensor
    targets: Tensor
    ends: np.ndarray
    members: Tensor
    slots: Tensor
    n_continuations: int

    def repeated(self, copies: int) -> Scored:
        """The same scored tokens after the positions of every copy, one copy after the other."""
        if copies == 1:
            return self
        places = torch.arange(copies, device=self.after.device)[:, None] * len(self.ends)
        firsts = np.arange(copies)[:, None] * len(self.after)
        return replace(
            self,
            after=(places + self.after).flatten(),
            targets=self.targets.repeat(copies),
            ends=(firsts + self.ends).reshape(-1),
        )


def summed_by_continuation(batch: Scored, scored: Tensor, n_items: int) -> dict[str, np.ndarray]:
    """The outputs of items from the scores of all tokens.

    Args:
        scored: see `score_states`, ``[variants, scored, 2]``, or `compare_states`, ``[..., 4]``.

    Returns:
        ``logits`` float32 ``[variants, items, continuations]``, summed log-likelihoods in nats, 0 where an
        item has fewer continuations; ``greedy`` bool of the same shape, whether every token of the
        continuation is the most likely one; ``wrong`` int64 of the same shape, how many are not; and, if
        compared, ``differences`` float64 ``[variants, items, 2]``, see `compare_states`, summed over the
        tokens of the first continuation.
    """
    shape, size = (len(scored), n_items, batch.n_continuations), scored.shape[-1]
    sums = torch.zeros(len(scored), n_items * batch.n_continuations, size, dtype=torch.float64)
    members = scored[:, batch.members.to(scored.device)].cpu().double()  # [variants, members, 2 or 4]
    members[..., 1] = 1 - members[..., 1]
    sums.index_add_(1, batch.slots, members)
    values = sums.view(*shape, size).numpy()
    found = {"logits": values[..., 0].astype(np.float32), "greedy": values[..., 1] == 0}
    found["wrong"] = values[..., 1].round().astype(np.int64)
    return found if size == 2 else {**found, "differences": values[:, :, 0, 2:]}


def score_states(parts: LogitsInParts, batch: Scored, states: Tensor) -> Tensor:
    """Log-likelihood of every scored token, and whether it is the most likely one.

    The logits over the vocabulary are computed for a few positions at a time and not kept.

    Args:
        parts: the output embedding.
        batch: the tokens to score.
        states: ``[read, hidden]``, what the output embedding is given at the positions that are read.

    Returns:
        float ``[scored, 2]``: the log-likelihood in nats, and 1 for the most likely token, else 0.
    """
    dtype, scores = torch.promote_types(states.dtype, torch.float32), []
    for chunk, size, scored in _chunks(batch, states):
        predictions = _Predictions(*scored, dtype)
        for first, logits in parts(states[chunk], size):
            predictions.add(first, logits.to(dtype))
        scores.append(predictions.scores())
    return torch.cat(scores)


def compare_states(parts: LogitsInParts, batch: Scored, states: Sequence[Tensor], intact: Tensor) -> Tensor:
    """Scores of every token, and how the distributions over the vocabulary differ from the intact model's.

    The logits are computed for a part of the vocabulary and a few positions at a time, the intact model's
    once for all variants, so that memory depends neither on the variants nor on the vocabulary.

    Args:
        states: of each variant ``[read, hidden]``, see `score_states`.
        intact: the intact model's ``[read, hidden]``.

    Returns:
        float ``[variants, scored, 4]``: the two of `score_states`; the Kullback-Leibler divergence
        KL(intact || variant) of the prediction of the token, in nats; and 1 where both models find the same
        token the most likely one, else 0.
    """
    dtype, scores = torch.promote_types(intact.dtype, torch.float32), []
    for chunk, size, scored in _chunks(batch, intact):
        own, *others = (_Predictions(*scored, dtype) for _ in (intact, *states))
        theirs = [parts(some[chunk], size) for some in states]
        for first, logits in parts(intact[chunk], size):
            reference = logits.to(dtype)
            weights = own.add(first, reference)
            for other, logits_in_parts in zip(others, theirs):
                part = next(logits_in_parts)[1].to(dtype)
                other.add(first, part)
                apart = (reference - part).masked_fill_(weights == 0, 0.0)  # 0 log 0 = 0
                other.apart.append(weights.mul(apart).sum(dim=-1))
        scores.append(torch.stack([other.compared(own) for other in others]))
    return torch.cat(scores, dim=1)


def _chunks(batch: Scored, states: Tensor) -> Iterator[tuple[slice, int, tuple[Tensor, Tensor]]]:
    """A few of the positions that are read at a time.

    Yields:
        the positions, how many tokens' logits are computed at a time, and of the tokens that are scored after
        these positions the position, counted from the first of them, and the token.
    """
    most, done = size_for(LOGITS_PER_CHUNK, states.device.type), 0
    for begin in range(0, len(states), _ROWS_PER_CHUNK):
        chunk = slice(begin, min(begin + _ROWS_PER_CHUNK, len(states)))
        end = int(batch.ends[chunk.stop - 1])
        inside, done = slice(done, end), end
        after, targets = (x[inside].to(states.device) for x in (batch.after, batch.targets))
        scored = after - begin, targets
        yield chunk, max(1, most // (chunk.stop - begin)), scored


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenScores:
    """Reads scores of tokens; see `adapter_probe.replay.structure.Reader`.

    Attributes:
        intact: where the intact model's states, or logits, are kept, to compare every variant with them:
            those of the first reading, which is `Replay`'s recorded forward; None to compare nothing.
        logit: a usual size of a language model's largest logits; see `adapter_probe.replay.checking.compare`.
    """

    logit: ClassVar[float] = 16.0

    intact: list[Tensor] | None = None

    @property
    def reads_intact_first(self) -> bool:
        """Whether the first output that it reads must be the intact model's."""
        return self.intact is not None

    def numbers(self, scores: Tensor) -> Tensor:
        """The log-likelihoods and divergences; which token is likeliest, rounding may decide."""
        return scores[..., ::2]


@dataclass(frozen=True, eq=False)
class WrittenScores(TokenScores):
    """Reads the scores of texts that a model's whole output predicts.

    Attributes:
        tokens: int64 ``[examples, positions]``, as of `EncodedWritten`.
    """

    tokens: Tensor

    def __call__(self, model: nn.Module, run: Callable[[], Any], copies: int) -> Tensor:
        """Of every text the summed log-likelihood and the number of wrong tokens: ``[copies, examples, 2]``.

        If compared, also the summed divergence from the intact model, and the number of tokens of which both
        find the same one the likeliest, see `compare_states`: ``[copies, examples, 4]``.
        """
        logits = split(run()["logits"], 0, copies)  # [copies, examples, positions, vocabulary]
        tokens = self.tokens[:, : logits.shape[2]].to(logits.device)
        example, place = (tokens != NO_TAG).nonzero(as_tuple=True)  # [scored] each
        dtype = torch.promote_types(logits.dtype, torch.float32)
        own = logits[:, example, place].to(dtype)  # [copies, scored, vocabulary]
        shares = torch.log_softmax(own, dim=-1)
        targets = tokens[example, place].expand(copies, -1)
        chosen = shares.gather(-1, targets[..., None])[..., 0]
        columns = [chosen, chosen < shares.amax(dim=-1)]
        if self.intact is not None:
            if not self.intact:
                self.intact.append(shares[0].clone())
            intact, weights = self.intact[0], self.intact[0].exp()
            apart = (intact - shares).masked_fill_(weights == 0, 0.0)  # 0 log 0 = 0
            columns += [(weights * apart).sum(dim=-1), shares.argmax(dim=-1) == intact.argmax(dim=-1)]
        scores = torch.stack([column.to(dtype) for column in columns], dim=-1)
        return scores.new_zeros(copies, len(tokens), len(columns)).index_add_(1, example, scores)


class _Predictions:
    """The predictions of a model after some positions, from its logits in parts of the vocabulary.

    Args:
        rows: int64 ``[scored]``, the position that every scored token follows.
        targets: int64 ``[scored]``, the tokens.

    Attributes:
        tops, places, totals: of each part ``[positions]``: the largest logit, its token, and the logarithm of
            the sum of exponentials.
        apart: of each part, the sum of logit differences to the intact model, weighted by its exponentials.
    """

    def __init__(self, rows: Tensor, targets: Tensor, dtype: torch.dtype):
        self.rows, self.targets = rows, targets
        self.chosen = torch.empty(len(rows), dtype=dtype, device=rows.device)
        self.tops: list[Tensor] = []
        self.places: list[Tensor] = []
        self.totals: list[Tensor] = []
        self.apart: list[Tensor] = []

    def add(self, first: int, part: Tensor) -> Tensor:
        """Add the logits ``[positions, tokens]`` from a token on; their exponentials over the largest."""
        top, place = part.max(dim=-1)
        # Every target is looked up in every part, although only one part contains it: selecting the targets
        # of a part would make the host wait for the accelerator.
        at = self.targets - first
        found = part[self.rows, at.clamp(0, part.shape[1] - 1)]
        self.chosen = torch.where((at >= 0) & (at < part.shape[1]), found, self.chosen)
        weights = (part - top[:, None]).exp_()
        self.tops.append(top)
        self.places.append(place + first)
        self.totals.append(weights.sum(dim=-1).log_().add_(top))
        return weights

    def scores(self) -> Tensor:
        """The scores of `score_states`, ``[scored, 2]``."""
        likely = self.chosen - self._total()[self.rows]
        greedy = self.chosen >= torch.stack(self.tops).amax(dim=0)[self.rows]
        return torch.stack([likely, greedy.to(likely.dtype)], dim=1)

    def compared(self, intact: _Predictions) -> Tensor:
        """The scores of `compare_states`, ``[scored, 4]``."""
        total, own = self._total(), intact._total()
        shares = (torch.stack(intact.tops) - own).exp()  # of what is 1 in each part's weights
        apart = (shares * torch.stack(self.apart)).sum(dim=0)
        same = (self._likeliest() == intact._likeliest()).to(total.dtype)
        differences = torch.stack([apart - own + total, same], dim=1)
        return torch.cat([self.scores(), differences[self.rows]], dim=1)

    def _total(self) -> Tensor:
        return torch.logsumexp(torch.stack(self.totals), dim=0)

    def _likeliest(self) -> Tensor:
        part = torch.stack(self.tops).argmax(dim=0, keepdim=True)
        return torch.stack(self.places).gather(0, part)[0]


def summed_windows(encoded: EncodedRequests, sums: np.ndarray) -> np.ndarray:
    """Log-likelihoods of examples, or what else is summed, as sums over their windows.

    Args:
        sums: ``[variants, items, ...]``; the items are windows.

    Returns:
        ``[variants, examples, ...]``, of the same type.
    """
    first = np.flatnonzero(np.diff(encoded.example, prepend=-1))  # the windows of an example are adjacent
    return np.add.reduceat(sums.astype(np.float64), first, axis=1).astype(sums.dtype)
