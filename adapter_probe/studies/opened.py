"""What a call is about: the folder of a checkpoint, which a later step opens, or a model in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from adapter_probe.checkpoints.adapter_folder import choose_adapter, fetch_checkpoint
from adapter_probe.data.generating import Prompting
from adapter_probe.data.rows import one_table, token_rows
from adapter_probe.errors import CheckpointError, DataError, ModelError, ResultsError
from adapter_probe.hub_names import is_hub_name, is_missing, name_and_revision
from adapter_probe.progress import activity
from adapter_probe.results.atomic import make_folder

from .checkpoint_arguments import Ablate, Called, Trainer
from .trainers import TokenisedPreferences, differences_of, examples_of_preferences, of_trainer

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


class Given(NamedTuple):
    """A model in memory, and its examples where they are batches.

    Attributes:
        examples: the examples, or None for those that the arguments name.
    """

    opened: OpenedPeft
    examples: Examples | None = None

    def with_name(self, name: str) -> Given:
        """The same with a task of this name."""
        return self._replace(opened=self.opened.with_task(replace(self.opened.description.task, name=name)))

    def of_source(self, source: str) -> Given:
        """The same with a question that names where the examples are from."""
        if self.examples is None or self.examples.question is None:
            return self
        question = replace(self.examples.question, source=source)
        return self._replace(examples=replace(self.examples, question=question))

    def with_note(self, note: str) -> Given:
        """The same with a remark on how it was read."""
        return self._replace(opened=replace(self.opened, notes=(*self.opened.notes, note)))


@contextmanager
def opened_for(call: Called) -> Iterator[tuple[Called, Given | None, TemporaryDirectory[str] | Path | None]]:
    """The arguments with a checkpoint's folder, and a model in memory, which is left as it was.

    Returns:
        the arguments; of a model in memory, which has a name and a results folder in them, or with several
        adapters, the open model; and its results folder, which may be a temporary one.

    Raises:
        ModelError, CheckpointError: see `open_in_memory`; or there is no such checkpoint.
        DataError: there is no data, or batches and labels are not the model's.
        ResultsError: an argument needs a checkpoint on disk.
    """
    given = [one.name for one in fields(call) if one.init and one.name in ("data", "against")]
    call = replace(call, **{name: one_table(getattr(call, name), call.split) for name in given})
    if not isinstance(call.checkpoint, (str, Path)):
        with without_autocast(), _in_memory(call) as found:
            yield found
        return
    for one in fields(Ablate):
        if one.name in _IN_MEMORY and getattr(call, one.name) != one.default:
            raise DataError(
                f"{one.name}= applies only to a model in memory, and {call.checkpoint} is on disk"
            )
    names = [name.strip() for name in (call.adapter or "").split(",")]
    if len(names) == 1:
        yield _on_disk(call), None, None
        return
    call = _on_disk(replace(call, adapter=None))
    if call.cluster is not None:
        raise CheckpointError("--slurm takes one adapter of a checkpoint; give one name with --adapter")
    from adapter_probe.checkpoints.opening import open_several

    base = None if call.base is None else str(call.base)
    yield call, Given(open_several(Path(str(call.checkpoint)), names, base, call.dequantise)), None


@contextmanager
def _in_memory(call: Called) -> Iterator[tuple[Called, Given, TemporaryDirectory[str] | Path]]:
    from adapter_probe.checkpoints.in_memory import left_as_it_was

    metric, unused = None, False
    of_trainers_own = isinstance(call.checkpoint, Trainer) and call.batches is None and not _names_texts(call)
    if isinstance(trainer := call.checkpoint, Trainer):
        with left_as_it_was(trainer.model):  # type: ignore[attr-defined]  # making batches may leave hooks
            call, metric = of_trainer(call, trainer)
        unused = getattr(trainer, "compute_metrics", None) is not None and metric is None is call.metric
    model: Any = call.checkpoint
    if flag := next((one for one in _ON_DISK if getattr(call, one)), ""):
        raise ResultsError(f"{flag} needs a checkpoint on disk; save the model and give its folder")
    if call.batches is None and (rows := token_rows(call.data)) is not None:
        call = replace(call, data=(), batches=rows)
    texts = _names_texts(call)
    if texts == (call.batches is not None):
        given = (
            "both data and batches are given; give one of them"
            if texts
            else "a model in memory has no data of its own; give data= or batches="
        )
        raise DataError(given)
    with left_as_it_was(model):
        opened = _given(call, model)
        if metric is not None:
            assert opened.examples is not None, "a trainer's metric is of its batches"
            call = replace(call, metric=metric.of_model(opened.opened, opened.examples))
            opened = opened.with_note(metric.said)
        if of_trainers_own:
            rows = call.batches
            if rows is None:
                preferences = len(call.data)  # type: ignore[arg-type]  # texts of the evaluation set
            else:
                opened = opened.of_source(f"the evaluation set of a {type(trainer).__name__}")
                preferences = len(rows.answers) if isinstance(rows, TokenisedPreferences) else 0
            for note in differences_of(trainer, opened.opened.description.task.kind, preferences):
                opened = opened.with_note(note)
        if call.name:
            opened = opened.with_name(call.name)
        if unused:
            opened = opened.with_note(
                "the trainer's compute_metrics, which is of its own batches, is not used"
            )
        temporary = TemporaryDirectory(prefix="adapter-probe-") if call.out is None else Path(call.out)
        folder = make_folder(temporary if isinstance(temporary, Path) else temporary.name)
        device = str(device_of(model))
        yield (
            replace(call, checkpoint=str(opened.opened.folder), base=None, out=folder, device=device),
            opened,
            temporary,
        )


def _names_texts(call: Called) -> bool:
    """Whether the arguments name texts: data or a task."""
    return bool(call.task) or not (isinstance(call.data, tuple) and not call.data)


def _given(call: Ablate, model: Any) -> Given:
    """The model, with its examples where they are batches."""
    if call.batches is None:
        if call.labels is not None or call.read != "logits":
            raise DataError("labels and read apply only to batches; the labels of texts are in data")
        return Given(open_given(model, call.device, call.base, call.tokenizer))
    for one in fields(Ablate):
        if one.name in _OF_TEXTS and getattr(call, one.name) != one.default:
            raise DataError(f"{one.name} needs texts; omit it with batches, which are taken as they are")
    if call.precision == "mixed":
        raise ResultsError("precision 'mixed' needs texts; give float32, float64 or bfloat16 with batches")
    if isinstance(call.batches, TokenisedPreferences):
        opened = open_given(model, call.device, call.base, call.tokenizer)
        return Given(*examples_of_preferences(opened, call.batches))
    if isinstance(call.against, (str, Path)) or len(call.against):
        raise ResultsError("against needs texts; omit it with batches")
    from adapter_probe.probe.batches import examples_of

    opened = open_given(model, call.device, call.base, texts=False)
    examples, task = examples_of(opened.model, call.batches, call.labels, call.read)
    return Given(opened.with_task(task), examples)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Inside, arithmetic has the precision of the model, whatever the user's code around has set."""
    import torch

    with ExitStack() as plain:
        for kind in ("cpu", "cuda", "mps", "xpu"):
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


def _on_disk(call: Called) -> Called:
    """The arguments with the folder of a checkpoint that is named on the hub."""
    name = str(call.checkpoint)
    if call.base is not None and not isinstance(call.base, (str, Path)):
        raise DataError(f"base= is a model in memory, and {name} is on disk; give the folder of its base")
    if is_hub_name(name):
        with activity(f"ablate: looking for {name}", call.progress):
            place = fetch_checkpoint(*name_and_revision(name), call.adapter)
            return replace(call, checkpoint=choose_adapter(place, call.adapter), adapter=None)
    if is_missing(name):
        raise CheckpointError(f"checkpoint {name}: no such folder")
    return replace(call, checkpoint=choose_adapter(Path(name), call.adapter), adapter=None)
