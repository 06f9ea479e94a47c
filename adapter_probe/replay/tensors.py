"""Copies of a batch along the batch axis of any tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adapter_probe.errors import ModelError


def joined(nodes: Tensor, axis: int | None) -> Tensor:
    """``[nodes, ...]`` as one batch; what has no batch axis is the same for all."""
    return nodes[0] if axis is None else nodes.movedim(0, axis).flatten(axis, axis + 1)


def split(batch: Tensor, axis: int | None, copies: int) -> Tensor:
    """The inverse of `joined`, ``[copies, ...]``."""
    if axis is None:
        return batch.expand(copies, *batch.shape)
    return batch.unflatten(axis, (copies, -1)).movedim(axis, 0)


def taken(nodes: Tensor, rows: Tensor) -> Tensor:
    """Some of ``[nodes, ...]``, by ascending indices; the same tensor for all."""
    return nodes if len(rows) == len(nodes) else nodes.index_select(0, rows.to(nodes.device))


def repeated(x: Any, axis: int | None, copies: int) -> Any:
    """An argument for several copies of the batch."""
    return x if axis is None or copies == 1 else joined(x.expand(copies, *x.shape), axis)


def picked(x: Any, axis: int | None, copies: int, index: Tensor) -> Any:
    """Some copies, repeats allowed, of an argument with several copies.

    Models leave out a mask where nothing is hidden, as for some examples of a batch.
    """
    if axis is None or x is None:
        return x
    return joined(split(x, axis, copies).index_select(0, index.to(x.device)), axis)


def blank(x: Tensor, axis: int | None = None, copies: int = 1, wanted: int = 1) -> Tensor:
    """NaN of the shape of a number of copies, without its memory; what is no float is left."""
    shape = [n // copies * wanted if i == axis else n for i, n in enumerate(x.shape)]
    return x.new_full((), torch.nan).expand(shape) if x.is_floating_point() else x


def differ(a: Any, b: Any) -> bool:
    """Whether two arguments differ; NaN equals NaN."""
    if not isinstance(a, Tensor):
        return bool(a != b)
    return a.shape != b.shape or not bool(((a == b) | ((a != a) & (b != b))).all())


def batch_axis(one: Any, two: Any) -> int | None:
    """The axis that is twice as long with two copies of the batch; None if there is none.

    Raises:
        ModelError: something else differs.
    """
    if not isinstance(one, Tensor):
        if one != two:
            raise ModelError(f"a layer is given {one} for one copy of the batch and {two} for two")
        return None
    longer = [i for i, (a, b) in enumerate(zip(one.shape, two.shape)) if a != b]
    if one.dim() != two.dim() or len(longer) > 1 or any(two.shape[i] != 2 * one.shape[i] for i in longer):
        raise ModelError(
            f"a layer's tensor has shape {list(one.shape)} for one copy of the batch and {list(two.shape)} "
            "for two"
        )
    return longer[0] if longer else None
