"""The reader of TensorFlow's files, against a writer made from the format's description."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapter_probe.checkpoints.tensor_bundle import read_bundle
from adapter_probe.errors import CheckpointError

from .bundle_writer import NUMBERS, entry, field, table, write


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
        assert "its entry for w is inconsistent" in refusal(index)


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
    assert f"{shard} is damaged: w does not match its checksum" in refusal(index)
    shard.unlink()
    assert f"{shard} is missing; m.ckpt-1.index needs 1 data files" in refusal(index)
    index.unlink()
    assert "cannot be read: No such file" in refusal(index)
