"""Batches without padding: examples are concatenated in groups of exactly equal length.

Except for attention, a Transformer layer treats each token independently. Examples of different lengths
therefore share one long row of tokens, and only attention uses the groups. No padding, no mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .encoding import Encoded
from .requests_encoding import EncodedRequests, TokenTree


class Group(NamedTuple):
    """`n` consecutive examples of `length` tokens each, from token `start` on.

    Attributes:
        start: the first token of the first example.
        n: number of examples.
        length: number of tokens per example.
        n_read: number of positions per example that the head reads.
        positions: int64 ``[n, length]``, position of each token in its text; None for 0, 1, ...
        sees: bool ``[n, length, length]``, which tokens (columns) each token may attend to in a causal model;
            None for the token itself and all before it.
    """

    start: int
    n: int
    length: int
    n_read: int = 1
    positions: Tensor | None = None
    sees: Tensor | None = None

    @property
    def stop(self) -> int:
        """One past the group's last token."""
        return self.start + self.n * self.length


@dataclass(frozen=True)
class PackedBatch:
    """Some examples of a dataset, packed for the model.

    Attributes:
        index: int64 ``[examples]``, index in the dataset of each example, in packed order.
        groups: exact-length groups, in packed order.
        input_ids: int64 ``[tokens]``.
        token_type_ids: int64 ``[tokens]`` or None.
        first: int64 ``[examples]``, the position of each example's first token.
        read: int64 ``[read]``, the positions whose next tokens are scored, in packed order; None where the
            head reads one token an example, or all.
    """

    index: np.ndarray
    groups: tuple[Group, ...]
    input_ids: Tensor
    token_type_ids: Tensor | None
    first: Tensor
    read: Tensor | None = None

    @property
    def n_tokens(self) -> int:
        """Total number of tokens."""
        return self.groups[-1].stop

    @property
    def last(self) -> Tensor:
        """int64 ``[examples]``, the position of each example's last token."""
        lengths = [group.length for group in self.groups for _ in range(group.n)]
        return self.first + torch.tensor(lengths, device=self.first.device) - 1

    @property
    def rows(self) -> list[slice]:
        """The range of each example's tokens in `input_ids`, in packed order."""
        return [
            slice(start, start + group.length)
            for group in self.groups
            for start in range(group.start, group.stop, group.length)
        ]

    def by_example(self, values: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Split per-token outputs of a model into examples.

        Args:
            values: ``[tokens, ...]``.

        Yields:
            for every group, which examples of the packed order it holds, and their values
            ``[examples, length, ...]``.
        """
        begin = 0
        for group in self.groups:
            # [n * length, ...] -> [n, length, ...]
            yield (
                slice(begin, begin + group.n),
                values[group.start : group.stop].unflatten(0, (group.n, group.length)),
            )
            begin += group.n

    def to(self, device: torch.device) -> PackedBatch:
        """The same batch with its tensors on `device`."""

        def moved(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.to(device)

        groups = tuple(g._replace(positions=moved(g.positions), sees=moved(g.sees)) for g in self.groups)
        tensors = (self.input_ids, self.token_type_ids, self.first, self.read)
        return PackedBatch(self.index, groups, *map(moved, tensors))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class RequestBatch:
    """Some items, laid end to end, and what is scored in them.

    Attributes:
        packed: the model's input; its `read` are the positions after which tokens are scored.
        after, targets: int64 ``[scored]``, on the model's device: the tokens `targets` are scored after the
            positions ``read[after]``; `after` is in ascending order.
        ends: int64 ``[read]``, on the host: number of tokens scored up to each position that is read, so that
            finding the tokens of some positions requires no synchronization with the device.
        members: int64 ``[members]``, on the device: indices of scored tokens, grouped by continuation.
        slots: int64 ``[members]``, on the host: the continuation of each member: index of the item in the
            batch, in the order given, times `n_continuations`, plus the continuation's number.
        n_continuations: number of slots per item.
    """

    packed: PackedBatch
    after: torch.Tensor
    targets: torch.Tensor
    ends: np.ndarray
    members: torch.Tensor
    slots: torch.Tensor
    n_continuations: int

    def repeated(self, copies: int) -> RequestBatch:
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


def pack(encoded: Encoded, index: Sequence[int] | np.ndarray) -> PackedBatch:
    """Concatenate the examples `index`, shortest first (ties in the given order)."""
    chosen = np.asarray(index, dtype=np.int64)
    chosen = chosen[np.argsort(encoded.lengths[chosen], kind="stable")]
    groups, starts = packed_groups(encoded.lengths[chosen]), _begins(encoded.lengths[chosen])
    ids = np.concatenate([encoded.input_ids[i] for i in chosen])
    types = None
    if encoded.token_type_ids is not None:
        types = torch.from_numpy(np.concatenate([encoded.token_type_ids[i] for i in chosen]))
    read = None
    if encoded.scored is not None:
        read = torch.from_numpy(
            np.concatenate([start + encoded.scored[i] - 1 for start, i in zip(starts, chosen)])
        )
    return PackedBatch(chosen, groups, torch.from_numpy(ids), types, torch.from_numpy(starts), read)


def packed_groups(lengths: np.ndarray) -> tuple[Group, ...]:
    """The groups of examples with these lengths, int ``[examples]``, in ascending order."""
    own, counts = np.unique(lengths, return_counts=True)
    starts = np.cumsum(counts * own) - counts * own
    return tuple(map(Group, starts.tolist(), counts.tolist(), own.tolist()))


def pack_requests(encoded: EncodedRequests, index: np.ndarray, device: torch.device) -> RequestBatch:
    """Concatenate the items `index`, with items of the same shape in one group."""
    order, groups = _alike([encoded.trees[item] for item in index])
    trees = [encoded.trees[item] for item in index[order]]
    lengths, reads, n_scored = (
        np.array(sizes) for sizes in zip(*((len(t.tokens), len(t.read), len(t.after)) for t in trees))
    )
    after = _joined([tree.after for tree in trees], reads)
    ascending = np.argsort(after, kind="stable")  # as it ascends, what some positions have is a slice
    members = _joined([np.concatenate(tree.scored) for tree in trees], n_scored)
    slots = [
        np.full(len(own), place * encoded.n_continuations + number)
        for place, tree in zip(order, trees)
        for number, own in enumerate(tree.scored)
    ]
    packed = PackedBatch(
        index[order],
        groups,
        torch.from_numpy(np.concatenate([tree.tokens for tree in trees])),
        None,
        torch.from_numpy(_begins(lengths)),
        torch.from_numpy(_joined([tree.read for tree in trees], lengths)),
    )
    targets = np.concatenate([tree.targets for tree in trees])
    return RequestBatch(
        packed.to(device),
        after=torch.from_numpy(after[ascending]).to(device),
        targets=torch.from_numpy(targets[ascending]).to(device),
        ends=np.searchsorted(after[ascending], np.arange(reads.sum()), side="right"),
        members=torch.from_numpy(np.argsort(ascending)[members]).to(device),
        slots=torch.from_numpy(np.concatenate(slots)),
        n_continuations=encoded.n_continuations,
    )


def _alike(trees: Sequence[TokenTree]) -> tuple[np.ndarray, tuple[Group, ...]]:
    """Groups of trees of the same shape, and the order of the trees in them, int64 ``[trees]``."""
    shapes: dict[tuple[int, int, bool], list[int]] = {}
    for number, tree in enumerate(trees):
        shapes.setdefault((len(tree.tokens), len(tree.read), tree.is_one_text), []).append(number)
    groups, start = [], 0
    for (length, n_read, is_one_text), numbers in shapes.items():
        layout = () if is_one_text else _layout([trees[number] for number in numbers])
        groups.append(Group(start, len(numbers), length, n_read, *layout))
        start = groups[-1].stop
    return np.concatenate(list(shapes.values())), tuple(groups)


def _begins(sizes: np.ndarray) -> np.ndarray:
    """Int64 ``[parts]``, where parts of these sizes begin if they are laid end to end."""
    return np.cumsum(sizes) - sizes


def _joined(parts: Sequence[np.ndarray], sizes: np.ndarray) -> np.ndarray:
    """Indices into spaces of these sizes, as indices into the spaces laid end to end."""
    return np.concatenate([part + begin for part, begin in zip(parts, _begins(sizes))])


def _layout(trees: Sequence[TokenTree]) -> tuple[Tensor, Tensor]:
    """Positions and attention masks of the tokens of trees of one length; a token sees itself too."""
    sees = np.stack([tree.sees for tree in trees])
    return torch.from_numpy(sees.sum(axis=-1) - 1), torch.from_numpy(sees)


def cut_by_tokens(lengths: np.ndarray, order: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Split `order` into consecutive batches of at most `max_tokens` tokens and at least one example.

    Args:
        lengths: int ``[examples]``, tokens of every example of the dataset.
        order: int ``[chosen]``, indices of the chosen examples, in order.
        max_tokens: maximum tokens per batch; a longer single example becomes a separate batch.
    """
    runs: list[np.ndarray] = []
    begin = total = 0
    for position, length in enumerate(lengths[order].tolist()):
        if position > begin and total + length > max_tokens:
            runs.append(order[begin:position])
            begin, total = position, 0
        total += length
    if begin < len(order):
        runs.append(order[begin:])
    return runs
