"""Data for checkpoints that record no task, such as those of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adapter_probe.data.readers import SPLITS
from adapter_probe.data.spec import TaskSpec
from adapter_probe.data.tasks import find_task
from adapter_probe.errors import CheckpointError, DataError
from adapter_probe.known_tasks import KNOWN_TASKS

if TYPE_CHECKING:
    from adapter_probe.checkpoints.native import OpenedCheckpoint


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


def refuse_idle_encoding(encoding: str, *files: str | Path) -> None:
    """Refuse an encoding without files: recorded files are read in the encoding of their training.

    Raises:
        DataError: an encoding is given without files.
    """
    if encoding != "utf-8" and not files:
        raise DataError(
            f"--encoding {encoding} applies only to files given with --data; the checkpoint's own files are "
            "read in the encoding of their training"
        )


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
