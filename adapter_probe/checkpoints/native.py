"""This project's checkpoint format: a folder with `adapter_probe.json` and `delta.safetensors`.

The delta contains exactly the tensors that differ from the base, under their names in the model's state dict:
adapters, trained LayerNorms, the head, and parameters that the base lacks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adapter_probe.data.spec import TaskSpec
from adapter_probe.errors import CheckpointError, ModelError, reason_of
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.adapters.install import install_head
from adapter_probe.models.bases.family import Anatomy
from adapter_probe.models.methods import Method
from adapter_probe.results.atomic import make_folder, write_bytes
from adapter_probe.results.fingerprints import describe_changes, list_changes
from adapter_probe.version import __version__

from .base import LoadedBase, load_base, load_tokenizer, n_outputs
from .base_config import AnyBase, config_changes, find_base
from .description import Description, read_description, write_description
from .files import DELTA, DESCRIPTION, check_values, first_of, refuse_irregular, refuse_other_shape
from .identity import BaseIdentity, tokenizer_parts
from .own_tokenizer import with_blanks

if TYPE_CHECKING:
    from .shared import SharedBase


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A checkpoint in memory.

    Attributes:
        model: in evaluation mode, on the CPU, in float32.
        tokenizer: tokenizer of the base, or that of the checkpoint.
        description: description of the checkpoint, with the base that was actually used.
        trained: names of the parameters in the delta.
        missing: names of the parameters that the base lacks.
        notes: remarks on a checkpoint of another library, one sentence each.
    """

    model: AdaptedModel
    tokenizer: PreTrainedTokenizerBase
    description: Description
    trained: frozenset[str]
    missing: frozenset[str]
    notes: tuple[str, ...] = ()

    def with_task(self, task: TaskSpec) -> OpenedCheckpoint:
        """The same checkpoint with another task, such as one that its library does not record."""
        return replace(self, description=replace(self.description, task=task))


def library_versions() -> dict[str, str]:
    """Library versions, as recorded in checkpoints and results."""
    return {"adapter_probe": __version__, **{name: version(name) for name in ("torch", "transformers")}}


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], description: Description) -> Path:
    """Write a checkpoint. The description is written last; without it, a folder is not a checkpoint.

    Args:
        folder: output folder, created if missing; an earlier checkpoint in it is replaced.
        tensors: the tensors that differ from the base, by name.
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


def open_native(
    folder: Path, base: str | None, anatomy: Anatomy | None, dtype: torch.dtype, shared: SharedBase | None
) -> OpenedCheckpoint:
    """Open a checkpoint of this format; see `adapter_probe.checkpoints.opening.open_checkpoint`.

    Raises:
        CheckpointError: no checkpoint, damaged or edited files, or a base that is missing or another one.
        ModelError: the base is of an unsupported family.
    """
    description = read_description(folder)
    delta = read_delta(folder, description)
    recorded, task = description.base, description.task
    place = (base, None) if base is not None else (recorded.name, recorded.revision)
    found = (shared and shared.found) or find_base(*place, anatomy)
    refuse_unfit(found, recorded)
    load = load_base if shared is None else shared.load
    loaded = load(found, n_outputs(task), kind=task.kind, dtype=dtype)
    if loaded.identity.weights_sha256 != recorded.weights_sha256:
        raise other_base(folder, recorded, loaded.identity)
    tokenizer = (load_tokenizer if shared is None else shared.tokenizer)(found.name, found.revision)
    if task.kind == "tokens":
        tokenizer = with_blanks((), found.config, tokenizer) or tokenizer
    actual = replace(description, base=loaded.identity, tokenizer=tokenizer_parts(tokenizer))
    refuse_changed(folder, description, actual)
    try:
        model = make_model(loaded, description.method, delta, dtype)
    except ModelError as error:
        raise CheckpointError(f"{folder / DESCRIPTION}: {error}") from error
    path = folder / DELTA
    model.choose_trained(loaded.missing)
    needed = model.named_delta()
    parameters = {**dict(model.base.named_parameters()), **needed}
    if lacking := sorted(needed.keys() - delta.keys()):
        raise CheckpointError(f"{path} lacks {first_of(lacking)}")
    if unknown := sorted(delta.keys() - parameters.keys()):
        raise CheckpointError(f"{path} contains tensors that the model does not have: {first_of(unknown)}")
    copy_weights(delta, parameters, str(path), "the model")
    return OpenedCheckpoint(model, tokenizer, actual, frozenset(delta), loaded.missing)


def other_base(folder: Path, recorded: BaseIdentity, found: BaseIdentity) -> CheckpointError:
    """The error for a base with other weights than the recorded one."""
    return CheckpointError(
        f"the weights of base {found.name} differ from those of the base that {folder} was trained on, "
        f"{recorded.name} (sha256 {found.weights_sha256[:12]}, wanted {recorded.weights_sha256[:12]})"
    )


def make_model(
    loaded: LoadedBase, method: Method | ImportedMethod, tensors: Collection[str], dtype: torch.dtype
) -> AdaptedModel:
    """A base with a checkpoint's method installed, in evaluation mode; weights are not loaded yet.

    Args:
        loaded: the base.
        method: the method to install.
        tensors: names of the tensors that will be loaded.
        dtype: precision of the model.

    Raises:
        ModelError: the method does not fit the base.
    """
    if loaded.shared:  # loaded tensors need separate memory
        for name, parameter in loaded.model.named_parameters():
            if name in tensors:
                parameter.data = parameter.data.clone()
    anatomy, checked = loaded.anatomy, loaded.checked
    if isinstance(method, ImportedMethod) and method.head is not None:
        anatomy, checked = install_head(loaded.model, anatomy, method.head), False
    model = AdaptedModel(loaded.model, anatomy, check=not checked)
    model.install(method, None)
    return model.eval().to(dtype)


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
    """The tensors of a checkpoint of this project.

    Raises:
        CheckpointError: the file is damaged, or not the one that was written.
    """
    path = folder / DELTA
    refuse_irregular(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
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


@torch.no_grad()
def copy_weights(
    tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor], place: str, model: str
) -> None:
    """Copy tensors into parameters of the same names, of a checkpoint and a model that a message names.

    Raises:
        CheckpointError: a tensor has another shape than its parameter.
    """
    for name, tensor in tensors.items():
        refuse_other_shape(name, tensor.shape, targets[name].shape, place, model)
        targets[name].copy_(tensor)
