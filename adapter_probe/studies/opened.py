"""What a study is about, opened: the folder of a checkpoint, which is read later, or a model in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from adapter_probe.checkpoints.adapter_folder import choose_adapter, fetch_checkpoint
from adapter_probe.data.generating import Prompting
from adapter_probe.data.in_memory import one_table, token_rows
from adapter_probe.errors import CheckpointError, DataError, ModelError, ResultsError
from adapter_probe.hub_names import is_hub_name, is_missing, name_and_revision
from adapter_probe.jobs.resources import Machine
from adapter_probe.progress import activity
from adapter_probe.results.atomic import make_folder

from .checkpoint_arguments import Subject, Trainer
from .trainer_preferences import TokenisedPreferences, examples_of_preferences
from .trainers import as_evaluated, of_trainer

if TYPE_CHECKING:
    import torch

    from adapter_probe.checkpoints.opened_peft import OpenedPeft
    from adapter_probe.data.examples import Examples

_IN_MEMORY = ("tokenizer", "name", "batches", "labels", "read")
"""Arguments that a checkpoint on disk cannot follow."""
_OF_TEXTS = ("columns", "max_examples", "label_names", "split", "encoding", *vars(Prompting()))
"""Arguments that batches cannot follow."""
_ON_DISK = ("cluster", "adapter", "dequantise", "device_map")
"""Arguments that a model in memory cannot follow."""


@dataclass(frozen=True, eq=False)
class Opened:
    """What a study is about, where it runs, and what is open already.

    Attributes:
        subject: the checkpoint's folder, or that of a model in memory, and the examples; its `adapter` has
            the names of several that are opened together.
        out: the results folder that is given, or that of a model in memory; None for the usual one.
        model: the model in memory, opened; else None.
        examples: the examples where they are batches; None for those that `subject` names.
        temporary: the results folder of a model in memory; a temporary one goes with the study.
    """

    subject: Subject
    machine: Machine
    out: Path | None
    model: OpenedPeft | None = None
    examples: Examples | None = None
    temporary: TemporaryDirectory[str] | Path | None = None


@contextmanager
def opened_for(subject: Subject, machine: Machine, folder: str | Path | None) -> Iterator[Opened]:
    """The folder of a checkpoint, or a model in memory, which is left as it was.

    Raises:
        ModelError, CheckpointError: see `open_in_memory`; or there is no such checkpoint.
        DataError: there is no data, or batches and labels are not the model's.
        ResultsError: an argument needs a checkpoint on disk.
    """
    given = {name: one_table(getattr(subject, name), subject.split) for name in ("data", "against")}
    subject, out = replace(subject, **given), None if folder is None else Path(folder)
    if not isinstance(subject.checkpoint, (str, Path)):
        with without_autocast(), _in_memory(subject, machine, out) as opened:
            yield opened
        return
    for one in fields(subject):
        if one.name in _IN_MEMORY and getattr(subject, one.name) != one.default:
            raise DataError(
                f"{one.name}= applies only to a model in memory, and {subject.checkpoint} is on disk"
            )
    names = (subject.adapter or "").split(",")
    several = subject.adapter if len(names) > 1 else None
    if several is not None and not all(map(str.strip, names)):
        raise CheckpointError(
            f"--adapter {several!r} has an empty name; give names with a comma between them"
        )
    found = _on_disk(subject if several is None else replace(subject, adapter=None), machine.progress)
    if several is not None and machine.cluster is not None:
        raise CheckpointError("--slurm takes one adapter of a checkpoint; give one name with --adapter")
    yield Opened(replace(found, adapter=several), machine, out)


@contextmanager
def _in_memory(subject: Subject, machine: Machine, out: Path | None) -> Iterator[Opened]:
    from adapter_probe.checkpoints.in_memory import left_as_it_was, refuse_wrapped

    trainer = subject.checkpoint if isinstance(subject.checkpoint, Trainer) else None
    of_own_set = trainer is not None and subject.batches is None and not _names_texts(subject)
    metric = None
    if trainer is not None:
        refuse_wrapped(trainer.model)  # type: ignore[attr-defined]
        with left_as_it_was(trainer.model):  # type: ignore[attr-defined]  # making batches may leave hooks
            subject, metric = of_trainer(subject, trainer)
    subject = _of_one_source(subject, machine)
    model: Any = subject.checkpoint
    with left_as_it_was(model):
        opened, examples = _given(subject, model, machine.device)
        if trainer is not None:
            subject, opened, examples = as_evaluated(trainer, metric, of_own_set, subject, opened, examples)
        if subject.name:
            opened = opened.with_task(replace(opened.description.task, name=subject.name))
        temporary = TemporaryDirectory(prefix="adapter-probe-") if out is None else out
        yield Opened(
            replace(subject, checkpoint=str(opened.folder), base=None),
            replace(machine, device=str(device_of(model))),
            make_folder(temporary if isinstance(temporary, Path) else temporary.name),
            opened,
            examples,
            temporary,
        )


def _of_one_source(subject: Subject, machine: Machine) -> Subject:
    """A model in memory with either texts or batches; rows of tokens are batches."""
    given = {**vars(subject), "cluster": machine.cluster}
    if flag := next((one for one in _ON_DISK if given[one]), ""):
        raise ResultsError(f"{flag} needs a checkpoint on disk; save the model and give its folder")
    if subject.batches is None and (rows := token_rows(subject.data)) is not None:
        subject = replace(subject, data=(), batches=rows)
    texts = _names_texts(subject)
    if texts == (subject.batches is not None):
        raise DataError(
            "both data and batches are given; give one of them"
            if texts
            else "a model in memory has no data of its own; give data= or batches="
        )
    return subject


def _names_texts(subject: Subject) -> bool:
    """Whether the arguments name texts: data or a task."""
    return bool(subject.task) or not (isinstance(subject.data, tuple) and not subject.data)


def _given(subject: Subject, model: Any, device: str) -> tuple[OpenedPeft, Examples | None]:
    """The model, with its examples where they are batches."""
    base, tokenizer, batches = subject.base, subject.tokenizer, subject.batches
    if batches is None:
        if subject.labels is not None or subject.read != "logits":
            raise DataError("labels and read apply only to batches; the labels of texts are in data")
        return open_given(model, device, base, tokenizer), None
    for one in fields(subject):
        if one.name in _OF_TEXTS and getattr(subject, one.name) != one.default:
            raise DataError(f"{one.name} needs texts; omit it with batches, which are taken as they are")
    if isinstance(batches, TokenisedPreferences):
        return examples_of_preferences(open_given(model, device, base, tokenizer), batches)
    if isinstance(subject.against, (str, Path)) or len(subject.against):
        raise ResultsError("against needs texts; omit it with batches")
    from adapter_probe.probe.batches import examples_of

    opened = open_given(model, device, base, texts=False)
    examples, task = examples_of(opened.model, batches, subject.labels, subject.read)
    return opened.with_task(task), examples


@contextmanager
def without_autocast() -> Iterator[None]:
    """Inside, arithmetic has the precision of the model, whatever the user's code around has set."""
    import torch

    from adapter_probe.device import choose_device

    with ExitStack() as plain:
        for kind in {"cpu", choose_device("auto").type}:
            if torch.is_autocast_enabled(kind):
                plain.enter_context(torch.autocast(kind, enabled=False))
        yield


