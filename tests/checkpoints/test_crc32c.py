"""The checksum against the standard's vectors and against a shift register, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_probe.checkpoints.crc32c import crc32c, unmask


def by_bits(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ],
)
def test_vectors_of_rfc_3720(data: bytes, expected: int):
    assert crc32c(data) == expected


@given(st.binary(max_size=600))
def test_equals_the_shift_register(data: bytes):
    assert crc32c(data) == by_bits(data)


@pytest.mark.parametrize("n", [4095, 4096, 4097, 30_011])
def test_equals_the_shift_register_on_many_pieces(n: int):
    data = np.random.default_rng(n).bytes(n)
    assert crc32c(data) == by_bits(data)


@given(st.integers(0, 2**32 - 1))
def test_unmask_undoes_the_mask(checksum: int):
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert unmask(masked) == checksum
