"""Named tasks: the GLUE tasks and SQuAD v1.1, with the columns, classes and metrics that papers report.

A preset reads local files in the layouts in which its set is passed around, or the hub's copy. The same rows
have the same fingerprint, whichever way they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adapter_probe.data.formats import Rows
from adapter_probe.data.hub import HubSplit, newest_commit
from adapter_probe.data.quoting import listed
from adapter_probe.data.readers import find_files, split_words
from adapter_probe.data.spec import Columns, TaskSpec
from adapter_probe.data.squad_json import QUESTION_COLUMNS
from adapter_probe.errors import DataError
from adapter_probe.metrics import Kind

GLUE = "nyu-mll/glue"
_SENTENCES = ("sentence1", "sentence2")


@dataclass(frozen=True)
class Preset:
    """One named task.

    Attributes:
        name: in small letters, as on the hub.
        kind: classification, regression or extractive.
        metric: the task's score: it chooses the best epoch and is drawn in figures.
        table_metrics: what tables of results report.
        label_names: the classes in the hub's order: a file's 0 is the first, its 1 the second. Where the
            metric is F1, the last is the positive one.
        layouts: the columns that files of this task have, the hub's first.
        hub: the dataset's id on the hub, and `config` the part of it.
        hub_splits: train and validation under the hub's names.
        mismatched: validate on MNLI's mismatched genres.
        skipped_label: rows with this label are left out: their annotators found no majority.
    """

    name: str
    kind: Kind
    metric: str
    table_metrics: tuple[str, ...]
    label_names: tuple[str, ...]
    layouts: tuple[Columns, ...]
    hub: str = GLUE
    config: str | None = None
    hub_splits: tuple[str, str] = ("train", "validation")
    mismatched: bool = False
    skipped_label: str | None = None


def _glue(
    name: str, metric: str, label_names: tuple[str, ...], *layouts: tuple[str, str | None, str]
) -> Preset:
    """A GLUE task that is reported by its one metric."""
    kind: Kind = "classification" if label_names else "regression"
    columns = tuple(Columns(*layout) for layout in layouts)
    return Preset(name, kind, metric, (metric,), label_names, columns, config=name)


def _mnli(name: str, matching: str) -> Preset:
    return Preset(
        name,
        "classification",
        "accuracy",
        ("accuracy",),
        ("entailment", "neutral", "contradiction"),
        (Columns("premise", "hypothesis", "label"), Columns(*_SENTENCES, "gold_label")),
        config="mnli",
        hub_splits=("train", f"validation_{matching}"),
        mismatched=matching == "mismatched",
        skipped_label="-",
    )


PRESETS: tuple[Preset, ...] = (
    Preset(
        "cola",
        "classification",
        "accuracy",  # the paper's figures; its tables have the Matthews correlation
        ("mcc",),
        ("unacceptable", "acceptable"),
        (Columns("sentence", None, "label"), Columns("3", None, "1")),
        config="cola",
    ),
    _glue("sst2", "accuracy", ("negative", "positive"), ("sentence", None, "label")),
    _glue(
        "mrpc",
        "f1",
        ("not_equivalent", "equivalent"),
        (*_SENTENCES, "label"),
        ("#1 String", "#2 String", "Quality"),
    ),
    _glue("stsb", "spearman", (), (*_SENTENCES, "label"), (*_SENTENCES, "score")),
    _glue(
        "qqp",
        "f1",
        ("not_duplicate", "duplicate"),
        ("question1", "question2", "label"),
        ("question1", "question2", "is_duplicate"),
    ),
    _mnli("mnli", "matched"),
    _mnli("mnli-mm", "mismatched"),
    _glue("qnli", "accuracy", ("entailment", "not_entailment"), ("question", "sentence", "label")),
    _glue("rte", "accuracy", ("entailment", "not_entailment"), (*_SENTENCES, "label")),
    Preset(
        "squad",
        "extractive",
        "squad_f1",
        ("squad_f1", "exact_match"),
        (),
        (Columns(*QUESTION_COLUMNS[1:]),),
        hub="rajpurkar/squad",
        config="plain_text",
    ),
)
_ALIASES = {
    "sst-2": "sst2",
    "sts-b": "stsb",
    "mnli-m": "mnli",
    "mnli-matched": "mnli",
    "mnli-mismatched": "mnli-mm",
}


def preset_named(name: str) -> Preset | None:
    """The preset that a name means, or None.

    ``cola``, ``CoLA``, ``glue/cola`` and ``nyu-mll/glue/cola`` mean one.
    """
    owner, _, short = name.lower().replace("_", "-").rpartition("/")
    short = _ALIASES.get(short, short)
    preset = next((preset for preset in PRESETS if preset.name == short), None)
    owners = ("", "glue", GLUE) if preset is not None and preset.hub == GLUE else ("", "rajpurkar")
    return preset if owner in owners else None


def find_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        DataError: there is none.
    """
    preset = preset_named(name)
    if preset is None:
        raise DataError(f"unknown task {name!r}; known by name: {', '.join(p.name for p in PRESETS)}")
    return preset


def table_metrics(task: TaskSpec) -> tuple[str, ...]:
    """The metrics that a table reports of a task, most important first."""
    if task.preset is not None:
        return find_preset(task.preset).table_metrics
    own = find_preset("squad").table_metrics if task.kind == "extractive" else (task.metric,)
    return own if task.metric in own else (task.metric, *own)


def hub_files(preset: Preset) -> dict[str, tuple[str, ...]]:
    """Train and validation split on the hub, at the newest commit where the hub can be asked for it."""
    commit = newest_commit(preset.hub)
    splits = zip(("train", "validation"), preset.hub_splits)
    return {ours: (str(HubSplit(preset.hub, preset.config, theirs, commit)),) for ours, theirs in splits}


def preset_files(preset: Preset, folder: str | Path, splits: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """The files of a preset's training and validation split in a folder.

    GLUE's test files are left out, as their labels are hidden. The raw MRPC corpus has no validation split;
    its test file, which is labelled, is validated on.

    Args:
        preset: the task.
        folder: where to look.
        splits: the splits wanted; none but train and validation are looked for.

    Raises:
        DataError: as `find_files`, or the only validation file is of MNLI's other genres.
    """
    wanted = [split for split in ("train", "validation") if split in splits]
    found = find_files(folder, wanted, preset.mismatched)
    if "validation" in wanted and "validation" not in found:
        tests = find_files(folder, ("test",)).get("test", ())
        if any(path.suffix == ".txt" for path in tests):
            found["validation"] = tests
    other = "matched" if preset.mismatched else "mismatched"
    for path in found.get("validation", ()):
        if other in split_words(path.name):
            raise DataError(f"{path}: task {preset.name!r} is not validated on the {other} genres")
    return found


def preset_columns(preset: Preset, rows: Rows) -> Columns:
    """Which of a preset's layouts a file has.

    Raises:
        DataError: none of them.
    """
    for layout in preset.layouts:
        if set(layout.names) <= set(rows.names):
            return layout
    wanted = " or ".join(f"({', '.join(layout.names)})" for layout in preset.layouts)
    raise DataError(
        f"{rows.path}: expected the columns of {preset.name}, {wanted}; columns found: {listed(rows.names)}"
    )
