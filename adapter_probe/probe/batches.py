"""Examples of any modality for a model in memory: batches of its own arguments, with labels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from adapter_probe.checkpoints.in_memory import base_of
from adapter_probe.data.batches import Read, encode_batches
from adapter_probe.data.examples import Examples
from adapter_probe.data.spec import Columns, TaskSpec
from adapter_probe.data.splits import Split
from adapter_probe.errors import DataError, ModelError, must_be, one_line
from adapter_probe.metrics import default_metric
from adapter_probe.replay.recording import Inputs, Runner
from adapter_probe.replay.stacks import find_layers
from adapter_probe.replay.switches import Switches


def examples_of(
    model: nn.Module, batches: Any, labels: Any, read: str | Callable[[Any], Tensor]
) -> tuple[Examples, TaskSpec]:
    """Batches as labelled examples, and their task: classes if the labels are whole numbers or names.

    Args:
        model: in evaluation mode.
        batches: see `encode_batches`.
        labels: one per example, or None for those in the batches.
        read: name of the output that is scored, or a function from the output to ``[examples, outputs]``.

    Raises:
        DataError: the batches or labels are not those of the model.
        ModelError: the model does not run on them, or has no such output.
    """
    base = base_of(model)
    parameters = inspect.signature(base.forward).parameters
    named = [name for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD]
    both = bool(getattr(getattr(base, "config", None), "is_encoder_decoder", False))
    reading = _reading(read)
    encoded, given = encode_batches(batches, labels, reading, named or None, both)
    first = next(p for p in model.parameters() if p.is_floating_point() and p.device.type != "meta")

    def inputs(item: int) -> Inputs:
        return encoded.inputs(np.array([item]), first.device, first.dtype)

    with torch.no_grad():
        try:
            outputs = reading(model(**inputs(0)))
            encoded = encoded.with_lengths(lambda item: _positions(model, inputs(item)))
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ModelError(f"the model does not run on the batches: {one_line(error)}") from error
    values, names = _classes(given, outputs.shape[-1], base)
    kind = "classification" if names else "regression"
    rows = Split(tuple(map(str, range(len(encoded)))), None, values, "given", encoded.fingerprint)
    task = TaskSpec(type(base).__name__, kind, default_metric(kind), names, Columns("", None, ""), {}, {})
    return Examples(rows, encoded), task


def _reading(read: str | Callable[[Any], Tensor]) -> Read:
    """A function from a model's output to ``[examples, outputs]``.

    Raises:
        ModelError: there is no such output, or it has other axes; when it is called.
    """

    def found(out: Any) -> Tensor:
        value = read(out) if callable(read) else getattr(out, read, None)
        if not isinstance(value, Tensor):
            there = ", ".join(out.keys()) if hasattr(out, "keys") else type(out).__name__
            name = "read" if callable(read) else f"read={read!r}"
            raise ModelError(f"{name} gives no tensor of the model's output, which has {there}")
        if value.dim() == 1:
            value = value[:, None]
        if value.dim() != 2:
            raise ModelError(
                f"read must give one row of numbers per example, not {list(value.shape)}; give a function "
                "from the model's output to [examples, outputs]"
            )
        return value

    return found


def _positions(model: nn.Module, inputs: Inputs) -> int:
    """The largest number of positions that a layer with adapters computes for one example."""
    layers = [layer.module for layer in find_layers(model, Switches())]
    sizes: list[int] = []

    def handle(_: int, forward: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        out = forward(*args, **kwargs)
        states = next(x for x in tree_leaves(out) if isinstance(x, Tensor))
        sizes.append(states.numel() // states.shape[-1])
        return out

    Runner(model, layers).forward(inputs, handle)
    return max(sizes)


def _classes(labels: np.ndarray, n_outputs: int, base: nn.Module) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as class numbers with the names of the classes, or as targets of a regression without any.

    Raises:
        DataError: a label is no class of the model.
    """
    if n_outputs == 1:
        if labels.dtype.kind not in "iuf":
            raise DataError(must_be("labels of a single output", "numbers", labels[0]))
        return labels.astype(np.float64), ()
    named = getattr(getattr(base, "config", None), "id2label", None) or {}
    names = tuple(str(named.get(number, number)) for number in range(n_outputs))
    if len(set(names)) < n_outputs:
        names = tuple(map(str, range(n_outputs)))
    if labels.dtype.kind in "US":
        unknown = sorted(set(labels.tolist()) - set(names))
        if unknown:
            raise DataError(must_be("labels", f"among {', '.join(names)}", unknown[0]))
        return np.array([names.index(label) for label in labels.tolist()], dtype=np.int64), names
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= n_outputs:
        wrong = labels.max() if labels.dtype.kind in "iu" and labels.min() >= 0 else labels.min()
        raise DataError(must_be("labels", f"whole numbers from 0 to {n_outputs - 1}", wrong.item()))
    return labels.astype(np.int64), names
