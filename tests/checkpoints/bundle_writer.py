"""A writer of TensorFlow's checkpoint files, made from the format's description, not from the reader."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from adapter_probe.checkpoints.crc32c import crc32c

NUMBERS = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def masked(data: bytes) -> bytes:
    checksum = crc32c(data)
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(array: np.ndarray, shard: int, offset: int, more: bytes = b"") -> bytes:
    shape = b"".join(field(2, field(1, n)) for n in array.shape)
    data = array.tobytes()
    start = field(1, NUMBERS.get(array.dtype.name, 7)) + field(2, shape) + field(3, shard)
    return start + field(4, offset) + field(5, len(data)) + varint(6 << 3 | 5) + masked(data) + more


def block(records: list[tuple[bytes, bytes]], restart_every: int = 3) -> bytes:
    out, restarts, last = b"", [], b""
    for number, (key, value) in enumerate(records):
        shared = 0
        if number % restart_every == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return out + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(records: list[tuple[bytes, bytes]], per_block: int = 100, compression: int = 0) -> bytes:
    data, places = b"", []

    def add(content: bytes) -> bytes:
        nonlocal data
        start, kind = len(data), bytes([compression])
        data += content + kind + masked(content + kind)
        return varint(start) + varint(len(content))

    for start in range(0, len(records), per_block):
        part = records[start : start + per_block]
        places.append((part[-1][0], add(block(part))))
    footer = add(block([])) + add(block(places))
    return data + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write(folder: Path, arrays: dict[str, np.ndarray], header: bytes | None = None, **options: int) -> Path:
    records, offset = [(b"", field(1, 1) if header is None else header)], 0
    for name, array in sorted(arrays.items()):
        records.append((name.encode(), entry(array, 0, offset)))
        offset += array.nbytes
    path = folder / "m.ckpt-1.index"
    path.write_bytes(table(records, **options))
    shard = b"".join(array.tobytes() for _, array in sorted(arrays.items()))
    (folder / "m.ckpt-1.data-00000-of-00001").write_bytes(shard)
    return path
