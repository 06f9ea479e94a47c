"""The kind of task of a checkpoint, by what its library records (without torch)."""

from __future__ import annotations

from typing import Literal

from adapter_probe.metrics import Kind

Head = Literal[
    "classification", "multilabel", "regression", "extractive", "causal", "seq2seq", "tokens", "features"
]
"""What a model computes: a task's `Kind`, or one that no task of this project has yet."""

HEADS: dict[str, Head] = {
    "SEQ_CLS": "classification",
    "QUESTION_ANS": "extractive",
    "CAUSAL_LM": "causal",
    "SEQ_2_SEQ_LM": "seq2seq",
    "TOKEN_CLS": "tokens",
    "FEATURE_EXTRACTION": "features",
}
"""PEFT's task types."""

# Endings of the names of transformers' classes.
CLASSES: dict[str, Kind] = {
    "ForSequenceClassification": "classification",
    "ForQuestionAnswering": "extractive",
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
}


# Endings of more classes. The last serves models of texts and images, and of texts to texts.
_MORE_CLASSES: dict[str, Head] = {
    **CLASSES,
    "ForTokenClassification": "tokens",
    "ForConditionalGeneration": "causal",
}


def head_of_class(name: object, is_encoder_decoder: bool) -> Head | None:
    """What a class of transformers computes, by its name; None if that is not supported."""
    head = next((head for ending, head in _MORE_CLASSES.items() if str(name).endswith(ending)), None)
    return "seq2seq" if head == "causal" and is_encoder_decoder else head


def kind_of_class(name: object) -> Kind | None:
    """The kind of task that a class of transformers is for, by its name; None if it is not supported."""
    return next((kind for ending, kind in CLASSES.items() if str(name).endswith(ending)), None)


def kind_of_base(config: object) -> Kind:
    """The kind of task of a base, by its configuration, for checkpoints that do not record it."""
    made_for = getattr(config, "architectures", None)
    causal = isinstance(made_for, list) and made_for and kind_of_class(made_for[0]) == "causal"
    return "causal" if causal else "classification"
