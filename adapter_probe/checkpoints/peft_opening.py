"""Open a checkpoint with PEFT's own loader, for the engine that runs any model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from peft import PeftConfig, PeftModel
from torch import Tensor, nn

from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.adapters.imported import ImportedMethod, InnerSpec
from adapter_probe.results.fingerprints import hash_json

from .adapter_folder import (
    LIBRARY,
    PREFIX,
    hash_contents,
    name_of_checkpoint,
    note_on_others,
    read_adapter,
    refuse_changed_base,
    weights_in,
)
from .base import AnyLoaded, Load, hash_stored, limit_length, load_any_base, without_pooler
from .base_config import AnyBase, find_any_base, method_of, mixes_examples, place_of_base
from .embedding import folder_of_modules
from .files import CONFIG, DESCRIPTION, MODULES, Unsupported, folder_of_base, read_json_file
from .grown_bases import Grown, grow
from .identity import tokenizer_parts
from .model_class import (
    HEAD_MODULES,
    HEADS,
    WITHOUT_HEAD,
    Head,
    choose_class,
    class_of_own_code,
    head_of_base,
    head_of_class,
    head_with_labels,
    is_for,
    note_on_code,
    skips_padding,
)
from .native import Description, task_of, versions_of
from .opened_peft import OpenedPeft
from .peft_fields import note_on_fields, read_fields, refuse_slow_patterns, refuse_unswitched
from .peft_loading import (
    is_outside,
    put_adapter,
    refuse_other_prefix,
    refuse_outside,
    refuse_unready,
    tuned_modules,
    type_of,
)
from .tokenizer import has_tokenizer, load_tokenizer, own_tokenizer, use_padding, with_blanks

_MOST_NAMED = 5
_PARTS = ("lora_", "ia3_", "ln_tuning_", "oft_", "hada_", "lokr_", "vera_")


def open_with_peft(
    folder: Path,
    base: str | None = None,
    *,
    given: Path | None = None,
    load: Load = load_any_base,
    in_layers: bool = True,
) -> OpenedPeft:
    """Open a checkpoint of PEFT on a base of any class, by PEFT's own loader.

    Args:
        given: the folder above, if the user named that or it has another adapter; a tokenizer there is used.
        in_layers: whether to refuse adapters that are all outside the layers.
    """
    path = folder / CONFIG
    document = read_json_file(path)
    refuse_unswitched(folder, document)
    place = place_of_base(folder, document.get("base_model_name_or_path"), document.get("revision"), base)
    config = read_fields(path, document)
    file = weights_in(folder)
    tensors, notes = read_adapter(folder)
    found = find_any_base(*place)
    refuse_changed_base(folder, document, folder_of_base(found.name, found.revision))
    plain = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    outputs, modules = _outputs(plain), _modules(plain)
    head, unfit = _head(folder, config, found, outputs, modules)
    loaded, head = _loaded(folder, document, found, head, outputs, modules, load)
    there = {name for name, _ in loaded.model.named_modules()}
    _refuse_headless(folder, loaded, _modules(tensors), modules, there)
    refuse_other_prefix(file, _modules(tensors), there, found.name)
    refuse_slow_patterns(path, document, sorted(there))
    _save_heads(config, loaded, plain)
    model, loaded, grown, said = _put(folder, loaded, config, tensors, in_layers)
    read = _tokenizer(folder, given or folder, found, loaded, head)
    of_base = head not in WITHOUT_HEAD and not outputs  # the head
    tuned = tuned_modules(model)
    notes += [*said, *filter(None, (note_on_fields(document, config), unfit))]
    notes += [grown.note] if grown is not None else []
    notes += _notes_on_what_stays(tuned, config)
    notes += ["The checkpoint contains no head, so the head of the base is used."] * of_base
    notes += [*read.notes, *_notes_on_base(found, loaded), *note_on_others(folder)]
    return OpenedPeft(
        model, read.tokenizer, _described(folder, config, found, loaded, head, of_base, read, tuned), head,
        frozenset(tensors), loaded.missing, folder, tuple(notes), bool(read.changed), loaded.quantised,
        loaded.quantised is not None and mixes_examples(found.fields),
    )  # fmt: skip


def _put(
    folder: Path, loaded: AnyLoaded, config: PeftConfig, tensors: Mapping[str, Tensor], in_layers: bool
) -> tuple[PeftModel, AnyLoaded, Grown | None, Sequence[str]]:
    """The model of PEFT, the base with the tokens that the adapter's file has rows for, and remarks."""
    file = weights_in(folder)
    loaded, grown = grow(loaded, config, tensors, file)
    model, said = put_adapter(loaded, config, tensors, file)
    if grown is not None:
        grown.refuse_empty(model, file)
    try:
        refuse_unready(model, f"checkpoint {folder}")
        if in_layers:
            refuse_outside(model, f"checkpoint {folder}")
    except ModelError as error:
        raise CheckpointError(str(error)) from error
    return model, loaded, grown, said


