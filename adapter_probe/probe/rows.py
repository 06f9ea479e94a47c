"""Requests of a language model as rows of tokens.

A context and all its continuations share one row where the model allows it: a token sees its own text only,
and positions go on from the context. Elsewhere every continuation has a row of its own, with its context.
Rows of like lengths are padded at their ends, which no token of a causal model sees. `choose_layout` finds
out what is allowed. An encoder-decoder reads every continuation as a row of its decoder, batched with those
whose encoder reads as many tokens; its encoder reads a context once for all its continuations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.data.token_trees import TokenTree
from adapter_probe.errors import ModelError
from adapter_probe.replay.recording import Stop, base_of, changed, moved_to
from adapter_probe.replay.two_weights import TwoWeights

from .likelihoods import LogitsInParts, Scored, TokenScores, compare_states, score_states

Layout = Literal["shared", "texts", "alone"]
"""A row for a context with all its continuations; for each continuation; or that, and never padded.

In the first, an encoder-decoder's continuations have rows of the decoder, and share one of the encoder.
"""
Piece = tuple[TokenTree, list[int]]
"""A row, and the slots of its continuations, see `Scored`."""

_FEWEST_TOKENS, _MOST_PADDED = 48, 1.04  # of a batch, and times its tokens


@dataclass(frozen=True, eq=False)
class Rows:
    """Some items as rows.

    Attributes:
        inputs: keyword arguments of the model's forward.
        read: int64 ``[read]``, positions in the rows laid end to end.
        share: how many rows, one after the other, an encoder reads as one, see `layouts.encoding_once`.
    """

    inputs: dict[str, Tensor]
    batch: Scored
    read: Tensor
    share: int = 1


def rows_of(
    encoded: EncodedRequests, items: np.ndarray, layout: Layout, dtype: torch.dtype, device: torch.device
) -> list[Rows]:
    """Lay out some items as batches of rows of like lengths.

    Args:
        dtype: precision of the mask.
    """
    n = encoded.n_continuations
    units: list[list[Piece]] = []  # of pieces that stay together
    for place, item in enumerate(items):
        tree, slots = encoded.trees[item], [place * n + number for number in range(n)]
        if layout == "shared" and tree.source is None:
            units.append([(tree, slots[: len(tree.scored)])])
            continue
        own = [(text_of(tree, number), [slots[number]]) for number in range(len(tree.scored))]
        units += [own] if layout == "shared" else [[piece] for piece in own]
    if layout == "alone":
        return [_batch(unit, n, dtype, device) for unit in units]
    sizes = [(0 if (source := unit[0][0].source) is None else len(source), len(unit)) for unit in units]
    found = []
    for size in sorted(set(sizes)):
        for batch in _alike([unit for unit, own in zip(units, sizes) if own == size]):
            found.append(replace(_batch(batch, n, dtype, device), share=size[1]))
    return found


def arguments_of(trees: Sequence[TokenTree], ids: np.ndarray) -> dict[str, Tensor]:
    """The arguments of a model's forward for rows of tokens, with what the encoder reads if there is one."""
    if trees[0].source is None:
        return {"input_ids": torch.from_numpy(ids)}
    read = torch.from_numpy(np.stack([tree.source for tree in trees if tree.source is not None]))
    return {
        "input_ids": read,
        "attention_mask": torch.ones_like(read),
        "decoder_input_ids": torch.from_numpy(ids),
    }


def _alike(units: Sequence[list[Piece]]) -> Iterator[list[Piece]]:
    """Rows in order of length, cut where padding would cost more than smaller batches; units stay whole."""
    batch: list[Piece] = []
    tokens = 0
    for unit in sorted(units, key=_width):
        length, n = _width(unit), len(unit)
        if tokens >= _FEWEST_TOKENS and length * (len(batch) + n) > _MOST_PADDED * (tokens + length * n):
            yield batch
            batch, tokens = [], 0
        batch += unit
        tokens += length * n
    yield batch


def _width(unit: Sequence[Piece]) -> int:
    return max(len(tree.tokens) for tree, _ in unit)


def _batch(pieces: Sequence[Piece], n: int, dtype: torch.dtype, device: torch.device) -> Rows:
    trees = [tree for tree, _ in pieces]
    width = max(len(tree.tokens) for tree in trees)
    ids = np.zeros((len(trees), width), dtype=np.int64)
    for row, tree in zip(ids, trees):
        row[: len(tree.tokens)] = tree.tokens
    inputs = arguments_of(trees, ids)
    if not all(tree.is_one_text for tree in trees):
        inputs |= _layout(trees, width, dtype)
    read = np.concatenate([row * width + tree.read for row, tree in enumerate(trees)])
    return Rows(
        {name: x.to(device) for name, x in inputs.items()},
        _scored(pieces, n, device),
        torch.from_numpy(read).to(device),
    )


def text_of(tree: TokenTree, number: int) -> TokenTree:
    """One continuation of a tree with its context, as a tree of one text."""
    scored = tree.scored[number]
    beginnings = tree.read[tree.after[scored]]  # after which its tokens are scored, in order
    path, state = [], int(beginnings[-1])
    while state >= 0:
        path.append(state)
        state = int(tree.parents[state])
    states = np.array(path[::-1])
    read = np.searchsorted(states, beginnings)  # states ascend along a text
    count = np.arange(len(scored))
    return TokenTree(
        tree.tokens[states], np.arange(len(states)) - 1, read, count, tree.targets[scored], (count,),
        tree.source,
    )  # fmt: skip


