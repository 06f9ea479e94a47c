"""Open a checkpoint of any supported library, recognised by the files in its folder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import torch

from adapter_probe.errors import CheckpointError
from adapter_probe.reads import report
from adapter_probe.results.fingerprints import hash_files, hash_json

from . import adapter_bert, adapterhub, native
from .adapter_folder import only_adapter
from .any_base import load_any_base
from .base_config import place_of_base, read_fields
from .description import read_description
from .embedding import Embedding, Pooling, of_library
from .files import CONFIG, DESCRIPTION, MODULES, checkpoint_files, is_own, read_json_file
from .finetuned import is_whole_model, open_whole_model
from .mlx import as_peft, naming
from .opened_peft import OpenedPeft
from .peft_fields import refuse_unswitched
from .quantised import method_of, quiet_quantisers
from .shared import SharedBase


def open_any(
    folder: str | Path,
    base: str | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    shared: SharedBase | None = None,
    dequantise: bool = False,
) -> OpenedPeft:
    """Open a checkpoint on its base.

    Args:
        folder: checkpoint folder, of this project or another library.
        base: folder or hub id to use instead of the recorded base, which may have moved.
        dtype: precision of the model in memory; the base is read once.
        shared: keeps the base in memory for other checkpoints; if it already has one, it is used.
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
                    translated.folder, base, dtype=dtype, shared=shared, dequantise=dequantise,
                )  # fmt: skip
            return replace(opened, notes=(*translated.notes, *opened.notes))
    if folder.is_dir() and is_whole_model(folder) and not adapter_bert.is_in(folder) and not dequantise:
        return open_whole_model(folder, base, dtype)
    own = is_own(folder) or not folder.is_dir()  # reading its description says what a missing folder lacks
    inside, library = (folder, None) if own else _recognise(folder)
    if not own and library is None and (not dequantise or base_is_quantised(inside, base)):
        return _open_peft(folder, inside, base, dtype, shared, dequantise)
    if dequantise:
        raise CheckpointError(
            f"--dequantise applies only to a quantised base; that of checkpoint {folder} is stored in full"
        )
    with quiet_quantisers():
        from .placed_opening import open_foreign, open_own
    if library is None:
        return open_own(folder, base, dtype, shared)
    return open_foreign(inside, library, base, dtype, shared)


def _open_peft(
    folder: Path,
    inside: Path,
    base: str | None,
    dtype: torch.dtype,
    shared: SharedBase | None,
    dequantise: bool,
) -> OpenedPeft:
    """Open a folder whose files of PEFT are `inside`; arguments as in `open_any`."""
    with quiet_quantisers():
        from .peft_opening import open_with_peft

    load = load_any_base if shared is None else shared.load_any
    if dequantise:
        load = partial(load_any_base, dequantise=True)
    above = folder.absolute().parent
    given = above if inside == folder and (above / CONFIG).is_file() else folder
    opened = open_with_peft(inside, base, dtype=dtype, given=given, load=load)
    return _with_record(folder, replace(opened, dequantised=dequantise))


def base_is_quantised(folder: Path, base: str | None) -> bool:
    """Whether the base of a checkpoint of PEFT is stored quantised.

    Args:
        folder: the folder with its files.
        base: folder or hub id to use instead of the recorded base.

    Raises:
        CheckpointError: a type without a switch in the layers, or a base that is missing.
    """
    document = read_json_file(folder / CONFIG)
    refuse_unswitched(folder, document)
    place = place_of_base(folder, document.get("base_model_name_or_path"), document.get("revision"), base)
    return bool(method_of(read_fields(*place)[2]))


def _with_record(folder: Path, opened: OpenedPeft) -> OpenedPeft:
    """A checkpoint of PEFT with the task and the settings of its training, if this project trained it.

    Raises:
        CheckpointError: its files have changed since then, or the base is another one.
    """
    if not (folder / DESCRIPTION).is_file():
        return opened
    said, found = read_description(folder), opened.description
    if said.delta_sha256 != found.delta_sha256:
        raise CheckpointError(
            f"{folder} was changed after it was written: its files do not match the sha256 in {DESCRIPTION}"
        )
    if found.base.weights_sha256 not in ("", said.base.weights_sha256):
        raise native.other_base(folder, said.base, found.base)
    kept = {name: getattr(said, name) for name in ("task", "max_length", "training", "scores")}
    return replace(opened, description=replace(found, **kept))


def _recognise(folder: Path) -> tuple[Path, ModuleType | None]:
    """The folder itself, or its only subfolder with an adapter, and the module that reads its format.

    PEFT's format, which PEFT reads, has none.

    Raises:
        CheckpointError: there are several adapters or none, or their format is unknown.
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
        said = f"{folder / MODULES} says" if listed_there else f"the training of {opened.folder} recorded"
        raise CheckpointError(f"{said} how embeddings are pooled; omit --pooling {pooling}")
    if not listed_there:
        return replace(opened, embedding=Embedding((Pooling(str(pooling or trained)),)))
    embedding, limit, files = of_library(folder)
    said = opened.description
    found = replace(
        said, delta_sha256=hash_json([said.delta_sha256, hash_files(files)]),
        max_length=min(said.max_length, limit or said.max_length),
    )  # fmt: skip
    return replace(opened, embedding=embedding, description=found)