def _described(
    folder: Path, config: PeftConfig, found: AnyBase, loaded: AnyLoaded, head: Head, of_base: bool,
    read: _Tokenizer, tuned: tuple[InnerSpec, ...],
) -> Description:  # fmt: skip
    kind = "dora" if getattr(config, "use_dora", False) else type_of(config).lower()
    n_labels = int(loaded.model.config.num_labels)
    delta = hash_contents((folder / CONFIG, weights_in(folder)))
    if of_base:  # the base's identity does not have its head
        inside = f"{loaded.model.base_model_prefix}."
        own = {n: p for n, p in loaded.model.named_parameters() if not n.startswith(inside)}
        if not any(p.is_meta for p in own.values()):
            delta = hash_json([delta, hash_stored(nn.Module(), frozenset(), own.items())])
    padding = {"padding": hash_json(read.skipped)} if read.skipped else {}
    return Description(
        method=ImportedMethod(LIBRARY, (kind,), inner=tuned),
        base=loaded.identity,
        delta_sha256=delta,
        tokenizer=tokenizer_parts(read.tokenizer) | padding,
        task=task_of(name_of_checkpoint(folder), head, n_labels, folder / "config.json", found.fields),
        max_length=limit_length(loaded.max_length, read.tokenizer.model_max_length, found.name),
        versions=versions_of(method_of(found.fields)),
    )


def _loaded(
    folder: Path,
    document: Mapping[str, Any],
    found: AnyBase,
    head: Head,
    outputs: int | None,
    modules: set[str],
    load: Load,
) -> tuple[AnyLoaded, Head]:
    """The base as the class that the adapter was trained on, and the head by the training's configuration."""
    cls = choose_class(found.name, found.config, head, modules)
    if (own := class_of_own_code(document)) not in (None, cls.__name__):
        raise Unsupported(
            f"checkpoint {folder} was trained on the class {own} (auto_mapping), whose code is never run; "
            f"Transformers' {cls.__name__} is another class. From Python, give adapter_probe.ablate the model"
        )
    loaded = load(found, cls, None if head in WITHOUT_HEAD else outputs)
    if head == "classification":  # by the training's own configuration, if that lies beside the adapter
        own_config = folder / "config.json"
        said_by = read_json_file(own_config).get("problem_type") if own_config.is_file() else None
        head = head_with_labels(head, loaded.model.config, said_by) or head
    if head == "features" and not any(name.startswith("pooler.") for name in modules):
        loaded = without_pooler(loaded)
    return loaded, head


def _refuse_headless(
    folder: Path, loaded: AnyLoaded, stored: set[str], modules: set[str], there: set[str]
) -> None:
    """Refuse an adapter of the body alone, whose modules have their names without that of the body.

    Args:
        stored, modules: modules by their names in the file, and without PEFT's prefix.
        there: the modules of the base.
    """
    prefix = loaded.model.base_model_prefix
    whole = modules and all(name.startswith(PREFIX) for name in stored) and not modules & there
    if prefix and whole and {f"{prefix}.{name}" for name in modules} <= there:
        raise Unsupported(
            f"checkpoint {folder} was trained without a head, or saved without a part of its names, which "
            f"begin with {PREFIX} where a model with a head has {PREFIX}{prefix}.; so it has no predictions "
            "to score. If it makes embeddings, write the task type FEATURE_EXTRACTION, or from Python give "
            "the loaded model to adapter_probe.ablate with batches=, labels= and read="
        )


class _Tokenizer(NamedTuple):
    """The tokenizer of a checkpoint, in what it differs from the base's, and what to say of it."""

    tokenizer: Any
    changed: Sequence[str]
    skipped: Sequence[str]
    notes: Sequence[str]


