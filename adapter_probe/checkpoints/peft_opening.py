"""Open a checkpoint with PEFT's own loader, for the engine that runs any model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

import torch
from peft import PeftConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from adapter_probe.errors import CheckpointError, ModelError, one_line
from adapter_probe.models.adapters.imported import ImportedMethod
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
# The axis of the tokens in what a file has of an embedding.
_AXES = {
    **dict.fromkeys(("weight", "base_layer.weight", "token_adapter.base_layer.weight", "lora_B.weight"), 0),
    "lora_embedding_A": 1,
}
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
    head, unfit = _head(config, found, outputs, modules)
    if (embeds := folder_of_modules(folder)) is not None:
        if HEADS.get(config.task_type or "") not in (None, "features", "causal", "seq2seq"):
            raise CheckpointError(
                f"{embeds / MODULES} says that checkpoint {folder} makes embeddings, and its task type "
                f"{config.task_type} that it has a head; move the file away to score the head"
            )
        head, unfit = "features", ""
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
    there, prefix = {name for name, _ in loaded.model.named_modules()}, loaded.model.base_model_prefix
    stored = _modules(tensors)
    whole = modules and all(name.startswith(PREFIX) for name in stored) and not modules & there
    if prefix and whole and {f"{prefix}.{name}" for name in modules} <= there:
        raise Unsupported(
            f"checkpoint {folder} was trained without a head, or saved without a part of its names, which "
            f"begin with {PREFIX} where a model with a head has {PREFIX}{prefix}.; so it has no predictions "
            "to score. If it makes embeddings, write the task type FEATURE_EXTRACTION, or from Python give "
            "the loaded model to adapter_probe.ablate with batches=, labels= and read="
        )
    refuse_other_prefix(file, stored, there, found.name)
    refuse_slow_patterns(path, document, [name for name, _ in loaded.model.named_modules()])
    _save_heads(config, loaded, plain)
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
    base_tokenizer = load_tokenizer(found.name, found.revision)
    # A head that reads the last token; what this project trained needs no padding token.
    padded = head in ("classification", "regression") and skips_padding(loaded.model)
    padded = padded and not (folder / DESCRIPTION).is_file()
    places = (folder, given or folder)
    tokenizer, changed = own_tokenizer(places, found.config, base_tokenizer, padded)
    skipped = use_padding(loaded.model.config, tokenizer, has_tokenizer(places)) if padded else []
    after = with_blanks(places, found.config, tokenizer) if head == "tokens" else None
    tokenizer = after or tokenizer
    tuned = tuned_modules(model)
    kind = "dora" if getattr(config, "use_dora", False) else type_of(config).lower()
    n_labels = int(loaded.model.config.num_labels)
    description = Description(
        method=ImportedMethod(LIBRARY, (kind,), inner=tuned),
        base=loaded.identity,
        delta_sha256=hash_contents((path, file)),
        tokenizer=tokenizer_parts(tokenizer) | ({"padding": hash_json(skipped)} if skipped else {}),
        task=task_of(name_of_checkpoint(folder), head, n_labels, folder / "config.json", found.fields),
        max_length=limit_length(loaded.max_length, tokenizer.model_max_length, found.name),
        versions=versions_of(method_of(found.fields)),
    )
    notes += [*said, *filter(None, (note_on_fields(document, config), unfit))]
    notes += [grown.note] if grown is not None else []
    if outside := [spec.module for spec in tuned if is_outside(spec.module)]:
        more = f" and {len(outside) - _MOST_NAMED} more" if len(outside) > _MOST_NAMED else ""
        names = ", ".join(outside[:_MOST_NAMED])
        notes.append(f"Changes to {names}{more} are outside the layers and always stay on.")
    if getattr(config, "bias", "none") != "none":
        notes.append("Trained biases of the base always stay on.")
    if getattr(config, "kasa_config", None):
        notes.append("KaSA removes directions from the base's weights, also with the adapters off.")
    if head not in WITHOUT_HEAD and not outputs:
        notes.append("The checkpoint contains no head, so the head of the base is used.")
        inside = f"{loaded.model.base_model_prefix}."
        own = {n: p for n, p in loaded.model.named_parameters() if not n.startswith(inside)}
        if not any(p.is_meta for p in own.values()):  # the identity of the base has no head
            of_head = hash_stored(nn.Module(), frozenset(), own.items())
            both = hash_json([description.delta_sha256, of_head])
            description = replace(description, delta_sha256=both)
    if changed:
        parts = ", ".join(changed).replace("_", " ")
        notes.append(f"The checkpoint's own tokenizer is used; it differs from the base's in: {parts}.")
    notes += skipped
    if after is not None:
        notes.append(
            "Words are read with a blank before them (add_prefix_space), as in transformers' training."
        )
    if stored := method_of(found.fields):
        runs = "runs as it is stored" if loaded.quantised else "was dequantised while it was loaded"
        notes.append(f"The base is quantised with {stored} and {runs}.")
    notes += [*note_on_code(found.fields), *note_on_others(folder)]
    return OpenedPeft(
        model,
        tokenizer,
        description,
        head,
        frozenset(tensors),
        loaded.missing,
        folder,
        tuple(notes),
        bool(changed),
        loaded.quantised,
        loaded.quantised is not None and mixes_examples(found.fields),
    )


def _outputs(plain: Mapping[str, Tensor]) -> int | None:
    """Number of logits, from the last matrix of a trained head."""
    found = [n for n in plain if n.startswith(HEAD_MODULES) and n.endswith("weight") and "lora_" not in n]
    found = [name for name in found if name.endswith("out_proj.weight")] or found
    return len(plain[found[-1]]) if found and plain[found[-1]].dim() else None


def _head(config: PeftConfig, found: AnyBase, outputs: int | None, modules: set[str]) -> tuple[Head, str]:
    """What the model computes: by PEFT's task type, else by the class that was trained, else by the base.

    PEFT runs an adapter on any class. A task type of language models, which have no head of their own in the
    file, gives way to the base's own class where that is of another kind and the adapter fits no other.

    Returns:
        the head, and what to say of a task type that does not fit; empty if it does.
    """
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


@dataclass(frozen=True)
class Grown:
    """A base with new rows that its own file does not have, NaN until an adapter's file fills them.

    Attributes:
        old, rows: numbers of tokens before and now.
        width: inputs of the output embeddings; 0 without any.
    """

    old: int
    rows: int
    width: int

    @property
    def note(self) -> str:
        """What to say of it."""
        return (
            f"The base was grown from {self.old:,} to {self.rows:,} tokens, as for the adapter's training; "
            "the rows of the new ones are in the adapter's file."
        )

    @torch.no_grad()
    def refuse_empty(self, model: PeftModel, path: Path) -> None:
        """Refuse a model that reads a new row which no file has; rows that it does not read become zero."""
        base = model.get_base_model()
        pair, read = (base.get_input_embeddings(), base.get_output_embeddings()), {}
        wrappers = [m for m in base.modules() if isinstance(m, AuxiliaryTrainingWrapper | BaseTunerLayer)]
        inside = {id(one) for m in wrappers for one in m.modules() if one is not m}
        new = torch.arange(self.old, self.rows, device=model.device)
        for name, module in base.named_modules():
            if id(module) in inside:
                continue
            if module is pair[1]:
                some = torch.ones(1, self.width, dtype=model.dtype, device=model.device)
                read[name] = module(some)[:, self.old : self.rows]
            elif module is pair[0] or getattr(module, "num_embeddings", 0) == self.rows:
                read[name] = module(new)
        if empty := [name for name, values in read.items() if values.isnan().any()]:
            raise _without_rows(path, empty[0], self.old, self.rows)
        for tensor in chain.from_iterable((*m.parameters(), *m.buffers()) for m in pair if m is not None):
            if tensor.is_floating_point():
                tensor.nan_to_num_()


def grow(
    loaded: AnyLoaded, config: PeftConfig, tensors: Mapping[str, Tensor], path: Path
) -> tuple[AnyLoaded, Grown | None]:
    """A base with as many tokens as an adapter's file has rows for; it never loses any.

    Raises:
        CheckpointError: the base cannot be grown, or a trained token leaves a gap behind the base's.
    """
    model = loaded.model
    ends = [one for one in (model.get_input_embeddings(), model.get_output_embeddings()) if one is not None]
    old = int(ends[0].weight.shape[0])
    rows = [old]
    for name in [name for name, module in model.named_modules() if module in ends]:
        keys = {f"{PREFIX}{name}.{part}": axis for part, axis in _AXES.items()}
        rows += [
            int(tensors[k].shape[axis]) for k, axis in keys.items() if k in tensors and tensors[k].dim() == 2
        ]
    trained = getattr(config, "trainable_token_indices", None) or []
    every = [*chain.from_iterable(trained.values())] if isinstance(trained, dict) else list(trained)
    beyond = {token for token in every if isinstance(token, int) and token >= max(rows)}
    if beyond:
        if max(beyond) - max(rows) >= len(beyond):  # a gap
            first = next(row for row in count(max(rows)) if row not in beyond)
            raise _without_rows(path, "the embeddings", first, min(row for row in beyond if row > first))
        rows.append(max(beyond) + 1)
    if max(rows) == old:
        return loaded, None
    grown = Grown(old, max(rows), int(ends[1].weight.shape[1]) if len(ends) > 1 else 0)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            _resize(loaded, ends, grown)
    except Exception as error:  # of a quantised embedding, or a class that transformers cannot resize
        said = one_line(error)
        raise CheckpointError(
            f"{path} has rows for {grown.rows:,} tokens, and base {loaded.identity.name}, which has {old:,}, "
            f"cannot be grown: {said}"
        ) from error
    return replace(loaded, identity=replace(loaded.identity, vocab_size=grown.rows)), grown


def _resize(loaded: AnyLoaded, ends: list[nn.Module], grown: Grown) -> None:
    for end in ends if loaded.shared else ():  # Transformers writes into the old tensors
        for name, one in end.named_parameters(recurse=False):
            setattr(end, name, nn.Parameter(one.detach().clone(), requires_grad=False))
    loaded.model.resize_token_embeddings(grown.rows, mean_resizing=False)
    for end in (loaded.model.get_input_embeddings(), loaded.model.get_output_embeddings()):
        for tensor in end.parameters() if end is not None else ():
            tensor[grown.old :] = torch.nan


def _without_rows(path: Path, where: str, first: int, end: int) -> CheckpointError:
    rows = f"row {first}" if end - first == 1 else f"rows {first} to {end - 1}"
    return CheckpointError(
        f"neither {path} nor the base has {rows} of {where}, although the vocabulary was grown for the "
        "training, so they would be random; save the grown base of the training too, and give it with --base"
    )
