"""`adapter_probe.json`, the description of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from adapter_probe.data.tasks import TaskSpec
from adapter_probe.errors import AdapterProbeError, CheckpointError, ResultsError, must_be
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import Method, method_from_json
from adapter_probe.records import from_record
from adapter_probe.results.atomic import read_json, write_json
from adapter_probe.results.fingerprints import hash_json

from .files import DESCRIPTION, refuse_irregular
from .identity import BaseIdentity, checkpoint_identity

SCHEMA = 2


def _method_from_json(record: object) -> Method | ImportedMethod:
    if isinstance(record, Mapping) and record.get("name") == ImportedMethod.name:
        return from_record(ImportedMethod, {k: v for k, v in record.items() if k != "name"}, "method")
    return method_from_json(record)


_READERS = {"method": _method_from_json, "task": TaskSpec.from_json}


@dataclass(frozen=True)
class Description:
    """The description of a checkpoint.

    Attributes:
        method: the training method, which determines what was added and trained.
        base: identity of the base model.
        task: data, labels and metric of the task.
        max_length: number of tokens that examples were truncated to.
        training: training settings, as plain JSON.
        scores: validation scores by metric name, as fractions; None if undefined.
        versions: versions of the libraries that wrote it.
        delta_sha256: SHA-256 of the bytes of ``delta.safetensors``.
        method_sha256: SHA-256 of the method's JSON, so that edits are detected; empty until it is written.
        head_sha256: SHA-256 of the meaning of the head's outputs; empty until it is written.
        tokenizer: one hash per part, see `tokenizer_parts`; empty if unknown.
    """

    method: Method | ImportedMethod
    base: BaseIdentity
    task: TaskSpec
    max_length: int
    delta_sha256: str
    training: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float | None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    method_sha256: str = ""
    head_sha256: str = ""
    tokenizer: dict[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything in it that determines a number, see `checkpoint_identity`."""
        return checkpoint_identity(
            {
                "delta_sha256": self.delta_sha256,
                "method": self.method.to_json(),
                "base": asdict(self.base),
                "tokenizer": self.tokenizer,
            }
        )

    def to_json(self) -> dict[str, Any]:
        """The contents of ``adapter_probe.json``."""
        nested = {"method": self.method.to_json(), "base": asdict(self.base), "task": self.task.to_json()}
        return {f.name: nested.get(f.name, getattr(self, f.name)) for f in fields(self)}


def write_description(folder: Path, description: Description) -> None:
    """Write ``adapter_probe.json``, which makes the folder a checkpoint."""
    method, head = hash_json(description.method.to_json()), _hash_head(description.task)
    sealed = replace(description, method_sha256=method, head_sha256=head)
    write_json(folder / DESCRIPTION, {"schema": SCHEMA, **sealed.to_json()})


def read_description(folder: Path) -> Description:
    """Read and check ``adapter_probe.json``.

    Raises:
        CheckpointError: no such folder or file, another schema, or a field that is missing or unfit.
    """
    path = folder / DESCRIPTION
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint {folder}: no such folder")
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a checkpoint: it contains no {DESCRIPTION}")
    refuse_irregular(path)
    try:
        document = read_json(path)
    except ResultsError as error:  # the message names the file
        raise CheckpointError(str(error)) from error
    schema = document.pop("schema", None)
    if schema != SCHEMA:
        raise CheckpointError(
            f"{path}: schema {schema!r}; this version reads schema {SCHEMA} only, upgrade adapter-probe"
        )
    try:
        description = from_record(Description, document, readers=_READERS)
    except AdapterProbeError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if description.max_length < 1:
        raise CheckpointError(must_be(f"{path}: max_length", "at least 1", description.max_length))
    if description.method_sha256 != hash_json(description.method.to_json()):
        raise CheckpointError(
            f"{path}: method was edited after it was written (it does not match "
            "method_sha256); restore the file"
        )
    if description.head_sha256 != _hash_head(description.task):
        raise CheckpointError(
            f"{path}: kind or label_names of its task were edited after it was written (they do not match "
            "head_sha256), so the head's outputs would mean other labels; restore the file"
        )
    return description


def _hash_head(task: TaskSpec) -> str:
    return hash_json({"kind": task.kind, "label_names": task.label_names})
