"""The last layer computed for the positions that the model's head reads, where nothing reads the others.

Which modules of the layer allow it is found out on an example: the result at a position must depend on that
position of the arguments alone, and the model's output must stay as it was with NaN at all positions that the
head does not read. So if the head reads others in a later batch, its output is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .checking import RAISED, alike
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
    where = next((one for one in wheres if _same(own, run, [layer], _only(one, whole=True))), None)
    if where is None:  # or every position is read
        return None
    names = {module: name for name, module in layer.named_modules()}
    able = _positionwise([module for module in names if module is not layer], run)
    found: list[nn.Module] = []
    pending = list(layer.children())
    while pending:
        module = pending.pop(0)
        if module in able:
            if _same(own, run, [*found, module], _only(where)):  # else others read its other positions
                found.append(module)
        elif not isinstance(module, nn.Linear):
            pending += list(module.children())
    return (where, [names[module] for module in found]) if found else None


def _same(own: Tensor, run: Run, modules: Sequence[nn.Module], change: Callable[..., Any]) -> bool:
    try:
        with changed({module: change(module.forward) for module in modules}):
            return alike(own, run())
    except RAISED:
        return False


def _positionwise(modules: Sequence[nn.Module], run: Run) -> set[nn.Module]:
    """Those whose result stays finite at the first and the last position with NaN at all others.

    Modules inside one of them are left out where all can be tried in one run: only the outermost are of use.

    In half precision, the result of an attention that sees some of its keys is not told from its own.
    """
    finite: dict[nn.Module, bool] = {}
    probing = False

    def stays(forward: Callable[..., Any], where: Where, *args: Any, **kwargs: Any) -> bool:
        try:
            out = _only(where, poison=True)(forward)(*args, **kwargs)
            out = out[0] if isinstance(out, tuple) else out
            at = where(*out.shape[:2]).to(out.device)
            return bool(out.flatten(0, 1)[at].isfinite().all())
        except RAISED:
            return False

    def probe(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal probing
            if probing:
                return forward(*args, **kwargs)
            probing = True
            try:
                both = [stays(forward, where, *args, **kwargs) for where in (first_position, last_position)]
                finite[module] = finite.get(module, True) and all(both)
                probing = finite[module]  # else what is inside is probed too
                return forward(*args, **kwargs)
            finally:
                probing = False

        return called

    try:
        with changed({module: probe(module, module.forward) for module in modules}):
            run()
    except RAISED:  # one of them does not stand to be called again
        alone = modules if len(modules) > 1 else ()
        return {module for module in alone if _positionwise([module], run)}
    return {module for module, all_finite in finite.items() if all_finite}


def only_positions(
    modules: Sequence[nn.Module], where: Where, blank: bool = True
) -> AbstractContextManager[None]:
    """Inside, the modules compute some positions of ``[rows, positions, ...]``, and the others are NaN.

    Without `blank` the others are whatever is in memory, which costs less.
    """
    return changed({module: _only(where, blank=blank)(module.forward) for module in modules})


def _only(where: Where, whole: bool = False, poison: bool = False, blank: bool = True) -> Callable[..., Any]:
    """Makes a forward of some positions out of a forward.

    Args:
        where: the positions.
        whole: compute all positions, and forget the others.
        poison: compute all positions, with NaN at the others of every argument.
        blank: whether the others of a result are NaN.
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
                out = x.new_empty(shape[0] * shape[1], *x.shape[2:])
                if blank:
                    out.fill_(torch.nan)
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
