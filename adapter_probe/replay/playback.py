"""What a layer computes before a switch that tells its variants apart, once for all of them.

Variants with the same states before a layer differ in it only from the first site on that is on for one and
off for another. The modules of the layer that return before that site acts return the same for all of them,
so they run for one and give what they returned to the others, whose residual sums and norms run again.

Nothing is known about the family: the order in which the modules of a layer start and return is noted on an
example, and a layer in which a variant's result changes by it is computed whole.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from adapter_probe.errors import ModelError

from .recording import PLAIN, changed
from .stacks import Layer
from .tensors import batch_axis, joined, split, taken

_TOLERANCE = 100  # units of rounding between two runs of a layer on the same states
Axes = tuple[int | None, ...]
Kept = dict[str, list[tuple[list[Any], TreeSpec]]]
"""By a module's name: what its calls returned, flattened, with tensors as ``[nodes, ...]``."""


@dataclass(frozen=True)
class Prefix:
    """Modules of a layer that return before one of its sites acts.

    Attributes:
        n_before: number of sites that act before it; variants that agree on these share the modules' results.
        modules: the outermost of them that hold matrices, by their names in the layer: the batch axis of
            every tensor that each call returns.
    """

    n_before: int
    modules: Mapping[str, tuple[Axes, ...]]


@dataclass(frozen=True)
class Shared:
    """What the variants of one call of a layer can share.

    Attributes:
        order: the sites of the layer, in the order in which they act.
        prefixes: what returns before some of them act, earlier sites first.
    """

    order: tuple[int, ...]
    prefixes: tuple[Prefix, ...] = ()

    def inside(self, names: Sequence[str]) -> Shared:
        """The same where some modules compute some positions, end to end: the tensors inside them."""

        def moved(name: str, calls: tuple[Axes, ...]) -> tuple[Axes, ...]:
            if not any(name.startswith(f"{outer}.") for outer in names):
                return calls
            return tuple(tuple(1 if axis == 0 else axis for axis in axes) for axes in calls)

        return replace(
            self,
            prefixes=tuple(
                replace(one, modules={name: moved(name, calls) for name, calls in one.modules.items()})
                for one in self.prefixes
            ),
        )


@dataclass
class Group:
    """Children of a call that are computed together.

    Attributes:
        children: int ``[children]``, their numbers, ascending.
        on: bool ``[sites]``, which sites are on.
        played: the prefix whose modules give what they returned before; -1 for none.
        source: the group that computed them.
        rows: int ``[children]``, the numbers of the children's siblings in that group.
        kept: the prefixes that a later group needs of this one.
    """

    children: np.ndarray
    on: np.ndarray
    played: int
    source: int
    rows: np.ndarray
    kept: set[int] = field(default_factory=set)


def groups_of(shared: Shared, parent: np.ndarray, bits: np.ndarray) -> list[Group]:
    """The children of a call's nodes in the order in which they are computed.

    Args:
        shared: what they can share.
        parent: int ``[children]``, the node of each.
        bits: bool ``[children, sites]``, which sites are on.
    """
    patterns, pattern, counts = np.unique(bits, axis=0, return_inverse=True, return_counts=True)
    if len(patterns) == 1:
        every = np.arange(len(parent))
        return [Group(every, patterns[0], -1, -1, every)]
    groups: list[Group] = []
    computed: list[dict[tuple, tuple[int, int]]] = [{} for _ in shared.prefixes]
    for i in np.argsort(-counts, kind="stable"):  # the most frequent first, which most others share
        on = patterns[i]
        keys = [tuple(on[list(shared.order[: one.n_before])].tolist()) for one in shared.prefixes]
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for child in np.flatnonzero(pattern.reshape(-1) == i).tolist():
            for number in reversed(range(len(keys))):
                if (place := computed[number].get((parent[child], keys[number]))) is not None:
                    break
            else:
                number, place = -1, (-1, child)
            found.setdefault((number, place[0]), []).append((child, place[1]))
        for (number, source), pairs in found.items():
            children, rows = np.array(pairs).T
            if source >= 0:
                groups[source].kept.add(number)
            for row, child in enumerate(children.tolist()):
                for other in range(number + 1, len(keys)):
                    computed[other].setdefault((parent[child], keys[other]), (len(groups), row))
            groups.append(Group(children, on, number, source, rows))
    return groups


