"""This project's checkpoint format: a folder with `adapter_probe.json` and `delta.safetensors`.

The delta contains exactly the tensors that differ from the base, under their names in the model's state dict:
adapters, trained LayerNorms, the head, and parameters that the base lacks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from adapter_probe.data.task_spec import Columns, TaskSpec
from adapter_probe.errors import AdapterProbeError, CheckpointError, ResultsError, must_be
from adapter_probe.kinds.table import about_kind
from adapter_probe.metrics import Kind, default_metric
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import Method, method_from_json
from adapter_probe.records import from_record
from adapter_probe.results.atomic import make_folder, read_json, write_bytes, write_json
from adapter_probe.results.fingerprints import describe_changes, hash_json, list_changes
from adapter_probe.version import __version__

from .base_config import AnyBase, config_changes
from .files import DELTA, DESCRIPTION, check_values, read_json_file, read_whole, refuse_irregular
from .identity import BaseIdentity, checkpoint_identity
from .model_class import Head

SCHEMA = 2
NO_COLUMNS = Columns("", None, "")
"""Without a recorded task, the columns of a file are inferred."""
_OF_TRAINING = ("task", "max_length", "training")  # what a record adds to another library's format
_MADE_UP = re.compile(r"LABEL_\d+")  # by transformers, for want of a name


def library_versions() -> dict[str, str]:
    """Library versions, as recorded in checkpoints and results."""
    return {"adapter_probe": __version__, **{name: version(name) for name in ("torch", "transformers")}}


def versions_of(quantised: str | None) -> dict[str, str]:
    """The libraries whose code computes the outputs of adapters of other libraries."""
    packages = ("peft", *(("bitsandbytes",) if quantised == "bitsandbytes" else ()))
    return {**library_versions(), **{name: version(name) for name in packages}}


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], description: Description) -> Path:
    """Write a checkpoint. The description is written last; without it, a folder is not a checkpoint.

    Args:
        folder: output folder, created if missing; an earlier checkpoint in it is replaced.
        description: its `delta_sha256` and `versions` are filled in here.
    """
    make_folder(folder)
    with suppress(FileNotFoundError):
        (folder / DESCRIPTION).unlink()
    cpu = {name: t.detach().to("cpu", torch.float32).contiguous() for name, t in sorted(tensors.items())}
    data = safetensors.torch.save(cpu, metadata={"format": "pt"})
    write_bytes(folder / DELTA, data)
    digest = hashlib.sha256(data).hexdigest()
    write_description(folder, replace(description, delta_sha256=digest, versions=library_versions()))
    return folder


def refuse_other_base(folder: Path, recorded: BaseIdentity, found: BaseIdentity) -> None:
    """Refuse a base with other weights than the recorded one, if they were read."""
    if found.weights_sha256 not in ("", recorded.weights_sha256):
        raise CheckpointError(
            f"the weights of base {found.name} differ from those of the base that {folder} was trained on, "
            f"{recorded.name} (sha256 {found.weights_sha256[:12]}, wanted {recorded.weights_sha256[:12]})"
        )


def with_record(folder: Path, found: Description, digest: str, *more: str) -> Description:
    """The description of a checkpoint in another format, with what the record of its training here says.

    Args:
        folder: the folder, whose record may be missing.
        found: the description without it.
        digest: SHA-256 of the files that it is of.
        more: what is taken from it apart from task, limit of tokens, training and scores.

    Raises:
        CheckpointError: the files have changed since then, or the base is another one.
    """
    if not (folder / DESCRIPTION).is_file():
        return found
    said = read_description(folder)
    if said.delta_sha256 != digest:
        raise CheckpointError(
            f"{folder} was changed after it was written: its files do not match the sha256 in {DESCRIPTION}"
        )
    refuse_other_base(folder, said.base, found.base)
    return replace(found, **{name: getattr(said, name) for name in (*_OF_TRAINING, "scores", *more)})


def keep_record(
    folder: Path, found: Description, source: Path, said: Description, scores: Mapping[str, float | None]
) -> None:
    """Write beside a new checkpoint in another format the record that the one it was made from has.

    Args:
        found: its description without the record.
        source: the checkpoint that it was made from.
        scores: validation scores of the new one, empty if they are not known.
    """
    if (source / DESCRIPTION).is_file():
        kept = {name: getattr(said, name) for name in _OF_TRAINING}
        write_description(folder, replace(found, **kept, scores=dict(scores), versions=library_versions()))


def refuse_unfit(found: AnyBase, expected: BaseIdentity) -> None:
    """Refuse a base that cannot fit, before its weights are read."""
    config = found.config
    for what, got, wanted in (
        ("layers", config.num_hidden_layers, expected.n_layers),
        ("hidden units", config.hidden_size, expected.hidden_size),
        ("vocabulary entries", config.vocab_size, expected.vocab_size),
    ):
        if got != wanted:
            raise CheckpointError(
                f"base {found.name} has {got} {what}; the checkpoint was trained on a base with {wanted}"
            )


def refuse_changed(folder: Path, remembered: Description, found: Description) -> None:
    """Refuse a base whose config.json or tokenizer has changed since the checkpoint was written."""
    changes = [f"config.json, {c}" for c in config_changes(remembered.base.config, found.base.config)]
    if remembered.tokenizer:
        changes += [f"tokenizer, {c}" for c in describe_changes(remembered.tokenizer, found.tokenizer)]
    if changes:
        raise CheckpointError(
            f"base {found.base.name} has changed since {folder} was written: {list_changes(changes)}; "
            "restore it, or give the original base with --base"
        )


def read_delta(folder: Path, description: Description) -> dict[str, Tensor]:
    """The tensors of a checkpoint of this project."""
    path = folder / DELTA
    data = read_whole(path)
    if hashlib.sha256(data).hexdigest() != description.delta_sha256:
        raise CheckpointError(
            f"{path} is damaged or was changed after it was written: its {len(data):,} bytes do not match "
            f"the sha256 in {DESCRIPTION}"
        )
    try:
        delta = safetensors.torch.load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error
    for name, tensor in delta.items():
        check_values(path, name, tensor)
    return delta


def _method_from_json(record: object) -> Method | ImportedMethod:
    if isinstance(record, Mapping) and record.get("name") == ImportedMethod.name:
        return from_record(ImportedMethod, {k: v for k, v in record.items() if k != "name"}, "method")
    return method_from_json(record)


_READERS = {"method": _method_from_json, "task": TaskSpec.from_json}


@dataclass(frozen=True)
class Description:
    """The description of a checkpoint.

    Attributes:
        task: data, labels and metric of the task.
        max_length: number of tokens that examples were truncated to.
        scores: validation scores by metric name, as fractions; None if undefined.
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


