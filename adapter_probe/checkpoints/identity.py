"""Everything that determines a number, apart from the data and the settings of a study.

The delta, the method, the base's weights and configuration, and the tokenizer, as plain JSON. Ablations,
sweeps, trainings, `prune` and the report compare it before they use what is on disk; the opening of a
checkpoint compares it with what the checkpoint records. Works without torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapter_probe.results.fingerprints import hash_json

# Names, descriptions, storage and text generation: none of these fields affects the logits.
_NO_EFFECT = frozenset((
    "_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "adapters_version",
    "unsloth_version", "unsloth_fixed", "transformers.js_config", "architectures", "auto_map",
    "custom_pipelines", "tokenizer_class", "language", "license", "finetuning_task", "task_specific_params",
    "model_max_length", "dtype", "torch_dtype", "use_bfloat16", "_attn_implementation_autoset", "id2label",
    "label2id", "num_labels", "_num_labels", "problem_type", "use_cache", "output_attentions",
    "output_hidden_states", "output_past", "return_dict", "torchscript", "gradient_checkpointing",
    "tf_legacy_loss", "chunk_size_feed_forward", "max_length", "min_length", "do_sample", "early_stopping",
    "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "prefix",
))  # fmt: skip
# Fields that affect only training: dropout, and the initialisation of weights that the base lacks.
_TRAINING_ONLY = ("dropout", "pdrop", "layerdrop", "initializer_range", "router_aux_loss_coef")
# Parts of a tokenizer file that do not affect the ids of a text.
NOT_ENCODING = ("version", "truncation", "padding", "decoder")


@dataclass(frozen=True)
class BaseIdentity:
    """The identity of the base of a checkpoint.

    Attributes:
        name: absolute folder or hub id.
        revision: commit on the hub, or None for a folder.
        weights_sha256: of the encoder's tensors, in float32, under their names; of a causal model also its
            output embedding's, if it is not tied.
        n_layers, hidden_size, vocab_size: dimensions, for a clear message if a base cannot fit.
        config: fields of its config.json that can change a number, see `config_settings`.
        without_pooler_sha256: the same without the pooler, where that is the last part; else empty.
    """

    name: str
    revision: str | None
    weights_sha256: str
    n_layers: int
    hidden_size: int
    vocab_size: int
    config: dict[str, Any]
    without_pooler_sha256: str = ""


def config_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a base's config.json that can change a number, as plain JSON."""
    settings = {name: value for name, value in config.items() if name not in _NO_EFFECT}
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def forward_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `config_settings` that can change a number without training."""
    return {k: v for k, v in settings.items() if not any(word in k for word in _TRAINING_ONLY)}


def tokenizer_parts(tokenizer: Any) -> dict[str, str]:
    """Hashes of the parts of a tokenizer that can change the ids of a text, by name."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        parts = {"vocabulary": tokenizer.get_vocab(), "class": type(tokenizer).__name__}
    else:
        parts = json.loads(backend.to_str())
        parts = {name: part for name, part in parts.items() if name not in NOT_ENCODING}
    parts["special_tokens"] = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    parts["truncation_side"] = tokenizer.truncation_side
    parts["inputs"] = list(tokenizer.model_input_names)
    parts["chat_template"] = getattr(tokenizer, "chat_template", None)
    return {name: hash_json(part) for name, part in parts.items() if part is not None}


def encoding_changes(old: Any, new: Any) -> list[str]:
    """The parts in which two tokenizers encode texts or chats differently; see `tokenizer_parts`.

    A padding token alone is no difference: texts run without padding.
    """
    one, two = (
        {**tokenizer_parts(each), "special_tokens": hash_json([each.bos_token, each.eos_token])}
        for each in (old, new)
    )
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))


def checkpoint_identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a checkpoint in an evaluation.

    Args:
        record: a checkpoint's description as JSON, see `Description.to_json`; fields that it lacks
            are left out.
    """
    base, method = record.get("base") or {}, record.get("method") or {}
    if method.get("name") == "imported":  # it lists every module; its hash is sufficient
        method = {"name": "imported", "sha256": hash_json(method)}
    return {
        "checkpoint": {"delta_sha256": record.get("delta_sha256"), "method": dict(method)},
        "base": {
            "weights_sha256": base.get("weights_sha256"),
            "config": forward_settings(base.get("config") or {}),
        },
        "tokenizer": dict(record.get("tokenizer") or {}),
    }
