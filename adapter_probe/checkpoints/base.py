"""Load the tokenizer and the weights of a pretrained base model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.data.tasks import TaskSpec
from adapter_probe.errors import CheckpointError
from adapter_probe.metrics import OF_CLASSES

from .base_config import naming_base, resolve_base
from .files import quote, refuse_unreadable
from .identity import BaseIdentity

_TOKEN_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_TOKEN_FIELDS = {"__type", "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}


def tied_weights(model: PreTrainedModel) -> tuple[str, ...]:
    """Names of the weights of input and output embedding if they are tied, else empty."""
    pair = (model.get_input_embeddings(), model.get_output_embeddings())
    if None in pair or pair[0].weight is not pair[1].weight:
        return ()
    names = {id(module): name for name, module in model.named_modules()}
    return tuple(f"{names[id(module)]}.weight" for module in pair)


def load_tokenizer(
    name: str, revision: str | None = None, config: PretrainedConfig | None = None
) -> PreTrainedTokenizerBase:
    """The base's tokenizer, or that of another folder, such as a checkpoint's.

    Args:
        name: folder or hub id.
        revision: commit on the hub.
        config: configuration of the model, for a folder without one.

    Raises:
        CheckpointError: there is no such base, or its tokenizer is missing or damaged.
    """
    name, revision = resolve_base(name, revision)
    if Path(name).is_dir():
        refuse_unreadable(Path(name))
    with naming_base("tokenizer", name):
        _refuse_token_fields(name, revision)
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision, use_fast=True, trust_remote_code=False, config=config
        )
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # invented by transformers: all words are unknown
        raise CheckpointError(f"base {name} has no tokenizer files (tokenizer.json, or a vocabulary)")
    most = tokenizer.model_max_length  # without a limit it is 1e30, as a float or not
    number = isinstance(most, (int, float)) and not isinstance(most, bool)
    if not (number and most >= 1 and (most == math.inf or most % 1 == 0)):
        raise CheckpointError(
            f"base {name}: model_max_length in its tokenizer_config.json is {quote(most)}, expected a whole "
            "number of at least 1"
        )
    # On a template of special tokens that it does not describe, the library tokenizers panics.
    processor = getattr(getattr(tokenizer, "backend_tokenizer", None), "post_processor", None)
    whole = json.loads(processor.__getstate__()) if processor is not None else {}
    for part in (whole, *whole.get("processors", ())):
        pieces = [piece for form in ("single", "pair") for piece in part.get(form) or ()]
        used = {piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece}
        if unknown := sorted(used - (part.get("special_tokens") or {}).keys()):
            raise CheckpointError(
                f"base {name}: the post-processor in its tokenizer.json uses the token {quote(unknown[0])}, "
                "which its special_tokens do not have"
            )
    return tokenizer


def _refuse_token_fields(name: str, revision: str | None) -> None:
    """Refuse a token with a field that transformers would drop with only a message on stdout."""
    for file in _TOKEN_FILES:
        path = cached_file(name, file, revision=revision, _raise_exceptions_for_missing_entries=False)
        for token in _tokens_in(Path(path)) if path else ():
            # Also if it is not set: the tokenizers library would print a line about it.
            if unknown := sorted(token.keys() - _TOKEN_FIELDS):
                raise CheckpointError(
                    f"{path}: the token {quote(token['content'])} has the field {quote(unknown[0])}, which "
                    "transformers 5 does not know, so its effect is unknown"
                )


def _tokens_in(path: Path) -> Iterator[dict[str, Any]]:
    """The descriptions of tokens in a tokenizer's file, without parsing its long vocabulary."""
    try:
        text = path.read_text("utf-8")
        if path.name == "tokenizer.json":
            start = text.find("[", text.find('"added_tokens"') + 1)
            places: list[Any] = [json.JSONDecoder().raw_decode(text, start)[0]] if start > 0 else []
        else:
            fields = json.loads(text)
            places = [[field] for field in fields.values()] + list(fields.values())
    except (OSError, ValueError, RecursionError, AttributeError):
        return  # reported when the file is read
    for place in places:
        values = place.values() if isinstance(place, dict) else place if isinstance(place, list) else ()
        yield from (value for value in values if isinstance(value, dict) and "content" in value)


