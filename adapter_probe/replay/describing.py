"""What a model's layers hand to each other, found by forwards of an example.

- *links*: arguments that an earlier call returned, by identity;
- *what varies*: results that depend on the states, and *stages*: calls before which the model's own code
  turns states into arguments (a decoder after its encoder), by a forward with other states;
- *batch axes*: by a forward with two copies;
- *what is read* by the model's own code: by NaN in place of results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from adapter_probe.errors import ModelError

from .recording import Call, Inputs, Runner, refuse_other_calls
from .structure import Axes, Form, Reader, Slot, Source, Structure, record, rest
from .tensors import batch_axis, differ


@dataclass(frozen=True)
class Described:
    """What an example showed.

    Attributes:
        structure: what is known of the model now.
        calls: the recorded forward.
        doubled: that of two copies of the batch.
        one: the output of one copy of the batch.
        two: the output of the first of two copies.
    """

    structure: Structure
    calls: list[Call]
    doubled: list[Call]
    one: Tensor
    two: Tensor

    def states(self) -> dict[Slot, Tensor]:
        """The results that the model's own code reads, of one copy: ``[1, ...]``."""
        return {
            (k, p): _one(self.calls[k].out[p], self.structure.out_axes[k][p])
            for (k, p), use in self.structure.last_use.items()
            if use == len(self.calls)
        }


def describe(
    runner: Runner,
    inputs: Inputs,
    read: Reader,
    switch: Callable[[int, int], None],
    off: Callable[[int, int, int], None],
) -> Described:
    """Find out all of a `Structure` on an example.

    The arguments are those of `record`; `switch` switches everything on, and `off` everything off from a call
    on, given that call, a call and its layer.

    Raises:
        ModelError: something cannot be described.
    """
    calls, one = record(runner, inputs, read, switch)
    links = _identities(calls)
    starts, varies = _stages(runner, inputs, read, off, calls, links)
    two, again = record(runner, inputs, read, switch, copies=2)
    refuse_other_calls(calls, two)
    varying = tuple({p: slot for p, slot in of.items() if slot in varies} for of in links)
    through = {
        (k, p): q
        for k, call in enumerate(calls)
        for p, x in enumerate(call.out)
        for q, y in enumerate(call.given)
        if x is y and isinstance(x, Tensor) and (k, p) not in varies
    }
    structure = Structure(
        layers=tuple(call.layer for call in calls),
        links=varying,
        starts=tuple(starts),
        last_use=dict.fromkeys(varies, -1),
        through=through,
        out_axes=[[batch_axis(*pair) for pair in zip(a.out, b.out)] for a, b in zip(calls, two)],
        forms=_forms(calls, two, varies, through),
    )
    read_by_model = _read_by_model(runner, inputs, read, structure, calls, links)
    used = {slot: k for k, of in enumerate(varying) for slot in of.values()}
    structure.last_use.update({s: len(calls) if s in read_by_model else used.get(s, -1) for s in varies})
    return Described(structure, calls, two, one[0], again[0])


def _forms(
    calls: Sequence[Call], two: Sequence[Call], varies: set[Slot], through: dict[Slot, int]
) -> tuple[Form, ...] | None:
    """The calls without their tensors; None if a result is neither an argument nor a state of its shape."""
    forms = []
    for k, (one, other) in enumerate(zip(calls, two)):
        like = {}
        for p, x in enumerate(one.out):
            if not isinstance(x, Tensor):
                continue
            same = [
                q
                for q in range(len(one.given))
                if all(
                    isinstance(of.given[q], Tensor) and _kind(of.given[q]) == _kind(of.out[p])
                    for of in (one, other)
                )
            ]
            if (k, p) in through:
                like[p] = through[k, p]
            elif same and (k, p) in varies and x.is_floating_point():
                like[p] = same[0]
            else:
                return None
        out = tuple(None if isinstance(x, Tensor) else x for x in one.out)
        forms.append(Form(one.given_spec, one.out_spec, out, like))
    return tuple(forms)


def _kind(x: Tensor) -> object:
    return x.shape, x.dtype, x.device


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

    With `axes`, the batch axes of all results, the first of two copies has no noise.
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
    last = [slot for slot in floating if slot[0] == len(calls) - 1]  # most often these and no others
    return among(floating[: len(floating) - len(last)]) | among(last) | (states.keys() - set(floating))


def _one(x: Tensor, axis: int | None) -> Tensor:
    return x[None] if axis is None else x.unflatten(axis, (1, -1)).movedim(axis, 0)


def refuse_coupled(
    runner: Runner, inputs: Inputs, read: Reader, switch: Callable[[int, int], None], found: Described
) -> None:
    """Refuse a model whose output for a text depends on the other texts of its batch.

    The arguments are those of `describe`, and what it found.

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
