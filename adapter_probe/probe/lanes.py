"""Parallel batches: one Python thread per batch, with an equal share of the CPU threads.

The steps of a pass are short. If each step is split among all cores, the cores wait for each other at its
end, and sequential parts use only one core. Parallel batches are independent until their results are joined.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from .heap import share_one_heap

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
