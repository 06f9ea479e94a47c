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
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from adapter_probe.errors import ModelError

from .recording import PLAIN, Call, call_again, changed
from .stacks import Layer
from .switches import Switchable
from .tensors import batch_axis, picked, split

_TOLERANCE = 100  # units of rounding between two runs of a layer on the same states
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

        Modules that change what they are given get copies of their rows; a tenth of the layer's products is
        about what copies for all of its maps cost.
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
        node: int ``[rows]``, equal for rows with the same states before the layer.
        on: bool ``[rows, sites]``, which sites are on.
        known: the batch axes of tensors, by identity.
        once: tensors with one of several equal rows, by the sites that tell rows apart and the identity of
            the tensor with all rows.
        alike: what `told_apart` found, by the sites.
    """

    node: np.ndarray
    on: np.ndarray
    known: Mapping[int, int | None]
    once: dict[tuple[tuple[int, ...], int], Tensor] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    alike: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def told_apart(self, sites: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The first of the rows that are alike in these sites and in their states, and each row's place."""
        if sites not in self.alike:
            keys = np.column_stack([self.node, self.on[:, list(sites)]])
            _, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
            self.alike[sites] = first, place.reshape(-1)
        return self.alike[sites]

    def some(self, index: np.ndarray, known: Mapping[int, int | None]) -> Rows:
        """Some of the rows."""
        return Rows(self.node[index], self.on[index], known)


@contextmanager
def together(layer: nn.Module, plan: Plan, rows: Rows, switch: Set) -> Iterator[None]:
    """While the layer is called with these rows, its modules get those of them that they need.

    Args:
        layer: the layer.
        plan: how its variants are computed.
        rows: of the call.
        switch: switches a module of it.
    """
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
        leaves, spec = tree_flatten(out)
        index = torch.from_numpy(place)
        if part.passed_on:
            every = [_blank(x, axis, len(first), len(place)) for x, axis in zip(leaves, out_axes)]
        else:
            every = [picked(x, axis, len(first), index) for x, axis in zip(leaves, out_axes)]
        rows.once |= {(part.sites, id(x)): own for x, own in zip(every, leaves) if isinstance(x, Tensor)}
        rows.kept += every  # so that no other tensor gets the identity of one of them
        return tree_unflatten(every, spec)

    return called


def _blank(x: Any, axis: int | None, n: int, wanted: int) -> Any:
    """NaN in place of a result of `n` rows for all rows, without its memory."""
    if axis is None or not isinstance(x, Tensor) or not x.is_floating_point():
        return x if axis is None else picked(x, axis, n, torch.zeros(wanted, dtype=torch.long))
    shape = list(x.shape)
    shape[axis] = shape[axis] // n * wanted
    return x.new_full((), torch.nan).expand(shape)


def _one_kind_at_a_time(
    module: nn.Module, forward: Callable[..., Any], part: Part,
    switched: Sequence[tuple[int, nn.Module]], current: list[Rows], switch: Set,
) -> Callable[..., Any]:  # fmt: skip
    calls = cycle(part.axes)  # in each kind of rows of a module around it

    def called(*args: Any, **kwargs: Any) -> Any:
        rows, (given_axes, out_axes) = current[-1], next(calls)
        kinds, kind = np.unique(rows.on[:, list(part.sites)], axis=0, return_inverse=True)
        n, found = len(rows.node), []
        if len(kinds) == 2 and isinstance(module, Switchable) and module.only_adds:
            switch(module, False)
            if module.disable_adapters:  # and not scaled
                switch(module, True)
                on = np.flatnonzero(kind.reshape(-1))
                return _added(module, args, given_axes, current, on)
        with changed({module: forward}):  # a switch may change the forward
            for number in range(len(kinds)):
                index = np.flatnonzero(kind.reshape(-1) == number)
                switch_all(switched, rows.on[index[0]], switch)
                if len(kinds) == 1:
                    found.append((index, module.forward(*args, **kwargs)))
                else:
                    out = _on_some(module.forward, args, kwargs, given_axes, current, index)
                    found.append((index, out))
            switch_all(switched, np.ones(rows.on.shape[1], dtype=bool), switch)
        return found[0][1] if len(found) == 1 else _merged(found, out_axes, n)

    return called


