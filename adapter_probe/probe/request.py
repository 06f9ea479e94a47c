"""The request of an ablation: checkpoint, examples, settings and device, ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from adapter_probe.checkpoints.base import refuse_unknown_tokens
from adapter_probe.checkpoints.identity import checkpoint_identity
from adapter_probe.checkpoints.native import OpenedCheckpoint
from adapter_probe.checkpoints.opening import open_checkpoint
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples, load_examples
from adapter_probe.data.lm_eval_tasks import is_task, settle
from adapter_probe.data.readers import SPLITS
from adapter_probe.data.requests import Requests, choose_metric
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.data.spec import TaskSpec
from adapter_probe.data.tasks import find_task
from adapter_probe.errors import CheckpointError, DataError, ResultsError
from adapter_probe.known_tasks import KNOWN_TASKS
from adapter_probe.metrics import check_metric
from adapter_probe.spans import SITES_PER_LAYER, VariantSet, effective

from .arguments import CODE_SCHEMA, AblationArguments, AblationSettings
from .plan import choose_tokens_per_pass


@dataclass(frozen=True)
class AblationRequest:
    """One ablation, ready to run.

    Attributes:
        checkpoint: the opened checkpoint; its model is moved to `device` and run in the settings' precision.
        examples: the examples, read and encoded.
        metric: name of the metric.
        settings: settings of the ablation.
        device: device to run on.
        tokens_per_pass: bounds memory without changing predictions; None for the device's default.
    """

    checkpoint: OpenedCheckpoint
    examples: Examples
    metric: str
    settings: AblationSettings
    device: torch.device
    tokens_per_pass: int | None = None

    @property
    def encoded(self) -> Encoded | EncodedRequests:
        """Token ids of every item: an example, or a window of one."""
        return self.examples.encoded

    @cached_property
    def variants(self) -> VariantSet:
        """The variants of the study, the intact model first; every span switches off other adapters."""
        model = self.checkpoint.model
        return effective(self.settings.variants(len(model.layers)), model.has_adapter)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the predictions; two runs with the same identity may share parts."""
        return {
            "code_schema": CODE_SCHEMA[self.settings.precision],
            **checkpoint_identity(self.checkpoint.description.to_json()),
            "data": {"fingerprint": self.examples.rows.fingerprint, "n_examples": len(self.examples)},
            "tokens": {"fingerprint": self.encoded.fingerprint},
            "settings": asdict(self.settings),
        }


def prepare_ablation(arguments: AblationArguments, device: torch.device) -> AblationRequest:
    """Open a checkpoint and read the examples to evaluate it on.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: tokens_per_pass is below 1, or mixed precision is requested for a task without classes.
    """
    settings, data = arguments.settings, arguments.data
    choose_tokens_per_pass(arguments.tokens_per_pass, device.type, 1)  # refuse a bad value first
    dtype = torch.bfloat16 if settings.precision == "bfloat16" else torch.float32
    opened = open_checkpoint(arguments.checkpoint, arguments.base, dtype=dtype)
    _refuse_without_adapters(arguments.checkpoint, opened, settings)
    opened.model.check_norms(settings.layernorm)
    if opened.description.task.kind != "causal" and any(map(is_task, data)):
        raise DataError(
            f"{data[0]}: tasks of lm-eval require a language model; the task of checkpoint "
            f"{arguments.checkpoint} is {opened.description.task.kind}"
        )
    opened = with_data(arguments.checkpoint, opened, data, arguments.split, arguments.encoding)
    task = opened.description.task
    check_metric(arguments.metric or task.metric, task.kind, len(task.label_names) or None)
    if settings.precision == "mixed" and task.kind != "classification":
        raise ResultsError(
            f"--precision mixed is not possible for task {task.name!r} of kind {task.kind}: only predicted "
            "classes can be checked against rounding; give float32, float64 or bfloat16"
        )
    examples, metric = _scored_examples(opened, arguments)
    return AblationRequest(opened, examples, metric, settings, device, arguments.tokens_per_pass)


