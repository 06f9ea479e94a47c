"""Checkpoints by name: on the Hugging Face Hub, or in its local cache."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from adapter_probe.errors import CheckpointError, shown

from .files import COMMIT

_TIMEOUT = 10.0  # seconds
_READ = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_READ += ["adapter_model.bin", "pytorch_adapter.bin", "pytorch_model_head.bin"]
"""Files that opening a checkpoint can read."""
_ABOVE = ["*adapter_config.json", "tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.jinja"]
_IN_CACHE = re.compile(r"/models--(?:[^/]*--)?([^/]+)/snapshots/[^/]+((?:/[^/]+)*)\Z")
_TRAINING = ["checkpoint-*/*"]  # of transformers' Trainer, next to the result


def ask_hub(name: str, revision: str | None) -> str | None:
    """The commit of a revision, or None if the hub does not answer; asked once, without retries."""
    from huggingface_hub import HfApi

    try:
        return HfApi().model_info(name, revision=revision, timeout=_TIMEOUT).sha
    except Exception:  # no network, no such name, no access: what the cache holds still counts
        return None


def fetch_checkpoint(name: str, revision: str | None = None, adapter: str | None = None) -> Path:
    """The folder of a checkpoint on the hub: in the local cache, into which it is downloaded if necessary.

    Args:
        name: ``owner/name``.
        revision: commit, branch or tag; by default the newest commit of the main branch. A full commit that
            is in the cache is not asked for.
        adapter: the only subfolder to download, with the tokenizer above it and the small configurations of
            the other adapters, by which `adapter_folder` tells what it is.

    Raises:
        CheckpointError: neither the hub nor the cache has it.
    """
    from huggingface_hub import snapshot_download

    patterns = _READ if adapter is None else [*_ABOVE, *(f"{adapter}/{one}" for one in _READ)]
    ignored = [] if (adapter or "").startswith("checkpoint-") else _TRAINING
    known, found = revision is not None and COMMIT.fullmatch(revision) is not None, None
    for cached in (True, False) if known else (False, True):
        commit = revision if cached else ask_hub(name, revision)
        if not cached and commit is None:
            continue
        with suppress(Exception):  # of the network, of the cache, or because there is no such revision
            found = Path(
                snapshot_download(
                    name, revision=commit, local_files_only=cached, allow_patterns=patterns,
                    ignore_patterns=ignored,
                )
            )  # fmt: skip
            if adapter is None or (found / adapter).is_dir():  # a cache may have another adapter of a commit
                break
    if found is not None:
        return found
    at = "" if revision is None else f" at revision {shown(revision)}"
    raise CheckpointError(
        f"checkpoint {name}: no such folder, and the Hugging Face Hub could not provide it{at} (no network "
        "and no cached copy, or no such name, or no access)"
    )


def name_of_checkpoint(folder: Path) -> str:
    """What a checkpoint is called: its folder, or in the hub's cache its name without the owner."""
    return name_in_cache(folder) or folder.resolve().name


def name_in_cache(folder: Path) -> str | None:
    """The name, without the owner, of a checkpoint in the hub's cache, with that of one of its adapters.

    None of any other folder.
    """
    found = _IN_CACHE.search(folder.resolve().as_posix())
    return None if found is None else "-".join(filter(None, (found[1], *found[2].split("/"))))