@contextmanager
def computed_once(
    layer: nn.Module, shared: Shared, group: Group, before: Mapping[tuple[int, int], Kept]
) -> Iterator[dict[int, Kept]]:
    """While the layer runs for a group: its modules give what siblings computed, and keep what others need.

    Args:
        layer: the layer.
        shared: what its variants share.
        group: the group.
        before: what earlier groups kept, by their numbers and the prefix's.

    Yields:
        What is kept, by the number of the prefix.
    """
    kept: dict[int, Kept] = {number: {} for number in group.kept}
    forwards: dict[nn.Module, Callable[..., Any]] = {}
    if group.played >= 0:
        rows, given = torch.from_numpy(group.rows), before[group.source, group.played]
        for name, axes in shared.prefixes[group.played].modules.items():
            forwards[layer.get_submodule(name)] = _giving(given[name], axes, rows)
    for number in group.kept:
        for name, axes in shared.prefixes[number].modules.items():
            module, into = layer.get_submodule(name), kept[number].setdefault(name, [])
            forward = forwards.get(module, module.forward)
            forwards[module] = _keeping(forward, axes, len(group.children), into)
    with changed(forwards):
        yield kept


def _giving(
    calls: Sequence[tuple[list[Any], TreeSpec]], axes: Sequence[Axes], rows: Tensor
) -> Callable[..., Any]:
    remaining = iter(zip(calls, axes))

    def forward(*_args: Any, **_kwargs: Any) -> Any:
        (leaves, spec), own = next(remaining)
        return tree_unflatten(
            [x if axis is None else joined(taken(x, rows), axis) for x, axis in zip(leaves, own)], spec
        )

    return forward


