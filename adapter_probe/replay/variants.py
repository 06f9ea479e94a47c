"""One call of a layer for several of its variants, with everything that they have in common computed once.

The rows of the call are the variants' states. A switched module gets the rows in which it is on and those in
which it is off one after the other. A module that returns before a site acts gives the same for variants that
differ from that site on, so it gets one row for all of them. Everything else of the layer, residual sums,
norms and maps, gets all rows together.

Nothing is known about the family: the order in which the modules of a layer start and return, and the batch
axes of what they are given and return, are noted on an example. A module whose rows cannot be told apart is
left to the module around it; at worst the whole layer is called for each kind of variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from adapter_probe.errors import ModelError

from .recording import changed
from .switches import Switchable
from .tensors import blank, picked, split
from .two_weights import TwoWeights

_FEW = 0.25  # of the rows, which a map may compute twice
_MOST_BITS = 32  # sites whose states are one number
_KEPT = 1024  # sets of rows whose equal ones are known
_COST_OF_COPIES = 0.04  # of a layer's products, measured on LoRA in all maps of a model of width 576
Set = Callable[[nn.Module, bool], None]
"""Switches a module on or off."""
NO_TENSOR = -1  # in place of an argument's axis
Axes = tuple[int | None, ...]
"""The batch axis of every argument or result, flattened; None of those that are the same for all rows."""


class UnknownRows(ModelError):
    """A module is given something else than in the example, so its rows are not known."""


@dataclass(frozen=True)
class Part:
    """A module of a layer that does not get all rows of the layer's call together.

    Attributes:
        name: its name in the layer.
        sites: the sites by which its rows are told apart: those that it switches or, of a module that gets
            one of several equal rows, those that act before it returns.
        switched: names of the modules in it that it switches, by their sites; empty if it only gets equal
            rows once.
        axes: of the arguments and of the results of each call.
        share: of the layer's matrices, how much of their numbers it holds.
        only_adds: whether all that it switches only adds to what it is given.
        passed_on: whether only modules that get the same rows read its results.
    """

    name: str
    sites: tuple[int, ...]
    switched: tuple[tuple[int, str], ...]
    axes: tuple[tuple[Axes, Axes], ...]
    share: float = 0.0
    only_adds: bool = False
    passed_on: bool = False

    def moved(self, outer: Sequence[str]) -> Part:
        """The same if modules compute some positions of all rows, end to end, as one row."""
        if not any(self.name.startswith(f"{name}.") for name in outer):
            return replace(self, passed_on=False)  # what is read of its results may be other tensors now
        moved = [
            tuple(tuple(1 if axis == 0 else axis for axis in axes) for axes in pair) for pair in self.axes
        ]
        return replace(self, axes=tuple((given, out) for given, out in moved), passed_on=False)


@dataclass(frozen=True)
class Plan:
    """How a call of a layer is computed for several variants.

    Attributes:
        whole: the sites by which the whole layer's variants are computed one after the other, with the names
            of the modules that are switched then.
        parts: the modules that do not get all rows, outer ones first.
        switched: all modules that are switched, by their sites.
    """

    whole: tuple[tuple[int, str], ...]
    parts: tuple[Part, ...] = ()
    switched: tuple[tuple[int, str], ...] = ()

    def for_rows(self, rows: Rows) -> Plan:
        """The plan, or that of the whole layer where telling rows apart costs more than it saves.

        Switched modules that do more than add get copies of their rows, whose cost is `_COST_OF_COPIES`.
        """
        splits = [part for part in self.parts if part.switched]
        if not splits or all(part.only_adds for part in splits):
            return self
        once = [part for part in self.parts if not part.switched]
        outer = [a for a in once if not any(a.name.startswith(f"{b.name}.") for b in once)]
        saved = sum(part.share * (1 - len(rows.told_apart(part.sites)[0]) / len(rows.node)) for part in outer)
        return self if saved > _COST_OF_COPIES else Plan(self.switched, (), self.switched)

    @property
    def apart(self) -> list[int]:
        """The sites of `whole`."""
        return sorted({site for site, _ in self.whole})


@dataclass
class Rows:
    """The rows of a call.

    Attributes:
        node: int64 ``[rows]``, equal for rows with the same states before the layer.
        on: bool ``[rows, sites]``, which sites are on.
        known: the batch axes of tensors, by identity.
        once: tensors with one of several equal rows, by the sites that tell rows apart and the identity of
            the tensor with all rows.
        kept: tensors whose identity is known here, so that no other tensor gets it.
        all_at_once: whether a map computes all rows as most of them need it, and the few others again.
    """

    node: np.ndarray
    on: np.ndarray
    known: Mapping[int, int | None]
    once: dict[tuple[tuple[int, ...], int], Tensor] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    all_at_once: bool = False

    def told_apart(self, sites: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The first of the rows that are alike in these sites and in their states, and each row's place."""
        return _told_apart(self.node.tobytes(), self.on.tobytes(), self.on.shape, sites)

    def kinds(self, sites: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The distinct rows of `on` in these sites, in order, and the place of each row among them."""
        return _kinds(self.on.tobytes(), self.on.shape, sites)


# The rows of a call are few, and the same in the calls of other batches.
@lru_cache(maxsize=_KEPT)
def _kinds(on: bytes, shape: tuple[int, int], sites: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rows = np.frombuffer(on, dtype=bool).reshape(shape)[:, list(sites)]
    if len(sites) > _MOST_BITS:
        kinds, kind = np.unique(rows, axis=0, return_inverse=True)
        return kinds, kind.reshape(-1)
    # As numbers, whose order is that of the rows: sorting those of two axes takes several times as long.
    numbers = rows @ (1 << np.arange(len(sites), dtype=np.int64)[::-1])
    _, first, kind = np.unique(numbers, return_index=True, return_inverse=True)
    return rows[first], kind


@lru_cache(maxsize=_KEPT)
def _told_apart(
    node: bytes, on: bytes, shape: tuple[int, int], sites: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    kinds, kind = _kinds(on, shape, sites)
    keys = np.frombuffer(node, dtype=np.int64) * len(kinds) + kind  # ordered by the node, then by the sites
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return first, place


@contextmanager
def together(layer: nn.Module, plan: Plan, rows: Rows, switch: Set) -> Iterator[None]:
    """While the layer is called with these rows, its modules get those of them that they need."""
    current = [rows]
    forwards = {}
    for part in plan.parts:
        module = layer.get_submodule(part.name)
        forward = forwards.get(module, module.forward)
        if part.switched:
            switched = [(site, layer.get_submodule(name)) for site, name in part.switched]
            forwards[module] = _one_kind_at_a_time(module, forward, part, switched, current, switch)
        else:
            forwards[module] = _equal_rows_once(forward, part, current)
    with changed(forwards):
        yield


def switch_all(switched: Iterable[tuple[int, nn.Module]], on: np.ndarray, switch: Set) -> None:
    """Switch modules as their sites are, bool ``[sites]``."""
    for site, module in switched:
        switch(module, bool(on[site]))


def _equal_rows_once(forward: Callable[..., Any], part: Part, current: list[Rows]) -> Callable[..., Any]:
    calls = cycle(part.axes)  # in each kind of rows of a module around it

    def called(*args: Any, **kwargs: Any) -> Any:
        rows, (given_axes, out_axes) = current[-1], next(calls)
        first, place = rows.told_apart(part.sites)
        if len(first) == len(rows.node):
            return forward(*args, **kwargs)
        out = _on_some(forward, args, kwargs, given_axes, current, first, part.sites)
        leaves, spec = ([out], None) if isinstance(out, Tensor) else tree_flatten(out)
        index = torch.from_numpy(place)
        every = [
            blank(x, axis, len(first), len(place))
            if part.passed_on and axis is not None and isinstance(x, Tensor) and x.is_floating_point()
            else picked(x, axis, len(first), index)
            for x, axis in zip(leaves, out_axes)
        ]
        rows.once |= {(part.sites, id(x)): own for x, own in zip(every, leaves) if isinstance(x, Tensor)}
        rows.kept += every
        return every[0] if spec is None else tree_unflatten(every, spec)

    return called


def _one_kind_at_a_time(
    module: nn.Module, forward: Callable[..., Any], part: Part,
    switched: Sequence[tuple[int, nn.Module]], current: list[Rows], switch: Set,
) -> Callable[..., Any]:  # fmt: skip
    calls = cycle(part.axes)  # in each kind of rows of a module around it

    def called(*args: Any, **kwargs: Any) -> Any:
        rows, (given_axes, out_axes) = current[-1], next(calls)
        kinds, place = rows.kinds(part.sites)
        n, found = len(rows.node), []
        if len(kinds) == 2 and isinstance(module, Switchable) and module.only_adds:
            switch(module, False)
            if module.disable_adapters:  # and not scaled
                switch(module, True)
                on = np.flatnonzero(place)
                return _added(module, args, given_axes, current, on)
        order = np.argsort(-np.bincount(place), kind="stable")  # the most frequent first
        most = int((place == order[0]).sum())
        again = rows.all_at_once and isinstance(module, TwoWeights) and n - most <= _FEW * n
        change = module.change if again and len(kinds) == 2 and module.has_change else None
        with changed({module: forward}):  # a switch may change the forward
            for number in order.tolist():
                index = np.flatnonzero(place == number)
                switch_all(switched, rows.on[index[0]], switch)
                if len(index) == n or (again and number == order[0]):
                    found.append((np.arange(n), module.forward(*args, **kwargs)))
                elif change is not None:
                    sign = 1.0 if rows.on[index[0]][part.sites[0]] else -1.0
                    own = _on_some(change, args, kwargs, given_axes, current, index)
                    _add(found[0][1], own, out_axes[0], n, index, sign)
                else:
                    out = _on_some(module.forward, args, kwargs, given_axes, current, index)
                    found.append((index, out))
            switch_all(switched, np.ones(rows.on.shape[1], dtype=bool), switch)
        if len(found) == 1:
            return found[0][1]
        return _merged(found, out_axes, n)

    return called


def _add(x: Tensor, change: Tensor, axis: int | None, n: int, index: np.ndarray, sign: float = 1.0) -> None:
    """Add the change of some of `n` rows to them, in place."""
    assert axis is not None, "its rows are told apart"
    where = torch.from_numpy(index).to(x.device)
    split(x, axis, n).index_add_(0, where, split(change, axis, len(index)), alpha=sign)


def _added(
    module: Switchable, args: tuple[Tensor, ...], axes: Axes, current: list[Rows], on: np.ndarray
) -> Tensor:
    """The first argument of a module that only adds to it, with its change in some rows.

    It is changed in place: whoever returned it gave it to nobody else. The result is another object, because
    rows are known by the identity of tensors.
    """
    x = args[0]
    given = args[: module.change_reads]
    change = _on_some(module.change, given, {}, axes[: len(given)], current, on)
    _add(x, change, axes[0], len(current[-1].node), on)
    return x.view_as(x)


def _on_some(
    forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any], axes: Axes, current: list[Rows],
    index: np.ndarray, once: tuple[int, ...] | None = None,
) -> Any:  # fmt: skip
    """What a module returns for some rows of its arguments; `once` are the sites that tell them apart.

    Raises:
        UnknownRows: it is given something else than in the example.
    """
    rows, where = current[-1], torch.from_numpy(index)
    plain = not kwargs and all(isinstance(x, Tensor) for x in args)  # as most are; a tree takes longer
    leaves, spec = (list(args), None) if plain else tree_flatten((args, kwargs))
    if len(leaves) != len(axes):
        raise UnknownRows("a module of a layer is called differently for a batch and for the example")
    known: dict[int, int | None] = {}
    for number, (x, axis) in enumerate(zip(leaves, axes)):
        if isinstance(x, Tensor):
            own = rows.known.get(id(x), axis)
            if id(x) not in rows.known and axis is NO_TENSOR:
                raise UnknownRows("a module of a layer is given a tensor that the example has not")
            if own is not None and x.shape[own] % len(rows.node):
                raise UnknownRows("a module of a layer is given other shapes than in the example")
            there = None if once is None else rows.once.get((once, id(x)))
            leaves[number] = picked(x, own, len(rows.node), where) if there is None else there
            known[id(leaves[number])] = own
    args, kwargs = (tuple(leaves), {}) if spec is None else tree_unflatten(leaves, spec)
    current.append(Rows(rows.node[index], rows.on[index], known, all_at_once=rows.all_at_once))
    try:
        return forward(*args, **kwargs)
    finally:
        current.pop()


def _merged(found: Sequence[tuple[np.ndarray, Any]], axes: Axes, n: int) -> Any:
    """The results of several parts of `n` rows, or of all and again of some, as those of all rows."""
    flat = [tree_flatten(out)[0] for _, out in found]
    _, spec = tree_flatten(found[0][1])
    merged: list[Any] = []
    for number, axis in enumerate(axes):
        x = flat[0][number]
        if axis is not None:
            nodes = [split(leaves[number], axis, len(index)) for leaves, (index, _) in zip(flat, found)]
            whole = len(nodes[0]) == n
            every = nodes[0] if whole else nodes[0].new_empty(n, *nodes[0].shape[1:])
            for (index, _), own in list(zip(found, nodes))[whole:]:
                every.index_copy_(0, torch.from_numpy(index).to(every.device), own)
            x = every.movedim(0, axis).flatten(axis, axis + 1)
        merged.append(x)
    return tree_unflatten(merged, spec)
