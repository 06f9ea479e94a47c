"""Arguments of a model's forward, as any processor or collator makes them, as examples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.encoding import Items
from adapter_probe.data.request_rows import refuse_preferences
from adapter_probe.errors import DataError, listed, must_be, one_line

LABELS = ("labels", "label")
_PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""What says where the texts of a packed row end, besides their positions."""
NO_TAG = -100
"""The label of positions that transformers and PyTorch leave out of the loss."""
Read = Callable[[Any], Tensor]
"""What is wanted of a model's output, ``[examples, outputs]``."""


@dataclass(frozen=True, eq=False)
class EncodedBatches(Items):
    """Examples cut out of batches; `Encoded` is the same for texts.

    Attributes:
        batches: keyword arguments by name: tensors with the examples along their first axis, on the host, and
            plain values.
        places: int64 ``[examples, 2]``, the batch of each example and its row there.
        lengths: int64 ``[examples]``, positions of each example inside the model; equal ones have equal
            shapes.
        fingerprint: SHA-256 of the arguments.
        read: what is wanted of the model's output.
    """

    in_batches: ClassVar[bool] = True

    batches: tuple[dict[str, Any], ...]
    places: np.ndarray
    lengths: np.ndarray
    fingerprint: str
    read: Read

    def __len__(self) -> int:
        return len(self.places)

    def inputs(self, items: np.ndarray, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        """The arguments for examples of one shape, floating-point ones in a precision."""
        places = self.places[items].tolist()
        found = dict(self.batches[places[0][0]])
        for name, value in found.items():
            if isinstance(value, Tensor):
                rows = torch.stack([self.batches[batch][name][row] for batch, row in places])
                found[name] = rows.to(device, dtype if rows.is_floating_point() else rows.dtype)
        return found

    def some(self, kept: np.ndarray) -> EncodedBatches:
        """Some of the examples, bool ``[examples]``; the batches, and so the fingerprint, are the same."""
        return replace(self, places=self.places[kept], lengths=self.lengths[kept])

    def with_lengths(self, positions: Callable[[int], int]) -> EncodedBatches:
        """The same with lengths by a function of an example; it is asked once for each shape."""
        _, firsts, shapes = np.unique(self.lengths, return_index=True, return_inverse=True)
        found: list[int] = []
        for example in firsts.tolist():
            length = positions(example)
            while length in found:  # equal lengths have equal shapes
                length += 1
            found.append(length)
        return replace(self, lengths=np.array(found, dtype=np.int64)[shapes])


@dataclass(frozen=True, eq=False)
class EncodedWritten(EncodedBatches):
    """The same with the texts that a language model writes, by teacher forcing.

    Attributes:
        tokens: int64 ``[examples, positions]``, the token that the model's output at a position predicts, or
            `NO_TAG`.
    """

    tokens: np.ndarray

    @property
    def n_tokens(self) -> np.ndarray:
        """Int64 ``[examples, 1]``, how many tokens are scored."""
        return (self.tokens != NO_TAG).sum(axis=1, keepdims=True)

    @property
    def example(self) -> np.ndarray:
        """The example of each item: int64 ``[items]``."""
        return np.arange(len(self))

    n_continuations = 1


def encode_batches(
    batches: Any, labels: Any, read: Read, taken: Sequence[str] | None, keep_labels: bool
) -> tuple[EncodedBatches, np.ndarray]:
    """Cut batches into examples, with their labels as given.

    Args:
        batches: an iterable of mappings, which is read once, or a table of `datasets`.
        labels: one label per example, or a row of them; None for those in the batches.
        taken: the names of the model's arguments; None if it takes any.
        keep_labels: whether the model needs the labels to compute its outputs, as encoder-decoders do.
    """
    kept: list[dict[str, Any]] = []
    own: list[Any] = []
    places: list[tuple[int, int]] = []
    shapes: dict[object, int] = {}
    kinds: list[int] = []
    for number, found in _read(batches, taken):
        name = next((name for name in LABELS if name in found), None)
        if name is not None:
            own.append(found[name] if keep_labels else found.pop(name))
        unknown = [name for name in found if taken is not None and name not in taken]
        if unknown:
            raise DataError(
                f"batch {number} has {unknown[0]!r}, which the model does not take; its arguments are "
                f"{listed(taken or ())}"
            )
        n = _n_examples(number, found)
        shape = tuple((name, tuple(x.shape[1:]) if isinstance(x, Tensor) else x) for name, x in found.items())
        kinds += [shapes.setdefault(repr(shape), len(shapes))] * n
        places += [(len(kept), row) for row in range(n)]
        kept.append(found)
    if not places:
        raise DataError("batches has no examples (an iterator is used up by one pass); give at least two")
    encoded = EncodedBatches(tuple(kept), np.array(places), np.array(kinds), _fingerprint(kept), read)
    return encoded, _labels(labels, own, len(encoded))


def _read(batches: Any, taken: Sequence[str] | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every batch with its number; of packed texts each with that of their batch."""
    if isinstance(batches, Mapping) or not isinstance(batches, Iterable):
        raise DataError(must_be("batches", "a list of mappings, a DataLoader or a datasets.Dataset", batches))
    table = hasattr(batches, "features") and hasattr(batches, "iter")  # of datasets
    for number, batch in enumerate(batches):
        if not isinstance(batch, Mapping):
            wanted = "a mapping of the model's arguments"
            raise DataError(must_be(f"batch {number}", wanted, type(batch).__name__))
        found = _row(number, batch, taken) if table or _is_row(batch) else batch
        for one in _unpacked(number, {str(name): _plain(value) for name, value in found.items()}):
            yield number, one


def _is_row(batch: Mapping[str, Any]) -> bool:
    """Whether the tokens are those of one text, as in a tokenised dataset."""
    ids = batch.get("input_ids")
    flat = isinstance(ids, list) and not any(isinstance(x, list) for x in ids)
    return flat or getattr(ids, "ndim", 0) == 1


def _row(number: int, row: Mapping[str, Any], taken: Sequence[str] | None) -> dict[str, Any]:
    """A row of a dataset as a batch of one, without the columns that the model does not take."""
    refuse_preferences("batches", row)
    label = next((name for name in LABELS if name in row), None)
    own = [name for name in row if (taken is None or name in taken) and name not in LABELS]
    if not own:
        raise DataError(
            f"batches has the columns {listed(row)}, of which the model takes none; its arguments are "
            f"{listed(taken or ())}; a dataset of texts is given as data="
        )
    own += [] if label is None else [label]
    try:
        return {name: [x] if isinstance(x := row[name], str) else torch.as_tensor(x)[None] for name in own}
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"batches row {number} holds no numbers of one shape: {one_line(error)}") from None


def _unpacked(number: int, batch: dict[str, Any]) -> list[dict[str, Any]]:
    """The texts of packed rows, each of which sees itself alone, as a batch each.

    As in transformers, a row without a mask holds several texts if its positions begin again. Those without
    a label to predict are left out.
    """
    found = {name: x for name, x in batch.items() if name not in _PACKING}
    at = found.get("position_ids")
    if not isinstance(at, Tensor) or at.dim() != 2 or "attention_mask" in found:
        return [batch]
    if not (at[:, 1:] == 0).any():
        return [found]
    for name, x in found.items():
        if not isinstance(x, Tensor) or x.shape[:2] != at.shape:
            raise DataError(
                f"batch {number} has several texts in a row, and {name!r} has no number for each of its "
                "positions; give batches without packing"
            )
    places = [
        (row, slice(begin, end))
        for row, own in enumerate(at)
        for begin, end in pairwise([0, *((own[1:] == 0).nonzero().flatten() + 1).tolist(), len(own)])
    ]
    texts = [{name: x[row : row + 1, own] for name, x in found.items()} for row, own in places]
    return [one for one in texts if "labels" not in one or (one["labels"][:, 1:] != NO_TAG).any()]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _n_examples(number: int, batch: Mapping[str, Any]) -> int:
    sizes = {name: len(x) if x.dim() else -1 for name, x in batch.items() if isinstance(x, Tensor)}
    if not sizes:
        raise DataError(f"batch {number} has no tensors; give the arguments of the model's forward")
    if len(set(sizes.values())) > 1 or -1 in sizes.values():
        said = ", ".join(f"{name} {list(batch[name].shape)}" for name in sizes)
        raise DataError(f"batch {number} must have its examples along the first axis of every tensor: {said}")
    return next(iter(sizes.values()))


def _labels(given: Any, own: Sequence[Any], n: int) -> np.ndarray:
    """``[examples]`` or ``[examples, columns]``, as given or as the batches have them."""
    if given is None and not own:
        raise DataError("there are no labels; give labels=, or batches with 'labels'")
    labels = _in_one([np.asarray(one) for one in own]) if given is None else _in_one([np.asarray(given)])
    if not 1 <= labels.ndim <= 2 or labels.dtype.kind not in "iufbUS":
        raise DataError(
            "labels must be one number or name per example, or a row of numbers of one length, not "
            f"{labels.dtype} {list(labels.shape)}"
        )
    if len(labels) != n:
        raise DataError(f"labels must be {n}, one per example of the batches, not {len(labels)}")
    return labels


def _in_one(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The labels of all batches; rows of whole numbers are padded at their ends with `NO_TAG`."""
    if all(part.ndim == 2 and np.issubdtype(part.dtype, np.integer) for part in parts):
        width = max(part.shape[1] for part in parts)
        parts = [np.pad(p, [(0, 0), (0, width - p.shape[1])], constant_values=NO_TAG) for p in parts]
    elif len({part.shape[1:] for part in parts}) > 1:
        shapes = ", ".join(dict.fromkeys(str(list(part.shape)) for part in parts))
        raise DataError(f"the labels of the batches must be alike, not {shapes}")
    return np.concatenate(parts)


def _fingerprint(batches: Iterable[Mapping[str, Any]]) -> str:
    digest = hashlib.sha256()
    for batch in batches:
        for name, x in batch.items():
            if isinstance(x, Tensor):
                digest.update(f"{name} {x.dtype} {tuple(x.shape)}\n".encode())
                digest.update(x.contiguous().flatten().view(torch.uint8).numpy().data)
            else:
                digest.update(f"{name} {x!r}\n".encode())
    return digest.hexdigest()
