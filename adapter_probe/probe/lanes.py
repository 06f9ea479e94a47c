"""Parallel batches: one Python thread per batch, with an equal share of the CPU threads.

The steps of a pass are short. If each step is split among all cores, the cores wait for each other at its
end, and sequential parts use only one core. Parallel batches are independent until their results are joined.

Settings of the C library's heap reduce fragmentation (glibc only; elsewhere they have no effect). A walk
through the prefix tree allocates and frees states of many sizes. Tensors are aligned, and glibc before 2.38
rarely reuses the memory of a freed aligned block. With the default settings, a walk therefore accumulated
gigabytes of free but unusable memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import TypeVar

import torch

from adapter_probe.device import resident_memory

_M_ARENA_MAX = -8  # malloc.h
# What the next passes use again, in widest states of a pass. To return it to the system costs a page fault
# for every 4 KiB, 8 % of the time of short passes.
_STATES_KEPT = 16


# The least memory of the process since free memory was last returned, in bytes, and the number of lanes.
_resident = SimpleNamespace(least=0, lanes=1)


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
        _resident.least = min(_resident.least, now := resident_memory())
        if now - _resident.least > _resident.lanes * _STATES_KEPT * state:
            ctypes.CDLL(None).malloc_trim(0)
            _resident.least = resident_memory()


def return_all_free_memory() -> None:
    """Return all free memory of the heap to the operating system."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


Item, Result = TypeVar("Item"), TypeVar("Result")
# Each lane has separate states in memory; additional cores share lanes.
_MOST = 16


class Stopped(Exception):
    """Raised on a lane if the result of its work is no longer needed."""


class Lanes:
    """A fixed number of parallel batches.

    Args:
        device_type: an accelerator has one lane, a CPU has one per torch thread, up to 16.

    Attributes:
        n: number of lanes.
    """

    def __init__(self, device_type: str):
        threads = torch.get_num_threads() if device_type == "cpu" else 1
        self._threads_each = -(-threads // _MOST)
        self.n = threads // self._threads_each
        self._stopped = threading.Event()
        if self.n > 1:
            share_one_heap(self.n)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Yield the result of `function` for every item, in order, computed in advance on all lanes.

        `function` must call `check` regularly. Until the iterator is closed, torch's number of threads is
        that of one lane.
        """
        if self.n == 1:
            yield from map(function, items)
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads_each)  # also for threads that start later
        self._stopped.clear()
        pool = ThreadPoolExecutor(self.n, thread_name_prefix="lane")
        try:
            ahead: deque[Future[Result]] = deque()
            for item in items:
                ahead.append(pool.submit(function, item))
                if len(ahead) > 2 * self.n:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            self._stopped.set()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)

    def check(self) -> None:
        """Stop this lane if its result is no longer needed; called before each of its steps.

        Raises:
            Stopped: the results are no longer needed, for example after an interruption.
        """
        if self._stopped.is_set():
            raise Stopped
