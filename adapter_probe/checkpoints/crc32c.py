"""CRC-32C, the checksum of TensorFlow's files, fast enough for whole models.

The remainder is linear in the bits, so the data are cut into pieces that are processed in parallel, and the
pieces' remainders are joined in pairs: that of a followed by b is that of a, advanced over as many zero
bytes as b has, XOR that of b. RFC 3720 gives the polynomial and, in appendix B.4, test vectors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # the least significant bit first
_BITS = np.arange(32, dtype=np.uint32)

UInt32Array = NDArray[np.uint32]


def _make_table() -> UInt32Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table


_TABLE = _make_table()


def crc32c(data: bytes) -> int:
    """The checksum of some bytes.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    n = len(data)
    if n < 4:
        return _invert(int(_advance(np.array([0xFFFFFFFF], np.uint32), np.frombuffer(data, np.uint8))[0]))
    n_pieces = 1 << min(max(n.bit_length() - 7, 0), 16)
    width = -(-n // n_pieces)
    # Leading zero bytes change nothing, because the remainder starts from 0; the required start, all ones,
    # is equivalent to inverting the first four bytes.
    padded = np.zeros(n_pieces * width, dtype=np.uint8)
    padded[-n:] = np.frombuffer(data, dtype=np.uint8)
    padded[-n : len(padded) - n + 4] ^= 0xFF
    # [pieces * width] -> [width, pieces]
    columns = np.ascontiguousarray(padded.reshape(n_pieces, width).T)
    return _invert(_join(_advance(np.zeros(n_pieces, np.uint32), columns), width))


def unmask(stored: int) -> int:
    """A checksum from the form in which TensorFlow stores it: rotated, and a constant added."""
    turned = (stored - 0xA282EAD8) & 0xFFFFFFFF
    return (turned >> 17 | turned << 15) & 0xFFFFFFFF


def _invert(remainder: int) -> int:
    return remainder ^ 0xFFFFFFFF


def _advance(states: UInt32Array, steps: NDArray[np.uint8]) -> UInt32Array:
    """Remainders ``[pieces]`` after the bytes ``[steps, pieces]``, or ``[steps]`` that all of them take."""
    for step in steps:
        states = _TABLE[(states ^ step) & 0xFF] ^ (states >> 8)
    return states


def _join(states: UInt32Array, width: int) -> int:
    """The remainder of all pieces in a row, ``[pieces]``, a power of two of them, each of `width` bytes."""
    over = _over_zeros(width)
    while len(states) > 1:
        states = _apply(over, states[0::2]) ^ states[1::2]
        over = _apply(over, over)
    return int(states[0])


def _over_zeros(n: int) -> UInt32Array:
    """The effect of n zero bytes on each bit of a remainder, ``[32]``."""
    identity = np.uint32(1) << _BITS
    one, out = _advance(identity, np.zeros(1, np.uint8)), identity
    while n:
        if n & 1:
            out = _apply(one, out)
        one, n = _apply(one, one), n >> 1
    return out


def _apply(images: UInt32Array, states: UInt32Array) -> UInt32Array:
    """A linear map, given by the images ``[32]`` of the bits, of ``[pieces]``."""
    set_bits = (states[:, None] >> _BITS) & 1
    return np.bitwise_xor.reduce(np.where(set_bits, images, np.uint32(0)), axis=1)
