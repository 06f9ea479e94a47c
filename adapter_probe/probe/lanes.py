"""Batches side by side: a thread of Python for each, with a share of the processor's threads.

The steps of a pass are short. Cut up among all cores, each of them ends with cores that wait for one another,
and what is not cut up runs on one core alone; batches of their own do not meet until their results do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from adapter_probe.models.adapted import AdaptedModel

from .heap import share_one_heap

Item, Result = TypeVar("Item"), TypeVar("Result")
# Each lane has states of its own in memory; more cores than these share lanes.
_MOST = 16


class Stopped(Exception):
    """Nobody waits for this work any more."""


class Lanes:
    """So many batches at a time.

    Args:
        device_type: an accelerator has one lane, a processor one a thread of torch's, up to 16.

    Attributes:
        n: how many.
    """

    def __init__(self, device_type: str):
        threads = torch.get_num_threads() if device_type == "cpu" else 1
        self._threads_each = -(-threads // _MOST)
        self.n = threads // self._threads_each
        self._stopped = threading.Event()
        if self.n > 1:
            share_one_heap()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """What `function` makes of every item, in their order, computed ahead on all lanes.

        `function` is to call `check` now and then. Until the iterator is closed, torch's number of threads
        is that of one lane.
        """
        if self.n == 1:
            yield from map(function, items)
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads_each)  # also of threads that are yet to start
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
        """Called on a lane, before each of its steps.

        Raises:
            Stopped: whoever wanted the results has gone, perhaps interrupted.
        """
        if self._stopped.is_set():
            raise Stopped


def twin(model: AdaptedModel, dtype: torch.dtype | None = None) -> AdaptedModel:
    """The same model on the same weights in memory, its sites switched apart from the other's.

    Args:
        model: the model.
        dtype: cast the weights to it. Buffers that are computed and not stored keep their precision, see
            `AdaptedModel`.
    """
    stored = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}

    def taken(tensor: Tensor) -> Tensor:
        if dtype is None or id(tensor) not in stored or not tensor.is_floating_point():
            return tensor
        cast = tensor.detach().to(dtype)
        return nn.Parameter(cast, requires_grad=False) if isinstance(tensor, nn.Parameter) else cast

    return deepcopy(
        model, {id(tensor): taken(tensor) for tensor in chain(model.parameters(), model.buffers())}
    )
