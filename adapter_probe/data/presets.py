"""The data of named tasks: the files of the GLUE tasks and SQuAD v1.1, see `adapter_probe.known_tasks`.

They are read from local files with the columns of the hub, CoLA's own files, or the copy on the hub. The same
rows have the same fingerprint, wherever they are read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adapter_probe.data.hub import HubSplit, newest_commit
from adapter_probe.data.readers import find_files, is_raw_cola, split_words
from adapter_probe.data.rows import Rows
from adapter_probe.data.task_spec import RAW_COLA, Columns
from adapter_probe.errors import DataError, listed
from adapter_probe.known_tasks import KNOWN_TASKS, KnownTask, known_task


def find_preset(name: str) -> KnownTask:
    """The known task of that name."""
    task = known_task(name)
    if task is None:
        raise DataError(f"unknown task {name!r}; the names of known tasks are {', '.join(KNOWN_TASKS)}")
    return task


def hub_files(task: KnownTask) -> dict[str, tuple[str, ...]]:
    """Train and validation split on the hub, at the newest commit if the hub is reachable."""
    commit, config = newest_commit(task.collection), task.config or task.name
    splits = {"train": "train", "validation": task.validation}
    return {ours: (str(HubSplit(task.collection, config, own, commit)),) for ours, own in splits.items()}


def preset_files(task: KnownTask, folder: str | Path, splits: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """The files of a known task's training and validation split in a folder.

    GLUE's test files are left out, as their labels are hidden, and validation files of MNLI's other genres
    are refused.

    Args:
        splits: the splits to find; only train and validation are searched for.
    """
    wanted = [split for split in ("train", "validation") if split in splits]
    mismatched = task.validation.endswith("_mismatched")
    found = find_files(folder, wanted, mismatched)
    other = "matched" if mismatched else "mismatched"
    for path in found.get("validation", ()):
        if other in split_words(path.name):
            raise DataError(f"{path}: task {task.name!r} does not use the {other} genres for validation")
    return found


def preset_columns(task: KnownTask, rows: Rows) -> Columns:
    """The columns of a known task in a file: those of the hub, or CoLA's own without a header."""
    if task is KNOWN_TASKS["cola"] and is_raw_cola(rows):
        return RAW_COLA
    own = (*task.texts, task.target)
    if set(own) <= set(rows.names):
        return Columns(own[0], own[1] if len(own) > 2 else None, own[-1])
    raise DataError(
        f"{rows.path}: expected the columns of {task.name}, {', '.join(own)}; columns found: "
        f"{listed(rows.names)}; --columns {','.join(f'{name}=...' for name in own)} reads columns under "
        "other names"
    )
