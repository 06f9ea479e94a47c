"""Open a checkpoint of any supported library, recognised by the files in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import torch

from adapter_probe.errors import CheckpointError, ModelError, one_line
from adapter_probe.reads import report
from adapter_probe.replay.several import split_adapters
from adapter_probe.results.fingerprints import hash_files, hash_json

from . import adapter_bert, adapterhub
from .adapter_folder import choose_adapter, only_adapter
from .base import Load, load_any_base
from .base_config import method_of, place_of_base, quiet_quantisers, read_fields
from .embedding import Embedding, Pooling, of_library
from .files import CONFIG, DESCRIPTION, MODULES, checkpoint_files, is_own, read_json_file
from .finetuned import is_whole_model, open_whole_model
from .mlx import as_peft, naming
from .native import with_record
from .opened_peft import OpenedPeft, OpenedPlaced
from .peft_fields import refuse_unswitched


def open_any(
    folder: str | Path,
    base: str | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    load: Load = load_any_base,
    dequantise: bool = False,
) -> OpenedPeft:
    """Open a checkpoint on its base.

    Args:
        folder: checkpoint folder, of this project or another library.
        base: folder or hub id to use instead of the recorded base, which may have moved.
        dtype: precision of the model in memory; the base is read once.
        load: loads the base, such as `SharedBase.load`, which keeps it for other checkpoints.
        dequantise: whether the weights of a quantised base are dequantised while they are loaded.

    Raises:
        CheckpointError: no checkpoint, damaged files, parts that are not supported, a base that is missing
            or does not fit, or nothing to dequantise.
    """
    folder = Path(folder)
    if folder.is_dir():
        report("checkpoint", lambda: checkpoint_files(folder))
        if (translated := as_peft(folder, base)).notes:
            with naming(translated.folder, folder):
                opened = open_any(
                    translated.folder, base, dtype=dtype, load=load, dequantise=dequantise,
                )  # fmt: skip
            return replace(opened, notes=(*translated.notes, *opened.notes))
    if folder.is_dir() and is_whole_model(folder) and not adapter_bert.is_in(folder) and not dequantise:
        return open_whole_model(folder, base, dtype)
    own = is_own(folder) or not folder.is_dir()  # reading its description says what a missing folder lacks
    inside, library = (folder, None) if own else _recognise(folder)
    if not own and library is None and (not dequantise or _base_is_quantised(inside, base)):
        load = partial(load_any_base, dequantise=True) if dequantise else load
        with quiet_quantisers():
            from .peft_opening import open_with_peft
        above = folder.absolute().parent
        given = above if inside == folder and (above / CONFIG).is_file() else folder
        opened = open_with_peft(inside, base, dtype=dtype, given=given, load=load)
        about = with_record(folder, opened.description, opened.description.delta_sha256)
        return replace(opened, description=about, dequantised=dequantise)
    if dequantise:
        raise CheckpointError(
            f"--dequantise applies only to a quantised base; that of checkpoint {folder} is stored in full"
        )
    with quiet_quantisers():
        from .placed_opening import open_foreign, open_own
    if library is None:
        return open_own(folder, base, dtype, load)
    return open_foreign(inside, library, base, dtype, load)


def _base_is_quantised(folder: Path, base: str | None) -> bool:
    """Whether the base of a checkpoint of PEFT, or the one that is used instead, is stored quantised."""
    document = read_json_file(folder / CONFIG)
    refuse_unswitched(folder, document)
    place = place_of_base(folder, document.get("base_model_name_or_path"), document.get("revision"), base)
    return bool(method_of(read_fields(*place)[2]))


def _recognise(folder: Path) -> tuple[Path, ModuleType | None]:
    """The folder itself, or its only subfolder with an adapter, and the module that reads its format.

    PEFT's format, which PEFT reads, has none.
    """
    if not (folder / CONFIG).is_file():
        if adapter_bert.is_in(folder):
            return folder, adapter_bert
        inside = only_adapter(folder)
        if inside is None:
            raise CheckpointError(
                f"{folder} is not a checkpoint: it contains neither {DESCRIPTION} nor {CONFIG}, nor "
                f"TensorFlow's *{adapter_bert.INDEX}"
            )
        folder = inside
        adapterhub.refuse_composed(folder, folder.name)
    document = read_json_file(folder / CONFIG)
    if "peft_type" in document:
        return folder, None
    if "config" in document:
        return folder, adapterhub
    raise CheckpointError(
        f"{folder / CONFIG} is neither from AdapterHub (no 'config') nor from PEFT (no 'peft_type') nor from "
        "MLX-LM (no 'lora_parameters')"
    )


def open_several(
    folder: Path, names: Sequence[str], base: str | None, dequantise: bool = False
) -> OpenedPeft:
    """Open adapters below a folder, each of which is checked by itself, as one model with all of them active.

    Raises:
        CheckpointError: one is missing, named twice, or cannot be opened, or PEFT cannot run all of them at
            once on one base.
    """
    from .peft_loading import ADAPTER  # which imports PEFT, in seconds

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


def with_embedding(opened: OpenedPeft, pooling: str | None) -> OpenedPeft:
    """An open checkpoint with what makes embeddings; any that is not of embeddings as it is.

    Args:
        pooling: ``mean``, ``cls`` or ``last``; None for that of sentence-transformers in the folder.

    Raises:
        CheckpointError: the pooling is neither given nor in the folder, or both, or cannot be loaded.
    """
    folder = opened.folder if (opened.folder / MODULES).is_file() else opened.folder.parent
    listed_there = (folder / MODULES).is_file()
    trained = opened.description.training.get("pooling")
    if opened.head != "features":
        if pooling is not None:
            raise CheckpointError(
                f"--pooling {pooling} applies only to embeddings; checkpoint {opened.folder} has a head"
            )
        return opened
    if pooling is None and trained is None and not listed_there:
        raise CheckpointError(
            f"checkpoint {opened.folder} is of embeddings and does not say how they are pooled; give "
            "--pooling mean, cls or last"
        )
    if pooling not in (None, trained) and (listed_there or trained):
        source = f"{folder / MODULES} says" if listed_there else f"the training of {opened.folder} recorded"
        raise CheckpointError(f"{source} how embeddings are pooled; omit --pooling {pooling}")
    if not listed_there:
        return replace(opened, embedding=Embedding((Pooling(str(pooling or trained)),)))
    embedding, limit, files = of_library(folder)
    said = opened.description
    found = replace(
        said, delta_sha256=hash_json([said.delta_sha256, hash_files(files)]),
        max_length=min(said.max_length, limit or said.max_length),
    )  # fmt: skip
    return replace(opened, embedding=embedding, description=found)
