"""Description of a task: kind, classes, columns, metric, and sources of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from adapter_probe.data.readers import SPLITS, shown
from adapter_probe.errors import DataError
from adapter_probe.metrics import Kind, check_metric


@dataclass(frozen=True)
class Columns:
    """The columns of the text, the second text of a pair (or None) and the label.

    For question answering: the question, its context, and the answers.
    """

    text: str
    text_b: str | None
    label: str

    @property
    def names(self) -> tuple[str, ...]:
        """The columns in use."""
        return tuple(name for name in (self.text, self.text_b, self.label) if name is not None)


@dataclass(frozen=True)
class TaskSpec:
    """A task: everything that determines its rows and their scoring.

    Attributes:
        name: display name; nothing depends on it.
        kind: classification, regression, or extractive question answering.
        metric: the task's score, see `adapter_probe.metrics`.
        label_names: the classes, in the order of the head's outputs; empty for the other kinds.
        columns: columns of texts and labels in the files.
        files: split to its sources, read in this order: absolute paths, or splits on the Hugging Face hub as
            `adapter_probe.data.hub.HubSplit` writes them (``hub:nyu-mll/glue:cola:validation@<commit>``).
        fingerprints: split to the SHA-256 of its texts and labels in order, independent of file paths.
        preset: the named task whose conventions the rows follow (0 and 1 standing for which class, rows to
            leave out), see `adapter_probe.data.presets`; None for any other task.
        encoding: text encoding of the files.
        validation_share: share of the training files' rows that make the validation split; 0 where it has
            separate files.
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

    def to_json(self) -> dict[str, object]:
        """The task as plain JSON, to be read by `from_json`. Default values may be left out."""
        usual = {"encoding": "utf-8", "validation_share": 0.0}
        return {
            **{name: value for name, value in asdict(self).items() if value != usual.get(name)},
            "label_names": list(self.label_names),
            "files": {split: list(paths) for split, paths in self.files.items()},
        }

    @classmethod
    def from_json(cls, record: object, source: str = "task") -> TaskSpec:
        """Read the output of `to_json`, including that of versions without presets.

        Args:
            record: the parsed JSON.
            source: the file it came from, for error messages.

        Raises:
            DataError: a field is missing, of the wrong type, or inconsistent with others.
        """
        _expect(isinstance(record, Mapping), source, "task", record, "an object")
        columns, files, prints = (
            _entry(record, key, dict, source) for key in ("columns", "files", "fingerprints")
        )
        spec = cls(
            name=_entry(record, "name", str, source),
            kind=_entry(record, "kind", str, source),
            metric=_entry(record, "metric", str, source),
            label_names=tuple(_strings(record, "label_names", source)),
            columns=Columns(
                _entry(columns, "text", str, f"{source}: columns"),
                _optional(columns.get("text_b"), source, "columns.text_b"),
                _entry(columns, "label", str, f"{source}: columns"),
            ),
            files={split: tuple(_strings(files, split, f"{source}: files")) for split in files},
            fingerprints={split: _entry(prints, split, str, f"{source}: fingerprints") for split in prints},
            preset=_optional(record.get("preset"), source, "preset"),
            encoding=_optional(record.get("encoding"), source, "encoding") or "utf-8",
            validation_share=_share(record.get("validation_share", 0.0), source),
        )
        _check_spec(spec, source)
        return spec


def _expect(holds: bool, source: str, key: str, value: object, expected: str) -> None:
    if not holds:
        raise DataError(f"{source}: {key} is {shown(value)}, expected {expected}")


def _optional(value: object, source: str, key: str) -> str | None:
    _expect(value is None or isinstance(value, str), source, key, value, "a string or null")
    return value


def _share(value: object, source: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    _expect(number and 0 <= value < 1, source, "validation_share", value, "a number from 0 to below 1")
    return float(value)


def _entry(record: Mapping[str, object], key: str, kind: type, source: str) -> object:
    value = record.get(key)
    _expect(
        isinstance(value, kind), source, key, value, {str: "a string", dict: "an object"}.get(kind, "a list")
    )
    return value


def _strings(record: Mapping[str, object], key: str, source: str) -> list[str]:
    values = _entry(record, key, list, source)
    _expect(all(isinstance(value, str) for value in values), source, key, values, "a list of strings")
    return values


def _check_spec(spec: TaskSpec, source: str) -> None:
    """Checks beyond the types of fields."""
    try:
        check_metric(spec.metric, spec.kind, len(spec.label_names) or None)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    names = spec.label_names
    classes = spec.kind == "classification"
    fits = len(names) >= 2 and len(set(names)) == len(names) if classes else not names
    wanted = "two or more different names, or none for regression and question answering"
    _expect(fits, source, "label_names", list(names), wanted)
    splits = bool(spec.files) and set(spec.files) <= set(SPLITS)
    _expect(splits, source, "files", list(spec.files), f"splits out of {', '.join(SPLITS)}")
    same = set(spec.fingerprints) == set(spec.files)
    _expect(same, source, "fingerprints", list(spec.fingerprints), "the same splits as in files")
