"""Outputs of a model under many on/off masks, by its own layers along a prefix tree.

The model's own forward runs once for a batch, and every call of a layer is recorded with its arguments. A
layer is then called on the states of many variants at once (copies of the batch), and the rest of the model
runs with layers that return finished states. Nothing is known about the family: see `structure` for what is
found out, and `Replay.check` for how the result is compared with the model's own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.errors import ModelError, one_line

from .last import find_positionwise, only_position
from .recording import Inputs, Runner, refuse_unknown
from .sharing import sharing
from .stacks import Layer, find_layers
from .structure import Reader, Recorded, describe, measure_axes, record, refuse_coupled
from .switches import Switches
from .tensors import split
from .walk import Walk

# The largest difference to the model's own forward, relative to the largest output.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_SHAPES_KEPT = 256


def logits(model: nn.Module, run: Callable[[], Any], copies: int) -> Tensor:
    """The logits of a model, ``[copies, ...]``."""
    return split(run()["logits"], 0, copies)


class Replay:
    """A model in evaluation mode, prepared on an example of its inputs.

    A mask has two columns for every call of a layer, in the order of the calls: its attention and its
    feed-forward network. Columns without an adapter are ignored.

    Args:
        model: a model with adapters that can be switched.
        inputs: keyword arguments of its forward; every tensor has the examples along its first axis.
        read: what is wanted of its output.
        switches: how adapters are switched.
        alone: whether outputs depend on what else is computed at the same time: each batch must have one
            example then, and variants are computed one at a time.
        one_position: whether the head may read one position of each text, see `last`.

    Attributes:
        layers: the layer of every call.
        has_adapter: bool ``[columns]``.

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
        alone: bool = False,
        one_position: bool = False,
    ):
        self._switches, self._alone = switches or Switches(), alone
        if model.training:
            raise ModelError("the model is in training mode; call eval() first")
        self.model = model
        self._found = find_layers(model, self._switches)
        self._runner = Runner(model, [layer.module for layer in self._found])
        self._axes: dict[Any, list[list[int | None]]] = {}
        with self._kept(), _refused():
            found = describe(self._runner, inputs, read, self._all_on, self._off_from)
            self._structure = found.structure
            refuse_unknown(found.calls, [layer.name for layer in self._found])
            if not alone:
                refuse_coupled(self._runner, inputs, read, self._all_on, found)
        self.layers = [self._found[number] for number in self._structure.layers]
        self.has_adapter = np.array([bool(part) for layer in self.layers for part in layer.parts])
        self._last: tuple[int, list[str]] | None = None
        self.check(inputs, read)
        if one_position and len(self._structure.starts) == 1:
            self._spare_positions(inputs, read)

    def _spare_positions(self, inputs: Inputs, read: Reader) -> None:
        """Compute one position in the last layer, if nothing reads the others."""
        layer = self.layers[-1].module
        length = next(x.shape[1] for x in inputs.values() if isinstance(x, Tensor))
        with self._kept():
            run = partial(record, self._runner, inputs, read, self._all_on)
            found = find_positionwise(layer, lambda: run()[1][0], length)
        if found is not None:
            names = {module: name for name, module in layer.named_modules()}
            self._last = found[0], [names[module] for module in found[1]]
            try:
                self.check(inputs, read)
            except ModelError:
                self._last = None

    def in_last(self) -> AbstractContextManager[None]:
        """What holds while the last layer runs."""
        if self._last is None:
            return nullcontext()
        position, names = self._last
        inside = dict(self.layers[-1].module.named_modules())
        return only_position([inside[name] for name in names], position)

    def twin(self) -> Replay:
        """The same for a copy of the model that shares its tensors and has switches of its own."""
        other = object.__new__(Replay)
        other.model, other._switches, other._structure = sharing(self.model), self._switches, self._structure
        other._found = find_layers(other.model, other._switches)
        other._runner = Runner(other.model, [layer.module for layer in other._found])
        other._alone, other._last = self._alone, self._last
        other._axes, other.has_adapter = self._axes, self.has_adapter
        other.layers = [other._found[number] for number in self._structure.layers]
        return other

    def check(self, inputs: Inputs, read: Reader = logits, seed: int = 0) -> float:
        """Compare with the model's own forward: intact, all off, and two random masks.

        Returns:
            The largest difference, relative to the largest output.

        Raises:
            ModelError: it is too large.
        """
        n = len(self.has_adapter)
        ends = np.array([[True], [False]]).repeat(n, axis=1)
        masks = np.concatenate([ends, np.random.default_rng(seed).random((2, n)) < 0.5])
        own = torch.stack([self.own(inputs, mask, read) for mask in masks])
        return compare(*(numbers_of(read, out) for out in (self.outputs(inputs, masks, read=read), own)))

    def own(self, inputs: Inputs, mask: np.ndarray, read: Reader = logits) -> Tensor:
        """The output under one mask, by the model's own forward."""
        mask = mask | ~self.has_adapter
        with self._kept(), _refused():
            return record(self._runner, inputs, read, lambda k, _: self._switch(k, mask[2 * k : 2 * k + 2]))[
                1
            ][0]

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
        rows = 1 if self._alone else rows
        with self._kept(), _refused():
            recorded, intact = self._recorded(inputs, read)
            walk = Walk(self, self._runner, self._structure, inputs, recorded, read, rows, each_pass)
            found = walk.outputs(masks | ~self.has_adapter)
        for number in np.flatnonzero((masks | ~self.has_adapter).all(axis=1))[:1]:
            try:
                compare(*(numbers_of(read, out) for out in (found[number], intact)))
            except ModelError:
                if self._last is None:
                    raise
                self._last = None  # in this batch, the head reads another position
                return self.outputs(inputs, masks, rows=rows, read=read, each_pass=each_pass)
        return found

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
            rows: see `outputs`.
            each_pass: see `outputs`.

        Raises:
            ModelError: the intact model's output differs from its own forward's.
        """
        own = np.unique(examples)
        with self._kept(), _refused():
            recorded, intact = self._recorded(inputs, logits)
            n = next(len(x) for x in inputs.values() if isinstance(x, Tensor))
            walk = Walk(self, self._runner, self._structure, inputs, recorded, logits, rows, each_pass, n)
            found = walk.outputs_of_pairs(examples, masks | ~self.has_adapter)
            on = walk.outputs_of_pairs(own, np.ones((len(own), masks.shape[1]), dtype=bool))
        try:  # like every batch
            compare(on[:, 0], intact[torch.from_numpy(own).to(intact.device)])
        except ModelError:
            if self._last is None:
                raise
            self._last = None  # in this batch, the head reads another position
            return self.outputs_of_pairs(inputs, examples, masks, rows=rows, each_pass=each_pass)
        return found

    def switch(self, call: int, on: Sequence[bool]) -> None:
        """Switch the two parts of a call's layer."""
        self._switch(call, on)

    def _recorded(self, inputs: Inputs, read: Reader) -> tuple[Recorded, Tensor]:
        """A recorded forward of a batch, with its batch axes, and its output."""
        structure = self._structure
        calls, intact = record(self._runner, inputs, read, self._all_on)
        structure.forget_states(calls)
        shapes = tuple(_shape(x) for call in calls for x in (*call.given, *call.out))
        axes = self._axes.get(shapes)
        if axes is None:
            if len(self._axes) >= _SHAPES_KEPT:
                self._axes.clear()
            axes = self._axes[shapes] = measure_axes(self._runner, inputs, structure, calls)
        return Recorded(calls, axes), intact[0]

    @contextmanager
    def _kept(self) -> Iterator[None]:
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
        self._set(self._found[layer], (True, True))

    def _off_from(self, start: int, call: int, layer: int) -> None:
        self._set(self._found[layer], (call < start, call < start))

    def _switch(self, call: int, on: Sequence[bool]) -> None:
        self._set(self._found[self._structure.layers[call]], on)

    def _set(self, layer: Layer, on: Sequence[bool]) -> None:
        for modules, state in zip(layer.parts, on):
            for module in modules:
                self._switches.set(module, bool(state))


