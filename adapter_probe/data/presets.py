"""Named tasks: the files of the GLUE tasks and SQuAD v1.1, see `adapter_probe.known_tasks`.

A preset reads local files in the common layouts of its data set, or the copy on the hub. The same rows
have the same fingerprint, wherever they are read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adapter_probe.data.formats import QUESTION_COLUMNS, Rows
from adapter_probe.data.hub import HubSplit, newest_commit
from adapter_probe.data.readers import find_files, split_words
from adapter_probe.data.task_spec import Columns
from adapter_probe.errors import DataError, listed
from adapter_probe.known_tasks import KNOWN_TASKS, KnownTask, known_task

_SENTENCES = ("sentence1", "sentence2")


@dataclass(frozen=True)
class Preset:
    """One named task's data.

    Attributes:
        task: name, classes and metrics of the task.
        layouts: possible columns of files of this task, those of the hub first.
        config: configuration of the dataset on the hub.
        hub_splits: names of the train and validation split on the hub.
        mismatched: validate on MNLI's mismatched genres.
        skipped_label: rows with this label are skipped, because their annotators reached no majority.
    """

    task: KnownTask
    layouts: tuple[Columns, ...]
    config: str
    hub_splits: tuple[str, str] = ("train", "validation")
    mismatched: bool = False
    skipped_label: str | None = None

    @property
    def name(self) -> str:
        """The task's."""
        return self.task.name


def _glue(name: str, *layouts: tuple[str, str | None, str]) -> Preset:
    return Preset(KNOWN_TASKS[name], tuple(Columns(*layout) for layout in layouts), name)


def _mnli(name: str, matching: str) -> Preset:
    layouts = (Columns("premise", "hypothesis", "label"), Columns(*_SENTENCES, "gold_label"))
    splits = ("train", f"validation_{matching}")
    return Preset(KNOWN_TASKS[name], layouts, "mnli", splits, matching == "mismatched", skipped_label="-")


PRESETS: tuple[Preset, ...] = (
    _glue("cola", ("sentence", None, "label"), ("3", None, "1")),
    _glue("sst2", ("sentence", None, "label")),
    _glue("mrpc", (*_SENTENCES, "label"), ("#1 String", "#2 String", "Quality")),
    _glue("stsb", (*_SENTENCES, "label"), (*_SENTENCES, "score")),
    _glue("qqp", ("question1", "question2", "label"), ("question1", "question2", "is_duplicate")),
    _mnli("mnli", "matched"),
    _mnli("mnli-mm", "mismatched"),
    _glue("qnli", ("question", "sentence", "label")),
    _glue("rte", (*_SENTENCES, "label")),
    Preset(KNOWN_TASKS["squad"], (Columns(*QUESTION_COLUMNS[1:]),), "plain_text"),
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
    splits = zip(("train", "validation"), preset.hub_splits)
    return {ours: (str(HubSplit(hub, preset.config, theirs, commit)),) for ours, theirs in splits}


def preset_files(preset: Preset, folder: str | Path, splits: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """The files of a preset's training and validation split in a folder.

    GLUE's test files are left out, as their labels are hidden.

    Args:
        splits: the splits to find; only train and validation are searched for.

    Raises:
        DataError: as `find_files`, or the only validation file is of MNLI's other genres.
    """
    wanted = [split for split in ("train", "validation") if split in splits]
    found = find_files(folder, wanted, preset.mismatched)
    other = "matched" if preset.mismatched else "mismatched"
    for path in found.get("validation", ()):
        if other in split_words(path.name):
            raise DataError(f"{path}: task {preset.name!r} does not use the {other} genres for validation")
    return found


def preset_columns(preset: Preset, rows: Rows) -> Columns:
    """The layout of a preset that a file has."""
    for layout in preset.layouts:
        if set(layout.names) <= set(rows.names):
            return layout
    wanted = " or ".join(f"({', '.join(layout.names)})" for layout in preset.layouts)
    first = ",".join(f"{name}=..." for name in preset.layouts[0].names)
    raise DataError(
        f"{rows.path}: expected the columns of {preset.name}, {wanted}; columns found: {listed(rows.names)}; "
        f"--columns {first} reads columns under other names"
    )
