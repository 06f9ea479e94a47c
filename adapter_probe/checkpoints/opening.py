"""Open a checkpoint of any supported library, recognised by the files in its folder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import torch

from adapter_probe.data.spec import TaskSpec
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.metrics import default_metric
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.bases.anatomy import length_limit
from adapter_probe.models.bases.family import Anatomy
from adapter_probe.reads import report

from . import adapter_bert, adapterhub, native
from .adapter_folder import only_adapter
from .any_base import load_any_base
from .base import LoadedBase, load_base, load_tokenizer
from .base_config import FoundBase, find_base, place_of_base, read_fields
from .description import Description, read_description
from .engines import EngineChoice, choose_engine, choose_placed
from .files import CONFIG, DESCRIPTION, checkpoint_files, is_own, read_json_file, refuse_other_tensors
from .foreign import BaseShape, ForeignCheckpoint, TranslatedCheckpoint, names_of_outputs
from .identity import tokenizer_parts
from .kinds import kind_of_base
from .mlx import as_peft, naming
from .native import OpenedCheckpoint
from .opened_peft import NO_COLUMNS, OpenedPeft, OpenedPlaced
from .peft_fields import refuse_unswitched
from .places import places_of
from .quantised import quiet_quantisers
from .shared import SharedBase


def open_any(
    folder: str | Path,
    base: str | None = None,
    *,
    anatomy: Anatomy | None = None,
    dtype: torch.dtype = torch.float32,
    shared: SharedBase | None = None,
    dequantise: bool = False,
) -> OpenedCheckpoint | OpenedPeft:
    """Open a checkpoint for the engine that runs it; see `choose_engine`.

    Args:
        folder: checkpoint folder, of this project or another library.
        base: folder or hub id to use instead of the recorded base.
        anatomy: see `open_checkpoint`.
        dtype: precision of the model in memory.
        shared: see `open_checkpoint`.
        dequantise: whether the weights of a quantised base are dequantised while they are loaded.

    Raises:
        CheckpointError: see `open_checkpoint` and `open_with_peft`; or there is nothing to dequantise.
    """
    folder = Path(folder)
    if folder.is_dir():
        report("checkpoint", lambda: checkpoint_files(folder))
        if (translated := as_peft(folder, base)).notes:
            with naming(translated.folder, folder):
                opened = open_any(
                    translated.folder,
                    base,
                    anatomy=anatomy,
                    dtype=dtype,
                    shared=shared,
                    dequantise=dequantise,
                )
            return replace(opened, notes=(*translated.notes, *opened.notes))
    if anatomy is None and not dequantise and (placed := _open_placed(folder, base, dtype, shared)):
        return placed
    if folder.is_dir() and not is_own(folder):
        inside, library = _recognise(folder)
        if library is None:
            if anatomy is not None:
                raise ModelError(
                    f"checkpoint {folder} is PEFT's, whose model runs by its own modules; omit anatomy"
                )
            engine = engine_of(inside, base)
            if engine.quantised or not dequantise:
                return _open_peft(folder, inside, base, engine, dtype, shared, dequantise)
    if dequantise:
        raise CheckpointError(
            f"--dequantise applies only to a quantised base; that of checkpoint {folder} is stored in full"
        )
    return open_checkpoint(folder, base, anatomy=anatomy, dtype=dtype, shared=shared)


def _open_placed(
    folder: Path, base: str | None, dtype: torch.dtype, shared: SharedBase | None
) -> OpenedPlaced | None:
    """A checkpoint of this project or of AdapterHub that the general engine runs; None for all others.

    Raises:
        CheckpointError: see `open_checkpoint`.
    """
    if is_own(folder):
        said = read_description(folder)
        method, family = said.method, said.base.config.get("model_type")
        inside = isinstance(method, ImportedMethod) and bool(method.inner)
    elif not folder.is_dir():
        return None
    else:
        folder, library = _recognise(folder)
        if library is None:
            return None
        family, inside = "bert", False
        if library is adapterhub:
            document = read_json_file(folder / CONFIG)
            inside = adapterhub.parts_of(document, folder).inner is not None
            place = place_of_base(folder, document.get("model_name"), None, base)
            family = read_fields(*place)[2].get("model_type")
    engine = choose_placed(family, inside)
    if engine.name == "packed":
        return None
    with quiet_quantisers():
        from .placed_opening import open_foreign, open_own

    if is_own(folder):
        return open_own(folder, base, dtype, shared, engine.reason)
    assert library is not None, "others are PEFT's"
    return open_foreign(folder, library, base, dtype, shared, engine.reason)


def _open_peft(
    folder: Path,
    inside: Path,
    base: str | None,
    engine: EngineChoice,
    dtype: torch.dtype,
    shared: SharedBase | None,
    dequantise: bool,
) -> OpenedPeft:
    """Open a folder whose files of PEFT are `inside`; arguments as in `open_any`."""
    with quiet_quantisers():
        from .peft_opening import open_with_peft

    load = load_any_base if shared is None else shared.load_any
    reason = engine.reason
    if dequantise:
        load = partial(load_any_base, dequantise=True)
        reason += " and was dequantised while it was loaded"
    above = folder.absolute().parent
    given = above if inside == folder and (above / CONFIG).is_file() else folder
    opened = open_with_peft(inside, base, dtype=dtype, given=given, load=load)
    return _with_record(folder, replace(opened, reason=reason, dequantised=dequantise))


def engine_of(folder: Path, base: str | None) -> EngineChoice:
    """The engine for a checkpoint of PEFT.

    Args:
        folder: the folder with its files.
        base: folder or hub id to use instead of the recorded base.

    Raises:
        CheckpointError: a type without a switch in the layers, or a base that is missing.
    """
    document = read_json_file(folder / CONFIG)
    refuse_unswitched(folder, document)
    place = place_of_base(folder, document.get("base_model_name_or_path"), document.get("revision"), base)
    return choose_engine(document, read_fields(*place)[2])


def open_checkpoint(
    folder: str | Path,
    base: str | None = None,
    *,
    anatomy: Anatomy | None = None,
    dtype: torch.dtype = torch.float32,
    shared: SharedBase | None = None,
) -> OpenedCheckpoint:
    """Open a checkpoint on its base.

    Args:
        folder: checkpoint folder, of this project or another library.
        base: folder or hub id to use instead of the recorded base, which may have moved.
        anatomy: anatomy of the base; None for the one of its family.
        dtype: precision of the model in memory; the base is read once.
        shared: keeps the base in memory for other checkpoints; if it already has one, it is used.

    Raises:
        CheckpointError: no checkpoint, damaged files, parts that are not supported, or a base that is missing
            or does not fit.
        ModelError: the base is of an unsupported family.
    """
    folder = as_peft(Path(folder), base).folder
    if is_own(folder) or not folder.is_dir():
        return native.open_native(folder, base, anatomy, dtype, shared)
    inside, library = _recognise(folder)
    if library is None:
        raise CheckpointError(f"checkpoint {folder} is PEFT's, where one of the packed engine is expected")
    return _open_foreign(library.read(inside), library, base, anatomy, dtype, shared)


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
    if said.base.weights_sha256 != found.base.weights_sha256:
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


def _open_foreign(
    source: ForeignCheckpoint,
    library: ModuleType,
    base: str | None,
    anatomy: Anatomy | None,
    dtype: torch.dtype,
    shared: SharedBase | None,
) -> OpenedCheckpoint:
    found = (shared and shared.found) or _find_base(source, base, anatomy)
    kind = source.kind or kind_of_base(found.config)
    n_outputs = source.n_outputs or {"causal": None, "extractive": 2, "regression": 1}.get(
        kind, int(found.config.num_labels)
    )
    loaded = (load_base if shared is None else shared.load)(found, n_outputs, kind=kind, dtype=dtype)
    shape = BaseShape.of(
        loaded.model, places_of(found.anatomy), found.layer_names, found.anatomy.layer_groups is not None
    )
    translated = library.translate(source, shape)
    own = dict(loaded.model.named_parameters(remove_duplicate=False))
    translated = translated.without_copies(own, found.name)
    tokenizer = (load_tokenizer if shared is None else shared.tokenizer)(found.name, found.revision)
    names = source.label_names
    if kind == "classification" and not names:
        names = names_of_outputs(int(n_outputs or 0), source.folder / "config.json", found.fields)
    model = _build(source, translated, loaded, dtype)
    description = Description(
        method=translated.method,
        base=loaded.identity,
        delta_sha256=source.sha256,
        tokenizer=tokenizer_parts(tokenizer),
        task=TaskSpec(source.name, kind, default_metric(kind), names, NO_COLUMNS, {}, {}),
        max_length=length_limit(None, found.config, tokenizer.model_max_length, found.anatomy),
    )
    return OpenedCheckpoint(
        model,
        tokenizer,
        description,
        frozenset(translated.tensors),
        loaded.missing & {name for name, _ in model.base.named_parameters()},
        translated.notes,
    )


def _find_base(source: ForeignCheckpoint, base: str | None, anatomy: Anatomy | None) -> FoundBase:
    return find_base(*place_of_base(source.folder, source.base, source.revision, base), anatomy)


def _build(
    source: ForeignCheckpoint, translated: TranslatedCheckpoint, loaded: LoadedBase, dtype: torch.dtype
) -> AdaptedModel:
    """The model with all weights; none of its parameters is left at a random initial value.

    Raises:
        CheckpointError: names or shapes do not fit the base, or a parameter would stay random.
    """
    place, on_base = f"checkpoint {source.folder}", f"base {loaded.identity.name}"
    tensors = translated.tensors
    try:
        model = native.make_model(loaded, translated.method, tensors, dtype)
    except ModelError as error:
        raise CheckpointError(f"{place}: {error}") from error
    targets = dict(model.base.named_parameters())
    head = str(model.anatomy.head[-1]) + "." if translated.method.head is not None else None
    empty = {n for n in targets if ".adapter." in n or n in loaded.missing or (head and n.startswith(head))}
    lacks_head = source.n_outputs is None
    refuse_other_tensors(tensors.keys(), targets.keys(), empty, place, on_base, lacks_head)
    native.copy_weights(tensors, targets, place, f"the model on {on_base}")
    return model
