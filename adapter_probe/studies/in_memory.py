"""Models in memory in place of checkpoints: what `ablate` and `open` need of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from adapter_probe.errors import DataError, ModelError, ResultsError
from adapter_probe.results.atomic import make_folder

from .arguments import Ablate

if TYPE_CHECKING:
    import torch

    from adapter_probe.checkpoints.opened_peft import OpenedPeft


@contextmanager
def opened_call(call: Ablate) -> Iterator[tuple[Ablate, OpenedPeft, TemporaryDirectory[str] | None]]:
    """A model in memory, opened, and left as it was afterwards.

    Returns:
        the arguments with its name in place of the model and with a results folder; the open model; and the
        folder, if it is a temporary one.

    Raises:
        ModelError, CheckpointError: see `open_in_memory`.
        DataError: there is no data.
        ResultsError: an argument needs a checkpoint on disk.
    """
    from adapter_probe.checkpoints.in_memory import left_as_it_was

    model: Any = call.checkpoint
    if flag := next((one for one in ("cluster", "base", "revision") if getattr(call, one) is not None), ""):
        raise ResultsError(f"{flag} needs a checkpoint on disk; save the model and give its folder")
    if not call.task and isinstance(call.data, tuple) and not call.data:
        raise DataError("a model in memory has no data of its own; give data=, or task=")
    with left_as_it_was(model):
        opened = open_given(model, call.tokenizer, call.device)
        temporary = TemporaryDirectory(prefix="adapter-probe-") if call.out is None else None
        folder = Path(temporary.name) if temporary else make_folder(str(call.out))
        device = str(device_of(model))
        yield replace(call, checkpoint=str(opened.folder), out=folder, device=device), opened, temporary


def open_given(model: torch.nn.Module, tokenizer: Any, device: str) -> OpenedPeft:
    """Open a model in memory on the device that it is on.

    Raises:
        ModelError: there is no tokenizer, or the device is another one.
        CheckpointError: see `open_in_memory`.
    """
    from adapter_probe.checkpoints.in_memory import open_in_memory
    from adapter_probe.device import choose_device

    if tokenizer is None:
        raise ModelError("a model in memory has no tokenizer of its own; give tokenizer=")
    own = device_of(model)
    if device != "auto" and choose_device(device) != own:
        raise ModelError(f"the model is on {own}, where it runs; move it there, or omit device={device!r}")
    return open_in_memory(model, tokenizer)


def device_of(model: torch.nn.Module) -> torch.device:
    """The device of a model's first weights."""
    import torch

    return next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))
