"""The last layer computed for one position of each text, where the model's head reads no other.

Which modules of the layer allow it is found out on an example: a module that is given one position of its
arguments, with NaN at all others in its result, must leave the model's output as it was. Later, the one
position's result stands in for the others, which nothing reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Run = Callable[[], Tensor]
"""The model's output on the example, by the layers' own forward."""
POSITIONS = (0, -1)  # which a head may read: the first of an encoder, the last of a decoder


def find_positionwise(layer: nn.Module, run: Run, length: int) -> tuple[int, list[nn.Module]] | None:
    """The position that is read, and the outermost modules that may compute it alone; None if there are none.

    Args:
        layer: the last layer.
        run: gives the model's output.
        length: of the example's texts.
    """
    if length < 2:
        return None
    own = run()
    for position in POSITIONS:
        if not _same(own, run, [layer], position, whole=True):
            continue
        found: list[nn.Module] = []
        pending = list(layer.children())
        while pending:
            module = pending.pop(0)
            if _same(own, run, [*found, module], position) and _reads_one(run, [*found, module], position):
                found.append(module)
            elif not isinstance(module, nn.Linear):
                pending += list(module.children())
        return (position, found) if found else None
    return None


def _same(own: Tensor, run: Run, modules: Sequence[nn.Module], position: int, whole: bool = False) -> bool:
    """Whether the output stays the same; `whole` runs the modules on all positions and blanks the others."""
    try:
        with only_position(modules, position, lambda x, n: _blanked(x, position, n), whole):
            found = run()
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    tolerance = 100 * torch.finfo(own.dtype).eps * float(own.abs().max())
    return found.shape == own.shape and bool((found - own).abs().max() <= tolerance)  # false for NaN


def _reads_one(run: Run, modules: Sequence[nn.Module], position: int) -> bool:
    """Whether the output stays finite with NaN at all other positions of the modules' arguments."""

    def poisoned(forward: Callable[..., Any]) -> Callable[..., Any]:
        def nan(x: Any) -> Any:
            if not (isinstance(x, Tensor) and x.dim() == 3 and x.is_floating_point()):
                return x
            return _blanked(x[:, position].unsqueeze(1), position, x.shape[1])

        return lambda *args, **kwargs: forward(*map(nan, args), **{k: nan(x) for k, x in kwargs.items()})

    had = [module.__dict__.get("forward") for module in modules]
    try:
        for module in modules:
            module.forward = poisoned(module.forward)  # type: ignore[method-assign]
        return bool(run().isfinite().all())
    finally:
        for module, forward in zip(modules, had):
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.forward = forward


def _blanked(x: Tensor, position: int, length: int) -> Tensor:
    out = x.new_full((x.shape[0], length, *x.shape[2:]), torch.nan)
    out[:, position] = x[:, 0]
    return out


@contextmanager
def only_position(
    modules: Sequence[nn.Module],
    position: int,
    fill: Callable[[Tensor, int], Tensor] = lambda x, n: x.expand(-1, n, *x.shape[2:]),
    whole: bool = False,
) -> Iterator[None]:
    """Inside, the modules compute one position of ``[texts, positions, ...]``.

    Args:
        modules: the modules.
        position: the position.
        fill: makes a result of all positions out of one of it.
        whole: compute all positions, and forget the others.
    """
    had = [module.__dict__.get("forward") for module in modules]
    try:
        for module in modules:
            module.forward = _at(module.forward, position, fill, whole)  # type: ignore[method-assign]
        yield
    finally:
        for module, forward in zip(modules, had):
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.forward = forward


def _at(
    forward: Callable[..., Any], position: int, fill: Callable[[Tensor, int], Tensor], whole: bool
) -> Any:
    at = slice(position, position + 1) if position >= 0 else slice(position, None)

    def called(*args: Any, **kwargs: Any) -> Any:
        n = next(
            (x.shape[1] for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim() == 3), None
        )
        if n is None:
            raise TypeError("no argument has positions")

        def one(x: Any) -> Any:
            return x[:, at] if isinstance(x, Tensor) and x.dim() == 3 and x.shape[1] == n else x

        if whole:
            return _each(forward(*args, **kwargs), lambda x: fill(one(x), n))
        return _each(forward(*map(one, args), **{k: one(x) for k, x in kwargs.items()}), lambda x: fill(x, n))

    return called


def _each(out: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A tensor, or the first tensor of a tuple, changed."""
    if isinstance(out, tuple):
        return (change(out[0]), *out[1:])
    return change(out)
