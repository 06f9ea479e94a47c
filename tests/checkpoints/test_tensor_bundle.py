"""The reader of TensorFlow's files, against a writer made from the format's description."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from adapter_probe.checkpoints.crc32c import crc32c
from adapter_probe.checkpoints.tensor_bundle import read_bundle
from adapter_probe.errors import CheckpointError

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


def some_arrays() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    arrays = {f"scope/layer_{n}/{part}": draw.standard_normal((n, 2)) for n in range(9) for part in "ab"}
    return {
        name: array.astype(list(NUMBERS)[i % len(NUMBERS)]) for i, (name, array) in enumerate(arrays.items())
    } | {"step": np.array(7, dtype=np.int64)}


@pytest.mark.parametrize("per_block", [1, 4, 100])
def test_reads_what_was_written(tmp_path: Path, per_block: int):
    arrays = some_arrays()
    bundle = read_bundle(write(tmp_path, arrays, per_block=per_block))
    assert list(bundle.entries) == sorted(arrays)
    for name, array in arrays.items():
        read = bundle.read(name)
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)


def read_all(index: Path) -> dict[str, np.ndarray]:
    bundle = read_bundle(index)
    return {name: bundle.read(name) for name in bundle.entries}


def refusal(index: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        read_all(index)
    message = str(raised.value)
    assert "\n" not in message
    assert str(index.with_suffix("")) in message
    return message


def test_what_is_not_supported_is_named(tmp_path: Path):
    arrays = {"w": np.ones(3, np.float32)}
    assert "is compressed (type 1)" in refusal(write(tmp_path, arrays, compression=1))
    assert "big-endian" in refusal(write(tmp_path, arrays, header=field(1, 1) + field(2, 1)))
    assert "w is of TensorFlow's type 7" in refusal(write(tmp_path, {"w": np.array([b"text"])}))
    sliced = entry(arrays["w"], 0, 0, more=field(7, b""))
    index = write(tmp_path, arrays)
    index.write_bytes(table([(b"", field(1, 1)), (b"w", sliced)]))
    assert "w is stored in slices" in refusal(index)


def test_an_entry_that_does_not_agree_with_itself(tmp_path: Path):
    index = write(tmp_path, {"w": np.ones(3, np.float32)})
    for bad in (
        entry(np.ones(3, np.float32), 1, 0),
        field(1, 1) + field(2, field(2, field(1, 4))) + field(5, 12),
    ):
        index.write_bytes(table([(b"", field(1, 1)), (b"w", bad)]))
        assert "what it says of w does not agree" in refusal(index)


def test_a_table_without_a_header(tmp_path: Path):
    index = write(tmp_path, {"w": np.ones(3, np.float32)})
    index.write_bytes(table([(b"w", entry(np.ones(3, np.float32), 0, 0))]))
    assert "its records cannot be read" in refusal(index)


def test_every_changed_byte_of_the_index_that_matters_is_noticed(tmp_path: Path):
    arrays = {"a/b": np.ones(3, np.float32), "a/c": np.zeros((2, 2), np.float32)}
    index = write(tmp_path, arrays)
    data = index.read_bytes()
    noticed = 0
    for at in range(len(data)):
        index.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            read = read_all(index)
        except CheckpointError:
            noticed += 1
        else:  # padding, or the block that says nothing
            np.testing.assert_equal(read, arrays)
    assert noticed > len(data) // 2


def test_every_length_of_a_cut_index_is_refused(tmp_path: Path):
    index = write(tmp_path, {"w": np.ones(3, np.float32)})
    data = index.read_bytes()
    for length in range(len(data)):
        index.write_bytes(data[:length])
        assert "is cut short" in refusal(index)


def test_damaged_data(tmp_path: Path):
    index = write(tmp_path, {"v": np.ones(3, np.float32), "w": np.ones(3, np.float32)})
    shard = tmp_path / "m.ckpt-1.data-00000-of-00001"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    assert f"{shard} is damaged: it ends before w does" in refusal(index)
    shard.write_bytes(data[:-1] + b"\1")
    assert f"{shard} is damaged: w does not have its checksum" in refusal(index)
    shard.unlink()
    assert f"{shard} is missing; m.ckpt-1.index needs 1 data files" in refusal(index)
    index.unlink()
    assert "cannot be read: No such file" in refusal(index)
