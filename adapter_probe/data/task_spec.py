"""Description of a task: kind, classes, columns, metric, and sources of its rows."""

from __future__ import annotations

from dataclasses import dataclass

from adapter_probe.data.forms import columns_named
from adapter_probe.data.readers import SPLITS
from adapter_probe.data.rows import is_text
from adapter_probe.errors import AdapterProbeError, DataError, shown
from adapter_probe.kinds.table import about_kind
from adapter_probe.kinds.task import TaskKind
from adapter_probe.known_tasks import KNOWN_TASKS
from adapter_probe.metrics import Kind, check_metric
from adapter_probe.records import from_record, to_record

_LONGEST_NAME = 255  # bytes of a folder's name, on every common file system


@dataclass(frozen=True)
class Columns:
    """The columns of the text, the second text of a pair (or None) and the label (empty for texts alone).

    For question answering: the question, its context, and the answers.
    """

    text: str
    text_b: str | None
    label: str

    @property
    def names(self) -> tuple[str, ...]:
        """The columns in use."""
        return tuple(name for name in (self.text, self.text_b, self.label) if name)


RAW_COLA = Columns("3", None, "1")
"""Those of CoLA's own files, which have no header."""


@dataclass(frozen=True)
class TaskSpec:
    """A task: everything that determines its rows and their scoring.

    Attributes:
        name: display name; nothing depends on it.
        kind: classification, also of tokens or with several labels, regression, or extractive question
            answering.
        metric: the task's score, see `adapter_probe.metrics`.
        label_names: the classes, in the order of the head's outputs; empty for the other kinds.
        columns: columns of texts and labels in the files.
        files: split to its sources, read in this order: absolute paths, or splits on the Hugging Face Hub as
            `adapter_probe.data.hub.HubSplit` writes them (``hub:nyu-mll/glue:cola:validation@<commit>``).
        fingerprints: split to the SHA-256 of its texts and labels in order, independent of file paths.
        preset: the named task whose conventions the rows follow (0 and 1 standing for which class), see
            `adapter_probe.data.presets`; None for any other task.
        encoding: text encoding of the files.
        validation_share: share of the training files' rows that make the validation split; 0 where it has
            separate files.
        reads: the columns of the files that are meant, see `adapter_probe.data.forms.columns_named`; empty
            for all, under their own names.
    """

    name: str
    kind: Kind
    metric: str
    label_names: tuple[str, ...]
    columns: Columns
    files: dict[str, tuple[str, ...]]
    fingerprints: dict[str, str]
    preset: str | None = None
    encoding: str = "utf-8"
    validation_share: float = 0.0
    reads: tuple[str, ...] = ()

    @property
    def about(self) -> TaskKind:
        """What its kind is."""
        return about_kind(self.kind)

    def to_json(self) -> dict[str, object]:
        """The task as plain JSON, to be read by `from_json`. Default values may be left out."""
        usual = {"encoding": "utf-8", "validation_share": 0.0, "reads": []}
        return {name: value for name, value in to_record(self).items() if value != usual.get(name)}

    @classmethod
    def from_json(cls, record: object, source: str = "task") -> TaskSpec:
        """Read the output of `to_json`, including that of versions without presets."""
        try:
            spec = from_record(cls, record)
            check_name(spec.name)
            check_metric(spec.metric, spec.kind, len(spec.label_names) or None)
            for holds, name, value, wanted in _expected(spec):
                _expect(holds, name, value, wanted)
            columns_named(spec.reads)
        except AdapterProbeError as error:
            raise DataError(f"{source}: {error}") from None
        return spec


def _expected(spec: TaskSpec) -> tuple[tuple[bool, str, object, str], ...]:
    """What has to hold of a record: the condition, the field, its value, and what is expected."""
    names, splits = spec.label_names, list(spec.files)
    fits = len(names) >= 2 and len(set(names)) == len(names) if spec.about.has_classes else not names
    empty = [split for split, entries in spec.files.items() if not entries]
    share, prints = spec.validation_share, list(spec.fingerprints)
    return (
        (fits, "label_names", list(names), "two or more different names, or none for regression and question "
         "answering"),
        (spec.preset in (None, *KNOWN_TASKS), "preset", spec.preset, f"one of {', '.join(KNOWN_TASKS)}"),
        (bool(splits) and {*splits} <= {*SPLITS}, "files", splits, f"splits out of {', '.join(SPLITS)}"),
        (not empty, "files", dict.fromkeys(empty, ()), "one or more sources for every split"),
        ({*prints} == {*splits}, "fingerprints", prints, "the same splits as in files"),
        (0 <= share < 1, "validation_share", share, "a number from 0 to below 1"),
    )  # fmt: skip


def check_name(name: str) -> None:
    """Check the name of a task, which figures print and folders are named after."""
    fits = is_text(name) and name.isprintable() and 0 < len(name.encode()) <= _LONGEST_NAME
    _expect(fits, "name", name, f"1 to {_LONGEST_NAME} bytes of printable characters")


def _expect(holds: bool, field: str, value: object, expected: str) -> None:
    if not holds:
        raise DataError(f"{field} is {shown(value)}, expected {expected}")