def with_data(
    folder: str | Path,
    opened: OpenedCheckpoint,
    data: Sequence[str | Path],
    split: str,
    encoding: str = "utf-8",
) -> OpenedCheckpoint:
    """The checkpoint with the task of the given files; unchanged if it records a task.

    Raises:
        CheckpointError: neither files are given nor does the checkpoint record any.
        DataError: the files cannot be read, or their labels are not those of the checkpoint's head.
    """
    task = opened.description.task
    if task.files or split not in SPLITS:
        return opened
    if not data:
        raise CheckpointError(
            f"checkpoint {folder} does not record its data; give a file with "
            + ("a language model's rows" if task.kind == "causal" else "labelled examples")
            + " (--data FILE)"
        )
    if task.kind == "causal":  # whose rows determine how they are scored
        return opened
    found = find_task(**{split: data}, kind=task.kind, name=task.name, encoding=encoding)  # type: ignore[arg-type]
    if task.kind == "classification":
        found = replace(found, label_names=_names(folder, task, found, data))
    return replace(opened, description=replace(opened.description, task=found))


def _names(
    folder: str | Path, task: TaskSpec, found: TaskSpec, data: Sequence[str | Path]
) -> tuple[str, ...]:
    """The labels as written in the files, in the order of the head's outputs."""
    numbers = tuple(str(number) for number in range(len(task.label_names)))
    in_files = set(found.label_names)
    by_name = {name.casefold(): name for name in found.label_names}
    named = tuple(by_name.get(name.casefold(), name) for name in task.label_names)
    for names in (named, numbers):
        if in_files <= set(names):
            return names
    unnamed = task.label_names == numbers
    if (
        unnamed and found.label_names == KNOWN_TASKS["cola"].label_names
    ):  # the labels are numbers in the files
        return found.label_names
    known = ", ".join(task.label_names)
    raise DataError(
        f"{', '.join(map(str, data))}: the labels {', '.join(found.label_names)} are not those of checkpoint "
        f"{folder}, whose head has {len(numbers)} outputs, "
        + (
            f"which it does not name; allowed are 0 to {len(numbers) - 1}"
            if unnamed
            else f"{known}; allowed are these, or 0 to {len(numbers) - 1}"
        )
    )


def on_other_data(request: AblationRequest, arguments: AblationArguments) -> AblationRequest:
    """The same model and settings on the arguments' examples, without opening the checkpoint again.

    Raises:
        DataError: the examples cannot be read or do not fit the task.
    """
    examples, metric = _scored_examples(request.checkpoint, arguments)
    return replace(request, examples=examples, metric=metric)


def _scored_examples(opened: OpenedCheckpoint, arguments: AblationArguments) -> tuple[Examples, str]:
    """The examples and the name of their metric."""
    split, task = arguments.split, opened.description.task
    if split not in SPLITS:
        raise DataError(f"--split {split} is not allowed; choose from {', '.join(SPLITS)}")
    if arguments.data:
        files = {split: tuple(map(settle, arguments.data))}
        task = replace(task, files=files, validation_share=0.0, encoding=arguments.encoding)
    examples = load_examples(
        opened.tokenizer, task, split, opened.description.max_length,
        max_examples=arguments.max_examples, expect_fingerprint=not arguments.data,
    )  # fmt: skip
    refuse_unknown_tokens(examples.encoded, opened.description.base)
    if isinstance(examples.rows, Requests):
        return examples, choose_metric(arguments.metric, examples.rows)
    return examples, arguments.metric or task.metric


def _refuse_without_adapters(folder: str, opened: OpenedCheckpoint, settings: AblationSettings) -> None:
    model = opened.model
    never_off = settings.variants(len(model.layers)).masks.all(axis=0)  # [sites]
    if not (model.has_adapter & ~never_off).any():
        attention, ffn = model.has_adapter.reshape(-1, SITES_PER_LAYER).any(axis=0)
        held = "both" if attention and ffn else "attention" if attention else "ffn" if ffn else "none"
        where = f" of layers {settings.layers}" if settings.layers else ""
        raise CheckpointError(
            f"checkpoint {folder} has no adapters to switch off for --sites {settings.sites}{where}: it "
            f"was trained with {opened.description.method.name}, sites {held}"
        )
