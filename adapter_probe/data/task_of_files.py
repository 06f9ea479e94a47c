"""The task of files that are given for a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from adapter_probe.data.columns import choose_columns, text_columns
from adapter_probe.data.hub import HubSplit
from adapter_probe.data.labels import holds_lists
from adapter_probe.data.lm_eval_tasks import PREFIX, is_task, with_absolute_paths
from adapter_probe.data.readers import SPLITS
from adapter_probe.data.similarity import CORPUS, contrast_columns, kind_for_number, kind_of_rows
from adapter_probe.data.sources import read_source
from adapter_probe.data.tagged import tag_columns, tag_metric
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.data.tasks import find_task, load_split
from adapter_probe.errors import CheckpointError, DataError
from adapter_probe.known_tasks import KNOWN_TASKS
from adapter_probe.metrics import default_metric

_FROM_MEMORY = re.compile(r"(.*?)-?rows-[0-9a-f]{12}\.jsonl")
"""As `adapter_probe.studies.example_files` writes them, after the name of the file whose columns they are."""
GIVEN_BATCHES = "given batches"
"""The name of data given as arguments of a model's forward."""
_KIND_OF_ROWS = {"embedding": kind_of_rows, "regression": kind_for_number}
"""Of heads that do not say the kind of their task: what does, from the names of columns."""
_MOST_NAMED = 2  # maximum number of files that a figure names


def given_task(
    task: TaskSpec,
    files: Sequence[str | Path],
    split: str,
    checkpoint: str | Path,
    encoding: str = "utf-8",
    label_names: Sequence[str] = (),
    categories: Sequence[str] = (),
    unlabelled: bool = False,
    reads: Sequence[str] = (),
) -> TaskSpec:
    """The task of a checkpoint, or that of the given files if the checkpoint does not record its data.

    Args:
        task: the task of the checkpoint, which determines the kind and the classes.
        files: files, or tasks of lm-evaluation-harness; empty for the recorded ones.
        label_names: names of the head's outputs, in their order, for a checkpoint that does not name them.
        categories: names that hold where neither `label_names` nor the checkpoint gives any, and they are as
            many as the outputs.
        unlabelled: whether the files may be read without labels, where they hold none that fit.
        reads: the columns of the files that are meant, see `TaskSpec`.

    Raises:
        CheckpointError: neither files are given nor does the checkpoint record any.
    """
    task = replace(task, reads=tuple(reads)) if files else task  # a task's own are of its files
    if not task.about.is_language_model and any(is_task(str(entry)) for entry in files):
        raise DataError(
            f"{files[0]}: tasks of lm-eval require a language model; the task of checkpoint {checkpoint} is "
            f"{task.kind}"
        )
    numbers = tuple(map(str, range(len(categories))))
    if not label_names and categories and task.about.one_class and task.label_names == numbers:
        label_names = categories
    if label_names:
        task = _named(task, tuple(label_names), checkpoint)
    if unlabelled and task.kind == "embedding":
        return _of_texts(task, files, encoding)
    if unlabelled and files and task.about.one_class:
        return _compared(task, files, split, checkpoint, encoding)
    if task.files or split not in SPLITS:
        return task
    if not files:
        raise records_no_data(checkpoint, task.about.is_language_model)
    if task.about.is_language_model:  # whose rows determine how they are scored
        return task
    return _of_labels(task, files, split, checkpoint, encoding)


def _of_texts(task: TaskSpec, files: Sequence[str | Path], encoding: str) -> TaskSpec:
    """The task of texts whose embeddings are compared with the intact model's."""
    if not files:
        raise DataError(
            "without labels, embeddings are compared with the intact model's; give the texts as --data FILE"
        )
    rows = read_source(files[0], (), encoding, task.reads)
    columns = contrast_columns(rows.names) or text_columns(rows)
    return replace(task, columns=columns, preset=None, encoding=encoding)


def _compared(
    task: TaskSpec, files: Sequence[str | Path], split: str, checkpoint: str | Path, encoding: str
) -> TaskSpec:
    """The task of texts whose classes are compared with the intact model's; by their labels if they fit."""
    with suppress(CheckpointError, DataError):  # by labels that there are, as for another metric
        own = given_task(task, files, split, checkpoint, encoding, reads=task.reads)
        given = replace(own, files={split: tuple(map(with_absolute_paths, map(str, files)))})
        load_split(replace(given, validation_share=0.0, encoding=encoding), split)
        if own.kind == task.kind:
            return own
    columns = task.columns if task.files else text_columns(read_source(files[0], (), encoding, task.reads))
    return replace(task, columns=replace(columns, label=""), preset=None)


