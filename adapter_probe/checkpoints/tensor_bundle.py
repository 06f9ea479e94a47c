"""Read the tensors of a TensorFlow checkpoint (a "tensor bundle", the format V2) without TensorFlow.

``<prefix>.index`` is a sorted table in LevelDB's layout that says of every tensor where its bytes are in the
files ``<prefix>.data-<shard>-of-<shards>``. Layout and checksums: tensorflow/core/lib/io/format.h and
tensorflow/core/protobuf/tensor_bundle.proto in TensorFlow's sources.

A reader of our own, because TensorFlow takes more than a gigabyte, and the one reader without it on the
package index, ``tensorflow-checkpoint-reader``, is TensorFlow's sources put into 25,000 lines of Python, says
of itself that it is unfinished, and has had no release since 2023.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adapter_probe.errors import CheckpointError, reason_of

from .crc32c import crc32c, unmask
from .files import refuse_irregular

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes: the places of two blocks, padding, the magic number
_TRAILER = 5  # bytes after a block: how it is compressed, and its checksum
# TensorFlow's numbers of the dtypes of weights, from types.proto.
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}


@dataclass(frozen=True)
class TensorEntry:
    """The location of one tensor.

    Attributes:
        dtype: TensorFlow's number of its type.
        shape: shape of the tensor.
        shard: number of its data file.
        offset: position of its first byte there.
        size: number of bytes.
        checksum: checksum of its bytes, as stored.
        sliced: whether its bytes are stored in parts, under other names.
    """

    dtype: int = 0
    shape: tuple[int, ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    checksum: int = 0
    sliced: bool = False


@dataclass(frozen=True)
class Bundle:
    """A checkpoint's table of contents.

    Attributes:
        index: the index file.
        shards: the data files.
        entries: the entries by the names of the variables.
    """

    index: Path
    shards: tuple[Path, ...]
    entries: dict[str, TensorEntry]

    def read(self, name: str) -> np.ndarray:
        """One tensor.

        Raises:
            CheckpointError: it is of a type, or stored in a way, that is not supported, or its file is
                missing or damaged.
        """
        entry = self.entries[name]
        if entry.sliced:
            raise CheckpointError(f"{self.index}: {name} is stored in slices, which is not supported")
        if entry.dtype not in _DTYPES:
            raise CheckpointError(
                f"{self.index}: {name} is of TensorFlow's type {entry.dtype}, which is not supported; "
                f"supported are {', '.join(str(number) for number in _DTYPES)}"
            )
        dtype = np.dtype(_DTYPES[entry.dtype])
        if not 0 <= entry.shard < len(self.shards) or entry.size != math.prod(entry.shape) * dtype.itemsize:
            raise CheckpointError(f"{self.index} is damaged: its entry for {name} is inconsistent")
        return np.frombuffer(self._bytes(name, entry), dtype).reshape(entry.shape)

    def _bytes(self, name: str, entry: TensorEntry) -> bytes:
        path = self.shards[entry.shard]
        refuse_irregular(path)
        try:
            with path.open("rb") as file:
                file.seek(entry.offset)
                data = file.read(entry.size)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{path} is missing; {self.index.name} needs {len(self.shards)} data files"
            ) from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
        if len(data) < entry.size:
            raise CheckpointError(f"{path} is damaged: it ends before {name} does")
        if crc32c(data) != unmask(entry.checksum):
            raise CheckpointError(f"{path} is damaged: {name} does not match its checksum")
        return data


def read_bundle(index: Path) -> Bundle:
    """The table of contents in an ``.index`` file.

    Raises:
        CheckpointError: the file cannot be read, is something else, damaged, or compressed.
    """
    refuse_irregular(index)
    try:
        data = index.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{index} cannot be read: {reason_of(error)}") from error
    if len(data) < _FOOTER or struct.unpack_from("<Q", data, len(data) - 8)[0] != _MAGIC:
        raise CheckpointError(f"{index} is not the index of a TensorFlow checkpoint, or is cut short")
    try:
        records = dict(_table(data, index))
        n_shards, big_endian = _header(records.pop(b""))
        entries = {name.decode("utf-8"): _entry(value) for name, value in records.items()}
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise CheckpointError(f"{index} is damaged: its records cannot be read") from error
    if big_endian:
        raise CheckpointError(f"{index} was written on a big-endian machine, which is not supported")
    prefix = index.name.removesuffix(".index")
    names = (f"{prefix}.data-{number:05d}-of-{n_shards:05d}" for number in range(n_shards))
    return Bundle(index, tuple(index.with_name(name) for name in names), entries)


def _table(data: bytes, index: Path) -> Iterator[tuple[bytes, bytes]]:
    """The records of a sorted table, by key."""
    at = len(data) - _FOOTER
    _, at = _handle(data, at)  # block of filters, which these tables do not use
    place, _ = _handle(data, at)
    for _, handle in _block(data, place, index):
        place, _ = _handle(handle, 0)
        yield from _block(data, place, index)


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """The location of a block as (offset, bytes), and the end of that record."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _block(data: bytes, place: tuple[int, int], index: Path) -> Iterator[tuple[bytes, bytes]]:
    """The records of one block; keys are stored without the prefix of the previous one."""
    offset, size = place
    block, trailer = data[offset : offset + size], data[offset + size : offset + size + _TRAILER]
    compression, checksum = struct.unpack("<BI", trailer)
    if crc32c(block + trailer[:1]) != unmask(checksum):
        raise CheckpointError(f"{index} is damaged: a block does not match its checksum")
    if compression:
        raise CheckpointError(
            f"{index} is compressed (type {compression}), which is not supported; save it uncompressed"
        )
    (n_restarts,) = struct.unpack_from("<I", block, size - 4)
    at, end, key = 0, size - 4 * (n_restarts + 1), b""
    while at < end:
        kept, at = _varint(block, at)
        n_key, at = _varint(block, at)
        n_value, at = _varint(block, at)
        key = key[:kept] + block[at : at + n_key]
        at += n_key
        yield key, block[at : at + n_value]
        at += n_value


def _header(data: bytes) -> tuple[int, bool]:
    """From a BundleHeaderProto: number of data files, and whether numbers are big-endian."""
    fields = dict(_fields(data))
    return int(fields.get(1, 0)), bool(fields.get(2, 0))


def _entry(data: bytes) -> TensorEntry:
    """From a BundleEntryProto."""
    fields = list(_fields(data))
    known = dict(fields)
    dims = [dict(_fields(dim)) for number, dim in _fields(known.get(2, b"")) if number == 2]
    return TensorEntry(
        dtype=known.get(1, 0),
        shape=tuple(int(dim.get(1, 0)) for dim in dims),
        shard=known.get(3, 0),
        offset=known.get(4, 0),
        size=known.get(5, 0),
        checksum=known.get(6, 0),
        sliced=any(number == 7 for number, _ in fields),
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer, as (number, value)."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            value, at = (
                struct.unpack_from("<Q" if kind == 1 else "<I", data, at)[0],
                at + (8 if kind == 1 else 4),
            )
        elif kind == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"wire type {kind}")
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint (seven bits per byte, lowest first), and its end."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
