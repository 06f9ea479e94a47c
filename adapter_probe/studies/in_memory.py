"""Models in memory in place of checkpoints: what `ablate` and `open` need of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from adapter_probe.errors import DataError, ModelError, ResultsError
from adapter_probe.results.atomic import make_folder

from .arguments import Ablate, Trainer

Called = TypeVar("Called", bound=Ablate)  # `Ablate`, or the arguments of what extends it

if TYPE_CHECKING:
    import torch

    from adapter_probe.checkpoints.opened_peft import OpenedPeft
    from adapter_probe.data.examples import Examples


_ON_DISK = ("cluster", "base", "revision", "adapter", "dequantise")
"""Arguments that a model in memory cannot follow."""


@contextmanager
def opened_call(
    call: Called,
) -> Iterator[tuple[Called, Given, TemporaryDirectory[str] | None]]:
    """A model in memory, opened, and left as it was afterwards.

    Returns:
        the arguments with its name in place of the model and with a results folder; the open model; and the
        folder, if it is a temporary one.

    Raises:
        ModelError, CheckpointError: see `open_in_memory`.
        DataError: there is no data, or batches and labels are not the model's.
        ResultsError: an argument needs a checkpoint on disk.
    """
    from adapter_probe.checkpoints.in_memory import left_as_it_was

    trainer = call.checkpoint if isinstance(call.checkpoint, Trainer) else None
    if trainer is not None:
        from .trainers import metric_of_trainer, of_trainer

        call = of_trainer(call, trainer)
    model: Any = call.checkpoint
    if flag := next((one for one in _ON_DISK if getattr(call, one)), ""):
        raise ResultsError(f"{flag} needs a checkpoint on disk; save the model and give its folder")
    texts = bool(call.task) or not (isinstance(call.data, tuple) and not call.data)
    if texts == (call.batches is not None):
        given = (
            "both data and batches are given; give one of them"
            if texts
            else "a model in memory has no data of its own; give data= or batches="
        )
        raise DataError(given)
    with left_as_it_was(model):
        opened = _given(call, model)
        if trainer is not None:
            call = replace(call, metric=metric_of_trainer(trainer, call.metric, opened))
        temporary = TemporaryDirectory(prefix="adapter-probe-") if call.out is None else None
        folder = Path(temporary.name) if temporary else make_folder(str(call.out))
        device = str(device_of(model))
        yield (
            replace(call, checkpoint=str(opened.opened.folder), out=folder, device=device),
            opened,
            temporary,
        )


class Given(NamedTuple):
    """A model in memory, and its examples where they are batches.

    Attributes:
        opened: the model.
        examples: the examples, or None for those that the arguments name.
    """

    opened: OpenedPeft
    examples: Examples | None = None


def _given(call: Ablate, model: Any) -> Given:
    if call.batches is None:
        if call.labels is not None or call.read != "logits":
            raise DataError("labels and read apply only to batches; the labels of texts are in data")
        return Given(open_given(model, call.tokenizer, call.device))
    if isinstance(call.against, (str, Path)) or len(call.against):
        raise ResultsError("against needs texts; omit it with batches")
    if call.precision == "mixed":
        raise ResultsError("precision 'mixed' needs texts; give float32, float64 or bfloat16 with batches")
    from adapter_probe.checkpoints.in_memory import open_without_texts
    from adapter_probe.probe.batches import examples_of

    _refuse_other_device(model, call.device)
    opened = open_without_texts(model)
    examples, task = examples_of(opened.model, call.batches, call.labels, call.read)
    return Given(opened.with_task(task), examples)


def open_given(model: torch.nn.Module, tokenizer: Any, device: str) -> OpenedPeft:
    """Open a model in memory on the device that it is on.

    Raises:
        ModelError: there is no tokenizer, or the device is another one.
        CheckpointError: see `open_in_memory`.
    """
    from adapter_probe.checkpoints.in_memory import open_in_memory

    if tokenizer is None:
        raise ModelError("a model in memory has no tokenizer of its own; give tokenizer=")
    _refuse_other_device(model, device)
    return open_in_memory(model, tokenizer)


def _refuse_other_device(model: torch.nn.Module, device: str) -> None:
    from adapter_probe.device import choose_device

    own = device_of(model)
    if device != "auto" and choose_device(device) != own:
        raise ModelError(f"the model is on {own}, where it runs; move it there, or omit device={device!r}")


def device_of(model: torch.nn.Module) -> torch.device:
    """The device of a model's first weights."""
    import torch

    return next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))
