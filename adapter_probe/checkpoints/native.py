"""This project's checkpoint format: a folder with `adapter_probe.json` and `delta.safetensors`.

The delta contains exactly the tensors that differ from the base, under their names in the model's state dict:
adapters, trained LayerNorms, the head, and parameters that the base lacks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from adapter_probe.errors import CheckpointError, reason_of
from adapter_probe.results.atomic import make_folder, write_bytes
from adapter_probe.results.fingerprints import describe_changes, list_changes
from adapter_probe.version import __version__

from .base_config import AnyBase, config_changes
from .description import Description, write_description
from .files import DELTA, DESCRIPTION, check_values, refuse_irregular
from .identity import BaseIdentity


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


def other_base(folder: Path, recorded: BaseIdentity, found: BaseIdentity) -> CheckpointError:
    """The error for a base with other weights than the recorded one."""
    return CheckpointError(
        f"the weights of base {found.name} differ from those of the base that {folder} was trained on, "
        f"{recorded.name} (sha256 {found.weights_sha256[:12]}, wanted {recorded.weights_sha256[:12]})"
    )


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
