"""The C library's heap, in which states of many sizes come and go (glibc; elsewhere nothing is done).

Tensors are aligned, and glibc before 2.38 rarely reuses what an aligned block left behind. Without help, a
walk through the tree gathered gigabytes that were free and of no use.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_ARENA_MAX = -8  # malloc.h


def share_one_heap() -> None:
    """Have threads that are yet to start take their memory where the main thread does.

    Separate heaps of 64 MiB fragment with states of many sizes: gaps grew to hundreds of
    MiB within a thousand sentences.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Hand the system what the heap has free."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
