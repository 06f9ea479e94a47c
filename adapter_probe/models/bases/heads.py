"""Logits from the last layer's hidden states, by the head of a transformers model."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    PreTrainedModel,
)

from adapter_probe.errors import ModelError

from .family import Anatomy
from .parts import submodule

HeadKind = Literal["classification", "extractive", "tokens"]
_CLASSES: dict[HeadKind, dict[type, type]] = {
    "classification": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "extractive": MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    "tokens": MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
}


def classification_head(model: PreTrainedModel, anatomy: Anatomy, hidden: Tensor) -> Tensor:
    """Logits ``[rows, labels]`` from the states ``[rows, hidden]`` at the position that the head reads."""
    features = final_states(model, anatomy, hidden)
    for step in anatomy.head:
        if not isinstance(step, str):
            features = step(features)
        elif step in anatomy.reads_sequence:
            features = submodule(model, step)(features[:, None])
        else:
            features = submodule(model, step)(features)
    return features


def position_logits(model: PreTrainedModel, anatomy: Anatomy, kind: HeadKind, hidden: Tensor) -> Tensor:
    """Start and end logits ``[tokens, 2]``, or those of tags, from all hidden states ``[tokens, hidden]``."""
    features = final_states(model, anatomy, hidden)
    for step in anatomy.span_head if kind == "extractive" else anatomy.tag_head:
        features = submodule(model, step)(features)
    return features


def final_states(model: PreTrainedModel, anatomy: Anatomy, hidden: Tensor) -> Tensor:
    """The head's input ``[rows, hidden]`` from the last layer's states: after the final LayerNorm, if any."""
    return hidden if anatomy.final_norm is None else submodule(model.base_model, anatomy.final_norm)(hidden)


def head_kind(model: PreTrainedModel, anatomy: Anatomy) -> HeadKind:
    """The kind of the model's head: classification, answer spans or tags.

    Raises:
        ModelError: the head is of another kind, or a span head without one start and one end logit.
    """
    # Decided by class, because token and sequence classifiers may name their heads the same.
    family = type(model.config)
    fitting = (
        k for k, classes in _CLASSES.items() if family in classes and isinstance(model, classes[family])
    )
    kind = next(fitting, None)
    if kind is None:
        raise ModelError(
            f"{type(model).__name__} is not supported; give a model for sequence classification, token "
            "classification or question answering"
        )
    if kind == "extractive":
        outputs = submodule(model, anatomy.span_head[-1]).out_features
        if outputs != 2:
            raise ModelError(
                f"{type(model).__name__} has {outputs} outputs per token; question answering needs 2, start "
                "and end (num_labels=2)"
            )
    return kind