def _added(
    module: Switchable, args: tuple[Tensor, ...], axes: Axes, current: list[Rows], on: np.ndarray
) -> Tensor:
    """The first argument of a module that only adds to it, with its change in some rows.

    It is changed in place: whoever returned it gave it to nobody else. The result is another object, because
    rows are known by the identity of tensors.
    """
    x, axis = args[0], axes[0]
    assert axis is not None, "the rows of its states are told apart"
    change = _on_some(module.change, args, {}, axes, current, on)
    rows = split(x, axis, len(current[-1].node))
    rows.index_add_(0, torch.from_numpy(on).to(x.device), split(change, axis, len(on)))
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
    leaves, spec = tree_flatten((args, kwargs))
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
    args, kwargs = tree_unflatten(leaves, spec)
    current.append(rows.some(index, known))
    try:
        return forward(*args, **kwargs)
    finally:
        current.pop()


def _merged(found: Sequence[tuple[np.ndarray, Any]], axes: Axes, n: int) -> Any:
    """The results of several parts of `n` rows as those of all rows."""
    flat = [tree_flatten(out)[0] for _, out in found]
    _, spec = tree_flatten(found[0][1])
    merged: list[Any] = []
    for number, axis in enumerate(axes):
        x = flat[0][number]
        if axis is not None:
            nodes = [split(leaves[number], axis, len(index)) for leaves, (index, _) in zip(flat, found)]
            every = nodes[0].new_empty(n, *nodes[0].shape[1:])
            for (index, _), own in zip(found, nodes):
                every.index_copy_(0, torch.from_numpy(index).to(every.device), own)
            x = every.movedim(0, axis).flatten(axis, axis + 1)
        merged.append(x)
    return tree_unflatten(merged, spec)


@dataclass
class _Run:
    """One call of a module: when it started and returned, what it was given, and what it returned."""

    start: int
    given: list[Any]
    given_spec: TreeSpec
    end: int = -1
    out: list[Any] = field(default_factory=list)
    out_spec: TreeSpec | None = None
    versions: list[int] = field(default_factory=list)


Runs = dict[str, list[_Run]]
"""The calls of the modules of a layer, by the modules' names."""


