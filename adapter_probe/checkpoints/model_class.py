"""What a model computes, and which class of transformers runs a base for it."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from adapter_probe.errors import CheckpointError, quote
from adapter_probe.kinds.table import about_kind

Head = Literal[
    "classification", "multilabel", "regression", "extractive", "causal", "seq2seq", "tokens", "features"
]
"""What a model computes: a task's `Kind`, or one that no task of this project has yet."""

WITHOUT_HEAD: tuple[Head, ...] = ("causal", "seq2seq", "features")
"""What a model computes without a head of its own."""

HEADS: dict[str, Head] = {
    "SEQ_CLS": "classification",
    "QUESTION_ANS": "extractive",
    "CAUSAL_LM": "causal",
    "SEQ_2_SEQ_LM": "seq2seq",
    "TOKEN_CLS": "tokens",
    "FEATURE_EXTRACTION": "features",
}
"""PEFT's task types."""

HEAD_MODULES = ("classifier", "score", "qa_outputs", "classification_head", "logits_proj")
"""Names of the modules of a head."""

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


def head_of_kind(kind: str, is_encoder_decoder: bool) -> Head:
    """What a model computes for a kind of task, or for ``embedding``."""
    about = about_kind(kind)
    if about.is_language_model and is_encoder_decoder:
        return "seq2seq"
    return about.head or kind  # type: ignore[return-value]


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


_MAPPINGS: dict[Head, Any] = {
    "features": modeling_auto.MODEL_MAPPING,
    "classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "multilabel": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "regression": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "extractive": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    "tokens": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
}


def head_of_base(config: PretrainedConfig) -> Head | None:
    """What a base computes, by the class that it was saved from; None where no class is named."""
    return head_of_class(_own_class(config), config.is_encoder_decoder)


def head_with_labels(head: Head | None, config: PretrainedConfig, problem: str | None = None) -> Head | None:
    """What a classifier computes by its labels: of several at a time, a number, or one of them.

    Args:
        problem: another ``problem_type`` than the configuration's.
    """
    if head != "classification":
        return head
    problem = problem or config.problem_type
    if config.num_labels == 1 or problem == "regression":
        return "regression"
    return "multilabel" if problem == "multi_label_classification" else head


def _own_class(config: PretrainedConfig) -> str:
    names = getattr(config, "architectures", None)
    return str(names[0]) if isinstance(names, list) and names else ""


def choose_class(
    name: str, config: PretrainedConfig, head: Head, modules: Iterable[str]
) -> type[PreTrainedModel]:
    """The class of transformers for a base and a head.

    A language model may be stored as a part of a model of texts and images. Its adapters were trained in one
    of the two classes, so the class is used that has the modules of the adapters.

    Args:
        modules: names of modules with adapters, in the whole model.

    Raises:
        CheckpointError: transformers has no such class, or it does not read texts.
    """
    found = [_mapped(config, head)]
    if head in ("causal", "seq2seq") and head_of_base(config) == head:
        found.insert(0, getattr(transformers, _own_class(config), None))
        found.append(_mapped(config.get_text_config(), head))
    classes = [cls for cls in dict.fromkeys(found) if _takes(cls, config)]
    if not classes:
        raise CheckpointError(
            f"base {name}: transformers {transformers.__version__} has no class for {head} on a "
            f"{config.model_type} model"
        )
    wanted = set(modules)
    chosen = next((cls for cls in classes[:-1] if wanted <= modules_of(cls, config)), classes[-1])
    if len(classes) > 1 and not wanted <= modules_of(chosen, config):
        chosen = classes[0]  # whose missing modules are named when the adapters are loaded
    if chosen.main_input_name != "input_ids":
        raise CheckpointError(
            f"base {name}: a {chosen.__name__} reads {chosen.main_input_name}, and adapter-probe has data of "
            "texts only"
        )
    return chosen


def _takes(cls: Any, config: PretrainedConfig) -> bool:
    """Whether a class is a model for this configuration, or for its part for texts."""
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel) and cls.config_class):
        return False
    return isinstance(config, cls.config_class) or isinstance(config.get_text_config(), cls.config_class)


def skips_padding(model: PreTrainedModel) -> bool:
    """Whether a model's head reads the last token that is no padding, by the code of its forward."""
    forwards = (inspect.unwrap(vars(cls)["forward"]) for cls in type(model).__mro__ if "forward" in vars(cls))
    return any("pad_token_id" in one.__code__.co_names for one in forwards)


def is_for(config: PretrainedConfig, head: Head, modules: set[str]) -> bool:
    """Whether transformers has a class for a head on models of this type, and it has these modules."""
    return (cls := _mapped(config, head)) is not None and modules <= modules_of(cls, config)


def _mapped(config: PretrainedConfig, head: Head) -> Any:
    mapping = _MAPPINGS[head]
    cls = mapping.get(type(config), None)
    return cls[0] if isinstance(cls, tuple) else cls


def modules_of(cls: type[PreTrainedModel], config: PretrainedConfig) -> set[str]:
    """The names of a class's modules."""
    with contextlib.suppress(Exception):  # another library's constructor
        return {name for name, _ in without_weights(cls, config_for(cls, config)).named_modules()}
    return set()


def without_weights(cls: type[Any], config: PretrainedConfig) -> Any:
    """A model of a class, without memory for its tensors."""
    with torch.device("meta"):
        return cls(copy.deepcopy(config))


def config_for(cls: type[PreTrainedModel], config: PretrainedConfig) -> PretrainedConfig:
    """A copy of a configuration, or of its part for texts, as a class takes it."""
    own = isinstance(config, cls.config_class)
    return copy.deepcopy(config if own else config.get_text_config())
