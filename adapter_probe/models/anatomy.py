"""Where each model family keeps its parts: one row of a table a family.

The engine runs the encoder from these parts. A family that keeps the post-LayerNorm Transformer layer of
Vaswani et al. 2017 joins by adding a row; nothing else in the project names a family.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
)

from adapter_probe.errors import ModelError


@dataclass(frozen=True)
class LayerNames:
    """Dotted names of one layer's parts, relative to the layer."""

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_dropout: str = "attention.self.dropout"
    attention_out: str = "attention.output.dense"
    attention_out_dropout: str = "attention.output.dropout"
    attention_norm: str = "attention.output.LayerNorm"
    attention_site: str = "attention.output"
    ffn_in: str = "intermediate.dense"
    activation: str = "intermediate.intermediate_act_fn"
    ffn_out: str = "output.dense"
    ffn_out_dropout: str = "output.dropout"
    ffn_norm: str = "output.LayerNorm"
    ffn_site: str = "output"


@dataclass(frozen=True)
class Anatomy:
    """One family: names relative to the encoder (`PreTrainedModel.base_model`).

    Attributes:
        model_types: the `config.model_type` values that this row serves.
        head: dotted names, relative to the whole model, of the modules that turn the first position's
            hidden state into logits, in order. A module named in `reads_sequence` takes
            ``[rows, positions, hidden]`` and reads position 0 itself; the others take ``[rows, features]``.
        reads_sequence: the entries of `head` that index the sequence themselves.
        span_head: dotted name, relative to the whole model, of the linear map that turns every position's
            hidden state into start and end logits, in the family's class for question answering.
        projection: a map from embedding width to hidden width, where the family may have one.
        pooler: dotted name, relative to the encoder, of a pooler that is part of the head, or None.
        positions_follow_padding: position numbers begin at `pad_token_id` + 1, so that many are lost.
    """

    model_types: tuple[str, ...]
    head: tuple[str, ...]
    reads_sequence: tuple[str, ...]
    span_head: str = "qa_outputs"
    embeddings: str = "embeddings"
    embedding_norm: str = "embeddings.LayerNorm"
    projection: str | None = None
    pooler: str | None = None
    positions_follow_padding: bool = False
    layers: str = "encoder.layer"
    layer: LayerNames = field(default_factory=LayerNames)


ANATOMIES: tuple[Anatomy, ...] = (
    Anatomy(
        model_types=("bert",),
        head=("bert.pooler", "dropout", "classifier"),
        reads_sequence=("bert.pooler",),
        pooler="pooler",
    ),
    Anatomy(
        model_types=("roberta", "xlm-roberta", "camembert", "data2vec-text"),
        head=("classifier",),
        reads_sequence=("classifier",),
        positions_follow_padding=True,
    ),
    Anatomy(
        model_types=("electra",),
        head=("classifier",),
        reads_sequence=("classifier",),
        projection="embeddings_project",
    ),
)


def supported_model_types() -> tuple[str, ...]:
    """Every `config.model_type` that has a row in the table."""
    return tuple(name for anatomy in ANATOMIES for name in anatomy.model_types)


def anatomy_for(config: PretrainedConfig) -> Anatomy:
    """The table row for a model's configuration.

    Raises:
        ModelError: the family has no row, or the configuration changes the layer's computation (a decoder,
            cross-attention, relative positions).
    """
    for anatomy in ANATOMIES:
        if config.model_type in anatomy.model_types:
            break
    else:
        raise ModelError(
            f"model family {config.model_type!r} is not supported; supported are "
            f"{', '.join(supported_model_types())}"
        )
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise ModelError(
            f"{config.model_type} configured as a decoder is not supported; an encoder is needed"
        )
    positions = getattr(config, "position_embedding_type", None) or "absolute"
    if positions != "absolute":
        raise ModelError(f"position_embedding_type {positions!r} is not supported; allowed is 'absolute'")
    return anatomy


