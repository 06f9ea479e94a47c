"""Open checkpoints of AdapterHub, of the paper's code and of this project in a model of Transformers."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from adapter_probe.data.tasks import TaskSpec
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.metrics import default_metric
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import Method
from adapter_probe.replay.sharing import sharing

from . import native
from .any_base import AnyLoaded, choose_class, limit_length, load_any_base
from .base import load_tokenizer, n_outputs, refuse_lost
from .base_config import AnyBase, find_any_base, place_of_base, read_fields
from .contents import Shapes, role_of
from .description import Description, read_description
from .files import DELTA, first_of, refuse_other_tensors
from .finetuned import TUNED_IN_PLACE, in_place
from .foreign import BaseShape, ForeignCheckpoint, names_of_outputs
from .identity import tokenizer_parts
from .kinds import Head, kind_of_base
from .opened_peft import NO_COLUMNS, OpenedPlaced
from .own_tokenizer import with_blanks
from .peft_opening import versions_of
from .placed import fill, put_method
from .places import Places, places_in
from .quantised import method_of
from .shared import SharedBase

AVERAGES = ("running_mean", "running_var", "num_batches_tracked")  # of batch normalisation: no parameters


def open_foreign(
    folder: Path,
    library: ModuleType,
    base: str | None,
    dtype: torch.dtype,
    shared: SharedBase | None,
) -> OpenedPlaced:
    """Open a checkpoint of AdapterHub or of adapter-bert.

    Args:
        folder: the folder with its files.
        library: the module that reads its format.
        base: folder or hub id to use instead of the recorded base.
        dtype: precision of the model in memory.
        shared: keeps the base in memory for other checkpoints.

    Raises:
        CheckpointError: see `opening.open_any`.
    """
    source = library.read(folder)
    found = _find(*place_of_base(folder, source.base, source.revision, base))
    kind = source.kind or kind_of_base(found.config)
    outputs = source.n_outputs or {"causal": None, "extractive": 2, "regression": 1}.get(
        kind, int(found.config.num_labels)
    )
    places = _places(found.name, found.config)
    loaded, shape = _load(found, places, kind, outputs, dtype, shared)
    translated = library.translate(source, shape)
    own = dict(loaded.model.named_parameters(remove_duplicate=False))
    translated = translated.without_copies(own, found.name)
    names = source.label_names
    if kind == "classification" and not names:
        names = names_of_outputs(int(outputs or 0), folder / "config.json", found.fields)
    task = TaskSpec(source.name, kind, default_metric(kind), names, NO_COLUMNS, {}, {})
    about = Description(
        translated.method, loaded.identity, task, 0, source.sha256, versions=versions_of(None)
    )
    opened = _put(folder, loaded, shape, about, translated.tensors, dtype, source)
    tokenizer = (load_tokenizer if shared is None else shared.tokenizer)(found.name, found.revision)
    limit = limit_length(loaded.max_length, tokenizer.model_max_length, found.name)
    about = replace(about, tokenizer=tokenizer_parts(tokenizer), max_length=limit)
    return replace(opened, tokenizer=tokenizer, description=about, notes=translated.notes)


def open_own(folder: Path, base: str | None, dtype: torch.dtype, shared: SharedBase | None) -> OpenedPlaced:
    """Open a checkpoint of this project; see `open_foreign`.

    Raises:
        CheckpointError: no checkpoint, damaged or edited files, or a base that is missing, another one, or of
            an unsupported family.
    """
    said = read_description(folder)
    delta = native.read_delta(folder, said)
    found = _find(*((base, None) if base is not None else (said.base.name, said.base.revision)))
    native.refuse_unfit(found, said.base)
    places = _places(found.name, found.config)
    loaded, shape = _load(found, places, said.task.kind, n_outputs(said.task), dtype, shared)
    if loaded.identity.weights_sha256 not in ("", said.base.weights_sha256):
        raise native.other_base(folder, said.base, loaded.identity)
    tokenizer = (load_tokenizer if shared is None else shared.tokenizer)(found.name, found.revision)
    if said.task.kind == "tokens":
        tokenizer = with_blanks((), found.config, tokenizer) or tokenizer
    about = replace(said, base=loaded.identity, tokenizer=tokenizer_parts(tokenizer))
    native.refuse_changed(folder, said, about)
    before = sharing(loaded.model) if isinstance(about.method, TUNED_IN_PLACE) else None
    opened = _put(folder / DELTA, loaded, shape, about, delta, dtype)
    opened = replace(opened, folder=folder, tokenizer=tokenizer)
    return opened if before is None else in_place(opened, before)


def _find(name: str, revision: str | None) -> AnyBase:
    """A base of a family that takes bottlenecks.

    Raises:
        CheckpointError: it is of another family, or quantised.
    """
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
    """Where adapters sit in a base.

    Raises:
        CheckpointError: an unsupported family or configuration.
    """
    try:
        return places_in(config)
    except ModelError as error:
        raise CheckpointError(f"base {name}: {error}") from error


def _load(
    found: AnyBase,
    places: Places,
    kind: Head,
    outputs: int | None,
    dtype: torch.dtype,
    shared: SharedBase | None,
) -> tuple[AnyLoaded, BaseShape]:
    """The base and where its adapters sit.

    Raises:
        CheckpointError: it lacks more than a head and a pooler.
    """
    cls = choose_class(found.name, found.config, kind, ())
    loaded = (load_any_base if shared is None else shared.load_any)(found, cls, outputs, dtype)
    prefix = "" if kind == "causal" else f"{loaded.model.base_model_prefix}."
    refuse_lost(found.name, loaded.missing, prefix, f"{prefix}pooler.")
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
    """The model with all weights; none of its parameters is left at a random initial value.

    Raises:
        CheckpointError: names or shapes do not fit the base, or a parameter would stay random.
    """
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
    refuse_other_tensors(tensors.keys(), targets.keys(), empty, said, on_base, lacks_head)
    shapes = {name: tuple(t.shape) for name, t in targets.items() if not name.endswith(AVERAGES)}
    whole = source is None and not about.training.get("layers_of_base")  # which a pruned fine-tune has not
    if whole and (lost := _lost(method, shape, shapes, tensors.keys())):
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


def _lost(method: Method | ImportedMethod, shape: BaseShape, shapes: Shapes, stored: Set[str]) -> list[str]:
    """What a method trains in the layers, and every LayerNorm that it trains, without what is stored."""
    layers = {
        f"{shape.prefix}{name}.": number for number, name in reversed(list(enumerate(shape.layer_names)))
    }
    if isinstance(method, ImportedMethod):
        return []
    lost = []
    for name in shapes.keys() - stored:
        layer = next((number for start, number in layers.items() if name.startswith(start)), -1)
        role, bias = role_of(name, shape.prefix, shapes), name.endswith("bias")
        if (layer >= 0 or role == "layernorms") and method.trains(role, layer, len(shape.layer_names), bias):
            lost.append(name)
    return sorted(lost)