def layers_in_order(model: nn.Module, inputs: Inputs, switches: Switches | None = None) -> list[Layer]:
    """The layer of every call in a forward of an example.

    Raises:
        ModelError: no layer holds an adapter that can be switched off, or the forward fails.
    """
    found = find_layers(model, switches or Switches())
    called: list[Layer] = []

    def handle(layer: int, forward: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        called.append(found[layer])
        return forward(*args, **kwargs)

    with torch.no_grad(), _refused():
        Runner(model, [layer.module for layer in found]).forward(inputs, handle)
    return called


@contextmanager
def _refused() -> Iterator[None]:
    """What transformers or PEFT raise without the layers, as a refusal in one line."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ModelError(f"the model does not run layer by layer: {one_line(error)}") from error


def _shape(x: Any) -> object:
    return x.shape if isinstance(x, Tensor) else x


def numbers_of(read: Reader, out: Tensor) -> Tensor:
    """What can be compared within rounding: a reader may return flags too, which its `numbers` leaves out."""
    own: Callable[[Tensor], Tensor] | None = getattr(read, "numbers", None)
    return out if own is None else own(out)


def compare(ours: Tensor, own: Tensor) -> float:
    """The largest difference, relative to the largest output.

    Raises:
        ModelError: it is too large for the precision, or the outputs are not finite in the same places.
    """
    if ours.shape != own.shape:
        raise ModelError(f"the output has shape {list(ours.shape)}, and the model's own {list(own.shape)}")
    finite = own.isfinite()
    if not torch.equal(finite, ours.isfinite()):
        raise ModelError("the output is not finite where that of the model's own forward is, or the reverse")
    if not finite.any():
        return 0.0  # whoever reads it finds that
    error = float((ours - own)[finite].abs().max() / own[finite].abs().max())
    if error > _TOLERANCE.get(own.dtype, 1e-4):
        raise ModelError(
            f"layer by layer, the output differs from the model's own forward by {error:.1e} of the "
            "largest output"
        )
    return error
