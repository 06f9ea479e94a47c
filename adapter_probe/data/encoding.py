"""Turn texts into token ids, without padding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adapter_probe.data.labels import Split
from adapter_probe.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Items:
    """What a model is given of the examples, of any kind of task.

    Attributes:
        in_trees: whether an item is a tree of tokens, whose branches are scored in one pass.
        in_batches: whether the arguments of the model's forward were given.
    """

    in_trees: ClassVar[bool] = False
    in_batches: ClassVar[bool] = False


@dataclass(frozen=True, eq=False)
class Encoded(Items):
    """Token ids of examples, without padding.

    Attributes:
        input_ids: per example int64 ``[tokens]``.
        token_type_ids: per example int64 ``[tokens]``, or None if the tokenizer returns none.
        fingerprint: SHA-256 of all of these ids and lengths.
        scored: of a language model, per example int64 ``[scored]``: the places of the tokens that are scored,
            each by what is predicted at the place before it; else None.
        sources: of an encoder-decoder, int64 ``[examples]``: how many of the first tokens the encoder reads,
            the decoder reading what follows; else None.
        n_cut: of a language model's training, how many sequences lost their beginning.
    """

    input_ids: tuple[np.ndarray, ...]
    token_type_ids: tuple[np.ndarray, ...] | None
    fingerprint: str
    scored: tuple[np.ndarray, ...] | None = None
    sources: np.ndarray | None = None
    n_cut: int = 0

    def __len__(self) -> int:
        return len(self.input_ids)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every example, special tokens included: int64 ``[examples]``; counted once."""
        return np.fromiter(map(len, self.input_ids), dtype=np.int64, count=len(self.input_ids))


def rows_of(firsts: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The rows of some examples, one example's after the other's, from the first row of each and the end."""
    return np.concatenate([np.arange(*firsts[one : one + 2]) for one in chosen])


def encode(tokenizer: PreTrainedTokenizerBase, split: Split, max_length: int) -> Encoded:
    """Tokenise a split in one call.

    Args:
        split: the texts; an empty text consists of the special tokens only.
        max_length: maximum number of tokens per example, special tokens included; at most the model's limit.
            Longer examples are truncated at the end; of a pair, the longer text is truncated first.
    """
    pair = split.texts_b is not None
    least = tokenizer.num_special_tokens_to_add(pair=pair) + (2 if pair else 1)
    if max_length < least:
        raise DataError(f"the maximum length must be at least {least} tokens, got {max_length}")
    batch = tokenizer(
        list(split.texts),
        list(split.texts_b) if pair else None,
        truncation=True,
        max_length=max_length,
        padding=False,
        return_attention_mask=False,
    )
    made = encoded_batch(batch)
    input_ids = made.input_ids
    if empty := sum(not len(ids) for ids in input_ids):
        raise DataError(
            f"{split.name}: {empty:,} of {len(input_ids):,} texts have no tokens (they are empty, and this "
            "tokenizer adds no special tokens); remove them"
        )
    return made


def encoded_batch(batch: Mapping[str, Any]) -> Encoded:
    """What a tokenizer returns for some texts."""
    ids, types = (
        tuple(np.array(one, dtype=np.int64) for one in batch[name]) if name in batch else None
        for name in ("input_ids", "token_type_ids")
    )
    assert ids is not None, "every tokenizer gives ids"
    return encoded_with_fingerprint(ids, types)


def encoded_with_fingerprint(
    input_ids: tuple[np.ndarray, ...],
    token_type_ids: tuple[np.ndarray, ...] | None,
    scored: tuple[np.ndarray, ...] | None = None,
    sources: np.ndarray | None = None,
) -> Encoded:
    """Token ids together with their fingerprint; arguments as in `Encoded`."""
    digest = hashlib.sha256()
    more = (scored, None if sources is None else (sources,))
    for examples in (input_ids, token_type_ids, *(one for one in more if one is not None)):
        digest.update(b"ids" if examples is not None else b"none")
        add_arrays(digest, examples or ())
    return Encoded(input_ids, token_type_ids, digest.hexdigest(), scored, sources)


def add_arrays(digest: Any, arrays: Iterable[np.ndarray]) -> None:
    """Let a digest cover arrays of whole numbers, with their lengths."""
    for one in arrays:
        digest.update(len(one).to_bytes(8, "little") + one.astype("<i8", copy=False).tobytes())
