"""Preferences for a reward model: each prompt with each of its answers as one text with one score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adapter_probe.data.encoding import Encoded, encoded_with_fingerprint
from adapter_probe.data.requests import Requests
from adapter_probe.data.requests_encoding import whole_texts
from adapter_probe.errors import DataError


def encode_preferences(tokenizer: Any, requests: Requests, max_length: int) -> tuple[Encoded, np.ndarray]:
    """Tokenise preferences as TRL does for a reward model, equal texts once.

    Args:
        requests: of the form ``preference``.
        max_length: maximum number of tokens; longer texts are truncated at the end.

    Returns:
        the texts; and int64 ``[examples, 2]``, which of them are the chosen and the rejected one.

    Raises:
        DataError: the rows are no preferences, or a text has no tokens.
    """
    if requests.form != "preference":
        raise DataError(f"{requests.name}: the rows are no preferences; give columns chosen and rejected")
    ids = [
        tokenizer(text, add_special_tokens=request.framed, truncation=True, max_length=max_length)
        for request in requests.rows
        for text in whole_texts(tokenizer, request)
    ]
    return encoded_pairs([one["input_ids"] for one in ids], [one.get("token_type_ids") for one in ids])


def encoded_pairs(
    ids: Sequence[Sequence[int]], types: Sequence[Sequence[int] | None] = ()
) -> tuple[Encoded, np.ndarray]:
    """Token ids of texts, of which every two make an example, equal texts once; see `encode_preferences`.

    Raises:
        DataError: a text has no tokens.
    """
    places: dict[tuple[int, ...], int] = {}
    items = [places.setdefault(tuple(one), len(places)) for one in ids]
    if empty := [number for number, one in enumerate(ids) if not len(one)]:
        raise DataError(f"row {empty[0] // 2 + 1} has a text without tokens")
    first = {item: number for number, item in reversed(list(enumerate(items)))}
    kept = [first[item] for item in range(len(places))]
    arrays = tuple(np.array(ids[number], dtype=np.int64) for number in kept)
    own = [types[number] for number in kept] if types and types[0] is not None else None
    typed = None if own is None else tuple(np.array(one, dtype=np.int64) for one in own)
    return encoded_with_fingerprint(arrays, typed), np.array(items, dtype=np.int64).reshape(-1, 2)
