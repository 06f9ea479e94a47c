"""Another function in place of PyTorch's attention, in one thread.

A mode of PyTorch would do that too, but sees every function that a layer calls, which takes time in each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

Attention = Callable[..., Tensor]
ATTENTION: Attention = F.scaled_dot_product_attention
_of_thread = threading.local()
_entered = SimpleNamespace(lock=threading.Lock(), n=0, own=ATTENTION)


@contextmanager
def attending(instead: Attention) -> Iterator[None]:
    """Inside, this thread's calls of PyTorch's attention go to a function, which may call PyTorch's."""
    before = getattr(_of_thread, "instead", None)
    with _entered.lock:
        if F.scaled_dot_product_attention is not _attention:
            _entered.own, F.scaled_dot_product_attention = F.scaled_dot_product_attention, _attention
        _entered.n += 1
    _of_thread.instead = instead
    try:
        yield
    finally:
        _of_thread.instead = before
        with _entered.lock:
            _entered.n -= 1
            if not _entered.n and F.scaled_dot_product_attention is _attention:
                F.scaled_dot_product_attention = _entered.own


def _attention(*args: Any, **kwargs: Any) -> Tensor:
    instead: Attention | None = getattr(_of_thread, "instead", None)
    _of_thread.instead = None
    try:
        return (instead or _entered.own)(*args, **kwargs)
    finally:
        _of_thread.instead = instead
