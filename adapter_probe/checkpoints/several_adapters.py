"""Several adapters of PEFT below one folder, all active on one base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from adapter_probe.errors import CheckpointError, ModelError, one_line
from adapter_probe.replay.several import split_adapters
from adapter_probe.results.fingerprints import hash_json

from .adapter_folder import choose_adapter
from .opened_peft import OpenedPeft, OpenedPlaced
from .opening import open_any
from .peft_loading import ADAPTER


def open_several(
    folder: Path, names: Sequence[str], base: str | None, dequantise: bool = False
) -> OpenedPeft:
    """Open adapters below a folder, each of which is checked by itself, as one model with all of them active.

    Args:
        folder: the folder.
        names: the adapters' subfolders.
        base: folder or hub id to use instead of the recorded base.
        dequantise: see `open_any`.

    Raises:
        CheckpointError: one is missing, named twice, or cannot be opened, or PEFT cannot run all of them at
            once on one base.
    """
    if len(set(names)) < len(names):
        raise CheckpointError(f"--adapter {','.join(names)} names an adapter twice")
    folders = [choose_adapter(folder, name) for name in names]
    first, hashes = None, []
    for place in folders:
        opened = open_any(place, base, dequantise=dequantise)
        if isinstance(opened, OpenedPlaced):
            raise CheckpointError(f"{place} is no checkpoint of PEFT, of which alone several can be active")
        hashes.append(opened.description.delta_sha256)
        first = first or opened
        if opened.description.base != first.description.base or opened.head != first.head:
            raise CheckpointError(f"{place} and {first.folder} are not for one base and one task")
    assert first is not None, "there are several"
    own = {ADAPTER: names[0]} | {f"adapter{number}": name for number, name in enumerate(names[1:], start=1)}
    try:
        for adapter, place in zip(list(own)[1:], folders[1:]):
            first.model.load_adapter(str(place), adapter, torch_device="cpu")
        first.model.base_model.set_adapter(list(own))
        first.model.requires_grad_(False).eval()
        split_adapters(first.model, own)
    except (ModelError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: --adapter {','.join(names)}: {one_line(error)}") from error
    about = replace(first.description, delta_sha256=hash_json([list(names), hashes]))
    return replace(first, description=about, folder=folder)