def _of_labels(
    task: TaskSpec, files: Sequence[str | Path], split: str, checkpoint: str | Path, encoding: str
) -> TaskSpec:
    """The task of a head, as the columns and labels of files say it; see `given_task`."""
    if kind_of := _KIND_OF_ROWS.get(task.kind):
        kind = kind_of(read_source(files[0], (), encoding, task.reads).every_name)
        if kind is not None:
            return replace(task, kind=kind, metric=default_metric(kind), encoding=encoding)
        task = replace(task, kind="regression")
    if task.about.has_classes:
        rows = read_source(files[0], (), encoding, task.reads)
        if task.about.of_words:
            metric = tag_metric(task.label_names)
            return replace(task, metric=metric, columns=tag_columns(rows), encoding=encoding)
        columns = choose_columns(rows, None)
        if not task.about.one_class or holds_lists(rows, columns.label):
            metric = default_metric("multilabel")
            return replace(task, kind="multilabel", metric=metric, columns=columns, encoding=encoding)
    found = find_task(
        **{split: files},  # type: ignore[arg-type]
        kind=task.kind,
        name=task.name,
        encoding=encoding,
        reads=task.reads,
    )
    if task.about.has_classes:
        found = replace(found, label_names=_names(task, found, files, checkpoint))
    return found


def data_name(files: Sequence[str | Path]) -> str:
    """The name of given data in figures: file names without folders, tasks of lm-evaluation-harness included.

    Tables that were passed in memory have no name of their own.
    """
    names = [name for entry in map(str, files) for name in _names_in(entry)]
    if names and names[0] == f"{CORPUS}.jsonl":
        return Path(files[0]).parent.name
    return ", ".join(names) if len(names) <= _MOST_NAMED else f"{names[0]} and {len(names) - 1} more"


def _names_in(entry: str) -> list[str]:
    """The names of tasks, of a split on the hub, or of a file."""
    if is_task(entry):
        return [Path(one).name for one in entry.removeprefix(PREFIX).split(",")]
    if (on_hub := HubSplit.parse(entry)) is not None:
        return [f"{on_hub.dataset} ({on_hub.split})"]
    name = Path(entry).name
    found = _FROM_MEMORY.fullmatch(name)
    return [name if found is None else found[1] or "given rows"]


def records_no_data(checkpoint: str | Path, causal: bool) -> CheckpointError:
    """The error for a checkpoint of another library without files, of a language model or another one."""
    rows = "a language model's rows" if causal else "labelled examples"
    return CheckpointError(
        f"checkpoint {checkpoint} does not record its data; give a file with {rows} (--data FILE)"
    )


def _named(task: TaskSpec, names: tuple[str, ...], checkpoint: str | Path) -> TaskSpec:
    own, given = task.label_names, ", ".join(names)
    if not task.about.has_classes:
        raise DataError(
            f"--label-names {given}: the task of checkpoint {checkpoint} is {task.kind}, without labels"
        )
    if len(set(names)) < len(names) or len(names) != len(own):
        raise DataError(
            f"--label-names {given} are {len(set(names))} different names; the head of checkpoint "
            f"{checkpoint} has {len(own)} outputs"
        )
    if task.files and names != own:
        raise DataError(
            f"--label-names {given}: checkpoint {checkpoint} names its outputs itself, {', '.join(own)}"
        )
    return replace(task, label_names=names)


def _names(
    task: TaskSpec, found: TaskSpec, files: Sequence[str | Path], checkpoint: str | Path
) -> tuple[str, ...]:
    """The labels as written in the files, in the order of the head's outputs."""
    numbers = tuple(map(str, range(len(task.label_names))))
    by_name = {name.casefold(): name for name in found.label_names}
    named = tuple(by_name.get(name.casefold(), name) for name in task.label_names)
    for names in (named, numbers):
        if set(found.label_names) <= set(names):
            return names
    unnamed = task.label_names == numbers
    if unnamed and found.label_names == KNOWN_TASKS["cola"].label_names:  # the files have numbers
        return found.label_names
    last = len(numbers) - 1
    allowed = (
        "which it does not name; name them in their order with --label-names, or give labels from 0 to "
        f"{last}"
        if unnamed
        else f"{', '.join(task.label_names)}; allowed are these, or 0 to {last}"
    )
    raise DataError(
        f"{', '.join(map(str, files))}: the labels {', '.join(found.label_names)} are not those of "
        f"checkpoint {checkpoint}, whose head has {len(numbers)} outputs, {allowed}"
    )
