"""How a forward of Transformers is called: a batch as rows of tokens, and the parts of a forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.data.packing import PackedBatch


@dataclass(frozen=True)
class PaddedRows:
    """The examples of a batch, one a row, padded to the longest; of a language model several may share one.

    Attributes:
        inputs: arguments of the model, tensors ``[rows, length]``.
        places: int64 ``[tokens]``, where the tokens of the batch are in the rows laid end to end; of an
            encoder-decoder of those that are read, in the rows of the decoder.
        inside: bool ``[rows * length]``, which tokens are no padding; None if all are.
        padding: the token that fills the rows.
    """

    inputs: dict[str, Tensor]
    places: Tensor
    inside: Tensor | None
    padding: int

    @property
    def length(self) -> int:
        """Length of the rows; of an encoder-decoder those of the decoder."""
        return self.inputs.get("decoder_input_ids", self.inputs["input_ids"]).shape[1]

    def packed(self, values: Tensor) -> Tensor:
        """Values of the rows' tokens ``[rows, length, ...]``, of the batch's alone, ``[tokens, ...]``."""
        return values.flatten(0, 1)[self.places]


def _filled(values: Tensor, filling: int, places: Tensor, shape: tuple[int, int]) -> Tensor:
    """Rows ``[rows, length, ...]`` with values at their places, and elsewhere what fills them."""
    out = values.new_full((shape[0] * shape[1], *values.shape[1:]), filling)
    return out.index_copy_(0, places, values).unflatten(0, shape)


def pad_rows(batch: PackedBatch, padding: int, with_types: bool) -> PaddedRows:
    """The examples of a batch, one a row."""
    device, lengths = batch.input_ids.device, batch.lengths
    shape = (len(lengths), int(lengths.max()))
    within = np.arange(shape[1]) < lengths[:, None]  # on the host, so that no shape is read off a device
    places = torch.from_numpy(np.flatnonzero(within)).to(device)
    inputs = {"input_ids": _filled(batch.input_ids, padding, places, shape)}
    inputs["attention_mask"] = torch.from_numpy(within).to(device).long()
    if with_types and batch.token_type_ids is not None:
        inputs["token_type_ids"] = _filled(batch.token_type_ids, 0, places, shape)
    inside = None if within.all() else torch.from_numpy(within.ravel()).to(device)
    return PaddedRows(inputs, places, inside, padding)


def joined_rows(batch: PackedBatch, padding: int, dtype: torch.dtype) -> PaddedRows:
    """The texts of a batch in few rows, for a language model of one stack.

    Args:
        dtype: of the mask that keeps apart the texts which share a row.
    """
    device, lengths = batch.input_ids.device, batch.lengths
    width = int(lengths.max())
    starts = _first_fit(lengths.tolist(), width)
    owner = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(device)  # [tokens]
    place = torch.arange(len(owner), device=device) - batch.first[owner]
    places = torch.tensor(starts, device=device)[owner] + place
    shape = (max(starts) // width + 1, width)
    inputs = {
        "input_ids": _filled(batch.input_ids, padding, places, shape),
        "attention_mask": _apart(_filled(owner, -1, places, shape), dtype),
        "position_ids": _filled(place, 0, places, shape),
    }
    return PaddedRows(inputs, places, None, padding)


def pair_rows(batch: PackedBatch, padding: int) -> PaddedRows:
    """The examples of a batch for an encoder-decoder, whose decoder reads all but the last token."""
    assert batch.sources is not None, "the encoder reads the beginning of each example"
    sources = torch.from_numpy(batch.sources).to(batch.first.device)
    written = torch.from_numpy(batch.lengths - batch.sources - 1).to(batch.first.device)
    width = int((batch.lengths - batch.sources).max()) - 1
    ids, inside = _cut(batch, batch.first, sources, int(batch.sources.max()), padding)
    decoder_ids, _ = _cut(batch, batch.first + sources, written, width, padding)
    tokens = torch.arange(len(batch.input_ids), device=batch.first.device)
    row = torch.searchsorted(batch.first, tokens, right=True) - 1
    inputs = {"input_ids": ids, "attention_mask": inside.long(), "decoder_input_ids": decoder_ids}
    return PaddedRows(inputs, row * width + tokens - (batch.first + sources)[row], None, padding)


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


def _first_fit(lengths: list[int], width: int) -> list[int]:
    """Where examples begin in rows of `width` laid end to end, as few as first-fit finds, longest first."""
    begins, ends = [0] * len(lengths), list[int]()
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((r for r, end in enumerate(ends) if end + lengths[number] <= width), len(ends))
        if row == len(ends):
            ends.append(0)
        begins[number] = row * width + ends[row]
        ends[row] += lengths[number]
    return begins


@contextmanager
def computing_first(layers: Sequence[nn.Module], modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside one forward, modules of the last layer compute the first position of every row alone.

    Residual sums add the one position to all, so that only the first is right.

    Args:
        modules: of the last layer, after its attention, which are given states of all positions.
    """
    left = layers.count(layers[-1])

    def count(_module: nn.Module, _inputs: tuple) -> None:
        nonlocal left
        left -= 1

    def cut(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return None if left else tuple(given[:, :1] for given in inputs)

    with ExitStack() as stack:
        stack.callback(layers[-1].register_forward_pre_hook(count).remove)
        for module in modules:
            stack.callback(module.register_forward_pre_hook(cut).remove)
        yield
