"""From the last layer's hidden states to logits, by the head of a transformers model."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    PreTrainedModel,
)

from adapter_probe.data.packing import PackedBatch
from adapter_probe.errors import ModelError

from .family import Anatomy
from .parts import submodule


def classification_head(model: PreTrainedModel, anatomy: Anatomy, hidden: Tensor) -> Tensor:
    """Logits ``[rows, labels]`` from the states ``[rows, hidden]`` at the position that the head reads."""
    features = _normalised(model, anatomy, hidden)
    for step in anatomy.head:
        if not isinstance(step, str):
            features = step(features)
        elif step in anatomy.reads_sequence:
            features = submodule(model, step)(features[:, None])
        else:
            features = submodule(model, step)(features)
    return features


def span_logits(model: PreTrainedModel, anatomy: Anatomy, hidden: Tensor) -> Tensor:
    """Start and end logits ``[tokens, 2]`` from every position's hidden states ``[tokens, hidden]``."""
    features = _normalised(model, anatomy, hidden)
    for step in anatomy.span_head:
        features = submodule(model, step)(features)
    return features


def _normalised(model: PreTrainedModel, anatomy: Anatomy, hidden: Tensor) -> Tensor:
    return hidden if anatomy.final_norm is None else submodule(model.base_model, anatomy.final_norm)(hidden)


def has_span_head(model: PreTrainedModel, anatomy: Anatomy) -> bool:
    """Whether the model answers questions (its head reads all positions) or classifies (only one).

    Raises:
        ModelError: it does neither, or its span head does not give one start and one end logit.
    """
    # Told by the class: a token classifier's head may have the same name as a sequence classifier's.
    if _is_one_of(model, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING):
        return False
    if not _is_one_of(model, MODEL_FOR_QUESTION_ANSWERING_MAPPING):
        raise ModelError(
            f"{type(model).__name__} is not supported; a model for sequence classification or for question "
            "answering is needed"
        )
    outputs = submodule(model, anatomy.span_head[-1]).out_features
    if outputs != 2:
        raise ModelError(
            f"{type(model).__name__} gives {outputs} outputs a token; question answering needs 2, start and "
            "end (num_labels=2)"
        )
    return True


def _is_one_of(model: PreTrainedModel, mapping: dict[type, type]) -> bool:
    family = type(model.config)
    return family in mapping and isinstance(model, mapping[family])


def read_positions(batch: PackedBatch, anatomy: Anatomy, padding: int | None) -> Tensor:
    """Positions ``[examples]`` in the batch that a classification head reads.

    A head that reads the last token passes over padding tokens, as transformers' own does, even where the
    tokenizer wrote such a token into the text (a padding token that also ends texts).
    """
    if anatomy.reads == "first":
        return batch.first
    if padding is None:
        return batch.last
    last = []
    for group in batch.groups:
        ids = batch.input_ids[group.start : group.stop].view(group.n, group.length)
        numbers = torch.arange(group.length, device=ids.device)
        last.append(((ids != padding) * numbers).argmax(dim=1))
    return batch.first + torch.cat(last)
