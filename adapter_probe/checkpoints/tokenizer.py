"""Tokenizers: that of a base, and one or a chat template saved with an adapter that encodes differently."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.readers import read_text
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.errors import CheckpointError

from .base_config import naming_base, resolve_base
from .files import VOCABULARIES, cached_base, quote, read_json_file, refuse_unreadable
from .identity import BaseIdentity, encoding_changes

_TOKEN_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_TOKEN_FIELDS = {"__type", "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}
_BLANKS_BEFORE = ("bloom", "deberta", "gpt2", "roberta")  # as in run_ner.py of transformers
_TEMPLATE = "chat_template.jinja"
_SETTINGS = "tokenizer_config.json"
_BLANK = "add_prefix_space"
_BEFORE = ("Ġ", "▁")  # how tokens of bytes and of SentencePiece begin after a blank


def load_tokenizer(
    name: str, revision: str | None = None, config: PretrainedConfig | None = None
) -> PreTrainedTokenizerBase:
    """The base's tokenizer, or that of another folder, such as a checkpoint's.

    Args:
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


def own_tokenizer(
    folders: Iterable[Path],
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    padded: bool = False,
) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """The tokenizer that was saved with an adapter of PEFT, if it encodes differently from the base's.

    A chat template that was saved alone belongs to the base's tokenizer.

    Args:
        folders: the checkpoint, and the folder that the user named, which may be the one above.
        padded: whether another padding token is a difference, see `use_padding`.

    Returns:
        The tokenizer to use, and in what the checkpoint's differs; nothing if the base's is used.
    """
    for folder in dict.fromkeys(folders):
        if found := [name for name in VOCABULARIES if (folder / name).is_file()]:
            try:
                own = load_tokenizer(str(folder), config=config)
            except CheckpointError as error:
                said = f"{folder} has a tokenizer of its own ({', '.join(found)}), which cannot be used"
                raise CheckpointError(f"{said}: {error}") from error
        elif (folder / _TEMPLATE).is_file():
            own = copy.deepcopy(tokenizer)
            own.chat_template = read_text(folder / _TEMPLATE)
        else:
            continue
        changed = encoding_changes(tokenizer, own)
        changed += ["padding token"] * (padded and own.pad_token_id not in (None, tokenizer.pad_token_id))
        changed += ["model_max_length"] * (own.model_max_length != tokenizer.model_max_length)
        return (own, changed) if changed else (tokenizer, [])
    return tokenizer, []


def note_on_settings(
    tokenizer: PreTrainedTokenizerBase, checkpoint: Path, revision: str | None, words: bool
) -> list[str]:
    """What to say of settings in a tokenizer's own configuration that the loaded tokenizer does not follow.

    Some classes of tokenizers read a setting, such as ``add_eos_token``, and others pass over it.

    Args:
        checkpoint: the folder whose configuration counts, if it has one; else the base's does.
        revision: of the base on the Hub.
        words: whether texts are given as words, where blanks are settled by `with_blanks`.
    """
    name = tokenizer.name_or_path
    folder = Path(name) if Path(name).is_dir() else cached_base(name, revision)
    folder = checkpoint if has_tokenizer((checkpoint,)) else folder
    try:
        asked = read_json_file(folder / _SETTINGS) if folder else {}
    except CheckpointError:  # none, where the vocabulary says everything
        return []
    does = {name: does for name, does in _behaviour(tokenizer).items() if asked.get(name) is not None}
    other = [name for name in sorted(does) if asked[name] != does[name] and (name, words) != (_BLANK, True)]
    if not other:
        return []
    settings = ", ".join(f"{name}: {json.dumps(asked[name])}" for name in other)
    kind = type(tokenizer).__name__
    return [f"{folder / _SETTINGS} asks for {settings}, which the loaded {kind} does not do."]


def _behaviour(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What a tokenizer does, by the names of the settings that ask for it; without what does not apply."""
    ids, lower, plain, two = tokenizer("a")["input_ids"], *map(tokenizer.tokenize, ("ab", "e", "a a"))
    does = {
        "add_bos_token": ids[:1] == [tokenizer.bos_token_id],
        "add_eos_token": ids[-1:] == [tokenizer.eos_token_id],
        **{name: getattr(tokenizer, name, None) for name in ("truncation_side", "padding_side")},
    }
    known = tokenizer.unk_token not in (*lower, *plain, *two)
    if known:
        does["do_lower_case"] = tokenizer.tokenize("AB") == lower
        does["strip_accents"] = tokenizer.tokenize("é") == plain
    if known and two and two[-1][:1] in _BEFORE:
        does[_BLANK] = two[0][:1] in _BEFORE
    return does


def with_blanks(
    folders: Iterable[Path], config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase | None:
    """A base's tokenizer that puts a blank before every word of a list, where transformers' training does.

    Its script for tags does so for some families. None for the others, and where a checkpoint was saved with
    a tokenizer, which is taken as it is.
    """
    saved = has_tokenizer(folders)
    parts = tokenizer.backend_tokenizer.pre_tokenizer if tokenizer.is_fast else None
    if saved or config.model_type not in _BLANKS_BEFORE or not hasattr(parts, "add_prefix_space"):
        return None
    found = copy.deepcopy(tokenizer)
    parts = found.backend_tokenizer.pre_tokenizer
    found.add_prefix_space = parts.add_prefix_space = True
    found.backend_tokenizer.pre_tokenizer = parts
    return found


def has_tokenizer(folders: Iterable[Path]) -> bool:
    """Whether a checkpoint was saved with a tokenizer, in its folder or the one above."""
    return any((folder / name).is_file() for folder in folders for name in VOCABULARIES)


def use_padding(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, saved: bool) -> list[str]:
    """Name the padding token of the training in a configuration; a head of the last token skips it.

    Transformers' Trainer 5 writes its tokenizer's into the model's configuration, whatever the base names,
    and saves that tokenizer, but not the configuration, with an adapter.

    Args:
        saved: whether the tokenizer was saved with the checkpoint; else the base's own token counts first.

    Returns:
        what to say if another token is skipped than the base names.
    """
    config, pad = config.get_text_config(), tokenizer.pad_token_id
    named = config.pad_token_id
    if pad is None or pad == named or (named is not None and not saved):
        return []
    config.pad_token_id = pad
    if named is None:
        return []
    return [
        f"The head skips {quote(tokenizer.pad_token)}, with which the checkpoint's tokenizer pads, as in "
        f"Transformers' Trainer; the base's configuration names {named}."
    ]
