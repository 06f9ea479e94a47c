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
