"""Named tasks: the files of the GLUE tasks and SQuAD v1.1, see `adapter_probe.known_tasks`.

A preset reads local files with the columns of the hub, CoLA's own files, or the copy on the hub. The same
rows have the same fingerprint, wherever they are read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adapter_probe.data.formats import QUESTION_COLUMNS, Rows
from adapter_probe.data.hub import HubSplit, newest_commit
from adapter_probe.data.readers import find_files, is_raw_cola, split_words
from adapter_probe.data.task_spec import RAW_COLA, Columns
from adapter_probe.errors import DataError, listed
from adapter_probe.known_tasks import KNOWN_TASKS, KnownTask, known_task


@dataclass(frozen=True)
class Preset:
    """One named task's data.

    Attributes:
        task: name, classes and metrics of the task.
        columns: the columns on the hub.
        config: configuration of the dataset on the hub.
        validation: name of the validation split on the hub.
    """

    task: KnownTask
    columns: Columns
    config: str
    validation: str = "validation"

    @property
    def name(self) -> str:
        """The task's."""
        return self.task.name

    @property
    def mismatched(self) -> bool:
        """Whether it is validated on MNLI's mismatched genres."""
        return self.validation.endswith("_mismatched")


def _glue(name: str, text: str, text_b: str | None = None) -> Preset:
    return Preset(KNOWN_TASKS[name], Columns(text, text_b, "label"), name)


def _mnli(name: str, genres: str) -> Preset:
    return Preset(
        KNOWN_TASKS[name], Columns("premise", "hypothesis", "label"), "mnli", f"validation_{genres}"
    )


PRESETS: tuple[Preset, ...] = (
    _glue("cola", "sentence"),
    _glue("sst2", "sentence"),
    _glue("mrpc", "sentence1", "sentence2"),
    _glue("stsb", "sentence1", "sentence2"),
    _glue("qqp", "question1", "question2"),
    _mnli("mnli", "matched"),
    _mnli("mnli-mm", "mismatched"),
    _glue("qnli", "question", "sentence"),
    _glue("rte", "sentence1", "sentence2"),
    Preset(KNOWN_TASKS["squad"], Columns(*QUESTION_COLUMNS[1:]), "plain_text"),
)


def preset_named(name: str) -> Preset | None:
    """The preset with a name or alias, see `adapter_probe.known_tasks.known_task`, or None."""
    task = known_task(name)
    return next((preset for preset in PRESETS if preset.task is task), None)


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    preset = preset_named(name)
    if preset is None:
        raise DataError(
            f"unknown task {name!r}; the names of known tasks are {', '.join(p.name for p in PRESETS)}"
        )
    return preset


def hub_files(preset: Preset) -> dict[str, tuple[str, ...]]:
    """Train and validation split on the hub, at the newest commit if the hub is reachable."""
    hub = preset.task.collection
    commit = newest_commit(hub)
    splits = {"train": "train", "validation": preset.validation}
    return {ours: (str(HubSplit(hub, preset.config, own, commit)),) for ours, own in splits.items()}


def preset_files(preset: Preset, folder: str | Path, splits: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """The files of a preset's training and validation split in a folder.

    GLUE's test files are left out, as their labels are hidden.

    Args:
        splits: the splits to find; only train and validation are searched for.
    """
    wanted = [split for split in ("train", "validation") if split in splits]
    found = find_files(folder, wanted, preset.mismatched)
    other = "matched" if preset.mismatched else "mismatched"
    for path in found.get("validation", ()):
        if other in split_words(path.name):
            raise DataError(f"{path}: task {preset.name!r} does not use the {other} genres for validation")
    return found


def preset_columns(preset: Preset, rows: Rows) -> Columns:
    """The columns of a preset in a file: those of the hub, or CoLA's own without a header."""
    if preset.task is KNOWN_TASKS["cola"] and is_raw_cola(rows):
        return RAW_COLA
    own = preset.columns.names
    if set(own) <= set(rows.names):
        return preset.columns
    raise DataError(
        f"{rows.path}: expected the columns of {preset.name}, {', '.join(own)}; columns found: "
        f"{listed(rows.names)}; --columns {','.join(f'{name}=...' for name in own)} reads columns under "
        "other names"
    )
