"""Examples of any modality for a model in memory: batches of its own arguments, with labels."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from adapter_probe.checkpoints.model_class import head_of_class
from adapter_probe.data.batches import NO_TAG, EncodedBatches, EncodedWritten, Read, encode_batches
from adapter_probe.data.examples import Examples
from adapter_probe.data.labels import Split
from adapter_probe.data.question import Question
from adapter_probe.data.request_rows import Request
from adapter_probe.data.requests import Requests
from adapter_probe.data.tagged import Tagged, Words, tag_metric, words_with_fingerprint
from adapter_probe.data.task_of_files import GIVEN_BATCHES
from adapter_probe.data.task_spec import Columns, TaskSpec
from adapter_probe.errors import DataError, ModelError, must_be, one_line
from adapter_probe.metrics import COMPARABLE, OF_TOKENS, Kind, default_metric
from adapter_probe.replay.checking import RAISED
from adapter_probe.replay.recording import Inputs, Runner, base_of
from adapter_probe.replay.stacks import find_layers
from adapter_probe.replay.switches import Switches
from adapter_probe.results.fingerprints import hash_json


def examples_of(
    model: nn.Module, batches: Any, labels: Any, read: str | Callable[[Any], Tensor]
) -> tuple[Examples, TaskSpec]:
    """Batches as labelled examples, and their task, as outputs and labels say.

    Whole numbers or names are classes, and numbers of a single output a regression. Rows of labels are
    several labels (0 or 1 each), several targets, or tags of positions if the outputs have positions. The
    labels in a language model's batches are the tokens that it should write.

    Args:
        model: in evaluation mode.
        batches: see `encode_batches`.
        labels: one per example, or a row of them; None for those in the batches.
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
    head = head_of_class(type(base).__name__, both)
    if head == "extractive" and not callable(read):
        raise DataError(
            f"a {type(base).__name__} answers questions by the first and last token of a passage; give data= "
            "(rows with question, context and answers) and tokenizer=, or read="
        )
    encoded, given = encode_batches(batches, labels, reading, named or None, both)
    first = next(p for p in model.parameters() if p.is_floating_point() and p.device.type != "meta")

    def inputs(item: int) -> Inputs:
        return encoded.inputs(np.array([item]), first.device, first.dtype)

    with torch.no_grad():
        try:
            outputs = reading(model(**inputs(0)))
            encoded = encoded.with_lengths(lambda item: _positions(model, inputs(item)))
        except RAISED as error:
            raise ModelError(f"the model does not run on the batches: {one_line(error)}") from error
    writes = head in ("causal", "seq2seq") or type(base).__name__.endswith("ForMaskedLM")
    if outputs.dim() == 3 and labels is None and not callable(read) and writes:
        return _written(encoded, given, outputs.shape, base, shifted=head == "causal")
    if outputs.dim() == 3:
        return _tagged(encoded, given, outputs.shape, base)
    kind, values, names = _labelled(given, outputs.shape[-1], base)
    own = "the labels in the batches" if labels is None else "the labels given"
    fingerprint = encoded.fingerprint
    if read != "logits":  # of a function its code, which says more than its name
        fingerprint = hash_json([fingerprint, _code_of(read) if callable(read) else read])
    rows = Split(tuple(map(str, range(len(encoded)))), None, values, "given", fingerprint)
    shown = "the outputs that `read` gives" if callable(read) else f"`{read}` of the model"
    question = _asks(f"{_ASKED[kind]} by {shown}, against {own}", encoded)
    return Examples(rows, encoded, question=question), _task(base, kind, default_metric(kind), names)


def _code_of(read: Any) -> list[str]:
    """What tells a function, or the code of one, from another: its code, with the values and names in it."""
    code = getattr(read, "__code__", read)
    if not isinstance(code, CodeType):  # an object that is called
        return [type(read).__qualname__]
    held = [cell.cell_contents for cell in getattr(read, "__closure__", None) or ()]
    found = [code.co_code.hex(), *code.co_names]
    for value in (*code.co_consts, *held):
        if isinstance(value, CodeType):
            found += _code_of(value)
        elif isinstance(value, frozenset):  # whose order changes from run to run
            found += sorted(map(repr, value))
        elif isinstance(value, str | int | float | bytes | tuple | None):
            found.append(repr(value))
    return found


