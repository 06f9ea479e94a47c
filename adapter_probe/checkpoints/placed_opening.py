"""Open checkpoints of AdapterHub, of the paper's code and of this project in a model of Transformers."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import Method
from adapter_probe.replay.sharing import sharing

from . import native
from .adapter_folder import hash_files
from .base import AnyLoaded, Load, limit_length, n_outputs, refuse_lost
from .base_config import AnyBase, find_any_base, method_of, place_of_base, read_fields
from .contents import Shapes, role_of
from .files import DELTA, first_of, refuse_random
from .finetuned import TUNED_IN_PLACE, with_base
from .foreign import BaseShape, ForeignCheckpoint
from .identity import tokenizer_parts
from .kinds import Head
from .model_class import choose_class, head_of_base
from .native import Description, read_description, task_of
from .opened_peft import OpenedPlaced
from .peft_opening import versions_of
from .placed import fill, put_method
from .places import Places, places_in
from .tokenizer import load_tokenizer, with_blanks

_AVERAGES = ("running_mean", "running_var", "num_batches_tracked")  # of batch normalisation: no parameters


def open_foreign(
    folder: Path, library: ModuleType, base: str | None, dtype: torch.dtype, load: Load
) -> OpenedPlaced:
    """Open a checkpoint of AdapterHub or of adapter-bert.

    Args:
        library: the module that reads its format.
    """
    source = library.read(folder)
    found = _find(*place_of_base(folder, source.base, None, base))
    kind = source.kind or ("causal" if head_of_base(found.config) == "causal" else "classification")
    outputs = source.n_outputs or {"causal": None, "extractive": 2, "regression": 1}.get(
        kind, int(found.config.num_labels)
    )
    loaded, shape = _load(found, kind, outputs, dtype, load)
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
        hash_files(source.files),
        versions=versions_of(None),
        tokenizer=tokenizer_parts(tokenizer),
    )
    opened = _put(folder, loaded, shape, about, translated.tensors, dtype, source)
    return replace(opened, tokenizer=tokenizer, notes=translated.notes)


def open_own(folder: Path, base: str | None, dtype: torch.dtype, load: Load) -> OpenedPlaced:
    """Open a checkpoint of this project; see `open_foreign`.

    Raises:
        CheckpointError: no checkpoint, damaged or edited files, or a base that is missing, another one, or of
            an unsupported family.
    """
    said = read_description(folder)
    delta = native.read_delta(folder, said)
    found = _find(*((base, None) if base is not None else (said.base.name, said.base.revision)))
    native.refuse_unfit(found, said.base)
    loaded, shape = _load(found, said.task.kind, n_outputs(said.task), dtype, load)
    native.refuse_other_base(folder, said.base, loaded.identity)
    tokenizer = load_tokenizer(found.name, found.revision)
    if said.task.kind == "tokens":
        tokenizer = with_blanks((), found.config, tokenizer) or tokenizer
    about = replace(said, base=loaded.identity, tokenizer=tokenizer_parts(tokenizer))
    native.refuse_changed(folder, said, about)
    before = sharing(loaded.model) if isinstance(about.method, TUNED_IN_PLACE) else None
    opened = _put(folder / DELTA, loaded, shape, about, delta, dtype)
    opened = replace(opened, folder=folder, tokenizer=tokenizer)
    return opened if before is None else with_base(opened, before)


def _find(name: str, revision: str | None) -> AnyBase:
    """A base of a family that takes bottlenecks."""
    name, revision, fields = read_fields(name, revision)
    _places(name, SimpleNamespace(**{"model_type": None, **fields}))  # before a strange configuration is made
    found = find_any_base(name, revision)
    if method_of(found.fields):
        raise CheckpointError(
            f"base {found.name} is quantised (quantization_config in its config.json), which is supported "
            "only with adapters of PEFT; give the unquantised model with --base"
        )
    return found


def _places(name: str, config: Any) -> Places:
    try:
        return places_in(config)
    except ModelError as error:
        raise CheckpointError(f"base {name}: {error}") from error


def _load(
    found: AnyBase, kind: Head, outputs: int | None, dtype: torch.dtype, load: Load
) -> tuple[AnyLoaded, BaseShape]:
    places = _places(found.name, found.config)
    loaded = load(found, choose_class(found.name, found.config, kind, ()), outputs, dtype)
    refuse_lost(loaded, kind == "causal")
    return loaded, BaseShape.of(loaded.model, places)


def _put(
    place: Path,
    loaded: AnyLoaded,
    shape: BaseShape,
    about: Description,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    source: ForeignCheckpoint | None = None,
) -> OpenedPlaced:
    """The model with all weights; none of its parameters is left at a random initial value."""
    said, on_base = f"checkpoint {place}" if source else str(place), f"base {about.base.name}"
    method: Method | ImportedMethod = about.method
    try:
        targets = put_method(loaded, shape, method, dtype)
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
    names = tuple(f"{shape.prefix}{name}" for name in shape.layer_names)
    return OpenedPlaced(
        loaded.model,
        None,  # type: ignore[arg-type]  # whoever called fills it in
        about,
        about.task.kind,
        frozenset(tensors),
        loaded.missing & targets.keys(),
        place,
        tensors=dict(tensors),
        layer_names=names,
        shapes=shapes,
    )


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
