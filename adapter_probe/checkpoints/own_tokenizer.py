"""The tokenizer or chat template saved with an adapter, if it encodes differently from the base's."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from adapter_probe.data.readers import read_text

from .base import load_tokenizer
from .identity import encoding_changes

_BLANKS_BEFORE = ("bloom", "deberta", "gpt2", "roberta")  # as in run_ner.py of transformers
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.txt", "vocab.json")
_TEMPLATE = "chat_template.jinja"


def own_tokenizer(
    folders: Iterable[Path], config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """The tokenizer that was saved with an adapter of PEFT, if it encodes differently from the base's.

    A chat template that was saved alone belongs to the base's tokenizer.

    Args:
        folders: the checkpoint, and the folder that the user named, which may be the one above.
        config: configuration of the base.
        tokenizer: the base's tokenizer.

    Returns:
        The tokenizer to use, and in what the checkpoint's differs; nothing if the base's is used.
    """
    for folder in dict.fromkeys(folders):
        if any((folder / name).is_file() for name in _TOKENIZERS):
            own = load_tokenizer(str(folder), config=config)
            changed = encoding_changes(tokenizer, own)
            return (own, changed) if changed else (tokenizer, [])
        if (folder / _TEMPLATE).is_file():
            own = copy.deepcopy(tokenizer)
            own.chat_template = read_text(folder / _TEMPLATE)
            changed = encoding_changes(tokenizer, own)
            return (own, changed) if changed else (tokenizer, [])
    return tokenizer, []


def with_blanks(
    folders: Iterable[Path], config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase | None:
    """A base's tokenizer that puts a blank before every word of a list, where transformers' training does.

    Its script for tags does so for some families. None for the others, and where a checkpoint was saved with
    a tokenizer, which is taken as it is.
    """
    saved = any((folder / name).is_file() for folder in folders for name in _TOKENIZERS)
    parts = tokenizer.backend_tokenizer.pre_tokenizer if tokenizer.is_fast else None
    if saved or config.model_type not in _BLANKS_BEFORE or not hasattr(parts, "add_prefix_space"):
        return None
    found = copy.deepcopy(tokenizer)
    parts = found.backend_tokenizer.pre_tokenizer
    found.add_prefix_space = parts.add_prefix_space = True
    found.backend_tokenizer.pre_tokenizer = parts
    return found


def use_padding(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Name the padding token of a checkpoint's tokenizer in a configuration that names none.

    A head that reads the last token skips padding tokens, and the training had to name one.
    """
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id


def note_on_tokenizer(changed: Sequence[str]) -> str:
    """The remark that the checkpoint's tokenizer is used, and in what it differs."""
    parts = ", ".join(changed).replace("_", " ")
    return f"The checkpoint's own tokenizer is used; it differs from the base's in: {parts}."