def length_limit(asked: int | None, config: PretrainedConfig, tokenizer_limit: int) -> int:
    """The most tokens an example may have: `asked`, within what the model and its tokenizer can read.

    Raises:
        ModelError: `asked` leaves no room for a token between the two special ones.
    """
    if asked is not None and asked < 3:
        raise ModelError(f"max_length {asked} is not allowed; give at least 3")
    positions = int(config.max_position_embeddings)
    if anatomy_for(config).positions_follow_padding:
        positions -= int(config.pad_token_id) + 1
    return min(limit for limit in (asked, positions, tokenizer_limit) if limit is not None)


def classification_head(model: PreTrainedModel, anatomy: Anatomy, first_hidden: Tensor) -> Tensor:
    """Logits ``[rows, labels]`` from the first position's hidden states ``[rows, hidden]``."""
    features = first_hidden
    for name in anatomy.head:
        module = model.get_submodule(name)
        features = module(features[:, None]) if name in anatomy.reads_sequence else module(features)
    return features


def has_span_head(model: PreTrainedModel, anatomy: Anatomy) -> bool:
    """Whether the model answers questions (its head reads all positions) or classifies (only the first).

    Raises:
        ModelError: it does neither, or its span head does not give one start and one end logit.
    """
    # Told by the class: a token classifier's head may have the same name as a sequence classifier's.
    family = type(model.config)
    if isinstance(model, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[family]):
        return False
    if not isinstance(model, MODEL_FOR_QUESTION_ANSWERING_MAPPING[family]):
        raise ModelError(
            f"{type(model).__name__} is not supported; a model for sequence classification or for question "
            "answering is needed"
        )
    outputs = model.get_submodule(anatomy.span_head).out_features
    if outputs != 2:
        raise ModelError(
            f"{type(model).__name__} gives {outputs} outputs a token; question answering needs 2, start and "
            "end (num_labels=2)"
        )
    return True


def span_logits(model: PreTrainedModel, anatomy: Anatomy, hidden: Tensor) -> Tensor:
    """Start and end logits ``[tokens, 2]`` from every position's hidden states ``[tokens, hidden]``."""
    logits: Tensor = model.get_submodule(anatomy.span_head)(hidden)
    return logits


@dataclass(frozen=True)
class LayerParts:
    """One layer's modules, found by `LayerNames`."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    attention_dropout: nn.Dropout
    attention_out: nn.Linear
    attention_out_dropout: nn.Dropout
    attention_norm: nn.LayerNorm
    attention_site: nn.Module
    ffn_in: nn.Linear
    activation: nn.Module
    ffn_out: nn.Linear
    ffn_out_dropout: nn.Dropout
    ffn_norm: nn.LayerNorm
    ffn_site: nn.Module


def layer_parts(encoder: nn.Module, anatomy: Anatomy) -> list[LayerParts]:
    """The parts of every layer, bottom first."""
    names = vars(anatomy.layer)
    return [
        LayerParts(**{part: layer.get_submodule(name) for part, name in names.items()})
        for layer in encoder.get_submodule(anatomy.layers)
    ]


def embed(encoder: nn.Module, anatomy: Anatomy, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
    """Hidden states ``[examples, tokens, hidden]`` that enter layer 0, for rows without padding."""
    hidden: Tensor = encoder.get_submodule(anatomy.embeddings)(
        input_ids=input_ids, token_type_ids=token_type_ids
    )
    if anatomy.projection is not None and hasattr(encoder, anatomy.projection):
        hidden = encoder.get_submodule(anatomy.projection)(hidden)
    return hidden


def split_heads(states: Tensor, head_dim: int) -> Tensor:
    """``[rows, tokens, heads * head_dim]`` to ``[rows, heads, tokens, head_dim]``, as attention wants it."""
    return torch.unflatten(states, -1, (-1, head_dim)).transpose(1, 2)
