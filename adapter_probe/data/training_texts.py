"""Rows of a language model as tokens, and which of them are scored: sequences to train on, and to score.

A sequence is tokenised as by `requests_encoding`, so that the loss is of the same tokens as the score: those
of the right choice, the good sentence, the completion, every turn of the assistant, or a whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from adapter_probe.data.encoding import Encoded, encoded_with_fingerprint
from adapter_probe.data.request_rows import Request
from adapter_probe.data.requests import Requests
from adapter_probe.data.requests_encoding import EncodedRequests, Start, Unfit, encoder_of, naming_row
from adapter_probe.data.token_trees import Text, sequences_of


def encode_training(
    tokenizer: Any, requests: Requests, max_length: int, start: Start | None = None
) -> Encoded:
    """The sequences to train on, one per row, or per window of a long text.

    Args:
        requests: the rows; chats with the turns of the assistant.
        max_length: maximum number of tokens; longer sequences lose their start.
        start: of an encoder-decoder, see `encode_requests`.

    Returns:
        tokens, and in `scored` the places of those that the loss is of.
    """
    encoder = encoder_of(tokenizer, requests, max_length, start)
    ids, scored, sources, n_cut = [], [], [], 0
    for number, request in enumerate(requests.rows):
        with naming_row(requests, number):
            source, _ = encoder.source(request)
            if request.turns:
                found = [_chat(tokenizer, request)]
            else:
                right = replace(request, choices=(request.choices[request.gold],), gold=0, counts=())
                texts = encoder.texts(right, requests)
                found = [_places(text, source) for window in texts for text in window]
            for tokens, places in found:
                cut = max(0, len(tokens) - max_length) if source is None else 0  # else each is short enough
                n_cut += cut > 0
                kept = places[places > cut] - cut  # nothing comes before the first token
                if not len(kept):
                    raise Unfit("no token to train on")
                ids.append(tokens[cut:])
                scored.append(kept)
                sources.append(source)
    made = encoded_with_fingerprint(tuple(ids), None, tuple(scored), _sizes(sources))
    return replace(made, n_cut=n_cut)


def _places(text: Text, source: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    context, continuation = text
    whole = np.array([*(() if source is None else source), *context, *continuation], dtype=np.int64)
    return whole, np.arange(len(whole) - len(continuation), len(whole))


def _sizes(sources: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Tokens that an encoder reads of every sequence; None without an encoder."""
    sizes = [len(source) for source in sources if source is not None]
    return np.array(sizes, dtype=np.int64) if sizes else None


def _chat(tokenizer: Any, request: Request) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a chat, and the places of those with a character in a turn of the assistant."""
    found = tokenizer(
        request.context + request.choices[0], add_special_tokens=False, return_offsets_mapping=True
    )
    begins, ends = np.array(found["offset_mapping"], dtype=np.int64).T
    inside = np.zeros(len(begins), dtype=bool)
    for first, last in request.turns:
        inside |= (ends > first) & (begins < last) & (ends > begins)
    return np.array(found["input_ids"], dtype=np.int64), np.flatnonzero(inside)


def texts_of(encoded: EncodedRequests) -> tuple[Encoded, np.ndarray, np.ndarray]:
    """The continuations of requests, each as a sequence of its own.

    Returns:
        the sequences with their scored places; and int64 ``[sequences]`` each, the example and the
        continuation that it is of.
    """
    ids, scored, sources, example, number = [], [], [], [], []
    for item, tree in enumerate(encoded.trees):
        for place, (tokens, n_scored) in enumerate(sequences_of(tree)):
            whole, places = _places((tokens[:-n_scored], tokens[-n_scored:]), tree.source)
            ids.append(whole)
            scored.append(places)
            sources.append(tree.source)
            example.append(int(encoded.example[item]))
            number.append(place)
    made = encoded_with_fingerprint(tuple(ids), None, tuple(scored), _sizes(sources))
    return made, np.array(example, dtype=np.int64), np.array(number, dtype=np.int64)