def _layout(trees: Sequence[TokenTree], width: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Positions and attention masks of rows with several texts; padding sees itself."""
    sees = np.broadcast_to(np.eye(width, dtype=bool), (len(trees), width, width)).copy()
    for own, tree in zip(sees, trees):
        size = len(tree.tokens)
        own[:size, :size] = tree.sees
    positions = torch.from_numpy(sees.sum(axis=-1) - 1)
    mask = torch.zeros(len(trees), 1, width, width, dtype=dtype)
    mask.masked_fill_(~torch.from_numpy(sees)[:, None], torch.finfo(dtype).min)
    return {"attention_mask": mask, "position_ids": positions}


def _scored(pieces: Sequence[Piece], n_continuations: int, device: torch.device) -> Scored:
    """What is scored in the rows, in the order of the rows; see `Scored`."""
    after, targets, members, slots, ends = [], [], [], [], []
    n_read = n_scored = 0
    for tree, own in pieces:
        order = np.argsort(tree.after, kind="stable")
        after.append(tree.after[order] + n_read)
        targets.append(tree.targets[order])
        place = np.argsort(order)
        for slot, scored in zip(own, tree.scored):
            members.append(place[scored] + n_scored)
            slots.append(np.full(len(scored), slot))
        ends.append(np.searchsorted(tree.after[order], np.arange(len(tree.read)), side="right") + n_scored)
        n_read, n_scored = n_read + len(tree.read), n_scored + len(tree.after)

    def joined(parts: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts))

    return Scored(
        after=joined(after).to(device),
        targets=joined(targets).to(device),
        ends=np.concatenate(ends),
        members=joined(members).to(device),
        slots=joined(slots),
        n_continuations=n_continuations,
    )


@dataclass(frozen=True, eq=False)
class Scorer(TokenScores):
    """Reads the scores of a language model's rows; see `adapter_probe.replay.structure.Reader`.

    Only the states that predict a scored token reach the output embedding.

    Attributes:
        is_last: whether the model returns its output embedding's results unchanged, so that they need not
            exist at the same time.
    """

    rows: Rows
    is_last: bool

    def __call__(self, model: nn.Module, run: Callable[[], Any], copies: int) -> Tensor:
        """The scores of every scored token, ``[copies, scored, 2]``, or 4 if compared with the intact model.

        See `score_states` and `compare_states`.
        """
        head, found = output_embedding(model), []
        own = head.forward

        def forward(hidden: Tensor) -> Tensor:
            states = hidden.reshape(copies, -1, hidden.shape[-1])
            states = states[:, self.rows.read.to(states.device)]  # [copies, read, hidden]
            if moved_to(head) is not None:  # as its own forward, which this replaces, would do
                states = states.to(moved_to(head))
            if not self.is_last:
                return own(states.flatten(0, 1)[None])
            found.extend(states)
            raise Stop

        out: Any = None
        with changed({head: forward}), suppress(Stop):
            out = run()
        if self.is_last:
            return self._scored(_in_parts(head), found)
        return self._scored(
            lambda whole, _: iter([(0, whole)]), list(out["logits"][0].unflatten(0, (copies, -1)))
        )

    def _scored(self, parts: LogitsInParts, states: list[Tensor]) -> Tensor:
        """The scores of copies, from the states ``[read, hidden]`` or the logits ``[read, vocabulary]``."""
        if self.intact is None:  # of all copies together, so that the vocabulary is read once
            scored = score_states(parts, self.rows.batch.repeated(len(states)), torch.cat(states))
            return scored.unflatten(0, (len(states), -1))
        if not self.intact:
            self.intact.append(states[0].clone())
        return compare_states(parts, self.rows.batch, states, self.intact[0])

    def where(self, rows: int, length: int) -> Tensor:
        """The positions that are read in some copies of the rows; see `adapter_probe.replay.last.Where`."""
        one = len(self.rows.inputs["input_ids"]) * length
        starts = torch.arange(0, rows * length, one, device=self.rows.read.device)
        return (starts[:, None] + self.rows.read).flatten()


def _in_parts(head: nn.Module) -> LogitsInParts:
    """The output embedding for a part of the vocabulary at a time, if it is a plain linear map."""

    def parts(states: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
        plain = type(head) is nn.Linear or isinstance(head, TwoWeights)
        if not plain or "forward" in vars(head) or head._forward_hooks or head._forward_pre_hooks:
            yield 0, head(states)
            return
        for first in range(0, len(head.weight), size):
            part = slice(first, first + size)
            yield first, F.linear(states, head.weight[part], None if head.bias is None else head.bias[part])

    return parts


def output_embedding(model: nn.Module) -> nn.Module:
    """The module that turns states into logits over the vocabulary.

    Raises:
        ModelError: there is none.
    """
    base = base_of(model)
    head: nn.Module | None = base.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(base).__name__} has no output embedding, so it is no language model")
    return head