def refuse_unknown_tokens(encoded: Encoded | EncodedRequests, base: BaseIdentity) -> None:
    """Refuse a tokenizer with more tokens than the model has embeddings."""
    greatest = max(int(ids.max()) for ids in encoded.input_ids)
    if greatest >= base.vocab_size:
        raise CheckpointError(
            f"base {base.name}: its tokenizer has token {greatest}, but the model's {base.vocab_size} "
            f"embeddings end at {base.vocab_size - 1}; tokenizer and weights do not belong together"
        )


def n_outputs(task: TaskSpec) -> int | None:
    """Number of logits: one per label or tag, one for regression, two for answers; None for causal models."""
    fixed = {"regression": 1, "extractive": 2}
    return len(task.label_names) if task.kind in OF_CLASSES else fixed.get(task.kind)


def has_untrained_pooler(model: PreTrainedModel, missing: Collection[str]) -> bool:
    """Whether the base's pooler is as it was initialised: all its biases are zero, which one step changes.

    Args:
        model: the base.
        missing: names of the parameters that it lacks.
    """
    prefix = f"{model.base_model_prefix}.pooler."
    biases = [
        parameter
        for name, parameter in model.named_parameters()
        if name.startswith(prefix) and name not in missing and parameter.dim() == 1
    ]
    return bool(biases) and not any(bias.any() for bias in biases)


def refuse_lost(name: str, missing: Collection[str], prefix: str, pooler: str | None) -> None:
    """Refuse a base that lacks more than a head and a pooler.

    Args:
        name: the base.
        missing: names of the parameters that it lacks.
        prefix: that of the names of all that it must have; "" for a whole language model.
        pooler: the prefix of the pooler's, which it may lack.

    Raises:
        CheckpointError: it does.
    """
    lost = sorted(n for n in missing if n.startswith(prefix) and not (pooler and n.startswith(pooler)))
    if lost:
        raise CheckpointError(
            f"base {name} lacks {len(lost)} of the {'encoder' if prefix else 'model'}'s tensors or has them "
            f"in another shape, {lost[0]} first; it is damaged or of another family"
        )


def refuse_not_finite(name: str, model: PreTrainedModel) -> None:
    """Refuse a base with NaN or infinite values, apart from tensors in a quantiser's own format."""
    for tensor_name, parameter in model.named_parameters():
        plain = type(parameter.data) is torch.Tensor and parameter.is_floating_point()
        if plain and not torch.isfinite(parameter).all():
            raise CheckpointError(f"base {name}: {tensor_name} contains NaN or infinite values")


@torch.no_grad()
def initialise(model: PreTrainedModel, missing: frozenset[str], seed: int) -> None:
    """Draw the named parameters from N(0, initializer_range^2), and set biases to zero.

    Torch's global generators are not used.
    """
    generator = torch.Generator().manual_seed(seed)
    std = getattr(model.config, "initializer_range", 0.02)
    for name, parameter in sorted(model.named_parameters()):
        if name in missing:
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=std, generator=generator)
            else:
                nn.init.zeros_(parameter)


def weights_sha256(model: PreTrainedModel, missing: Collection[str], whole: bool) -> str:
    """SHA-256 of a base's parameters in float32, under their names inside it, without those that it lacks.

    Args:
        model: the base with a head.
        missing: names of the parameters that the base lacks.
        whole: whether the head belongs to the base, as in a language model.
    """
    weights = hashlib.sha256()
    hashed = dict(model.base_model.named_parameters())
    if whole:
        inside = {id(parameter) for parameter in hashed.values()}
        hashed |= {name: p for name, p in model.named_parameters() if id(p) not in inside}
    for tensor_name, parameter in sorted(hashed.items()):
        if f"{model.base_model_prefix}.{tensor_name}" not in missing:
            weights.update(f"{tensor_name} {tuple(parameter.shape)}\n".encode())
            weights.update(parameter.detach().float().contiguous().numpy())
    return weights.hexdigest()
