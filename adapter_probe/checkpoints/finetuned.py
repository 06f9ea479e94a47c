"""Open fine-tuned models against their base, of which every tensor in a layer can be switched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.methods import Biases, FullFineTuning, LayerNormOnly, TopLayers
from adapter_probe.replay.stacks import find_layers
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.two_states import Difference, first_few, hold_both, put_back
from adapter_probe.results.fingerprints import hash_json, sha256_of

from .adapter_folder import adapters_below, name_of_checkpoint
from .base import AnyLoaded, hash_stored, limit_length, load_any_base, without_pooler
from .base_config import AnyBase, find_any_base, method_of, place_of_base
from .files import CONFIG, DELTA, DESCRIPTION, first_of, makes_embeddings
from .identity import tokenizer_parts
from .model_class import WITHOUT_HEAD, Head, choose_class, head_of_base, head_with_labels
from .native import Description, library_versions, read_description, task_of, with_record
from .opened_peft import OpenedFinetuned, OpenedPeft, OpenedPlaced
from .tokenizer import load_tokenizer, own_tokenizer

TUNED_IN_PLACE = (FullFineTuning, TopLayers, LayerNormOnly, Biases)
"""The methods of this project that train tensors of the base's layers."""
_MOST = 12  # names in a note
_OUTSIDE = "Outside the layers"
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
    _refuse_unfit(folder, found, of_base)
    head = _head(folder, found)
    cls = choose_class(found.name, found.config, head, ())
    tuned, loaded = _load_both(found, of_base, cls, head, dtype)
    if tuned.missing:
        raise CheckpointError(f"checkpoint {folder} lacks {first_of(sorted(tuned.missing))}")
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
    notes: tuple[str, ...] = ()
    if tuned.unread:
        notes = (f"Tensors that a {cls.__name__} does not have are not read: {first_of(tuned.unread)}.",)
    opened = OpenedPeft(
        tuned.model, tokenizer, about, head, frozenset(), loaded.missing, folder,
        notes, own_tokenizer=bool(changed),
    )  # fmt: skip
    return with_base(opened, loaded.model)


def _refuse_unfit(folder: Path, found: AnyBase, of_base: AnyBase) -> None:
    """Refuse a model and a base of which one is quantised, or that are of two families."""
    family, own = of_base.config.model_type, found.config.model_type
    if method := method_of(of_base.fields):
        raise CheckpointError(
            f"base {of_base.name} is quantised with {method}, so its tensors are not those that checkpoint "
            f"{folder} was trained from; give the unquantised model with --base"
        )
    if method := method_of(found.fields):
        raise CheckpointError(
            f"checkpoint {folder} is a whole model quantised with {method}, whose tensors have no difference "
            "to those of its base; give the unquantised model"
        )
    if family != own:
        raise CheckpointError(
            f"base {of_base.name} is a {family} model and checkpoint {folder} a {own} model; give the model "
            "that it was fine-tuned from with --base"
        )


def _head(folder: Path, found: AnyBase) -> Head:
    """What a whole model computes, by the class that it was saved from."""
    if makes_embeddings(folder):
        return "features"
    if head := head_with_labels(head_of_base(found.config), found.config):
        return head
    named = (found.fields.get("architectures") or ["an unknown class"])[0]
    raise CheckpointError(
        f"checkpoint {folder} was saved from {named}, whose outputs adapter-probe has no scores of; give a "
        "model for sequence or token classification, question answering or language modelling, or from "
        "Python batches= and read="
    )


def _load_both(
    found: AnyBase, of_base: AnyBase, cls: type[PreTrainedModel], head: Head, dtype: torch.dtype
) -> tuple[AnyLoaded, AnyLoaded]:
    """A fine-tuned model and its base, with a head of as many outputs."""
    tuned = load_any_base(found, cls, None, dtype)
    outputs = None if head in WITHOUT_HEAD else int(tuned.model.config.num_labels)
    loaded = load_any_base(of_base, cls, outputs, dtype)
    if head != "features":
        return tuned, loaded
    # Embeddings are not made by the pooler, which either of the two may lack.
    lacked = frozenset(n for n in tuned.missing | loaded.missing if n.startswith("pooler."))
    tuned, loaded = (without_pooler(replace(one, missing=one.missing | lacked)) for one in (tuned, loaded))
    return tuned, loaded


def with_base(opened: OpenedPeft, base: nn.Module, called: tuple[str, str] | None = None) -> OpenedFinetuned:
    """An open fine-tuned model with the tensors of its base; its modules are changed.

    Args:
        opened: it names what the base lacks as missing.
        base: the same model with the base's tensors.
        called: what to call the two in messages.

    Raises:
        CheckpointError: the two do not belong together, or differ in no layer.
    """
    model, lacking = opened.model, opened.missing
    own, state = dict(model.named_parameters()), dict(base.state_dict())
    names = called or (f"checkpoint {opened.folder}", f"base {opened.description.base.name}")
    try:
        difference = hold_both(model, base, lacking, names)
    except ModelError as error:
        raise CheckpointError(str(error)) from error
    differing = frozenset((*difference.inside, *difference.outside, *lacking))
    stored = opened.tensors if isinstance(opened, OpenedPlaced) else {}
    notes = opened.notes + ((note_on_outside(difference),) if difference.outside or lacking else ())
    return OpenedFinetuned(**{
        **vars(opened),
        "trained": frozenset(stored) or differing,
        "notes": notes,
        "tensors": stored or {name: one.detach() for name, one in own.items()},
        "layer_names": tuple(layer.name for layer in find_layers(model, Switches())),
        "shapes": {name: tuple(tensor.shape) for name, tensor in own.items()},
        "difference": difference,
        "others": {name: state[name] for name in difference.outside},
    })  # fmt: skip


def note_on_outside(difference: Difference, base_used: bool = False) -> str:
    """What to say of the tensors outside the layers that differ."""
    both = (difference.outside, difference.lacking)
    own, lacking = (first_few(sorted(names), most=_MOST) for names in both)
    stays = f"{own} stay as fine-tuned (--outside base puts them back)"
    if base_used:
        stays = f"{own} are the base's (--outside base)"
    parts = [stays] * bool(own) + [f"the base lacks {lacking}"] * bool(lacking)
    return f"{_OUTSIDE}, {'; '.join(parts)}."


def with_outside_of_base(opened: OpenedPeft) -> OpenedPeft:
    """A fine-tuned model with its base's tensors outside the layers, in place."""
    if not isinstance(opened, OpenedFinetuned):
        raise CheckpointError(
            f"--outside base applies only to a fine-tuned model, and checkpoint {opened.folder} has adapters"
        )
    if not opened.others:
        raise CheckpointError(
            f"--outside base changes nothing: checkpoint {opened.folder} differs from its base only in the "
            "layers, or in what the base lacks; omit it"
        )
    put_back(opened.model, opened.others)
    kept = tuple(note for note in opened.notes if not note.startswith(_OUTSIDE))
    return replace(opened, notes=(*kept, note_on_outside(opened.difference, base_used=True)))
