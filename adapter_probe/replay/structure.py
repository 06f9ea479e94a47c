"""A model's layers as functions of each other's results, and the model's own code around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec

from adapter_probe.errors import ModelError

from .recording import Call, Inputs, Runner, Stop, flat, flat_result, unflat_result
from .tensors import batch_axis, blank, joined, picked, repeated

Slot = tuple[int, int]
"""A call, and the position of a tensor in what it returned."""
Axes = list[list[int | None]]
Reader = Callable[[torch.nn.Module, Callable[[], Any], int], Tensor]
"""Given the model, a function that runs it, and the number of copies: the wanted ``[copies, ...]``."""


@dataclass(frozen=True)
class Form:
    """A call of the example, without its tensors.

    Attributes:
        given_spec: structure of its arguments.
        out_spec: structure of its results.
        out: its results, None in place of tensors.
        like: for every tensor among its results, an argument of the same shape; the argument itself for
            results that do not vary.
    """

    given_spec: TreeSpec
    out_spec: TreeSpec | None
    out: tuple[Any, ...]
    like: dict[int, int]


@dataclass(frozen=True)
class Structure:
    """A model's layers as functions of each other's results.

    Attributes:
        layers: the layer of every call, in order.
        links: for every call, which arguments are results that vary.
        starts: the first call of every stage.
        last_use: the last call that needs a result; the number of calls if the model's own code does, and -1
            if nothing does. Only results that vary have an entry.
        through: results that do not vary and are an argument of the same call, by the argument's position.
        out_axes: the batch axis of every result.
        forms: of all calls; None if only a layer knows the shape of what it returns.
    """

    layers: tuple[int, ...]
    links: tuple[dict[int, Slot], ...]
    starts: tuple[int, ...]
    last_use: dict[Slot, int]
    through: dict[Slot, int]
    out_axes: Axes
    forms: tuple[Form, ...] | None

    def forget_states(self, calls: Sequence[Call]) -> None:
        """Blank what varies in a recorded forward: only its shapes are needed.

        Raises:
            ModelError: the layers hand their results on in another way.
        """
        if [call.layer for call in calls] != list(self.layers) or not self.are_linked(calls):
            raise ModelError("the calls of the layers differ between two batches")
        for k, call in enumerate(calls):
            for p in self.links[k]:
                call.given[p] = blank(call.given[p])
            for p in range(len(call.out)):
                if (k, p) in self.last_use:
                    call.out[p] = blank(call.out[p])

    def are_linked(self, calls: Sequence[Call]) -> bool:
        """Whether the calls are given each other's results as in the example."""
        return all(
            calls[k].given[p] is calls[slot[0]].out[slot[1]]
            for k, links in enumerate(self.links)
            for p, slot in links.items()
        )

    def stage_end(self, call: int) -> int:
        """The last call of the stage that begins at a call."""
        return min((start for start in self.starts if start > call), default=len(self.layers)) - 1


@dataclass
class Recorded:
    """A recorded forward of one batch.

    Attributes:
        calls: every call of a layer; results that vary are blank.
        given_axes: the batch axis of every argument.
        repeats: arguments for several copies of the batch, kept for later layers that are given the same.
    """

    calls: list[Call]
    given_axes: Axes
    repeats: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def given(self, call: int, position: int, copies: int) -> Any:
        """An argument of a call for several copies of the batch."""
        x, axis = self.calls[call].given[position], self.given_axes[call][position]
        if axis is None or copies == 1:
            return x
        key = (id(x), copies)
        if key not in self.repeats:
            self.repeats[key] = repeated(x, axis, copies)
        return self.repeats[key]


@dataclass(frozen=True)
class Source:
    """Which parts of a recorded batch some nodes are copies of.

    Attributes:
        units: the parts of the batch: 1 for the whole, or one for each example.
        roots: int64 ``[nodes]``, the part of each node.
    """

    units: int
    roots: Tensor

    @staticmethod
    def copies(n: int) -> Source:
        """Copies of the whole batch."""
        return Source(1, torch.zeros(n, dtype=torch.long))

    def of(self, x: Any, axis: int | None) -> Any:
        """An argument for these nodes."""
        if not isinstance(x, Tensor):
            return x
        return (
            repeated(x, axis, len(self.roots)) if self.units == 1 else picked(x, axis, self.units, self.roots)
        )

    def blank_of(self, x: Tensor, axis: int | None) -> Tensor:
        """NaN of the shape of `of`; what is no float is what it was."""
        if not x.is_floating_point():
            return self.of(x, axis)
        return blank(x, axis, self.units, len(self.roots))


