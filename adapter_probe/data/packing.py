"""Batches to train on: examples laid end to end, shortest first, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .encoding import Encoded


@dataclass(frozen=True)
class PackedBatch:
    """Some examples of a dataset, packed for the model.

    Attributes:
        index: int64 ``[examples]``, index in the dataset of each example, in packed order.
        lengths: int64 ``[examples]``, tokens of each example, in packed order, which is ascending.
        input_ids: int64 ``[tokens]``.
        token_type_ids: int64 ``[tokens]`` or None.
        first: int64 ``[examples]``, the position of each example's first token.
        read: int64 ``[read]``, the positions whose next tokens are scored, in packed order; None where the
            head reads one token an example, or all.
        sources: see `Encoded`, int64 ``[examples]`` in packed order, on the host.
    """

    index: np.ndarray
    lengths: np.ndarray
    input_ids: Tensor
    token_type_ids: Tensor | None
    first: Tensor
    read: Tensor | None = None
    sources: np.ndarray | None = None

    @property
    def last(self) -> Tensor:
        """int64 ``[examples]``, the position of each example's last token."""
        return self.first + torch.from_numpy(self.lengths).to(self.first.device) - 1

    @property
    def rows(self) -> list[slice]:
        """The range of each example's tokens in `input_ids`, in packed order."""
        ends = np.cumsum(self.lengths)
        return list(map(slice, (ends - self.lengths).tolist(), ends.tolist()))

    def by_length(self, values: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Split per-token outputs of a model into examples.

        Args:
            values: ``[tokens, ...]``.

        Yields:
            for every length, which examples of the packed order have it, and their values
            ``[examples, length, ...]``.
        """
        begin = start = 0
        for length, n in zip(*(own.tolist() for own in np.unique(self.lengths, return_counts=True))):
            # [n * length, ...] -> [n, length, ...]
            yield slice(begin, begin + n), values[start : start + n * length].unflatten(0, (n, length))
            begin, start = begin + n, start + n * length

    def to(self, device: torch.device) -> PackedBatch:
        """The same batch with its tensors on `device`."""

        def moved(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.to(device)

        tensors = (self.input_ids, self.token_type_ids, self.first, self.read)
        return PackedBatch(self.index, self.lengths, *map(moved, tensors), self.sources)  # type: ignore[arg-type]


def pack(encoded: Encoded, index: Sequence[int] | np.ndarray) -> PackedBatch:
    """Concatenate the examples `index`, shortest first (ties in the given order)."""
    chosen = np.asarray(index, dtype=np.int64)
    chosen = chosen[np.argsort(encoded.lengths[chosen], kind="stable")]
    lengths = encoded.lengths[chosen]
    starts = np.cumsum(lengths) - lengths
    ids = np.concatenate([encoded.input_ids[i] for i in chosen])
    types = None
    if encoded.token_type_ids is not None:
        types = torch.from_numpy(np.concatenate([encoded.token_type_ids[i] for i in chosen]))
    read = None
    if encoded.scored is not None:
        read = torch.from_numpy(
            np.concatenate([start + encoded.scored[i] - 1 for start, i in zip(starts, chosen)])
        )
    sources = None if encoded.sources is None else encoded.sources[chosen]
    return PackedBatch(chosen, lengths, torch.from_numpy(ids), types, torch.from_numpy(starts), read, sources)


def in_batches(encoded: Encoded, max_tokens: int, device: torch.device) -> Iterator[PackedBatch]:
    """All examples in batches on a device, the shortest first; see `cut_by_tokens`."""
    order = np.argsort(encoded.lengths, kind="stable")
    for run in cut_by_tokens(encoded.lengths, order, max_tokens):
        yield pack(encoded, run).to(device)


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
