"""Settings of the C library's heap that reduce fragmentation (glibc only; elsewhere they have no effect).

A walk through the prefix tree allocates and frees states of many sizes. Tensors are aligned, and glibc
before 2.38 rarely reuses the memory of a freed aligned block. With the default settings, a walk therefore
accumulated gigabytes of free but unusable memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

_M_ARENA_MAX = -8  # malloc.h
# What the next passes use again, in widest states of a pass. To return it to the system costs a page fault
# for every 4 KiB, 8 % of the time of short passes.
_STATES_KEPT = 16


@dataclass
class _Resident:
    """Least memory of the process since free memory was last returned, in bytes, and the number of lanes."""

    least: int = 0
    lanes: int = 1


_resident = _Resident()


def share_one_heap(lanes: int) -> None:
    """Make threads that start later, this many at a time, allocate from the main thread's heap.

    Separate heaps of 64 MiB become fragmented by states of many sizes: the gaps grew to hundreds of MiB
    within a thousand sentences.
    """
    _resident.lanes = lanes
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_free_memory(state: int) -> None:
    """Return the free memory of the heap to the operating system if the process has gained much memory.

    Args:
        state: bytes of the widest states of a pass, which determine how much is kept for each lane.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        _resident.least = min(_resident.least, now := _resident_memory())
        if now - _resident.least > _resident.lanes * _STATES_KEPT * state:
            ctypes.CDLL(None).malloc_trim(0)
            _resident.least = _resident_memory()


def _resident_memory() -> int:
    """Bytes of the process in memory, on Linux."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