def record(
    runner: Runner,
    inputs: Inputs,
    read: Reader,
    switch: Callable[[int, int], None],
    copies: int = 1,
    disturb: Callable[[int, list[Any]], None] = lambda call, out: None,
) -> tuple[list[Call], Tensor]:
    """All calls of a forward, and its output ``[copies, ...]``.

    Args:
        runner: the model.
        inputs: keyword arguments of its forward.
        read: what is wanted of its output.
        switch: called with the number of each call and its layer before it.
        copies: of the inputs.
        disturb: may change what a call returned, in place.
    """
    calls: list[Call] = []

    def handle(layer: int, forward: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        k, call = len(calls), Call(layer, *flat(args, kwargs))
        calls.append(call)
        if k == 0:  # a layer may add to its input in place
            call.given = [x.clone() if isinstance(x, Tensor) else x for x in call.given]
        switch(k, layer)
        call.out, call.out_spec = flat_result(forward(*args, **kwargs), args, kwargs)
        disturb(k, call.out)
        return unflat_result(call.out, call.out_spec, args, kwargs)

    return calls, read(runner.model, lambda: runner.forward(inputs, handle, copies), copies)


def rest(
    runner: Runner,
    inputs: Inputs,
    structure: Structure,
    calls: Sequence[Call],
    states: dict[Slot, Tensor],
    source: Source,
    given: dict[int, list[Any]] | None = None,
    first: int = 0,
    last: int = -1,
) -> Any:
    """The model's output from finished states ``[copies, ...]``, blank where there are none.

    Args:
        runner, inputs, structure, calls: the model, and a recorded forward of the inputs.
        states: results that vary.
        source: the copies of the inputs.
        given: is filled with the arguments of the calls from `first` on.
        first, last: see `given`; the last one ends the forward.

    Raises:
        Stop: call `last` was reached.
    """
    seen = iter(range(len(calls)))

    def handle(layer: int, forward: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        k = next(seen)
        own = flat(args, kwargs)[0]
        if given is not None and k >= first:
            given[k] = own
            if k == last:
                raise Stop
        out = [_result(structure, calls[k], (k, p), own, states, source) for p in range(len(calls[k].out))]
        assert calls[k].out_spec is not None
        return unflat_result(out, calls[k].out_spec, args, kwargs)

    return runner.forward({name: source.of(x, 0) for name, x in inputs.items()}, handle)


def _result(
    structure: Structure, call: Call, slot: Slot, given: list[Any], states: dict[Slot, Tensor], source: Source
) -> Any:
    x, axis = call.out[slot[1]], structure.out_axes[slot[0]][slot[1]]
    if slot in states:
        return joined(states[slot], axis)
    if not isinstance(x, Tensor):
        return x
    if slot in structure.last_use:
        return source.blank_of(x, axis)
    through = structure.through.get(slot)
    return source.of(x, axis) if through is None else given[through]


def arguments(runner: Runner, inputs: Inputs, structure: Structure) -> list[Call] | None:
    """What `record` gives for a batch, with blank states, by the model's own code without its layers.

    Returns:
        None if that is not certain to be right: only a layer knows what it returns, or this batch is not
        handed from layer to layer like the example.
    """
    forms, calls = structure.forms, []
    if forms is None:
        return None

    def handle(layer: int, forward: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        k, (given, spec) = len(calls), flat(args, kwargs)
        if layer != structure.layers[k] or spec != forms[k].given_spec:
            raise LookupError
        out = list(forms[k].out)
        for p, q in forms[k].like.items():
            out[p] = blank(given[q]) if (k, p) in structure.last_use else given[q]
        calls.append(Call(layer, given, spec, out, forms[k].out_spec))
        if len(calls) == len(forms):
            raise Stop
        return unflat_result(out, forms[k].out_spec, args, kwargs)

    with suppress(RuntimeError, TypeError, ValueError, LookupError, AttributeError):
        with suppress(Stop):
            runner.forward(inputs, handle)
        if len(calls) == len(forms) and _handed_on(structure, calls):
            return calls
    return None


def _handed_on(structure: Structure, calls: Sequence[Call]) -> bool:
    """Whether blank states reach the calls of the first stage as links alone."""
    if not structure.are_linked(calls):
        return False
    first = calls[: structure.stage_end(0) + 1]
    others = {
        id(x): x
        for call, links in zip(first, structure.links)
        for p, x in enumerate(call.given)
        if p not in links and isinstance(x, Tensor) and x.is_floating_point()
    }
    return not any(bool(x.isnan().any()) for x in others.values())


def measure_axes(runner: Runner, inputs: Inputs, structure: Structure, calls: Sequence[Call]) -> Axes:
    """The batch axes of a recorded forward's arguments, by the model's own code on two copies.

    No layer runs, unless it makes something that does not vary and has a batch axis.
    """
    given: dict[int, list[Any]] = {}
    with suppress(Stop):
        rest(runner, inputs, structure, calls, {}, Source.copies(2), given, last=len(calls) - 1)
    return [[batch_axis(*pair) for pair in zip(call.given, given[k])] for k, call in enumerate(calls)]
