"""Open a checkpoint of any supported library, recognised by the files in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adapter_probe.errors import CheckpointError, ModelError, one_line
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import Method, TopLayers
from adapter_probe.reads import report
from adapter_probe.replay.recording import base_of
from adapter_probe.replay.several import split_adapters
from adapter_probe.replay.sharing import sharing
from adapter_probe.results.fingerprints import hash_files, hash_json

from . import adapter_bert, adapterhub, native
from .adapter_folder import choose_adapter, hash_contents, only_adapter, read_adapter
from .base import AnyLoaded, Load, limit_length, load_any_base, n_outputs, positions_of, refuse_lost
from .base_config import (
    AnyBase,
    find_any_base,
    method_of,
    note_on_config,
    note_on_unread,
    place_of_base,
    quiet_quantisers,
    read_fields,
)
from .beside import note_on_files
from .embedding import Embedding, Pooling, folder_of_modules, of_library
from .files import (
    CONFIG,
    DELTA,
    DESCRIPTION,
    MODULES,
    checkpoint_files,
    first_of,
    is_own,
    read_json_file,
    refuse_random,
)
from .finetuned import TUNED_IN_PLACE, is_whole_model, open_whole_model, with_base
from .foreign import BaseShape, ForeignCheckpoint
from .identity import config_settings, tokenizer_parts
from .mlx import as_peft, naming
from .model_class import Head, choose_class, head_of_base
from .native import Description, read_description, task_of, versions_of, with_record
from .opened_peft import OpenedFinetuned, OpenedPeft, OpenedPlaced, Shapes, role_of
from .placed import fill, put_method
from .places import places_on
from .tokenizer import load_tokenizer, note_on_settings, with_blanks

if TYPE_CHECKING:
    from peft import PeftModel


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
    opened = _open(folder, base, dtype, load, dequantise)
    whole = isinstance(opened, OpenedFinetuned) and not is_own(folder)
    place = opened.folder if folder in opened.folder.parents else folder  # an adapter in a subfolder
    notes = note_on_files(place, whole)
    settings, own = opened.description.base.config, place / "config.json"
    if own.is_file():
        notes += note_on_config(own, opened.description.base, whole)
        settings = config_settings(read_json_file(own)) if whole else settings
    notes += note_on_unread(settings, base_of(opened.model))
    revision = opened.description.base.revision
    notes += note_on_settings(opened.tokenizer, place, revision, opened.head == "tokens")
    return replace(opened, notes=(*opened.notes, *notes))


def _open(folder: Path, base: str | None, dtype: torch.dtype, load: Load, dequantise: bool) -> OpenedPeft:
    if folder.is_dir():
        translated, notes = as_peft(folder, base)
        if notes:
            with naming(translated, folder):
                opened = _open(translated, base, dtype, load, dequantise)
            return replace(opened, notes=(*notes, *opened.notes))
    if folder.is_dir() and is_whole_model(folder) and not adapter_bert.is_in(folder):
        if dequantise:
            raise CheckpointError(
                f"--dequantise applies only to a quantised base of adapters; checkpoint {folder} is a whole "
                "model"
            )
        return open_whole_model(folder, base, dtype)
    load = partial(load, dtype=dtype, **({"dequantise": True} if dequantise else {}))
    if is_own(folder) or not folder.is_dir():  # reading its description says what a missing folder lacks
        return open_own(folder, base, load)
    inside, library = _recognise(folder)
    if library is not None:
        return open_foreign(inside, library, base, load)
    with quiet_quantisers():
        from .peft_opening import open_with_peft
    above = folder.absolute().parent
    given = above if inside == folder and (above / CONFIG).is_file() else folder
    opened = open_with_peft(inside, base, given=given, load=load)
    about = with_record(folder, opened.description, opened.description.delta_sha256)
    return replace(opened, description=about, dequantised=dequantise)


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
    folder: Path, names: Sequence[str], base: str | None, load: Load, dequantise: bool = False
) -> OpenedPeft:
    """Open adapters below a folder, each of which is checked by itself, as one model with all of them active.

    Raises:
        CheckpointError: one is missing, named twice, or cannot be opened, or PEFT cannot run all of them at
            once on one base.
    """
    from peft import set_peft_model_state_dict  # whose import takes seconds

    from .peft_loading import ADAPTER

    if len(set(names)) < len(names):
        raise CheckpointError(f"--adapter {','.join(names)} names an adapter twice")
    folders = [choose_adapter(folder, name) for name in names]
    first, hashes = None, []
    for place in folders:
        opened = open_any(place, base, load=load, dequantise=dequantise)
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
            if "peft_type" not in read_json_file(place / CONFIG):
                raise CheckpointError(
                    f"{place} is no checkpoint of PEFT, of which alone several can be active; write one "
                    "with adapter-probe convert --to peft"
                )
            first.model.load_adapter(str(place), adapter, torch_device="cpu")
            tensors, said = read_adapter(place)
            if said:  # with the names of wrappers, PEFT finds none of its tensors
                set_peft_model_state_dict(first.model, tensors, adapter)
                first = replace(first, notes=(*first.notes, *(f"{place.name}: {one}" for one in said)))
        _refuse_whole_modules(first.model, folder, names)
        first.model.base_model.set_adapter(list(own))
        first.model.requires_grad_(False).eval()
        split_adapters(first.model, own)
    except (ModelError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: --adapter {','.join(names)}: {one_line(error)}") from error
    about = replace(first.description, delta_sha256=hash_json([list(names), hashes]))
    return replace(first, description=about, folder=folder)


def _refuse_whole_modules(model: PeftModel, folder: Path, names: Sequence[str]) -> None:
    """Refuse several adapters that were each trained with a module of their own, such as a head."""
    from peft.utils.other import ModulesToSaveWrapper

    inside = (m for m in model.get_base_model().named_modules() if isinstance(m[1], ModulesToSaveWrapper))
    if name := next((name for name, module in inside if len(module.modules_to_save) > 1), None):
        raise CheckpointError(
            f"{folder}: --adapter {','.join(names)}: each of these was trained with its own {name} "
            "(modules_to_save), such as a head, of which only one can be active; give one of them"
        )


def with_embedding(opened: OpenedPeft, pooling: str | None) -> OpenedPeft:
    """An open checkpoint with what makes embeddings; any that is not of embeddings as it is.

    Args:
        pooling: ``mean``, ``cls`` or ``last``; None for that of sentence-transformers in the folder.

    Raises:
        CheckpointError: the pooling is neither given nor in the folder, or both, or cannot be loaded.
    """
    folder = folder_of_modules(opened.folder)
    if opened.head != "features":
        if pooling is not None:
            raise CheckpointError(
                f"--pooling {pooling} applies only to embeddings; checkpoint {opened.folder} has a head"
            )
        return opened
    if pooling is None and folder is None:
        raise CheckpointError(
            f"checkpoint {opened.folder} is of embeddings and does not say how they are pooled; give "
            "--pooling mean, cls or last"
        )
    if folder is None:
        return replace(opened, embedding=Embedding((Pooling(str(pooling)),)))
    if pooling is not None:
        raise CheckpointError(f"{folder / MODULES} says how embeddings are pooled; omit --pooling {pooling}")
    embedding, limit, files = of_library(folder)
    embedding.refuse_unable(opened.description.base.hidden_size, folder)
    said, limit = opened.description, limit or opened.tokenizer.model_max_length
    found = replace(
        said, delta_sha256=hash_json([said.delta_sha256, hash_files(files)]),
        max_length=limit_length(positions_of(base_of(opened.model)), limit, said.base.name),
    )  # fmt: skip
    return replace(opened, embedding=embedding, description=found)


_AVERAGES = ("running_mean", "running_var", "num_batches_tracked")  # of batch normalisation: no parameters


def open_foreign(folder: Path, library: ModuleType, base: str | None, load: Load) -> OpenedPlaced:
    """Open a checkpoint of AdapterHub or of adapter-bert, which the module `library` reads."""
    source = library.read(folder)
    found = _find(*place_of_base(folder, source.base, None, base))
    kind = source.kind or ("causal" if head_of_base(found.config) == "causal" else "classification")
    outputs = source.n_outputs or {"causal": None, "extractive": 2, "regression": 1}.get(
        kind, int(found.config.num_labels)
    )
    loaded, shape = _load(found, kind, outputs, load)
    translated = library.translate(source, shape)
    own = dict(loaded.model.named_parameters(remove_duplicate=False))
    translated = translated.without_copies(own, found.name)
    task = task_of(source.name, kind, int(outputs or 0), folder / "config.json", found.fields)
    task = replace(task, label_names=source.label_names or task.label_names)
    tokenizer = load_tokenizer(found.name, found.revision)
    about = Description(
        translated.method,
        loaded.identity,
        task,
        limit_length(loaded.max_length, tokenizer.model_max_length, found.name),
        hash_contents(source.files),
        versions=versions_of(None),
        tokenizer=tokenizer_parts(tokenizer),
    )
    about = with_record(folder, about, about.delta_sha256)
    opened = _put(folder, loaded, shape, about, translated.tensors, tokenizer, source)
    return replace(opened, notes=translated.notes)


def open_own(folder: Path, base: str | None, load: Load) -> OpenedPlaced:
    """Open a checkpoint of this project; see `open_foreign`."""
    said = read_description(folder)
    delta = native.read_delta(folder, said)
    found = _find(*((base, None) if base is not None else (said.base.name, said.base.revision)))
    native.refuse_unfit(found, said.base)
    loaded, shape = _load(found, said.task.kind, n_outputs(said.task), load)
    native.refuse_other_base(folder, said.base, loaded.identity)
    tokenizer = load_tokenizer(found.name, found.revision)
    if said.task.about.of_words:
        tokenizer = with_blanks((), found.config, tokenizer) or tokenizer
    about = replace(said, base=loaded.identity, tokenizer=tokenizer_parts(tokenizer))
    native.refuse_changed(folder, said, about)
    in_layers = isinstance(about.method, TUNED_IN_PLACE) and about.method != TopLayers(0)
    before = sharing(loaded.model) if in_layers else None
    opened = replace(_put(folder / DELTA, loaded, shape, about, delta, tokenizer), folder=folder)
    return opened if before is None else with_base(opened, before)


def _find(name: str, revision: str | None) -> AnyBase:
    """A base of a family that takes bottlenecks."""
    name, revision, fields = read_fields(name, revision)
    # Before a strange configuration is made.
    places_on(name, SimpleNamespace(**{"model_type": None, **fields}))
    found = find_any_base(name, revision)
    if method_of(found.fields):
        raise CheckpointError(
            f"base {found.name} is quantised (quantization_config in its config.json), which is supported "
            "only with adapters of PEFT; give the unquantised model with --base"
        )
    return found


def _load(found: AnyBase, kind: Head, outputs: int | None, load: Load) -> tuple[AnyLoaded, BaseShape]:
    places = places_on(found.name, found.config)
    loaded = load(found, choose_class(found.name, found.config, kind, ()), outputs)
    refuse_lost(loaded, kind == "causal")
    return loaded, BaseShape.of(loaded.model, places)


def _put(
    place: Path,
    loaded: AnyLoaded,
    shape: BaseShape,
    about: Description,
    tensors: Mapping[str, Tensor],
    tokenizer: PreTrainedTokenizerBase,
    source: ForeignCheckpoint | None = None,
) -> OpenedPlaced:
    """The model with all weights; none of its parameters is left at a random initial value."""
    said, on_base = f"checkpoint {place}" if source else str(place), f"base {about.base.name}"
    method: Method | ImportedMethod = about.method
    try:
        targets = put_method(loaded, shape, method, loaded.model.dtype)
    except ModelError as error:
        raise CheckpointError(f"{said}: {error}") from error
    head = isinstance(method, ImportedMethod) and method.head is not None
    random = {n for n in targets if n in loaded.missing or (head and n.startswith(f"{shape.places.head}."))}
    empty = random | {name for name in targets if ".adapter." in name}
    lacks_head = source is not None and source.n_outputs is None
    refuse_random(sorted(empty - tensors.keys()), said, on_base, lacks_head)
    if unknown := sorted(tensors.keys() - targets.keys()):
        raise CheckpointError(f"{said} contains {unknown[0]}, which the model on {on_base} does not have")
    shapes = {name: tuple(t.shape) for name, t in targets.items() if not name.endswith(_AVERAGES)}
    whole = source is None and not about.training.get("layers_of_base")  # which a pruned fine-tune has not
    if whole and (lost := _untrained(method, shape, shapes, tensors.keys())):
        raise CheckpointError(f"{said} lacks {first_of(lost)}")
    fill(loaded.model, method, tensors, targets, said, f"the model on {on_base}")
    lacked = loaded.missing & targets.keys()
    return OpenedPlaced(
        loaded.model, tokenizer, about, about.task.kind, frozenset(tensors), lacked, place,
        tensors=dict(tensors), shapes=shapes,
        layer_names=tuple(f"{shape.prefix}{name}" for name in shape.layer_names),
    )  # fmt: skip


def _untrained(
    method: Method | ImportedMethod, shape: BaseShape, shapes: Shapes, stored: Set[str]
) -> list[str]:
    """What a method trains in the layers, and every LayerNorm that it trains, without what is stored."""
    if isinstance(method, ImportedMethod):
        return []
    layers = {f"{shape.prefix}{n}.": i for i, n in reversed(list(enumerate(shape.layer_names)))}
    lost = []
    for name in shapes.keys() - stored:
        layer = next((number for start, number in layers.items() if name.startswith(start)), -1)
        role, bias = role_of(name, shape.prefix, shapes), name.endswith("bias")
        if (layer >= 0 or role == "layernorms") and method.trains(role, layer, len(shape.layer_names), bias):
            lost.append(name)
    return sorted(lost)