class Observed:
    """What a layer's modules do in one call, for one copy of the example and for two.

    Args:
        layer: the layer, with everything on.
        one: the recorded call.
        two: that for two copies.
    """

    def __init__(self, layer: Layer, one: Call, two: Call):
        self.layer, self.module = layer, layer.module
        self.names = {module: name for name, module in self.module.named_modules() if name}
        self.site = {self.names[m]: site for site, part in enumerate(layer.parts) for m in part}
        self._one, self._two = self._runs(one), self._runs(two)

    def _runs(self, call: Call) -> Runs:
        runs: Runs = {}
        clock = iter(range(1 << 62))

        def noting(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                run = _Run(next(clock), *tree_flatten((args, kwargs)))
                runs.setdefault(name, []).append(run)
                out = forward(*args, **kwargs)
                run.out, run.out_spec = tree_flatten(out)
                run.versions, run.end = _versions(run.out), next(clock)
                return out

            return called

        with changed({module: noting(name, module.forward) for module, name in self.names.items()}):
            call_again(self.layer, call)
        return runs

    def axes(self, name: str) -> tuple[tuple[Axes, Axes], ...] | None:
        """The batch axes of a module's calls; None if it is not a function of rows, or was not called."""
        one, two = self._one.get(name, ()), self._two.get(name, ())
        if not one or len(one) != len(two) or self._in_list(name):
            return None
        found = []
        for a, b in zip(one, two):
            plain = all(isinstance(x, (Tensor, *PLAIN)) for x in (*a.given, *a.out))
            if not plain or a.given_spec != b.given_spec or a.out_spec != b.out_spec:
                return None  # such as something in which layers leave tensors
            if _versions(a.out) != a.versions:  # it was changed in place later
                return None
            try:
                given, out = (tuple(map(batch_axis, *pair)) for pair in ((a.given, b.given), (a.out, b.out)))
            except ModelError:
                return None
            if any(all(axis is None for axis in axes) for axes in (given, out)):
                return None
            tensors = (isinstance(x, Tensor) for x in a.given)
            found.append((tuple(axis if is_one else NO_TENSOR for axis, is_one in zip(given, tensors)), out))
        return tuple(found)

    def _in_list(self, name: str) -> bool:
        """Whether a module is below a list in one of the layer's modules, such as experts.

        Other texts may call others of them, and with other rows.
        """
        path = name.split(".")
        above = (".".join(path[: depth + 1]) for depth in range(1, len(path)))
        return any(isinstance(self.module.get_submodule(one), nn.ModuleList) for one in above)

    def start(self, name: str) -> int:
        """When a module is first called; the layer at 0."""
        return self._one[name][0].start if name else -1

    def ends_after(self, name: str, acts: Mapping[int, int]) -> tuple[int, ...]:
        """The sites that act before a module last returns."""
        last = max(run.end for run in self._one[name])
        return tuple(site for site, act in sorted(acts.items()) if act < last)

    def holds_hooks(self, name: str) -> bool:
        """Whether modules inside a module have hooks."""
        module = self.module.get_submodule(name)
        return any(m._forward_hooks or m._forward_pre_hooks for m in module.modules() if m is not module)

    def share(self, name: str) -> float:
        """Of the numbers in the layer's matrices, how many are in a module; 0 for norms."""
        module = self.module.get_submodule(name)
        switched = {m for part in self.layer.parts for m in part}
        beside = {p for inner in module.children() if inner in switched for p in inner.parameters()}
        own, every = (
            sum(p.numel() for p in m.parameters() if p.dim() > 1 and p not in beside)
            for m in (module, self.module)
        )
        return own / max(1, every)

    def only_adds(self, name: str) -> bool:
        """Whether a switched module only adds to its argument."""
        module = self.module.get_submodule(name)
        return isinstance(module, Switchable) and module.only_adds


def _versions(found: Iterable[Any]) -> list[int]:
    return [x._version for x in found if isinstance(x, Tensor) and not x.is_inference()]


def whole_of(layer: Layer) -> Plan:
    """The plan that calls a whole layer for each kind of variants."""
    names = {module: name for name, module in layer.module.named_modules()}
    every = tuple((site, names[m]) for site, part in enumerate(layer.parts) for m in part)
    return Plan(every, (), every)


def form_of(layer: Layer, one: Call, two: Call) -> object:
    """What a plan depends on: the modules of a layer, its sites, and what it is given."""
    modules = [(name, type(module)) for name, module in layer.module.named_modules()]
    names = {module: name for name, module in layer.module.named_modules()}
    sites = tuple(tuple(names[module] for module in part) for part in layer.parts)
    axes = tuple(batch_axis(*pair) for pair in zip(one.given, two.given))
    return tuple(modules), sites, str(one.given_spec), axes


def find_plan(layer: Layer, one: Call, two: Call, out_axes: Sequence[int | None], switch: Set) -> Plan:
    """How the variants of a layer are computed together; exactly so on the example.

    Args:
        layer: the layer, with everything on.
        one: the recorded call for the example.
        two: that for two copies of it.
        out_axes: the batch axes of its results.
        switch: switches a module.
    """
    seen = Observed(layer, one, two)
    whole, plan = whole_of(layer), _planned(seen)

    def exact(tried: Plan) -> bool:
        return _is_exact(layer, tried, whole, one, two, out_axes, switch)

    if not plan.parts or not exact(plan):
        return whole
    for number, part in enumerate(plan.parts):
        if not part.switched:
            parts = (*plan.parts[:number], replace(part, passed_on=True), *plan.parts[number + 1 :])
            tried = replace(plan, parts=parts)
            plan = tried if exact(tried) else plan
    return plan


def keep_exact(layer: Layer, call: Call, instead: Mapping[nn.Module, Callable[..., Any]]) -> None:
    """Give modules of a layer other forwards for good, unless that changes what the layer returns."""
    own = call_again(layer, call)
    with changed(instead):
        ours = call_again(layer, call)
    if all(map(_alike, own, ours)):
        for module, forward in instead.items():
            module.forward = forward  # type: ignore[method-assign]


def _planned(seen: Observed) -> Plan:
    switched: dict[str, list[tuple[int, str]]] = {}
    for name, site in seen.site.items():
        holder = name
        while holder and (seen.axes(holder) is None or (holder != name and seen.holds_hooks(holder))):
            holder = holder.rpartition(".")[0]
        switched.setdefault(holder, []).append((site, name))
    acts: dict[int, int] = {}
    for holder, inside in switched.items():
        for site, _ in inside:
            acts[site] = min(acts.get(site, 1 << 62), seen.start(holder))
    whole = tuple(switched.pop("", ()))
    parts = [*_before(seen, seen.module, "", len(acts), acts, switched)]
    for holder, inside in switched.items():
        sites = tuple(sorted({site for site, _ in inside}))
        adds = all(seen.only_adds(name) for _, name in inside)
        parts.append(Part(holder, sites, tuple(inside), seen.axes(holder) or (), only_adds=adds))
    return Plan(whole, tuple(parts), tuple((site, name) for name, site in seen.site.items()))


def _before(
    seen: Observed, module: nn.Module, prefix: str, n: int, acts: Mapping[int, int], switched: Iterable[str]
) -> Iterator[Part]:
    """The outermost modules that return before one of `n` sites acts, and inside them those before others."""
    for child, inner in module.named_children():
        name, n_inside = f"{prefix}{child}", n
        if name in switched:
            continue
        axes = seen.axes(name)
        if axes is not None and not seen.holds_hooks(name) and seen.share(name):
            sites = seen.ends_after(name, acts)
            if len(sites) < n:
                yield Part(name, sites, (), axes, seen.share(name))
                n_inside = len(sites)
        yield from _before(seen, inner, f"{name}.", n_inside, acts, switched)


def _is_exact(
    layer: Layer, plan: Plan, whole: Plan, one: Call, two: Call, out_axes: Sequence[int | None], switch: Set
) -> bool:
    """Whether two variants in one call give what each gives alone, for every site that tells them apart."""
    n = len(layer.parts)
    modules = [(site, layer.module.get_submodule(name)) for site, name in whole.whole]
    off = [[site] for site in sorted({site for site, _ in whole.whole} - set(plan.apart))]
    try:
        for sites in [*off, [site for own in off for site in own]] if off else []:
            on = np.ones((2, n), dtype=bool)
            on[1, sites] = False
            switch_all(modules, np.ones(n, dtype=bool), switch)
            with together(layer.module, plan, Rows(np.zeros(2, dtype=int), on, {}), switch):
                ours = call_again(layer, two)
            for number in range(2):
                switch_all(modules, on[number], switch)
                own = call_again(layer, one)
                for x, axis, y in zip(own, out_axes, ours):
                    if not _alike(x, split(y, axis, 2)[number] if isinstance(y, Tensor) else y):
                        return False
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ModelError):
        return False
    finally:
        switch_all(modules, np.ones(n, dtype=bool), switch)
    return True


def _alike(own: Any, ours: Any) -> bool:
    if not isinstance(own, Tensor) or not own.is_floating_point():
        return torch.equal(own, ours) if isinstance(own, Tensor) else bool(own == ours)
    finite = own.isfinite()
    if own.shape != ours.shape or not torch.equal(finite, ours.isfinite()):
        return False
    if not finite.any():
        return True
    error = float((own - ours)[finite].abs().max())
    return error <= _TOLERANCE * torch.finfo(own.dtype).eps * float(own[finite].abs().max())
