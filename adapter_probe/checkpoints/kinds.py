"""The kind of task of a checkpoint, by what its library records (without torch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from adapter_probe.errors import quote

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

# Endings of the names of transformers' classes. The last serves models of texts and images, and of texts to
# texts.
_CLASSES: dict[str, Head] = {
    "ForSequenceClassification": "classification",
    "ForQuestionAnswering": "extractive",
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
    "ForTokenClassification": "tokens",
    "ForConditionalGeneration": "causal",
}


def head_of_class(name: object, is_encoder_decoder: bool) -> Head | None:
    """What a class of transformers computes, by its name; None if that is not supported."""
    head = next((head for ending, head in _CLASSES.items() if str(name).endswith(ending)), None)
    return "seq2seq" if head == "causal" and is_encoder_decoder else head


# Whose classes wrap a model, or are told apart by what they compute.
_LIBRARIES = ("transformers", "peft", "torch", "accelerate", "deepspeed", "trl", "unsloth")


def class_of_own_code(document: Mapping[str, Any]) -> str | None:
    """The class that an adapter of PEFT was trained on, where it came with a model instead of a library."""
    mapping = document.get("auto_mapping")
    found = mapping if isinstance(mapping, Mapping) else {}
    name, library = found.get("base_model_class"), found.get("parent_library")
    own = isinstance(library, str) and library.partition(".")[0] not in _LIBRARIES
    return str(name) if name and own else None


def note_on_code(fields: Mapping[str, Any]) -> list[str]:
    """What to say of a base that names Python code of its own for its model, which is never run."""
    code = fields.get("auto_map")
    named = [code[name] for name in code if name.startswith("AutoModel")] if isinstance(code, dict) else []
    if not named:
        return []
    return [
        f"The base names code of its own (auto_map: {quote(named[0])}), which is never run; Transformers' "
        f"class for {fields.get('model_type')} runs in its place, and may compute something else."
    ]
