"""Open fine-tuned models against their base, of which every tensor in a layer can be switched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.methods import Biases, FullFineTuning, LayerNormOnly, TopLayers
from adapter_probe.replay.stacks import find_layers
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.two_states import Difference, first_few, hold_both, put_back
from adapter_probe.results.fingerprints import hash_json, sha256_of

from .adapter_folder import adapters_below, name_of_checkpoint
from .base import hash_stored, limit_length, load_any_base, without_pooler
from .base_config import AnyBase, find_any_base, place_of_base
from .files import CONFIG, DELTA, DESCRIPTION, MODULES, first_of
from .identity import tokenizer_parts
from .kinds import Head
from .model_class import choose_class, head_of_base, head_with_labels
from .native import Description, library_versions, read_description, task_of, with_record
from .opened_peft import OpenedFinetuned, OpenedPeft, OpenedPlaced
from .quantised import method_of
from .tokenizer import load_tokenizer, own_tokenizer

TUNED_IN_PLACE = (FullFineTuning, TopLayers, LayerNormOnly, Biases)
"""The methods of this project that train tensors of the base's layers."""
_MOST = 12  # names in a note
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


def is_whole_model(folder: Path) -> bool:
    """Whether a folder holds a model of transformers, and no adapter."""
    if not (folder / "config.json").is_file() or any((folder / name).exists() for name in (CONFIG, DELTA)):
        return False
    return any(any(folder.glob(one)) for one in _WEIGHTS) and not adapters_below(folder)


def open_whole_model(folder: Path, base: str | None, dtype: torch.dtype) -> OpenedFinetuned:
    """Open a fine-tuned model with the tensors of its base.

    Args:
        folder: the model, as transformers saves it.
        base: folder or hub id of the model that it was fine-tuned from; None for the recorded one of a model
            that this project trained.
        dtype: precision in memory.

    Raises:
        CheckpointError: a damaged file, no base, one that is quantised or does not fit, or no difference.
    """
    said = read_description(folder) if (folder / DESCRIPTION).is_file() else None
    if base is None and said is None:
        raise CheckpointError(
            f"checkpoint {folder} is a whole model and no adapter; give the model that it was fine-tuned "
            "from with --base, and its layers are switched between the two"
        )
    found = find_any_base(str(folder))
    recorded = (said.base.name, said.base.revision) if said is not None else (None, None)
    of_base = find_any_base(*place_of_base(folder, *recorded, base))
    _refuse_quantised(folder, found, of_base)
    if found.config.model_type != of_base.config.model_type:
        raise CheckpointError(
            f"base {of_base.name} is a {of_base.config.model_type} model and checkpoint {folder} a "
            f"{found.config.model_type} model; give the model that it was fine-tuned from with --base"
        )
    embeds = (folder / MODULES).is_file() or (said is not None and "pooling" in said.training)
    head = "features" if embeds else head_with_labels(head_of_base(found.config), found.config)
    if head is None:
        named = (found.fields.get("architectures") or ["an unknown class"])[0]
        raise CheckpointError(
            f"checkpoint {folder} was saved from {named}, whose outputs adapter-probe has no scores of; give "
            "a model for sequence or token classification, question answering or language modelling, or "
            "from Python batches= and read="
        )
    cls = choose_class(found.name, found.config, head, ())
    tuned = load_any_base(found, cls, None, dtype)
    if embeds:
        tuned = without_pooler(tuned)
    if tuned.missing:
        raise CheckpointError(f"checkpoint {folder} lacks {first_of(sorted(tuned.missing))}")
    outputs = int(tuned.model.config.num_labels) if head not in ("causal", "seq2seq", "features") else None
    loaded = load_any_base(of_base, cls, outputs, dtype)
    if embeds:
        loaded = without_pooler(loaded)
    base_tokenizer = load_tokenizer(of_base.name, of_base.revision)
    tokenizer, changed = own_tokenizer((folder,), found.config, base_tokenizer)
    n_labels = int(tuned.model.config.num_labels)
    about = Description(
        FullFineTuning(), loaded.identity,
        task_of(name_of_checkpoint(folder), head, n_labels, folder / "config.json", found.fields),
        limit_length(tuned.max_length, tokenizer.model_max_length, found.name),
        hash_stored(tuned.model, frozenset()), versions=library_versions(),
        tokenizer=tokenizer_parts(tokenizer),
    )  # fmt: skip
    if said is not None:
        files = sha256_of(folder / "model.safetensors")
        about = with_record(folder, about, files, "method")
        about = replace(about, delta_sha256=hash_json([files, about.delta_sha256]))
    opened = with_base(folder, about, head, tuned.model, loaded.model, loaded.missing)
    return replace(opened, tokenizer=tokenizer, own_tokenizer=bool(changed))


