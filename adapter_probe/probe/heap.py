"""Settings of the C library's heap that reduce fragmentation (glibc only; elsewhere they have no effect).

A walk through the prefix tree allocates and frees states of many sizes. Tensors are aligned, and glibc
before 2.38 rarely reuses the memory of a freed aligned block. With the default settings, a walk therefore
accumulated gigabytes of free but unusable memory.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_ARENA_MAX = -8  # malloc.h


def share_one_heap() -> None:
    """Make threads that start later allocate from the main thread's heap.

    Separate heaps of 64 MiB become fragmented by states of many sizes: the gaps grew to hundreds of MiB
    within a thousand sentences.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Return the free memory of the heap to the operating system."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