def open_given(
    model: torch.nn.Module, device: str, base: Any = None, tokenizer: Any = None, *, texts: bool = True
) -> OpenedPeft:
    """Open a model in memory on the device that it is on; a fine-tuned one with its base.

    Raises:
        ModelError: it reads texts and there is no tokenizer, or the device is another one.
        CheckpointError: see `open_in_memory`.
    """
    from adapter_probe.checkpoints.in_memory import open_in_memory
    from adapter_probe.device import choose_device

    if texts and tokenizer is None:
        raise ModelError("a model in memory has no tokenizer of its own; give tokenizer=")
    own = device_of(model)
    asked = own if device == "auto" else choose_device(device)
    if (asked.type, asked.index or 0) != (own.type, own.index or 0):
        raise ModelError(f"the model is on {own}, where it runs; move it there, or omit device={device!r}")
    return open_in_memory(model, tokenizer, base)


def device_of(model: torch.nn.Module) -> torch.device:
    """The device of a model's first weights."""
    import torch

    return next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))


def _on_disk(subject: Subject, progress: bool) -> Subject:
    """The same with the folder of a checkpoint that is named on the hub."""
    name = str(subject.checkpoint)
    if subject.base is not None and not isinstance(subject.base, (str, Path)):
        raise DataError(f"base= is a model in memory, and {name} is on disk; give the folder of its base")
    if is_hub_name(name):
        with activity(f"ablate: looking for {name}", progress):
            place = fetch_checkpoint(*name_and_revision(name), subject.adapter)
    elif is_missing(name):
        raise CheckpointError(f"checkpoint {name}: no such folder")
    else:
        place = Path(name)
    return replace(subject, checkpoint=choose_adapter(place, subject.adapter), adapter=None)
