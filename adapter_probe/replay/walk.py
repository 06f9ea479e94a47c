"""One traversal of the prefix tree with the layers of a recorded forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from adapter_probe.errors import ModelError

from .checking import alike
from .packing import Pack
from .recording import Call, Inputs, Runner, Stop, flat_result
from .stacks import sites_of
from .structure import Reader, Recorded, Slot, Source, Structure, rest
from .tensors import joined, picked, split, taken
from .variants import Plan, Rows, together

ROOT = torch.zeros(1, dtype=torch.long)


@dataclass
class Branch:
    """Nodes before a call; node i holds the sorted masks `bounds[i]` to `bounds[i + 1] - 1`.

    Attributes:
        call: the next call.
        bounds: int ``[nodes + 1]``.
        roots: int64 ``[nodes]``, the copy in `given` that each node's arguments come from.
        states: results of earlier calls, ``[nodes, ...]``.
        given: the arguments of a stage's calls for `copies` copies of the batch; None for those recorded.
        copies: see `given`.
        examples: int64 ``[nodes]``, the part of the batch that each node is a copy of.
    """

    call: int
    bounds: np.ndarray
    roots: Tensor
    states: dict[Slot, Tensor]
    given: dict[int, list[Any]] | None
    copies: int
    examples: Tensor

    def halves(self) -> list[Branch]:
        """The half with fewer masks last; the other is a copy, so that it keeps no other memory alive."""
        m = len(self.roots) // 2
        low, high = self._of(self.bounds[: m + 1], slice(m)), self._of(self.bounds[m:], slice(m, None))
        waits, next_up = (low, high) if low.n_variants >= high.n_variants else (high, low)
        waits.states = {slot: t.clone() for slot, t in waits.states.items()}
        return [waits, next_up]

    @property
    def n_variants(self) -> int:
        """Number of distinct masks below these nodes."""
        return int(self.bounds[-1] - self.bounds[0])

    def _of(self, bounds: np.ndarray, nodes: slice) -> Branch:
        states = {slot: t[nodes] for slot, t in self.states.items()}
        return replace(
            self, bounds=bounds, roots=self.roots[nodes], states=states, examples=self.examples[nodes]
        )


@dataclass
class Walk:
    """The traversal of one batch.

    Attributes:
        switched: the `Replay`, which is in a file that imports this one.
        runner, structure: the model and what is known of it.
        inputs, recorded: the batch and its recorded forward.
        read: what is wanted of the model's output.
        rows: copies x tokens per call of a layer.
        each_pass: called before every call of a layer.
        units: the parts of the batch that nodes are copies of, see `Source`.
        pack: the texts of several lengths that the batch is one row of, see `packing`; None of others.
        is_blank: whether positions of the last layer that are not read are NaN, so that reading them shows.
            The first pass over copies of a batch shows it: the head reads the same positions of all.
    """

    switched: Any
    runner: Runner
    structure: Structure
    inputs: Inputs
    recorded: Recorded
    read: Reader
    rows: int
    each_pass: Callable[[], None]
    units: int = 1
    pack: Pack | None = None
    is_blank: bool = True

    def outputs(self, masks: np.ndarray) -> Tensor:
        """The output under every mask ``[variants, columns]``, as ``[variants, ...]``."""
        leaves, leaf = np.unique(masks, axis=0, return_inverse=True)
        start = Branch(0, np.array([0, len(leaves)]), ROOT, {}, None, 1, ROOT)
        return self._run(start, leaves)[torch.from_numpy(leaf.reshape(-1))]

    def outputs_of_pairs(self, examples: np.ndarray, masks: np.ndarray) -> Tensor:
        """The output of pairs of an example of the batch and a mask, as ``[pairs, ...]``."""
        rows, leaf = np.unique(np.column_stack([examples, masks]), axis=0, return_inverse=True)
        roots, first = np.unique(rows[:, 0], return_index=True)
        nodes = torch.from_numpy(roots.astype(np.int64))
        given = {k: call.given for k, call in enumerate(self.recorded.calls)}
        start = Branch(0, np.append(first, len(rows)), nodes, {}, given, self.units, nodes)
        return self._run(start, rows[:, 1:].astype(bool))[torch.from_numpy(leaf.reshape(-1))]

    def _run(self, start: Branch, leaves: np.ndarray) -> Tensor:
        """The outputs of the leaves ``[leaves, ...]``, in order."""
        out: list[Tensor | None] = [None] * len(leaves)
        mains = (next(x for x in call.out if isinstance(x, Tensor)) for call in self.recorded.calls)
        most = max(1, min(self.rows * self.units * x.shape[-1] // x.numel() for x in mains))  # copies
        states = [self._states(leaves, k) for k in range(len(self.recorded.calls))]
        pending, n_calls = [start], len(self.recorded.calls)
        ends: list[Branch] = []
        while pending or ends:
            self.each_pass()
            if ends and (not pending or self._fill_a_pass(ends)):
                numbers = [number for branch in ends for number in branch.bounds[:-1].tolist()]
                for number, value in zip(numbers, self._finished(ends)):
                    out[number] = value
                ends = []
                continue
            branch = pending.pop()
            if branch.call == n_calls:
                ends.append(self._shortened(branch))
                continue
            k = branch.call
            bits, forks = states[k]
            low, high = np.searchsorted(forks, branch.bounds[[0, -1]], "right")
            bounds = np.union1d(branch.bounds, forks[low:high])
            if len(branch.roots) > 1 and len(bounds) - 1 > most:
                pending += branch.halves()
                continue
            if k in self.structure.starts[1:]:
                branch = self._next_stage(branch)
            pending.append(self._advanced(branch, bounds, bits[bounds[:-1]]))
        return torch.stack(out)

    def _states(self, leaves: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The states of a call's sites for every leaf, and the leaves at which they are other than before."""
        bits = leaves[:, sites_of(self.switched.layers, k)]
        return bits, 1 + np.flatnonzero((bits[1:] != bits[:-1]).any(axis=1))

    def _fill_a_pass(self, ends: Sequence[Branch]) -> bool:
        """Whether finished branches are read now, and not with later ones."""
        if self.pack is None or self.pack.one is None:
            return True
        n_texts = sum(group.n for group in self.pack.groups)
        return sum(len(branch.roots) for branch in ends) * n_texts >= self.rows

    def _shortened(self, branch: Branch) -> Branch:
        """A finished branch with what the head reads of its states, if that is one position of each text."""
        pack = self.pack
        if pack is None or pack.one is None:
            return branch
        at = pack.read_at(self.switched.read_position)
        states = {slot: x[:, 0, at, None] for slot, x in branch.states.items()}  # [nodes, texts, 1, hidden]
        short = replace(branch, states=states)
        if not pack.is_tried:
            first = self._each_length(pack, {slot: x[:1] for slot, x in branch.states.items()})
            own = self._at_one(pack, [short._of(branch.bounds[:2], slice(1))])
            if not all(map(alike, first, own)):
                raise ModelError("the model's head reads other positions than in the example")
            pack.is_tried = True
        return short

    def _finished(self, ends: Sequence[Branch]) -> Tensor:
        """The model's outputs of branches after the last call, ``[nodes, ...]``."""
        if self.pack is None:
            source = Source(self.units, ends[0].examples)
            return self._read(self.inputs, self.recorded.calls, ends[0].states, source)
        if self.pack.one is None:
            return self.pack.joined(self._each_length(self.pack, ends[0].states))
        return self.pack.joined(self._at_one(self.pack, ends))

    def _at_one(self, pack: Pack, ends: Sequence[Branch]) -> list[Tensor]:
        """The outputs of the texts of each length, from the one position of each that is read."""
        assert pack.one is not None
        states = {slot: torch.cat([branch.states[slot] for branch in ends]) for slot in ends[0].states}
        copies = Source.copies(sum(len(branch.roots) for branch in ends))
        found = self._read(*pack.one, states, copies)  # [nodes, texts, ...]
        return list(found.split([group.n for group in pack.groups], dim=1))

    def _each_length(self, pack: Pack, states: dict[Slot, Tensor]) -> list[Tensor]:
        """The outputs of the texts of each length."""
        n = len(next(iter(states.values())))
        apart = {slot: pack.apart(x) for slot, x in states.items()}
        return [
            self._read(inputs, calls, {slot: xs[g] for slot, xs in apart.items()}, Source.copies(n))
            for g, (inputs, calls) in enumerate(zip(pack.inputs, pack.calls))
        ]

    def _read(
        self, inputs: Inputs, calls: Sequence[Call], states: dict[Slot, Tensor], source: Source
    ) -> Tensor:
        """What is read of the model's output for finished states."""

        def run() -> Any:
            return rest(self.runner, inputs, self.structure, calls, states, source)

        return self.read(self.runner.model, run, len(source.roots))

    def _next_stage(self, branch: Branch) -> Branch:
        """The same nodes with the arguments that the model's own code makes out of their states."""
        given: dict[int, list[Any]] = {}
        n, k = len(branch.roots), branch.call
        with suppress(Stop):
            rest(
                self.runner, self.inputs, self.structure, self.recorded.calls, branch.states,
                Source(self.units, branch.examples), given, k, self.structure.stage_end(k),
            )  # fmt: skip
        for number, own in given.items():
            for x, recorded in zip(own, self.recorded.calls[number].given):
                if isinstance(x, Tensor) and not isinstance(recorded, Tensor):
                    raise ModelError("the calls of the layers differ between a batch and a part of it")
        return replace(branch, given=given, copies=n, roots=torch.arange(n))

    def _advanced(self, branch: Branch, bounds: np.ndarray, bits: np.ndarray) -> Branch:
        k = branch.call
        parent = torch.from_numpy(np.searchsorted(branch.bounds, bounds[:-1], "right") - 1)
        later = {slot: t for slot, t in branch.states.items() if self.structure.last_use[slot] > k}
        states = (
            later
            if len(parent) == len(branch.roots)
            else {slot: t[parent.to(t.device)] for slot, t in later.items()}
        )
        plan = self.switched.plan(k)
        if len(parent) > 1 and plan.parts:
            plan = plan.for_rows(Rows(parent.numpy(), bits, {}))
        kinds, kind = None, np.zeros(len(parent), dtype=int)
        if plan.whole:
            kinds, kind = np.unique(bits[:, plan.apart], axis=0, return_inverse=True)
        n_kinds = 1 if kinds is None else len(kinds)
        for number in range(n_kinds):
            index = np.flatnonzero(kind.reshape(-1) == number)
            self.switched.switch(k, bits[index[0]], plan if len(index) > 1 else None)
            for slot, nodes in self._called(branch, parent[torch.from_numpy(index)], bits[index], plan):
                if n_kinds == 1:
                    states[slot] = nodes
                    continue
                if number == 0:
                    states[slot] = nodes.new_empty(len(parent), *nodes.shape[1:])
                states[slot][torch.from_numpy(index).to(nodes.device)] = nodes
        return Branch(
            k + 1, bounds, branch.roots[parent], states, branch.given, branch.copies, branch.examples[parent]
        )

    @contextmanager
    def _on_layer(self, is_last: bool) -> Iterator[None]:
        """What holds while a layer runs."""
        with ExitStack() as stack:
            if is_last:
                stack.enter_context(self.switched.in_last(self.read, self.pack, self.is_blank))
            if self.pack is not None:
                attention = self.pack.attention
                attention.is_blank = self.is_blank
                attention.at = self.switched.read_position if is_last else None
                attention.folds = self.switched.folds if attention.at is not None else None
                if attention.folds is not None:
                    stack.enter_context(attention.folds.instead())
                stack.enter_context(attention.here())
            yield
        self.is_blank = self.is_blank and not (is_last and self.units == 1)

    def _once(self, branch: Branch, rows: Tensor, given: list[Any]) -> dict[tuple[tuple, int], Tensor]:
        """The states before the call, of which rows of the call are copies."""
        k = branch.call
        if 1 + np.count_nonzero(np.diff(rows.numpy())) < len(branch.roots):  # the rows ascend
            return {}
        return {
            ((), id(given[p])): joined(branch.states[slot], self.recorded.given_axes[k][p])
            for p, slot in self.structure.links[k].items()
        }

    def _called(self, branch: Branch, rows: Tensor, on: np.ndarray, plan: Plan) -> list[tuple[Slot, Tensor]]:
        """What the call returns and something later needs, ``[rows, ...]``.

        Args:
            rows: int64 ``[rows]``, the node of each row.
            on: bool ``[rows, sites]``, which sites of the layer are on.
        """
        k, n = branch.call, len(rows)
        call, links, axes = self.recorded.calls[k], self.structure.links[k], self.recorded.given_axes[k]
        given = []
        for p, axis in enumerate(axes):
            if p in links:
                given.append(joined(taken(branch.states[links[p]], rows), axis))
            elif branch.given is None:
                given.append(self.recorded.given(k, p, n))
            else:
                given.append(picked(branch.given[k][p], axis, branch.copies, branch.roots[rows]))
        args, kwargs = tree_unflatten(given, call.given_spec)
        layer = self.runner.layers[self.structure.layers[k]]
        with self._on_layer(k == len(self.recorded.calls) - 1):
            if len(on) == 1 or not plan.parts:
                returned = layer(*args, **kwargs)
            else:
                known = {id(x): axis for x, axis in zip(given, axes) if isinstance(x, Tensor)}
                own = Rows(rows.numpy(), on, known, self._once(branch, rows, given))
                with together(layer, plan, own, self.switched.set):
                    returned = layer(*args, **kwargs)
        out, _ = flat_result(returned, args, kwargs)
        return [
            ((k, p), split(x, self.structure.out_axes[k][p], n))
            for p, x in enumerate(out)
            if self.structure.last_use.get((k, p), -1) > k
        ]
