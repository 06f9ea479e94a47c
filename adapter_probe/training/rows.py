"""The examples of a batch as rows of tokens, as models of Transformers take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.packing import PackedBatch


@dataclass(frozen=True)
class PaddedRows:
    """The examples of a batch, one a row, padded to the longest.

    Attributes:
        inputs: arguments of the model, tensors ``[rows, length]``.
        places: int64 ``[tokens]``, where the tokens of the batch are in the rows laid end to end.
        inside: bool ``[rows * length]``, which tokens are no padding; None if all are.
        padding: the token that fills the rows.
    """

    inputs: dict[str, Tensor]
    places: Tensor
    inside: Tensor | None
    padding: int

    def packed(self, values: Tensor) -> Tensor:
        """Values of the rows' tokens ``[rows, length, ...]``, of the batch's alone, ``[tokens, ...]``."""
        return values.flatten(0, 1)[self.places]

    def spread(self, values: Tensor) -> Tensor:
        """The inverse of `packed`, with zeros at the padding."""
        rows, length = self.inputs["input_ids"].shape
        out = values.new_zeros(rows * length, *values.shape[1:])
        return out.index_copy_(0, self.places, values).unflatten(0, (rows, length))

    def of_one_token(self) -> PaddedRows:
        """Rows of one token that is no padding, for a model of which only the head computes."""
        inputs = {name: tensor[:, :1] for name, tensor in self.inputs.items()}
        inputs["input_ids"] = torch.full_like(inputs["input_ids"], int(self.padding == 0))
        places = torch.arange(len(inputs["input_ids"]), device=self.places.device)
        return PaddedRows(inputs, places, None, self.padding)


def pad_rows(batch: PackedBatch, padding: int, with_types: bool) -> PaddedRows:
    """The examples of a batch, one a row."""
    device, lengths = batch.input_ids.device, np.array(_lengths(batch))
    shape = (len(lengths), int(lengths.max()))
    within = np.arange(shape[1]) < lengths[:, None]  # on the host, so that no shape is read off a device
    places = torch.from_numpy(np.flatnonzero(within)).to(device)

    def filled(values: Tensor, filling: int) -> Tensor:
        row = values.new_full((shape[0] * shape[1],), filling)
        return row.index_copy_(0, places, values[: len(places)]).view(shape)

    inputs = {"input_ids": filled(batch.input_ids, padding)}
    inputs["attention_mask"] = torch.from_numpy(within).to(device).long()
    if with_types and batch.token_type_ids is not None:
        inputs["token_type_ids"] = filled(batch.token_type_ids, 0)
    inside = None if within.all() else torch.from_numpy(within.ravel()).to(device)
    return PaddedRows(inputs, places, inside, padding)


@dataclass(frozen=True)
class LanguageRows:
    """The examples of a batch for a language model.

    Attributes:
        inputs: arguments of the model.
        row, column: int64 ``[read]``, the positions whose next tokens are scored.
        width: length of the rows.
    """

    inputs: dict[str, Any]
    row: Tensor
    column: Tensor
    width: int


def text_rows(batch: PackedBatch, padding: int, joined: torch.dtype | None) -> LanguageRows:
    """The texts of a batch for a model of one stack.

    Args:
        joined: dtype of the mask that keeps texts apart which share a row; None for a row each.
    """
    assert batch.read is not None, "a language model's batch says what is scored"
    lengths = _lengths(batch)
    rows, begins, width = list(range(len(lengths))), [0] * len(lengths), max(lengths)
    if joined is not None:
        rows, begins = _joined(lengths, width)
    device = batch.input_ids.device
    sizes = torch.tensor(lengths, device=device)
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=device), sizes)  # [tokens]
    place = torch.arange(len(owner), device=device) - batch.first[owner]
    row = torch.tensor(rows, device=device)[owner]
    column = torch.tensor(begins, device=device)[owner] + place
    shape = (max(rows) + 1, width)
    ids = torch.full(shape, padding, device=device)
    ids[row, column] = batch.input_ids
    of = torch.full(shape, -1, device=device)
    of[row, column] = owner
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": (of >= 0).long()}
    if joined is not None:
        inputs["attention_mask"] = _apart(of, joined)
        inputs["position_ids"] = torch.zeros_like(ids)
        inputs["position_ids"][row, column] = place
    return LanguageRows(inputs, row[batch.read], column[batch.read], width)


def pair_rows(batch: PackedBatch, padding: int) -> LanguageRows:
    """The examples of a batch for an encoder-decoder, whose decoder reads all but the last token."""
    assert batch.sources is not None, "the encoder reads the beginning of each example"
    assert batch.read is not None, "the batch says what is scored"
    lengths = np.array(_lengths(batch))
    sources = torch.from_numpy(batch.sources).to(batch.first.device)
    written = torch.from_numpy(lengths - batch.sources - 1).to(batch.first.device)
    width = int((lengths - batch.sources).max()) - 1
    ids, inside = _cut(batch, batch.first, sources, int(batch.sources.max()), padding)
    decoder_ids, _ = _cut(batch, batch.first + sources, written, width, padding)
    row = torch.searchsorted(batch.first, batch.read, right=True) - 1
    inputs = {"input_ids": ids, "attention_mask": inside.long(), "decoder_input_ids": decoder_ids}
    return LanguageRows(inputs, row, batch.read - (batch.first + sources)[row], width)


def _lengths(batch: PackedBatch) -> list[int]:
    return [group.length for group in batch.groups for _ in range(group.n)]


def _cut(batch: PackedBatch, first: Tensor, sizes: Tensor, width: int, padding: int) -> tuple[Tensor, Tensor]:
    """Rows of tokens ``[examples, width]`` from `first` on, padded, and which are no padding."""
    columns = torch.arange(width, device=first.device)
    inside = columns < sizes[:, None]
    ids = torch.full(inside.shape, padding, device=first.device)
    ids[inside] = batch.input_ids[(first[:, None] + columns)[inside]]
    return ids, inside


def _apart(of: Tensor, dtype: torch.dtype) -> Tensor:
    """Mask ``[rows, 1, columns, columns]``: a token sees itself and the earlier ones of its example.

    Args:
        of: int64 ``[rows, columns]``, the number of each token's example.
        dtype: of the mask.
    """
    columns = of.shape[1]
    earlier = torch.ones(columns, columns, dtype=torch.bool, device=of.device).tril()
    sees = (of[:, :, None] == of[:, None, :]) & earlier
    hidden = torch.zeros(sees.shape, dtype=dtype, device=of.device)
    return hidden.masked_fill_(~sees, torch.finfo(dtype).min)[:, None]


def _joined(lengths: list[int], width: int) -> tuple[list[int], list[int]]:
    """Rows and columns of examples' first tokens, in as few rows as first-fit finds, longest first."""
    rows, begins, ends = [0] * len(lengths), [0] * len(lengths), list[int]()
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((r for r, end in enumerate(ends) if end + lengths[number] <= width), len(ends))
        if row == len(ends):
            ends.append(0)
        rows[number], begins[number] = row, ends[row]
        ends[row] += lengths[number]
    return rows, begins