def task_of(name: str, head: Head, n_outputs: int, own: Path, base: Mapping[str, Any]) -> TaskSpec:
    """The task of a checkpoint that records none; its labels are the `names_of_outputs`."""
    kind: Kind = {"seq2seq": "causal", "features": "embedding"}.get(head, head)  # type: ignore[assignment]
    about = about_kind(kind)
    if about.is_number and n_outputs > 1:
        raise CheckpointError(
            f"{name} gives {n_outputs} numbers for a text (problem_type regression), and rows of files have "
            "one each; from Python, give the model to adapter_probe.ablate with batches=, labels= and metric="
        )
    labels = names_of_outputs(n_outputs, own, base) if about.has_classes else ()
    return TaskSpec(name, kind, default_metric(kind), labels, NO_COLUMNS, {}, {})


def names_of_outputs(n_outputs: int, own: Path, base: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a head's outputs, from the first configuration that has real ones; else their numbers.

    Args:
        own: the config.json beside the checkpoint; it may be missing.
    """
    for document in (read_json_file(own) if own.is_file() else {}, base):
        named = document.get("id2label")
        names = [named.get(str(number)) for number in range(n_outputs)] if isinstance(named, dict) else []
        real = all(isinstance(name, str) and name.strip() and not _MADE_UP.fullmatch(name) for name in names)
        if real and len(named or ()) == n_outputs == len(set(names)):
            return tuple(names)
    return tuple(map(str, range(n_outputs)))