def _tokenizer(folder: Path, given: Path, found: AnyBase, loaded: AnyLoaded, head: Head) -> _Tokenizer:
    base_tokenizer = load_tokenizer(found.name, found.revision)
    # A head that reads the last token; what this project trained needs no padding token.
    padded = head in ("classification", "regression") and skips_padding(loaded.model)
    padded = padded and not (folder / DESCRIPTION).is_file()
    places = (folder, given)
    tokenizer, changed = own_tokenizer(places, found.config, base_tokenizer, padded)
    skipped = use_padding(loaded.model.config, tokenizer, has_tokenizer(places)) if padded else []
    after = with_blanks(places, found.config, tokenizer) if head == "tokens" else None
    notes = []
    if changed:
        parts = ", ".join(changed).replace("_", " ")
        notes.append(f"The checkpoint's own tokenizer is used; it differs from the base's in: {parts}.")
    notes += skipped
    if after is not None:
        notes.append(
            "Words are read with a blank before them (add_prefix_space), as in transformers' training."
        )
    return _Tokenizer(after or tokenizer, changed, skipped, notes)


def _notes_on_what_stays(tuned: Sequence[InnerSpec], config: PeftConfig) -> Iterator[str]:
    """What is changed, and on with every adapter off."""
    if outside := [spec.module for spec in tuned if is_outside(spec.module)]:
        more = f" and {len(outside) - _MOST_NAMED} more" if len(outside) > _MOST_NAMED else ""
        names = ", ".join(outside[:_MOST_NAMED])
        yield f"Changes to {names}{more} are outside the layers and always stay on."
    if getattr(config, "bias", "none") != "none":
        yield "Trained biases of the base always stay on."
    if getattr(config, "kasa_config", None):
        yield "KaSA removes directions from the base's weights, also with the adapters off."


def _notes_on_base(found: AnyBase, loaded: AnyLoaded) -> Iterator[str]:
    if stored := method_of(found.fields):
        runs = "runs as it is stored" if loaded.quantised else "was dequantised while it was loaded"
        yield f"The base is quantised with {stored} and {runs}."
    yield from note_on_code(found.fields)


def _outputs(plain: Mapping[str, Tensor]) -> int | None:
    """Number of logits, from the last matrix of a trained head."""
    found = [n for n in plain if n.startswith(HEAD_MODULES) and n.endswith("weight") and "lora_" not in n]
    found = [name for name in found if name.endswith("out_proj.weight")] or found
    return len(plain[found[-1]]) if found and plain[found[-1]].dim() else None


def _head(
    folder: Path, config: PeftConfig, found: AnyBase, outputs: int | None, modules: set[str]
) -> tuple[Head, str]:
    """What the model computes: by PEFT's task type, else by the class that was trained, else by the base.

    PEFT runs an adapter on any class. A task type of language models, which have no head of their own in the
    file, gives way to the base's own class where that is of another kind and the adapter fits no other.

    Returns:
        the head, and what to say of a task type that does not fit; empty if it does.

    Raises:
        CheckpointError: the checkpoint makes embeddings by one file, and has a head by another.
    """
    if (embeds := folder_of_modules(folder)) is not None:
        if HEADS.get(config.task_type or "") not in (None, "features", "causal", "seq2seq"):
            raise CheckpointError(
                f"{embeds / MODULES} says that checkpoint {folder} makes embeddings, and its task type "
                f"{config.task_type} that it has a head; move the file away to score the head"
            )
        return "features", ""
    trained, both = (config.auto_mapping or {}).get("base_model_class"), found.config.is_encoder_decoder
    own, unfit = head_of_base(found.config), ""
    head: Head | None = HEADS.get(config.task_type or "") or head_of_class(trained, both)
    if head in ("causal", "seq2seq") and own not in (None, head):
        language = own in ("causal", "seq2seq")
        if not language or not (outputs or is_for(found.config, head, modules)):
            said, (name,) = config.task_type or trained, found.config.architectures[:1]
            head, unfit = own, f"The task type {said} does not fit the base, whose own class {name} runs."
    return head or ("classification" if outputs else own) or "classification", unfit


def _modules(tensors: Iterable[str]) -> set[str]:
    """Names of the modules with an adapter of a well-known kind, to tell apart two classes of a base."""
    names = (name.split(".") for name in tensors)
    ends = ((parts, next((i for i, p in enumerate(parts) if p.startswith(_PARTS)), 0)) for parts in names)
    return {".".join(parts[:end]).replace(".base_layer", "") for parts, end in ends if end}


def _save_heads(config: PeftConfig, loaded: AnyLoaded, plain: Collection[str]) -> None:
    """Name the trained head, which PEFT's classes for tasks with one add without writing it down."""
    there = {  # as a whole, not with a tuner in its maps
        name
        for name, head in loaded.model.named_children()
        if name in HEAD_MODULES and any(f"{name}.{own}" in plain for own, _ in head.named_parameters())
    }
    if there and config.task_type in ("SEQ_CLS", "QUESTION_ANS", "TOKEN_CLS"):
        config.modules_to_save = sorted({*(getattr(config, "modules_to_save", None) or ()), *there})
