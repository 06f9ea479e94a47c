"""What a model's layers hand to each other, found by forwards of an example.

- *links*: arguments that an earlier call returned, by identity;
- *what varies*: results that depend on the states, and *stages*: calls before which the model's own code
  turns states into arguments (a decoder after its encoder), by a forward with other states;
- *batch axes*: by a forward with two copies;
- *what is read* by the model's own code: by NaN in place of results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from adapter_probe.errors import ModelError

from .recording import Call, Inputs, Runner, Stop, flat, flat_result, refuse_other_calls, unflat_result
from .tensors import batch_axis, blank, differ, joined, picked, repeated

Slot = tuple[int, int]
"""A call, and the position of a tensor in what it returned."""
Axes = list[list[int | None]]
Reader = Callable[[torch.nn.Module, Callable[[], Any], int], Tensor]
"""Given the model, a function that runs it, and the number of copies: the wanted ``[copies, ...]``."""


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
    """

    layers: tuple[int, ...]
    links: tuple[dict[int, Slot], ...]
    starts: tuple[int, ...]
    last_use: dict[Slot, int]
    through: dict[Slot, int]
    out_axes: Axes

    def forget_states(self, calls: Sequence[Call]) -> None:
        """Blank what varies in a recorded forward: only its shapes are needed.

        Raises:
            ModelError: the layers hand their results on in another way.
        """
        found = [call.layer for call in calls]
        if found != list(self.layers) or any(
            calls[k].given[p] is not calls[slot[0]].out[slot[1]]
            for k, links in enumerate(self.links)
            for p, slot in links.items()
        ):
            raise ModelError("the calls of the layers differ between two batches")
        for k, call in enumerate(calls):
            for p in self.links[k]:
                call.given[p] = blank(call.given[p])
            for p in range(len(call.out)):
                if (k, p) in self.last_use:
                    call.out[p] = blank(call.out[p])

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
class Described:
    """What an example showed.

    Attributes:
        structure: what is known of the model now.
        calls: the recorded forward.
        one: the output of one copy of the batch.
        two: the output of the first of two copies.
    """

    structure: Structure
    calls: list[Call]
    one: Tensor
    two: Tensor


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
        shape = list(x.shape)
        if axis is not None:
            shape[axis] = shape[axis] // self.units * len(self.roots)
        return x.new_full((), torch.nan).expand(shape)


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
        runner: the model.
        inputs: keyword arguments of its forward.
        structure: what is known of it.
        calls: a recorded forward of the inputs.
        states: results that vary.
        source: the copies of the inputs.
        given: is filled with the arguments of the calls from `first` on.
        first: see `given`.
        last: the call that ends the forward.

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


def measure_axes(runner: Runner, inputs: Inputs, structure: Structure, calls: Sequence[Call]) -> Axes:
    """The batch axes of a recorded forward's arguments, by the model's own code on two copies.

    No layer runs, unless it makes something that does not vary and has a batch axis.
    """
    given: dict[int, list[Any]] = {}
    with suppress(Stop):
        rest(runner, inputs, structure, calls, {}, Source.copies(2), given, last=len(calls) - 1)
    return [[batch_axis(*pair) for pair in zip(call.given, given[k])] for k, call in enumerate(calls)]


def describe(
    runner: Runner,
    inputs: Inputs,
    read: Reader,
    switch: Callable[[int, int], None],
    off: Callable[[int, int, int], None],
) -> Described:
    """Find out all of a `Structure` on an example.

    Args:
        runner: see `record`.
        inputs: see `record`.
        read: see `record`.
        switch: see `record`; it switches everything on.
        off: switches everything off from a call on, given that call, a call and its layer.

    Raises:
        ModelError: something cannot be described.
    """
    calls, one = record(runner, inputs, read, switch)
    links = _identities(calls)
    starts, varies = _stages(runner, inputs, read, off, calls, links)
    two, again = record(runner, inputs, read, switch, copies=2)
    refuse_other_calls(calls, two)
    varying = tuple({p: slot for p, slot in of.items() if slot in varies} for of in links)
    structure = Structure(
        layers=tuple(call.layer for call in calls),
        links=varying,
        starts=tuple(starts),
        last_use=dict.fromkeys(varies, -1),
        through={
            (k, p): q
            for k, call in enumerate(calls)
            for p, x in enumerate(call.out)
            for q, y in enumerate(call.given)
            if x is y and isinstance(x, Tensor) and (k, p) not in varies
        },
        out_axes=[[batch_axis(*pair) for pair in zip(a.out, b.out)] for a, b in zip(calls, two)],
    )
    read_by_model = _read_by_model(runner, inputs, read, structure, calls, links)
    used = {slot: k for k, of in enumerate(varying) for slot in of.values()}
    structure.last_use.update({s: len(calls) if s in read_by_model else used.get(s, -1) for s in varies})
    return Described(structure, calls, one[0], again[0])