def in_place(opened: OpenedPlaced, base: nn.Module) -> OpenedFinetuned:
    """A checkpoint of this project that tunes tensors of the base, with those of the base."""
    found = with_base(
        opened.folder, opened.description, opened.head, opened.model, base, opened.missing, opened.tensors
    )
    return replace(found, tokenizer=opened.tokenizer)


def with_base(
    folder: Path,
    about: Description,
    head: Head,
    model: Any,
    base: nn.Module,
    lacking: frozenset[str],
    tensors: Mapping[str, Tensor] | None = None,
    called: tuple[str, str] | None = None,
) -> OpenedFinetuned:
    """An open fine-tuned model, whose modules are changed.

    Args:
        folder: the checkpoint.
        about: its description.
        head: what it computes.
        model: the fine-tuned model.
        base: the same model with the base's tensors.
        lacking: names of the tensors that the base lacks.
        tensors: contents of the checkpoint; by default all of the model's.
        called: what the two are called in messages.

    Raises:
        CheckpointError: the two do not belong together, or differ in no layer.
    """
    own = dict(model.named_parameters())
    names = called or (f"checkpoint {folder}", f"base {about.base.name}")
    try:
        difference = hold_both(model, base, lacking, names)
    except ModelError as error:
        raise CheckpointError(str(error)) from error
    differing = [*difference.inside, *difference.outside, *lacking]
    state = dict(base.state_dict())
    return OpenedFinetuned(
        model, None, about, head, frozenset(tensors or differing), lacking, folder,  # type: ignore[arg-type]
        (note_on_outside(difference),) if difference.outside or lacking else (),
        tensors={name: one.detach() for name, one in own.items()} if tensors is None else dict(tensors),
        layer_names=tuple(layer.name for layer in find_layers(model, Switches())),
        shapes={name: tuple(tensor.shape) for name, tensor in own.items()},
        difference=difference,
        others={name: state[name] for name in difference.outside},
    )  # fmt: skip


def note_on_outside(difference: Difference, base_used: bool = False) -> str:
    """What to say of the tensors outside the layers that differ."""
    both = (difference.outside, difference.lacking)
    own, lacking = (first_few(sorted(names), most=_MOST) for names in both)
    stays = f"{own} stay as fine-tuned (--outside base puts them back)"
    if base_used:
        stays = f"{own} are the base's (--outside base)"
    parts = [stays] * bool(own) + [f"the base lacks {lacking}"] * bool(lacking)
    return f"Outside the layers, {'; '.join(parts)}."


def _refuse_quantised(folder: Path, found: AnyBase, base: AnyBase) -> None:
    if method := method_of(base.fields):
        raise CheckpointError(
            f"base {base.name} is quantised with {method}, so its tensors are not those that checkpoint "
            f"{folder} was trained from; give the unquantised model with --base"
        )
    if method := method_of(found.fields):
        raise CheckpointError(
            f"checkpoint {folder} is a whole model quantised with {method}, whose tensors have no difference "
            "to those of its base; give the unquantised model"
        )


def with_outside_of_base(opened: OpenedPeft) -> OpenedPeft:
    """A fine-tuned model with its base's tensors outside the layers, in place.

    Raises:
        CheckpointError: the checkpoint is no fine-tuned model.
    """
    if not isinstance(opened, OpenedFinetuned) or opened.difference is None:
        raise CheckpointError(
            f"--outside base applies only to a fine-tuned model, and checkpoint {opened.folder} has adapters"
        )
    if not opened.others:
        raise CheckpointError(
            f"--outside base changes nothing: checkpoint {opened.folder} differs from its base only in the "
            "layers, or in what the base lacks; omit it"
        )
    put_back(opened.model, opened.others)
    return replace(opened, notes=(note_on_outside(opened.difference, base_used=True),))
