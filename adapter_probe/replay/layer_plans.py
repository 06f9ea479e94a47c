"""How the variants of a layer are computed in one call, see `variants`: found out and tried on an example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten

from adapter_probe.errors import ModelError

from .checking import RAISED, alike
from .recording import PLAIN, Call, call_again, changed
from .stacks import Layer
from .switches import Switchable
from .tensors import batch_axis, split
from .two_weights import TwoWeights
from .variants import NO_TENSOR, Axes, Part, Plan, Rows, Set, switch_all, together


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
        self.site = {self.names.get(m, ""): site for site, part in enumerate(layer.parts) for m in part}
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


def _versions(found: Iterable[Any]) -> list[int]:
    return [x._version for x in found if isinstance(x, Tensor) and not x.is_inference()]


def whole_of(layer: Layer) -> Plan:
    """The plan that calls a whole layer for each kind of variants."""
    names = {module: name for name, module in layer.module.named_modules()}
    every = tuple((site, names[m]) for site, part in enumerate(layer.parts) for m in part)
    return Plan(every, (), every)


def form_of(layer: Layer, one: Call, two: Call) -> object:
    """What a plan depends on: the modules of a layer, its sites, and what it is given."""
    names = {module: name for name, module in layer.module.named_modules()}
    modules = tuple((name, type(module)) for module, name in names.items())
    sites = tuple(tuple(names[module] for module in part) for part in layer.parts)
    axes = tuple(batch_axis(*pair) for pair in zip(one.given, two.given))
    return modules, sites, str(one.given_spec), axes


def find_plan(layer: Layer, one: Call, two: Call, out_axes: Sequence[int | None], switch: Set) -> Plan:
    """How the variants of a layer are computed together; exactly so on the example.

    Args:
        layer: the layer, with everything on.
        one: the recorded call for the example.
        two: that for two copies of it.
        out_axes: the batch axes of its results.
    """
    seen = Observed(layer, one, two)
    whole, plan = whole_of(layer), _planned(seen)
    owns: dict[bytes, list[Any]] = {}

    def exact(tried: Plan) -> bool:
        return _is_exact(layer, tried, whole, one, two, out_axes, switch, owns)

    if not plan.parts or not exact(plan):
        return whole
    for number, part in enumerate(plan.parts):
        if not part.switched:
            parts = (*plan.parts[:number], replace(part, passed_on=True), *plan.parts[number + 1 :])
            tried = replace(plan, parts=parts)
            plan = tried if exact(tried) else plan
    return plan


def fed_by_maps(layer: Layer, call: Call, activations: Iterable[nn.Module]) -> dict[nn.Module, nn.Module]:
    """Linear maps whose result is all that an activation of a layer is given, by the activation."""
    made: list[tuple[Tensor, nn.Module]] = []
    fed: dict[nn.Module, nn.Module] = {}

    def making(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            made.append((forward(*args, **kwargs), module))
            return made[-1][0]

        return called

    def given(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(x: Any) -> Any:
            source = [maker for out, maker in made if out is x]
            fed.update({module: source[0]} if source else {})
            return forward(x)

        return called

    maps = [m for m in layer.module.modules() if type(m) is nn.Linear or isinstance(m, TwoWeights)]
    known = {m: making(m, m.forward) for m in maps} | {m: given(m, m.forward) for m in activations}
    with changed(known):
        call_again(layer, call)
    return {m: maker for m, maker in fed.items() if list(fed.values()).count(maker) == 1}


def keep_exact(layer: Layer, call: Call, instead: Mapping[nn.Module, Callable[..., Any]]) -> bool:
    """Give modules of a layer other forwards for good, unless that changes what the layer returns."""
    own = call_again(layer, call)
    with changed(instead):
        ours = call_again(layer, call)
    if not all(map(alike, own, ours)):
        return False
    for module, forward in instead.items():
        module.forward = forward  # type: ignore[method-assign]
    return True


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
        modules = [seen.module.get_submodule(name) for _, name in inside]
        adds = all(isinstance(module, Switchable) and module.only_adds for module in modules)
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
    layer: Layer, plan: Plan, whole: Plan, one: Call, two: Call, out_axes: Sequence[int | None], switch: Set,
    owns: dict[bytes, list[Any]],
) -> bool:  # fmt: skip
    """Whether two variants in one call give what each gives alone, for every site that tells them apart.

    `owns` keeps what they give alone.
    """
    n = len(layer.parts)
    modules = [(site, layer.module.get_submodule(name)) for site, name in whole.whole]
    off = [[site] for site in sorted({site for site, _ in whole.whole} - set(plan.apart))]
    try:
        for sites in [*off, [site for own in off for site in own]] if off else []:
            on = np.ones((2, n), dtype=bool)
            on[1, sites] = False
            switch_all(modules, np.ones(n, dtype=bool), switch)
            with together(layer.module, plan, Rows(np.zeros(2, np.int64), on, {}), switch):
                ours = call_again(layer, two)
            for number in range(2):
                if (variant := on[number].tobytes()) not in owns:
                    switch_all(modules, on[number], switch)
                    owns[variant] = call_again(layer, one)
                for x, axis, y in zip(owns[variant], out_axes, ours):
                    if not alike(x, split(y, axis, 2)[number] if isinstance(y, Tensor) else y):
                        return False
    except (*RAISED, ModelError):
        return False
    finally:
        switch_all(modules, np.ones(n, dtype=bool), switch)
    return True