def _written(
    encoded: EncodedBatches, labels: np.ndarray, shape: Sequence[int], base: nn.Module, shifted: bool
) -> tuple[Examples, TaskSpec]:
    """Examples of a language model whose batches hold the tokens to score, as for its loss.

    Args:
        labels: ``[examples, positions]``, `NO_TAG` where none is scored.
        shape: of the output ``[examples, positions, vocabulary]``.
        shifted: whether the output at a position predicts the next one's token.

    Raises:
        DataError: the labels are no tokens of the model, or there are none.
    """
    if labels.ndim != 2 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"labels of a language model must be rows of token numbers, with {NO_TAG} where none is scored, "
            f"not {labels.dtype} {list(labels.shape)}"
        )
    if shifted:
        labels = np.pad(labels[:, 1:], [(0, 0), (0, 1)], constant_values=NO_TAG)
    there, n_given = labels != NO_TAG, len(labels)
    if not (kept := there.any(axis=1)).any():
        raise DataError(f"labels have no token to score in any example: all are {NO_TAG}")
    _refuse_other_classes(labels[there], shape[-1])
    labels, encoded = labels[kept], encoded.some(kept)
    written = EncodedWritten(**vars(encoded), tokens=labels.astype(np.int64))
    content = encoded.fingerprint.encode() + written.tokens.astype("<i8").tobytes()
    fingerprint = hashlib.sha256(content).hexdigest()
    row = Request("", ("",), counts=((0, 0, 0),))
    metrics = (*OF_TOKENS, *COMPARABLE["causal"])
    rows = Requests("completion", (row,) * len(encoded), "given", fingerprint, metrics)
    asked = "log-likelihood of the tokens in `labels`, each given those before it"
    if type(base).__name__.endswith("ForMaskedLM"):
        asked = "log-likelihood of the masked words in `labels`"
    left = n_given - len(written)
    changes = (f"{left:,} left out, in which no token is labelled",) if left else ()
    question = replace(_asks(asked, written), n_there=n_given, changes=changes)
    return Examples(rows, written, question=question), _task(base, "causal", OF_TOKENS[0], ())


_ASKED: dict[str, str] = {"classification": "class", "regression": "number", "multilabel": "several labels"}


def _asks(asked: str, encoded: EncodedBatches) -> Question:
    return Question(asked, len(encoded), len(encoded), GIVEN_BATCHES, what="examples")


def _task(base: nn.Module, kind: Kind, metric: str, names: tuple[str, ...]) -> TaskSpec:
    return TaskSpec(type(base).__name__, kind, metric, names, Columns("", None, ""), {}, {})


def _tagged(
    encoded: EncodedBatches, labels: np.ndarray, shape: Sequence[int], base: nn.Module
) -> tuple[Examples, TaskSpec]:
    """Examples with a tag per position, of which `NO_TAG` leaves some out.

    Raises:
        DataError: the labels are no tags of the model, or of other positions.
    """
    names = _names(base, shape[-1])
    if labels.ndim != 2 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"the output has {shape[-1]} numbers for each of {shape[1]} positions, so labels must be a row "
            f"of class numbers per example, with {NO_TAG} for positions without one; or give read=, a "
            "function from the model's output to [examples, outputs]"
        )
    there = labels != NO_TAG
    if not there.any(axis=1).all():
        raise DataError(f"labels of example {int(there.any(axis=1).argmin())} are all {NO_TAG}; leave it out")
    _refuse_other_classes(labels[there], len(names))
    positions = tuple(np.flatnonzero(row) for row in there)
    words = Words(positions, tuple(row[own].astype(np.int64) for row, own in zip(labels, positions)))
    for (batch, _), own in zip(encoded.places.tolist(), positions):
        widths = [
            x.shape[1] for x in encoded.batches[batch].values() if isinstance(x, Tensor) and x.dim() > 1
        ]
        if widths and own[-1] >= max(widths):
            raise DataError(f"labels of batch {batch} have more positions than its tensors, {max(widths)}")
    encoded = words_with_fingerprint(encoded, words)
    rows = Tagged(tuple(("",) * len(own) for own in positions), words.tags, "given", encoded.fingerprint)
    question = _asks("tag of every position that has a label in the batches", encoded)
    task = _task(base, "tokens", tag_metric(names), names)
    return Examples(rows, encoded, words=words, question=question), task