def _keeping(
    forward: Callable[..., Any], axes: Sequence[Axes], n: int, into: list[tuple[list[Any], TreeSpec]]
) -> Callable[..., Any]:
    remaining = iter(axes)

    def called(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        leaves, spec = tree_flatten(out)
        own = next(remaining)
        into.append(([x if a is None else split(x, a, n) for x, a in zip(leaves, own)], spec))
        return out

    return called


@dataclass
class _Run:
    """One call of a module: when it started and returned, and what it returned."""

    start: int
    end: int
    out: list[Any]
    spec: TreeSpec
    versions: list[int]
    holds: bool  # whether it was given something in which layers leave tensors


def find_shared(
    layer: Layer, one: Callable[[], list[Any]], two: Callable[[], Any], switch: Callable[[np.ndarray], None]
) -> Shared:
    """What the variants of a call can share.

    Args:
        layer: the layer.
        one: calls it on the states of one copy of the example; its results.
        two: calls it on those of two copies.
        switch: switches its sites, bool ``[sites]``.
    """
    module, n = layer.module, len(layer.parts)
    on = np.ones(n, dtype=bool)
    switch(on)
    runs, again = _observed(module, one), _observed(module, two)
    acts = np.array([_first_act(layer, part, runs) for part in layer.parts])
    order = tuple(np.argsort(acts, kind="stable").tolist())
    prefixes: list[Prefix] = []
    for place, site in enumerate(order):
        if np.isfinite(acts[site]):
            found = dict(_outermost(layer, module, "", acts[site], runs, again))
            if found and not (prefixes and found == prefixes[-1].modules):
                prefixes.append(Prefix(place, found))
    shared = Shared(order, tuple(prefixes))
    return shared if not prefixes or _is_exact(module, shared, one, switch) else Shared(order)


def _is_exact(
    module: nn.Module, shared: Shared, one: Callable[[], list[Any]], switch: Callable[[np.ndarray], None]
) -> bool:
    """Whether every prefix gives the results of the whole layer, for the variants that need it."""
    n = len(shared.order)
    alone = np.zeros(1, dtype=np.int64)
    first = Group(alone, np.ones(n, dtype=bool), -1, -1, alone, set(range(len(shared.prefixes))))
    switch(first.on)
    with computed_once(module, shared, first, {}) as kept:
        one()
    before = {(0, number): found for number, found in kept.items()}
    for number, prefix in enumerate(shared.prefixes):
        on = np.ones(n, dtype=bool)
        on[list(shared.order[prefix.n_before :])] = False
        switch(on)
        own = one()
        with computed_once(module, shared, Group(alone, on, number, 0, alone), before):
            ours = one()
        if not all(map(_alike, own, ours)):
            return False
    return True


def _alike(own: Any, ours: Any) -> bool:
    if not isinstance(own, Tensor):
        return bool(own == ours)
    if not own.is_floating_point():
        return torch.equal(own, ours)
    finite = own.isfinite()
    if not torch.equal(finite, ours.isfinite()):
        return False
    size = float(own[finite].abs().max()) if finite.any() else 0.0
    error = float((own - ours)[finite].abs().max()) if finite.any() else 0.0
    return error <= _TOLERANCE * torch.finfo(own.dtype).eps * size


def _observed(layer: nn.Module, run: Callable[[], Any]) -> dict[str, list[_Run]]:
    """The calls of the modules of a layer while it runs, by the modules' names."""
    runs: dict[str, list[_Run]] = {}
    clock = iter(range(1, 1 << 62))

    def noting(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            start, number = next(clock), len(runs.setdefault(name, []))
            runs[name].append(_Run(start, -1, [], tree_flatten(())[1], [], False))
            out = forward(*args, **kwargs)
            leaves, spec = tree_flatten(out)
            versions = [x._version for x in leaves if isinstance(x, Tensor) and not x.is_inference()]
            holds = any(isinstance(x, UserDict) for x in (*args, *kwargs.values()))
            runs[name][number] = _Run(start, next(clock), leaves, spec, versions, holds)
            return out

        return called

    with changed({m: noting(name, m.forward) for name, m in layer.named_modules() if name}):
        run()
    return runs


def _first_act(layer: Layer, part: Sequence[nn.Module], runs: Mapping[str, list[_Run]]) -> float:
    """When a site first acts; infinite if it holds nothing.

    That is when its first module starts. Of a list inside the layer's modules, such as experts, other texts
    may call other modules, so they act when whatever holds the list starts.
    """
    names = {module: name for name, module in layer.module.named_modules()}
    starts = []
    for module in part:
        path = names[module].split(".")
        own = _list_inside(layer.module, path)
        depth = len(path) if own is None else own
        while depth and ".".join(path[:depth]) not in runs:
            depth -= 1  # it was not called, so it may be at any time while what holds it runs
        starts.append(runs[".".join(path[:depth])][0].start if depth else 0)
    return min(starts, default=np.inf)


def _list_inside(layer: nn.Module, path: Sequence[str]) -> int | None:
    """The depth of what holds a list on a path below one of a layer's modules; None if there is none."""
    for depth in range(1, len(path)):
        if isinstance(layer.get_submodule(".".join(path[: depth + 1])), nn.ModuleList):
            return depth
    return None


def _outermost(
    layer: Layer, module: nn.Module, prefix: str, act: float,
    runs: Mapping[str, list[_Run]], again: Mapping[str, list[_Run]],
) -> Iterator[tuple[str, tuple[Axes, ...]]]:  # fmt: skip
    """The outermost modules with matrices that return before a site acts, with the axes of their results."""
    switches = {inner for part in layer.parts for inner in part}
    for name, child in module.named_children():
        own = f"{prefix}{name}"
        if child in switches and not runs.get(own):
            continue  # an adapter beside the modules that it changes
        returned = own in runs and all(0 < run.end < act for run in runs[own])
        hooked = any(m._forward_hooks or m._forward_pre_hooks for m in child.modules() if m is not child)
        axes = _axes(runs[own], again.get(own, ())) if returned and not hooked else None
        if axes is not None:
            if _holds_matrix(child, switches):
                yield own, axes
        elif not (isinstance(child, nn.ModuleList) and prefix):
            yield from _outermost(layer, child, f"{own}.", act, runs, again)


def _holds_matrix(module: nn.Module, switches: set[nn.Module]) -> bool:
    """Whether a module has a matrix of its own; norms and dropouts are as fast as what they would give."""
    beside = {p for inner in module.children() if inner in switches for p in inner.parameters()}
    return any(p.dim() > 1 for p in module.parameters() if p not in beside)


def _axes(one: Sequence[_Run], two: Sequence[_Run]) -> tuple[Axes, ...] | None:
    """The batch axes of what a module's calls return; None if that is not a plain function of its states."""
    if len(one) != len(two):
        return None
    found = []
    for a, b in zip(one, two):
        now = [x._version for x in a.out if isinstance(x, Tensor) and not x.is_inference()]
        plain = all(isinstance(x, (Tensor, *PLAIN)) for x in a.out)
        if a.holds or a.spec != b.spec or not plain or now != a.versions:  # or changed in place afterwards
            return None
        try:
            axes = tuple(map(batch_axis, a.out, b.out))
        except ModelError:
            return None
        if all(axis is None for axis in axes):
            return None
        found.append(axes)
    return tuple(found)
