"""`adapter_probe.json`: what a checkpoint folder says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from adapter_probe.data.tasks import TaskSpec
from adapter_probe.errors import AdapterProbeError, CheckpointError, ResultsError
from adapter_probe.models.adapters.imported import Imported
from adapter_probe.models.methods import Method, method_from_json
from adapter_probe.records import from_record
from adapter_probe.results.atomic import read_json, write_json

from .base import BaseIdentity

DESCRIPTION = "adapter_probe.json"
SCHEMA = 1


def _method_from_json(record: object) -> Method | Imported:
    if isinstance(record, Mapping) and record.get("name") == Imported.name:
        return from_record(Imported, {k: v for k, v in record.items() if k != "name"}, "method")
    return method_from_json(record)


_READERS = {"method": _method_from_json, "task": TaskSpec.from_json}


@dataclass(frozen=True)
class Description:
    """A checkpoint's own account of itself.

    Attributes:
        method: what was added and trained.
        base: the model it stands on.
        task: its data, labels and metric.
        max_length: most tokens an example was cut to.
        training: the settings that trained it, as plain JSON.
        scores: validation scores by metric name, as fractions; None where undefined.
        versions: of the libraries that wrote it.
        delta_sha256: of the bytes of ``delta.safetensors``.
    """

    method: Method | Imported
    base: BaseIdentity
    task: TaskSpec
    max_length: int
    delta_sha256: str
    training: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float | None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise CheckpointError(f"max_length {self.max_length} is not allowed; at least 1 token is needed")


def write_description(folder: Path, description: Description) -> None:
    """Write ``adapter_probe.json``; the folder is a checkpoint from then on."""
    nested = {"method", "base", "task"}
    plain = {f.name: getattr(description, f.name) for f in fields(description) if f.name not in nested}
    write_json(
        folder / DESCRIPTION,
        {
            "schema": SCHEMA,
            "method": description.method.to_json(),
            "base": asdict(description.base),
            "task": description.task.to_json(),
            **plain,
        },
    )


def read_description(folder: Path) -> Description:
    """Read and check ``adapter_probe.json``.

    Raises:
        CheckpointError: no such folder or file, another schema, or a field that is missing or unfit.
    """
    path = folder / DESCRIPTION
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint {folder}: no such folder")
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a checkpoint: it has no {DESCRIPTION}")
    try:
        document = read_json(path)
    except ResultsError as error:  # names the file itself
        raise CheckpointError(str(error)) from error
    if (schema := document.pop("schema", None)) != SCHEMA:
        raise CheckpointError(
            f"{path}: schema {schema!r}; this version reads schema {SCHEMA} only, upgrade adapter-probe"
        )
    try:
        return from_record(Description, document, readers=_READERS)
    except AdapterProbeError as error:
        raise CheckpointError(f"{path}: {error}") from error