def _reading(read: str | Callable[[Any], Tensor]) -> Read:
    """A function from a model's output to ``[examples, outputs]``, or ``[examples, positions, outputs]``.

    Raises:
        ModelError: there is no such output, or it has other axes; when it is called.
    """

    def found(out: Any) -> Tensor:
        named = out.get if isinstance(out, Mapping) else partial(getattr, out)
        value = read(out) if callable(read) else named(read, None)
        if not isinstance(value, Tensor):
            there = ", ".join(out.keys()) if hasattr(out, "keys") else type(out).__name__
            name = "read" if callable(read) else f"read={read!r}"
            raise ModelError(f"{name} gives no tensor of the model's output, which has {there}")
        if value.dim() == 1:
            value = value[:, None]
        if value.dim() not in (2, 3):
            raise ModelError(
                f"read must give one row of numbers per example, not {list(value.shape)}; give a function "
                "from the model's output to [examples, outputs], or of tags to [examples, positions, tags]"
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


def _labelled(
    labels: np.ndarray, n_outputs: int, base: nn.Module
) -> tuple[Kind, np.ndarray, tuple[str, ...]]:
    """The kind of task, the labels as its scores take them, and the names of its classes.

    Raises:
        DataError: a label is no class of the model, or a row has not one number per output.
    """
    if np.issubdtype(labels.dtype, np.floating) and not np.isfinite(labels).all():
        bad = int(np.argmin(np.isfinite(labels).reshape(len(labels), -1).all(axis=1)))
        raise DataError(f"the label of example {bad} is not a finite number; leave it out")
    problem = getattr(getattr(base, "config", None), "problem_type", None)
    if labels.ndim == 2:
        if labels.shape[1] != n_outputs or labels.dtype.kind not in "iufb":
            raise DataError(
                f"labels must be one per example, or a row of {n_outputs} numbers as the model has outputs, "
                f"not {labels.dtype} {list(labels.shape)}"
            )
        if problem == "regression" or not np.isin(labels, (0, 1)).all():
            return "regression", labels.astype(np.float64), ()
        return "multilabel", labels.astype(np.int64), _names(base, n_outputs)
    if n_outputs == 1:
        if labels.dtype.kind not in "iuf":
            raise DataError(must_be("labels of a single output", "numbers", labels[0]))
        return "regression", labels.astype(np.float64), ()
    names = _names(base, n_outputs)
    if np.issubdtype(labels.dtype, np.character):
        unknown = sorted(set(labels.tolist()) - set(names))
        if unknown:
            raise DataError(must_be("labels", f"among {', '.join(names)}", unknown[0]))
        return "classification", np.array([names.index(label) for label in labels.tolist()]), names
    _refuse_other_classes(labels, n_outputs)
    return "classification", labels.astype(np.int64), names


def _names(base: nn.Module, n_outputs: int) -> tuple[str, ...]:
    """The names of a model's outputs; their numbers where it has not as many different names."""
    named = getattr(getattr(base, "config", None), "id2label", None) or {}
    names = tuple(str(named.get(number, number)) for number in range(n_outputs))
    return names if len(set(names)) == n_outputs else tuple(map(str, range(n_outputs)))


def _refuse_other_classes(labels: np.ndarray, n_outputs: int) -> None:
    """Refuse labels that are no class numbers.

    Raises:
        DataError: there are some; the message has the first.
    """
    whole = np.issubdtype(labels.dtype, np.integer)
    if not whole or labels.min() < 0 or labels.max() >= n_outputs:
        wrong = labels.max() if whole and labels.min() >= 0 else labels.min()
        raise DataError(must_be("labels", f"whole numbers from 0 to {n_outputs - 1}", wrong.item()))
