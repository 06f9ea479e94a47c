"""The last layer computed for the positions that the model's head reads, where nothing reads the others.

Which modules of the layer allow it is found out on an example: the result at a position must depend on that
position of the arguments alone, and the model's output must stay as it was with NaN at all positions that the
head does not read. So if the head reads others in a later batch, its output is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .checking import alike
from .describing import Described
from .recording import Inputs, Runner, call_again, changed
from .stacks import Layer
from .structure import Reader, Source, rest
from .tensors import split

Run = Callable[[], Tensor]
"""The model's output on the example, by the last layer's own forward."""
Where = Callable[[int, int], Tensor]
"""Given numbers of rows and of positions in each: int64 ``[read]``, positions in the rows end to end."""


def first_position(rows: int, length: int) -> Tensor:
    """The first position of every row, which the head of an encoder may read."""
    return torch.arange(rows) * length


def last_position(rows: int, length: int) -> Tensor:
    """The last position of every row, which the head of a decoder may read."""
    return torch.arange(1, rows + 1) * length - 1


def spared_positions(
    runner: Runner, layer: Layer, inputs: Inputs, read: Reader, found: Described, one_position: bool
) -> tuple[Where | None, list[str]] | None:
    """Modules of the last layer that compute only what is read, by their names; None if there are none.

    Returns:
        the positions, None if the reader has its own, and the names.
    """
    own = getattr(read, "where", None)
    wheres = (own,) if own is not None else (first_position, last_position) if one_position else ()
    structure, calls, k = found.structure, found.calls, len(found.calls) - 1
    if not wheres or len(structure.starts) > 1:
        return None
    call, states = calls[k], found.states()

    def run() -> Tensor:
        out = call_again(layer, call)
        last = {
            slot: split(out[slot[1]], structure.out_axes[k][slot[1]], 1) for slot in states if slot[0] == k
        }
        return read(
            runner.model,
            lambda: rest(runner, inputs, structure, calls, states | last, Source.copies(1)),
            1,
        )[0]

    spared = find_positionwise(layer.module, run, wheres)
    return None if spared is None else (None if own is not None else spared[0], spared[1])


def find_positionwise(layer: nn.Module, run: Run, wheres: Sequence[Where]) -> tuple[Where, list[str]] | None:
    """The positions that are read, and the names of the outermost modules that may compute them alone.

    `wheres` are tried one after the other; None if the head reads other positions.
    """
    own = run()
    names = {module: name for name, module in layer.named_modules()}
    for where in wheres:
        if not _same(own, run, [layer], _only(where, whole=True)):
            continue  # or every position is read
        found: list[nn.Module] = []
        pending = list(layer.children())
        while pending:
            module = pending.pop(0)
            if _same(own, run, [*found, module], _only(where)) and _is_positionwise(module, run):
                found.append(module)
            elif not isinstance(module, nn.Linear):
                pending += list(module.children())
        return (where, [names[module] for module in found]) if found else None
    return None


def _same(own: Tensor, run: Run, modules: Sequence[nn.Module], change: Callable[..., Any]) -> bool:
    try:
        with changed({module: change(module.forward) for module in modules}):
            return alike(own, run())
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
        return False


def _is_positionwise(module: nn.Module, run: Run) -> bool:
    """Whether the first and the last position of its result stay finite with NaN at all other positions.

    In half precision, the result of an attention that sees some of its keys is not told from its own.
    """
    finite: list[bool] = []

    def probe(forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            for where in (first_position, last_position):
                out = _only(where, poison=True)(forward)(*args, **kwargs)
                out = out[0] if isinstance(out, tuple) else out
                at = where(*out.shape[:2]).to(out.device)
                finite.append(bool(out.flatten(0, 1)[at].isfinite().all()))
            return forward(*args, **kwargs)

        return called

    try:
        with changed({module: probe(module.forward)}):
            run()
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
        return False
    return bool(finite) and all(finite)


@contextmanager
def only_positions(modules: Sequence[nn.Module], where: Where) -> Iterator[None]:
    """Inside, the modules compute some positions of ``[rows, positions, ...]``, and the others are NaN."""
    with changed({module: _only(where)(module.forward) for module in modules}):
        yield


def _only(where: Where, whole: bool = False, poison: bool = False) -> Callable[..., Any]:
    """Makes a forward of some positions out of a forward.

    Args:
        where: the positions.
        whole: compute all positions, and forget the others.
        poison: compute all positions, with NaN at the others of every argument.
    """

    def change(forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            given = [x for x in (*args, *kwargs.values()) if _has_positions(x)]
            if not given or any(x.shape[:2] != given[0].shape[:2] for x in given):
                raise TypeError("the arguments have no positions")
            shape = given[0].shape[:2]
            index = where(*shape).to(given[0].device)
            if len(index) == shape.numel() and whole:
                raise ValueError("all positions are read")

            def some(x: Tensor) -> Tensor:  # [rows, positions, width] -> [1, read, width]
                return x.flatten(0, 1)[index][None]

            def all_(x: Tensor) -> Tensor:
                out = x.new_full((shape[0] * shape[1], *x.shape[2:]), torch.nan)
                return out.index_copy_(0, index, x[0]).unflatten(0, shape)

            def blanked(x: Tensor) -> Tensor:
                return all_(some(x))

            def run(change: Callable[[Tensor], Tensor]) -> Any:
                args_, kwargs_ = tree_map(lambda x: change(x) if _has_positions(x) else x, (args, kwargs))
                return forward(*args_, **kwargs_)

            if poison:
                return run(blanked)
            return _first(forward(*args, **kwargs), blanked) if whole else _first(run(some), all_)

        return called

    return change


def _has_positions(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 3 and x.is_floating_point()


def _first(out: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(out, tuple):
        return (change(out[0]), *out[1:])
    return change(out)
