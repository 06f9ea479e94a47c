"""Outputs of a model under many on/off masks, by its own layers along a prefix tree.

The model's own forward runs once for a batch, and every call of a layer is recorded with its arguments. A
layer is then called on the states of many variants at once (copies of the batch), and the rest of the model
runs with layers that return finished states. Nothing is known about the family: see `structure` for what is
found out, and `Replay.check` for how the result is compared with the model's own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.device import is_out_of_memory, threads_for_few_rows
from adapter_probe.errors import ModelError
from adapter_probe.units import Unit

from .checking import coarsest, compare, refused, tried_masks
from .describing import Described, describe, refuse_coupled
from .folding import Folds
from .last import Where, first_position, only_positions, spared_positions
from .layer_plans import fed_by_maps, find_plan, form_of, keep_exact, whole_of
from .packing import Pack, attend_in_rows, last_folds, pack, refuse_mixing
from .recording import Call, Inputs, Runner, refuse_unknown
from .sharing import sharing
from .stacks import Layer, find_layers, in_calls, sites_of
from .structure import Axes, Reader, Recorded, arguments, measure_axes, record
from .switches import Switches
from .tensors import split
from .variants import Plan, UnknownRows
from .walk import Walk

_SHAPES_KEPT = 256
# Each lane's first batch, the first of every doubling of its sizes, and every so many batches are compared
# with the model's own forward.
_BATCHES_BETWEEN_CHECKS = 16


def logits(model: nn.Module, run: Callable[[], Any], copies: int) -> Tensor:
    """The logits of a model, ``[copies, ...]``."""
    return split(run()["logits"], 0, copies)


class Replay:
    """A model in evaluation mode, prepared on an example of its inputs.

    A mask has a column for every part of a layer, in the order of the layers' calls: today its attention and
    its feed-forward network. Columns without an adapter are ignored.

    Args:
        model: a model with adapters that can be switched.
        inputs: keyword arguments of its forward; every tensor has the examples along its first axis.
        read: what is wanted of its output.
        switches: how adapters are switched.
        one_position: whether the head may read one position of each text, see `last`. A reader that knows
            what it reads has a method ``where``, see `last.Where`; one that compares with the intact model
            is true in its ``reads_intact_first``.
        instead: a faster forward of a module inside a layer, or None; it is kept, in this model, where the
            layer returns the same with it.
        by: the unit that is a site of its own, see `find_layers`.

    Attributes:
        layers: the layer of every call.
        has_adapter: bool ``[columns]``.
        fed_by: linear maps whose result only one of the modules that got another forward reads.
        attend: attention within texts of several lengths, see `packing.attend_in_rows`, or what is faster.
        packs: whether texts of several lengths may share a row, as far as `find_packing` found out.
        pads: whether texts may be padded, as far as `find_padding` found out.

    Raises:
        ModelError: the model cannot be run in this way, or not exactly.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        *,
        read: Reader = logits,
        switches: Switches | None = None,
        one_position: bool = False,
        instead: Callable[[nn.Module], Callable[..., Any] | None] | None = None,
        by: Unit = "span",
    ):
        self._switches, self._by = switches or Switches(), by
        if model.training:
            raise ModelError("the model is in training mode; call eval() first")
        self.model, self._precision = model, coarsest(model)
        self._found = find_layers(model, self._switches, by)
        self._runner = Runner(model, [layer.module for layer in self._found])
        self._axes: dict[Any, list[list[int | None]]] = {}
        self._seen: set[tuple[int, ...]] = set()
        self._batches = 0
        self.packs, self.pads, self._folds = False, False, None
        # The names of layers, and of the modules in them that got other forwards.
        self._faster: list[tuple[str, str]] = []
        self.fed_by: dict[nn.Module, nn.Module] = {}
        self.attend: Callable[..., Tensor] = attend_in_rows
        with self.kept(), refused(preparing=True):
            found = describe(self._runner, inputs, read, self._all_on, self._off_from)
            self._structure = found.structure
            refuse_unknown(found.calls, [layer.name for layer in self._found])
            refuse_coupled(self._runner, inputs, read, self._all_on, found)
            self.layers = in_calls(self._found, self._structure.layers)
            self.has_adapter = np.array([bool(part) for layer in self.layers for part in layer.parts])
            self._last = spared_positions(self._runner, self.layers[-1], inputs, read, found, one_position)
            if instead is not None:
                self._replace(instead, found.calls)
            self.plans = list(self._find_plans(found))
            self._check_prepared(inputs, read, found.one)

    def _replace(
        self, instead: Callable[[nn.Module], Callable[..., Any] | None], calls: Sequence[Call]
    ) -> None:
        """Give modules in the layers other forwards, where one layer of a kind returns the same so."""
        feeds: dict[object, dict[str, str] | None] = {}  # by kind, names of modules and of what feeds them
        for layer, call in zip(self.layers, calls):
            names = {module: name for name, module in layer.module.named_modules()}
            kind = tuple((name, type(m), bool(m._forward_hooks)) for m, name in names.items())
            faster = {module: forward for module in names if (forward := instead(module))}
            if kind not in feeds:
                kept = keep_exact(layer, call, faster)
                fed = fed_by_maps(layer, call, faster) if kept else {}
                feeds[kind] = {names[m]: names[maker] for m, maker in fed.items()} if kept else None
            own = feeds[kind]
            if own is None:
                continue
            self._faster += [(layer.name, names[module]) for module in faster]
            for module, forward in faster.items():
                module.forward = forward  # type: ignore[method-assign]
            self.fed_by |= {
                layer.module.get_submodule(m): layer.module.get_submodule(f) for m, f in own.items()
            }

    def _find_plans(self, found: Described) -> Iterator[Plan]:
        """How the variants of every call are computed; calls of the same form in the same way."""
        plans: dict[Any, Plan] = {}
        for layer, one, two, axes in zip(
            self.layers, found.calls, found.doubled, found.structure.out_axes, strict=True
        ):
            form = form_of(layer, one, two)
            if form not in plans:
                plans[form] = find_plan(layer, one, two, axes, self.set)
            yield plans[form]

    def _check_prepared(self, inputs: Inputs, read: Reader, intact: Tensor) -> None:
        """Compare with the model's own forward, what the layers are given by `arguments` if that is right."""
        simpler: list[Callable[[], None]] = [self._forget_plans]
        if self._structure.forms is not None:
            simpler.append(self._forget_forms)
        self._is_due(inputs)  # so that `arguments` is tried
        while True:
            try:
                self.check(inputs, read, intact)
                break
            except ModelError:
                if not simpler:
                    raise
                simpler.pop(0)()
        self._seen.clear()
        self._batches = 0

    def _forget_plans(self) -> None:
        """Call whole layers for each kind of variants."""
        self.plans = [whole_of(layer) for layer in self.layers]

    def _forget_forms(self) -> None:
        """Run the layers to see what they are given."""
        self._structure = replace(self._structure, forms=None)

    @property
    def read_position(self) -> Where | None:
        """The one position of each text that the head reads, if it does and the reader has no others."""
        return None if self._last is None else self._last[0]

    def in_last(
        self, read: Reader, pack: Pack | None = None, blank: bool = True
    ) -> AbstractContextManager[None]:
        """What holds while the last layer runs; `blank` as in `last.only_positions`."""
        where = None if self._last is None else getattr(read, "where", None) or self._last[0]
        if self._last is None or where is None:
            return nullcontext()
        if pack is not None:
            where = pack.where(where, self._precision.itemsize == 2)
        module = self.layers[-1].module
        return only_positions([module.get_submodule(name) for name in self._last[1]], where, blank)

    def twin(self) -> Replay:
        """The same for a copy of the model that shares its tensors and has switches of its own."""
        return self._on(sharing(self.model))

    def _on(self, model: nn.Module) -> Replay:
        """The same for a copy of the model."""
        other = copy(self)
        other.model, other._precision, other._batches = model, coarsest(model), 0
        other._found = find_layers(model, self._switches, self._by)
        other._runner = Runner(model, [layer.module for layer in other._found])
        other.layers = in_calls(other._found, self._structure.layers)
        return other

    def in_precision(
        self,
        model: nn.Module,
        inputs: Inputs,
        read: Reader,
        instead: Callable[[nn.Module], Callable[..., Any] | None] | None,
    ) -> Replay:
        """The same for a copy of the model in another precision, with what is known of this one.

        Args:
            model: the copy, as this one was before it was prepared.
            inputs, read, instead: see `Replay`.

        Raises:
            ModelError: in that precision something else holds.
        """
        other = self._on(model)
        other._seen, other.packs, other.pads, other._folds, other.fed_by = set(), False, False, None, {}
        for layer, name in self._faster:
            module = model.get_submodule(layer).get_submodule(name)
            forward = None if instead is None else instead(module)
            if forward is not None:
                module.forward = forward  # type: ignore[method-assign]
        every = np.ones(len(other.has_adapter), dtype=bool)
        other._check_prepared(inputs, read, other.own(inputs, every, read))
        return other

    def check(self, inputs: Inputs, read: Reader = logits, intact: Tensor | None = None) -> float:
        """Compare with the model's own forward: intact, all off, and two random masks.

        Args:
            inputs: a batch.
            read: what is wanted of the model's output.
            intact: the intact model's output by its own forward, if it is known.

        Returns:
            The largest difference, relative to the largest output.

        Raises:
            ModelError: it is too large.
        """
        masks = tried_masks(len(self.has_adapter))
        on = self.own(inputs, masks[0], read) if intact is None else intact
        own = torch.stack([on, *(self.own(inputs, mask, read) for mask in masks[1:])])
        return self._compare(read, self.outputs(inputs, masks, read=read), own)

    def _compare(self, read: Reader, ours: Tensor, own: Tensor) -> float:
        """The difference of what a reader returns, within the rounding of the model; see `compare`."""
        numbers = getattr(read, "numbers", lambda out: out)  # without flags, which rounding may decide
        return compare(numbers(ours), numbers(own), self._precision, getattr(read, "logit", 0.0))

    def own(self, inputs: Inputs, mask: np.ndarray, read: Reader = logits) -> Tensor:
        """The output under one mask, by the model's own forward."""
        mask = mask | ~self.has_adapter
        with self.kept(), refused():
            return record(
                self._runner, inputs, read, lambda k, _: self.switch(k, mask[sites_of(self.layers, k)])
            )[1][0]

    def outputs(
        self,
        inputs: Inputs,
        masks: np.ndarray,
        *,
        rows: int = 4096,
        read: Reader = logits,
        each_pass: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """The output under every mask.

        Args:
            inputs: a batch.
            masks: bool ``[variants, columns]``, True = on.
            rows: copies x tokens per call of a layer; bounds memory.
            read: what is wanted of the model's output.
            each_pass: called before every call of a layer.

        Returns:
            ``[variants, ...]``.

        Raises:
            ModelError: the intact model's output differs from its own forward's.
        """
        masks = masks | ~self.has_adapter

        def found() -> Tensor:
            with self.kept(), refused():
                recorded, intact = self._recorded(inputs, read)
                walk = Walk(self, self._runner, self._structure, inputs, recorded, read, rows, each_pass)
                values = walk.outputs(masks)
            if intact is not None:
                for number in np.flatnonzero(masks.all(axis=1))[:1]:
                    self._compare(read, values[number], intact)
            return values

        return self._complete(found)

    def find_packing(self, inputs: Sequence[Inputs], read: Reader = logits) -> None:
        """Find out whether texts of several lengths may share a row, by texts of each length.

        Args:
            inputs: keyword arguments of the model's forward, for each length.
            read: what is wanted of the model's output.
        """
        structure = self._structure
        self.packs = False
        if len(structure.starts) > 1 or structure.forms is None or hasattr(read, "where"):
            return
        with suppress(ModelError), self.kept(), refused(preparing=True):
            calls, own = zip(*(record(self._runner, own, read, self._all_on) for own in inputs))
            axes = [self._axes_of(*both) for both in zip(inputs, calls)]
            row = pack(inputs, calls, axes, structure, added=3)
            refuse_mixing(self.layers, *row)
            where, folds = self.read_position, None
            if where is not None:
                with self.in_last(read, row[1]):
                    folds = last_folds(self.layers[-1], *row, where)
            masks = tried_masks(len(self.has_adapter))[[0, 3]]
            names = {module: name for name, module in self.layers[-1].module.named_modules()}
            self._folds = None if folds is None else tuple(names[linear] for linear in folds.maps)
            ours = self.outputs_of_lengths(inputs, masks, read=read)
            for x, intact in zip(ours, own):
                self._compare(read, x[0], intact[0])
            self._compare(read, ours[-1][1], self.own(inputs[-1], masks[1], read))
            self.packs = True

    def find_padding(self, alone: Sequence[Inputs], padded: Inputs) -> None:
        """Find out whether a mask hides the padding after texts, by the model's own forwards.

        Args:
            alone: keyword arguments of the model's forward for texts of several lengths, each alone.
            padded: those for all of them in one batch, in the same order.
        """
        every = np.ones(len(self.has_adapter), dtype=bool)
        self.pads = False
        if self.read_position is first_position:
            with suppress(ModelError):
                own = torch.cat([self.own(inputs, every) for inputs in alone])
                self._compare(logits, self.own(padded, every), own)
                self.pads = True

    @property
    def folds(self) -> Folds | None:
        """Keys and values of the last layer that are folded, see `folding`."""
        if self._folds is None:
            return None
        return Folds(*(self.layers[-1].module.get_submodule(name) for name in self._folds))

    def outputs_of_lengths(
        self,
        inputs: Sequence[Inputs],
        masks: np.ndarray,
        *,
        rows: int = 4096,
        read: Reader = logits,
        each_pass: Callable[[], None] = lambda: None,
    ) -> list[Tensor]:
        """The output under every mask for texts of several lengths in one row, see `packing`.

        Args:
            inputs: a batch of texts of each length.
            masks, rows, read, each_pass: see `outputs`.

        Returns:
            ``[variants, ...]`` for each length.

        Raises:
            ModelError: the intact model's output differs from its own forward's.
        """
        masks = masks | ~self.has_adapter
        packed: list[Pack] = []

        def found() -> Tensor:
            with self.kept(), refused():
                # One length is compared; all of them were where this is tried.
                due = self._is_due(inputs[-1]) and self.packs
                each = [self._recorded(own, read, due and own is inputs[-1]) for own in inputs]
                calls, axes = zip(*((one.calls, one.given_axes) for one, _ in each))
                recorded, row = pack(inputs, calls, axes, self._structure)
                row.one = self._at_one_position(inputs)
                row.attention.attend = self.attend
                walk = Walk(
                    self, self._runner, self._structure, inputs[0], recorded, read, rows, each_pass, pack=row
                )
                values = walk.outputs(masks)
            packed[:] = [row]
            for number in np.flatnonzero(masks.all(axis=1))[:1]:
                for (_, intact), ours in zip(each, row.parted(values[number][None])):
                    if intact is not None:
                        self._compare(read, ours[0], intact)
            return values

        values = self._complete(found)
        return packed[0].parted(values)

    def _at_one_position(self, inputs: Sequence[Inputs]) -> tuple[Inputs, list[Call]] | None:
        """The position of each text that the head reads as a text of its own, if that is possible."""
        where = self.read_position
        if where is None:
            return None
        at = int(where(1, 2))
        one = {
            name: torch.cat([own[name][:, -1:] if at else own[name][:, :1] for own in inputs])
            for name, x in inputs[0].items()
            if isinstance(x, Tensor) and x.dim() == 2
        }
        if one.keys() != inputs[0].keys():
            return None
        calls = arguments(self._runner, one, self._structure)
        return None if calls is None else (one, calls)

    def outputs_of_pairs(
        self,
        inputs: Inputs,
        examples: np.ndarray,
        masks: np.ndarray,
        *,
        rows: int = 4096,
        each_pass: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """The logits of pairs of an example and a mask, ``[pairs, ...]``.

        Args:
            inputs: a batch of at least two examples, or of one.
            examples: int ``[pairs]``, the example of each pair in the batch.
            masks: bool ``[pairs, columns]``.
            rows, each_pass: see `outputs`.

        Raises:
            ModelError: the output of the first pair differs from that of the model's own forward.
        """
        masks, due = masks | ~self.has_adapter, self._is_due(inputs)
        n = next(len(x) for x in inputs.values() if isinstance(x, Tensor))

        def found() -> Tensor:
            with self.kept(), refused():
                recorded, _ = self._recorded(inputs, logits, False)
                walk = Walk(self, self._runner, self._structure, inputs, recorded, logits, rows, each_pass, n)
                values = walk.outputs_of_pairs(examples, masks)
            if due:
                one = {
                    k: x[examples[0] : examples[0] + 1] if isinstance(x, Tensor) else x
                    for k, x in inputs.items()
                }
                self._compare(logits, values[0], self.own(one, masks[0]))
            return values

        return self._complete(found)

    def _complete(self, found: Callable[[], Tensor]) -> Tensor:
        """What a function finds, with all positions of the last layer if this batch's head reads them."""
        if self._last is not None:
            try:
                values = found()
                if bool(values.isfinite().all()):
                    return values
            except (ModelError, RuntimeError, TypeError, ValueError, LookupError) as error:
                if is_out_of_memory(error):
                    raise
            self._last = None
        with suppress(UnknownRows):
            return found()
        self._forget_plans()
        return found()

    def switch(self, call: int, on: Sequence[bool], plan: Plan | None = None) -> None:
        """Switch the parts of a call's layer; or only what a plan says for the whole layer, the others on."""
        layer = self.layers[call]
        layer.begin()
        self._set(layer, on if plan is None else [True] * len(layer.parts))
        for site, name in () if plan is None else plan.whole:
            self.set(layer.module.get_submodule(name), bool(on[site]))

    def plan(self, call: int) -> Plan:
        """How the variants of a call are computed."""
        found = self.plans[call]
        if self._last is None or call < len(self.layers) - 1:
            return found
        return replace(found, parts=tuple(part.moved(self._last[1]) for part in found.parts))

    def set(self, module: nn.Module, on: bool) -> None:
        """Switch a module."""
        self._switches.set(module, on)

    def _recorded(
        self, inputs: Inputs, read: Reader, due: bool | None = None
    ) -> tuple[Recorded, Tensor | None]:
        """What the layers are given for a batch; with the intact output where it is to be compared."""
        structure, intact = self._structure, None
        due = self._is_due(inputs) if due is None else due
        due = due or getattr(read, "reads_intact_first", False)
        calls = None if due else arguments(self._runner, inputs, structure)
        if calls is None:
            calls, out = record(self._runner, inputs, read, self._all_on)
            structure.forget_states(calls)
            intact = out[0]
        return Recorded(calls, self._axes_of(inputs, calls)), intact

    def _axes_of(self, inputs: Inputs, calls: Sequence[Call]) -> Axes:
        """The batch axes of the arguments of the layers' calls."""
        shapes = tuple(getattr(x, "shape", x) for call in calls for x in (*call.given, *call.out))
        axes = self._axes.get(shapes)
        if axes is None:
            if len(self._axes) >= _SHAPES_KEPT:
                self._axes.clear()
            axes = self._axes[shapes] = measure_axes(self._runner, inputs, self._structure, calls)
        return axes

    def _is_due(self, inputs: Inputs) -> bool:
        """Whether a batch is to be compared with the model's own forward."""
        tensors = (x for x in inputs.values() if isinstance(x, Tensor))
        sizes = tuple(n.bit_length() for x in tensors for n in x.shape[1:])
        due = sizes not in self._seen or self._batches % _BATCHES_BETWEEN_CHECKS == 0
        self._seen.add(sizes)
        self._batches += 1
        return due

    @contextmanager
    def kept(self) -> Iterator[None]:
        """No gradients inside; afterwards everything is on, and the same parameters need gradients."""
        needed = [(p, p.requires_grad) for p in self.model.parameters()]
        try:
            with torch.no_grad():  # PEFT makes parameters again while it switches some modules
                yield
        finally:
            for number in range(len(self._found)):
                self._all_on(0, number)
            for parameter, grad in needed:
                if parameter.requires_grad != grad:
                    parameter.requires_grad_(grad)

    def _all_on(self, _: int, layer: int) -> None:
        self._set(self._found[layer], [True] * len(self._found[layer].parts))

    def _off_from(self, start: int, call: int, layer: int) -> None:
        # Off, and not scaled: with a strength near 1 nothing would be seen to vary.
        self._all_on(call, layer)
        for module in (module for part in self._found[layer].parts for module in part):
            self._switches.switch(module, call < start)

    def _set(self, layer: Layer, on: Sequence[bool]) -> None:
        for modules, state in zip(layer.parts, on):
            for module in modules:
                self.set(module, bool(state))


def layers_in_order(model: nn.Module, inputs: Inputs, by: Unit = "span") -> list[Layer]:
    """The layer of every call in a forward of an example.

    Raises:
        ModelError: no layer holds an adapter that can be switched off, or the forward fails.
    """
    found = find_layers(model, Switches(), by)
    called: list[int] = []

    def handle(layer: int, forward: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        called.append(layer)
        return forward(*args, **kwargs)

    with torch.no_grad(), refused(preparing=True), threads_for_few_rows(model):
        Runner(model, [layer.module for layer in found]).forward(inputs, handle)
    return in_calls(found, called)