def _identities(calls: Sequence[Call]) -> list[dict[int, Slot]]:
    made: dict[int, Slot] = {}
    links: list[dict[int, Slot]] = []
    for k, call in enumerate(calls):
        links.append({p: made[id(x)] for p, x in enumerate(call.given) if id(x) in made})
        made.update({id(x): (k, p) for p, x in enumerate(call.out) if isinstance(x, Tensor)})
    return links


def _stages(
    runner: Runner,
    inputs: Inputs,
    read: Reader,
    off: Callable[[int, int, int], None],
    calls: Sequence[Call],
    links: Sequence[dict[int, Slot]],
) -> tuple[list[int], set[Slot]]:
    """The first calls of the stages, and the results that vary, by forwards with other states."""
    starts, varies = [0], set()
    start: int | None = 0
    while start is not None:
        begin = start
        other, _ = record(runner, inputs, read, partial(off, begin), disturb=noise_from(begin))
        refuse_other_calls(calls, other)
        varies |= {
            (k, p) for k, c in enumerate(calls) for p, x in enumerate(c.out) if differ(x, other[k].out[p])
        }
        start = next(
            (
                k
                for k in range(begin + 1, len(calls))
                for p, x in enumerate(calls[k].given)
                if p not in links[k] and differ(x, other[k].given[p])
            ),
            None,
        )
        starts += [] if start is None else [start]
    return starts, varies


def noise_from(begin: int, axes: Axes | None = None) -> Callable[[int, list[Any]], None]:
    """Noise on the first tensor that the calls from `begin` on return; see `record`.

    Args:
        begin: the first call.
        axes: the batch axis of every result; given, the first of two copies has no noise.
    """
    generator = torch.Generator().manual_seed(0)

    def disturb(k: int, out: list[Any]) -> None:
        if k < begin:
            return
        p, x = next((p, x) for p, x in enumerate(out) if isinstance(x, Tensor))
        noise = x.std() * torch.randn(x.shape, generator=generator).to(x)
        if axes is not None and (axis := axes[k][p]) is not None:
            noise.narrow(axis, 0, x.shape[axis] // 2).zero_()
        out[p] = x + noise

    return disturb


def _read_by_model(
    runner: Runner,
    inputs: Inputs,
    read: Reader,
    structure: Structure,
    calls: Sequence[Call],
    links: Sequence[dict[int, Slot]],
) -> set[Slot]:
    """The varying results that the model's own code reads, by NaN in place of them."""
    states = {(k, p): calls[k].out[p] for k, p in structure.last_use}

    def run(without: Sequence[Slot]) -> list[Any]:
        given: dict[int, list[Any]] = {}
        kept = {
            slot: _one(x, structure.out_axes[slot[0]][slot[1]])
            for slot, x in states.items()
            if slot not in without
        }
        out = read(
            runner.model, lambda: rest(runner, inputs, structure, calls, kept, Source.copies(1), given), 1
        )
        return [out, *(x for k, xs in given.items() for p, x in enumerate(xs) if p not in links[k])]

    base = run(())

    def among(slots: list[Slot]) -> set[Slot]:
        if not slots or not any(map(differ, base, run(slots))):
            return set()
        if len(slots) == 1:
            return set(slots)
        return among(slots[: len(slots) // 2]) | among(slots[len(slots) // 2 :])

    floating = sorted(slot for slot, x in states.items() if x.is_floating_point())
    return among(floating) | (states.keys() - set(floating))


def _one(x: Tensor, axis: int | None) -> Tensor:
    return x[None] if axis is None else x.unflatten(axis, (1, -1)).movedim(axis, 0)


def refuse_coupled(
    runner: Runner, inputs: Inputs, read: Reader, switch: Callable[[int, int], None], found: Described
) -> None:
    """Refuse a model whose output for a text depends on the other texts of its batch.

    Args:
        runner: see `record`.
        inputs: see `record`.
        read: see `record`.
        switch: see `record`; it switches everything on.
        found: what is known of the model.

    Raises:
        ModelError: it does.
    """
    noise = noise_from(0, found.structure.out_axes)
    _, mixed = record(runner, inputs, read, switch, copies=2, disturb=noise)
    first, again, beside = (x.nan_to_num() for x in (found.one, found.two, mixed[0]))
    rounding = max(
        float((first - again).abs().max()), 4 * torch.finfo(first.dtype).eps * float(first.abs().max())
    )
    change = float((beside - again).abs().max())
    if change > 10 * rounding:
        raise ModelError(f"the output for a text depends on the other texts of its batch, by {change:.1e}")
