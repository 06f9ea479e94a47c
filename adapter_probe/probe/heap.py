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

import torch

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


def return_all_free_memory() -> None:
    """Return all free memory of the heap to the operating system."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _resident_memory() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with contextlib.suppress(OSError, StopIteration):  # Linux
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    names = getattr(os, "sysconf_names", {})
    if "SC_AVPHYS_PAGES" in names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0  # unknown: nothing is spent
