"""Checkpoints by name: on the Hugging Face Hub, or in its local cache."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from adapter_probe.errors import CheckpointError, shown

from .files import COMMIT

_TIMEOUT = 10.0  # seconds
_READ = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_READ += ["adapter_model.bin", "pytorch_adapter.bin", "pytorch_model_head.bin"]
"""Files that opening a checkpoint can read."""
_TRAINING = ["checkpoint-*/*"]  # of transformers' Trainer, next to the result


def ask_hub(name: str, revision: str | None) -> str | None:
    """The commit of a revision, or None if the hub does not answer; asked once, without retries."""
    from huggingface_hub import HfApi

    try:
        return HfApi().model_info(name, revision=revision, timeout=_TIMEOUT).sha
    except Exception:  # no network, no such name, no access: what the cache holds still counts
        return None


def fetch_checkpoint(name: str, revision: str | None = None) -> Path:
    """The folder of a checkpoint on the hub: in the local cache, into which it is downloaded if necessary.

    Args:
        name: ``owner/name``.
        revision: commit, branch or tag; by default the newest commit of the main branch. A full commit that
            is in the cache is not asked for.

    Raises:
        CheckpointError: neither the hub nor the cache has it.
    """
    from huggingface_hub import snapshot_download

    known = revision is not None and COMMIT.fullmatch(revision) is not None
    for cached in (True, False) if known else (False, True):
        commit = revision if cached else ask_hub(name, revision)
        if not cached and commit is None:
            continue
        with suppress(Exception):  # of the network, of the cache, or because there is no such revision
            return Path(
                snapshot_download(
                    name, revision=commit, local_files_only=cached, allow_patterns=_READ,
                    ignore_patterns=_TRAINING,
                )
            )  # fmt: skip
    at = "" if revision is None else f" at revision {shown(revision)}"
    raise CheckpointError(
        f"checkpoint {name}: no such folder, and the Hugging Face Hub could not provide it{at} (no network "
        "and no cached copy, or no such name, or no access)"
    )


def name_of_checkpoint(folder: Path) -> str:
    """What a checkpoint is called: its folder, or in the hub's cache its name without the owner."""
    return name_in_cache(folder) or folder.resolve().name


def name_in_cache(folder: Path) -> str | None:
    """The name, without the owner, of a checkpoint in the hub's cache; None of any other folder."""
    snapshots = folder.resolve().parent
    repository = snapshots.parent.name
    kept = snapshots.name == "snapshots" and repository.startswith("models--")
    return repository.rpartition("--")[2] if kept else None
