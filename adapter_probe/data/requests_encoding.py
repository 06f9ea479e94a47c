"""Requests as tokens, by the conventions of lm-evaluation-harness, laid out so that nothing runs twice.

A context and its continuations are encoded together and then split; a text without a context follows the BOS
(or EOS) token, and a whole text is scored from its second token if the tokenizer has neither; sequences that
are too long are truncated at the start; a long text is cut into windows in which each token is scored once.
Unlike in lm-evaluation-harness, an EOS that the tokenizer appends to every text is left out, because the
continuation would follow the context's EOS. The texts of one request share prefixes: they are laid out as a
tree of tokens that contains every distinct prefix once, so a context runs once for all its continuations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from adapter_probe.data.encoding import Items
from adapter_probe.data.request_rows import Request, common_length
from adapter_probe.data.requests import Requests
from adapter_probe.data.token_trees import Text, TokenTree, fingerprint_of_trees, grow_tree
from adapter_probe.errors import DataError, shown


@dataclass(frozen=True, eq=False)
class EncodedRequests(Items):
    """Requests as trees of tokens.

    Attributes:
        trees: the items: a request each, or a window of a text.
        example: int64 ``[items]``, the request that each belongs to.
        n_continuations: the most that a request has.
        n_tokens: int64 ``[examples, continuations]``, how many tokens are scored; 0 where there is none.
        fingerprint: SHA-256 of all tokens and of what is scored.
        n_cut: number of requests that lost tokens of their context.
    """

    in_trees: ClassVar[bool] = True

    trees: tuple[TokenTree, ...]
    example: np.ndarray
    n_continuations: int
    n_tokens: np.ndarray
    fingerprint: str
    n_cut: int = 0

    def __len__(self) -> int:
        return len(self.trees)

    @cached_property
    def lengths(self) -> np.ndarray:
        """States of every item: int64 ``[items]``."""
        read = (len(tree.tokens) + (0 if tree.source is None else len(tree.source)) for tree in self.trees)
        return np.array(list(read), dtype=np.int64)

    @property
    def input_ids(self) -> tuple[np.ndarray, ...]:
        """Every token of each item, whether it is read or scored."""
        parts = ((tree.tokens, tree.targets, tree.source) for tree in self.trees)
        return tuple(np.concatenate([part for part in own if part is not None]) for own in parts)


Start = Callable[[Sequence[int]], int]
"""The token from which a decoder begins to write some tokens."""


def encode_requests(
    tokenizer: Any, requests: Requests, max_length: int, start: Start | None = None
) -> EncodedRequests:
    """Tokenise requests.

    Args:
        max_length: maximum number of tokens that the model reads at once.
        start: of an encoder-decoder, which reads the context and writes the continuations, framed by the
            tokenizer as in training; None of any other model.
    """
    encoder = encoder_of(tokenizer, requests, max_length, start)
    trees, example, n_tokens, n_cut = list[TokenTree](), list[int](), list[np.ndarray](), 0
    for number, request in enumerate(requests.rows):
        with naming_row(requests, number):
            made = encoder.texts(request, requests)
            source, source_is_cut = encoder.source(request)
        trees += [replace(grow_tree(texts, max_length), source=source) for texts in made]
        example += [number] * len(made)
        n_tokens.append(np.sum([[len(scored) for _, scored in texts] for texts in made], axis=0))
        longest = max(len(before) + len(own) for texts in made for before, own in texts)
        n_cut += source_is_cut if source is not None else longest > max_length + 1
    return replace(_encoded(trees, example, n_tokens), n_cut=n_cut)


def encode_texts(texts: Sequence[Sequence[Text]]) -> EncodedRequests:
    """Requests that are tokenised already: by request, the tokens before each continuation and its own."""
    most = max(len(before) + len(scored) for one in texts for before, scored in one)
    n_tokens = [np.array([len(scored) for _, scored in one]) for one in texts]
    return _encoded([grow_tree(one, most) for one in texts], list(range(len(texts))), n_tokens)


def _encoded(
    trees: Sequence[TokenTree], example: Sequence[int], n_tokens: Sequence[np.ndarray]
) -> EncodedRequests:
    most = max(map(len, n_tokens))
    padded = np.array([np.pad(counts, (0, most - len(counts))) for counts in n_tokens], dtype=np.int64)
    return EncodedRequests(
        tuple(trees), np.array(example, dtype=np.int64), most, padded, fingerprint_of_trees(trees, example)
    )


def encoder_of(
    tokenizer: Any, requests: Requests, max_length: int, start: Start | None = None
) -> Encoder | Pairs:
    """What encodes single requests; arguments as of `encode_requests`."""
    if start is not None:
        if requests.scored.are_texts:
            raise DataError(
                f"{requests.name}: an encoder-decoder reads one text and writes another; give rows with "
                "columns prompt and completion, or with choices, not whole texts"
            )
        return Pairs(tokenizer, start, max_length)
    return Encoder(tokenizer, start_token(tokenizer), max_length)


def start_token(tokenizer: Any) -> int | None:
    """The token that starts a text without a context: BOS, or else EOS; None if the tokenizer has neither."""
    bos: int | None = tokenizer.bos_token_id
    return tokenizer.eos_token_id if bos is None else bos


class Unfit(Exception):
    """A request cannot be scored; the message gives the reason."""


@contextmanager
def naming_row(requests: Requests, number: int) -> Iterator[None]:
    """Say of which row, counted from 0, a request is unfit."""
    try:
        yield
    except Unfit as unfit:
        raise DataError(f"{requests.name} row {number + 1}: {unfit}") from None


def _check_length(choice: str, tokens: Sequence[int], most: int) -> None:
    if not 0 < len(tokens) <= most:
        raise Unfit(f"{shown(choice)} has {len(tokens)} tokens; 1 to {most} are allowed")


@dataclass(frozen=True)
class Encoder:
    """Encodes single requests.

    Attributes:
        tokenizer: a transformers tokenizer.
        prefix: see `start_token`.
        max_length: maximum number of tokens that the model reads at once.
    """

    tokenizer: Any
    prefix: int | None
    max_length: int

    def tokens(self, text: str, framed: bool = True) -> list[int]:
        """Token ids, with the tokenizer's own first token unless the text begins with it.

        A last token of the tokenizer's own, such as an EOS, is left out: the text may be continued.
        """
        if self.prefix is not None and text.startswith(self.tokenizer.decode(self.prefix)):
            framed = False
        found = self.tokenizer(text, add_special_tokens=framed, return_special_tokens_mask=True)
        ids: list[int] = found["input_ids"]
        added = next((n for n, own in enumerate(reversed(found["special_tokens_mask"])) if not own), 0)
        return ids[: len(ids) - added]

    def source(self, _: Request) -> tuple[None, bool]:
        """No text is read apart from the continuations, and so none is cut."""
        return None, False

    def texts(self, request: Request, of: Requests) -> list[list[Text]]:
        """What is scored of a request, one list for each window of a whole text."""
        if of.scored.are_texts:
            return list(self._windows(request))
        return [self._answers(request) if of.scored.are_preferences else self._pairs(request)]

    def _pairs(self, request: Request) -> list[Text]:
        """Context and continuation of every choice; a chat template has said itself where one ends."""
        if request.framed:
            context = request.context.rstrip()
            spaces = request.context[len(context) :] + request.delimiter
            before = self.tokens(context) if context else []
            made = [self._pair(before, context, spaces + choice) for choice in request.choices]
        else:
            made = [self._turn(request.context, choice) for choice in request.choices]
        return self._checked(made, request)

    def _answers(self, request: Request) -> list[Text]:
        """Both answers of a preference, as in TRL: scored from where their tokens and the prompt's differ."""
        before = self.tokens(request.context, request.framed)
        wholes = [self.tokens(text, request.framed) for text in whole_texts(self.tokenizer, request)]
        same = min(common_length(before, whole) for whole in wholes)
        return self._checked([(whole[:same] or self._start(), whole[same:]) for whole in wholes], request)

    def _checked(self, made: list[Text], request: Request) -> list[Text]:
        for (_, scored), choice in zip(made, request.choices):
            _check_length(choice, scored, self.max_length)
        return made

    def _turn(self, context: str, continuation: str) -> Text:
        """What follows a context written by a chat template, with any token that reaches into it."""
        before, whole = self.tokens(context, False), self.tokens(context + continuation, False)
        same = common_length(before, whole)
        return whole[:same] or self._start(), whole[same:]

    def _pair(self, before: list[int], context: str, continuation: str) -> Text:
        if context:
            return before or self._start(), self.tokens(context + continuation)[len(before) :]
        scored: list[int] = self.tokenizer.encode(continuation, add_special_tokens=False)
        start = self._start()
        return start, scored[1:] if scored[:1] == start else scored

    def _start(self) -> list[int]:
        if self.prefix is None:
            raise Unfit(
                "there is no context, and the base's tokenizer has neither a BOS nor an EOS token to start a "
                "text with; give a context, or set the tokenizer's eos_token"
            )
        return [self.prefix]

    def _windows(self, request: Request) -> Iterator[list[Text]]:
        """A text in windows that score each token once, with the last window as full as possible."""
        ids, size = self.tokens(request.choices[0]), self.max_length
        start, ids = (ids[:1], ids[1:]) if self.prefix is None else ([self.prefix], ids)
        if not ids:
            alone = "a single token, and the base's tokenizer has neither a BOS nor an EOS token before it"
            few = alone if self.prefix is None and start else "no tokens"
            raise Unfit(f"{shown(request.choices[0])} has {few}")
        yield [(start, ids[:size])]
        for begin in range(size, len(ids), size):
            end = min(begin + size, len(ids))
            yield [(ids[end - size - 1 : begin], ids[begin:end])]


def whole_texts(tokenizer: Any, request: Request) -> list[str]:
    """The prompt with each answer of a preference, which ends in the EOS token, as in TRL."""
    end = (tokenizer.eos_token or "") if request.framed else ""  # a chat template has written it
    texts = [request.context + choice for choice in request.choices]
    return [text if text.endswith(end) else text + end for text in texts]


@dataclass(frozen=True)
class Pairs:
    """Texts of an encoder-decoder: the context for the encoder, each continuation for the decoder.

    Both are encoded by the tokenizer with its special tokens, so that the end of a continuation is scored, as
    in training by teacher forcing.

    Attributes:
        tokenizer: a transformers tokenizer.
        start: see `encode_requests`.
        max_length: maximum number of tokens that the model reads, and that it writes.
    """

    tokenizer: Any
    start: Start
    max_length: int

    def source(self, request: Request) -> tuple[np.ndarray, bool]:
        """The context's tokens, those of its beginning if there are too many, and whether there are."""
        text, framed = request.context, request.framed
        whole, ids = (
            self.tokenizer(text, add_special_tokens=framed, verbose=False, **how)["input_ids"]
            for how in ({}, {"truncation": True, "max_length": self.max_length})
        )
        if not ids:
            raise Unfit(f"the prompt {shown(text)} has no tokens")
        return np.array(ids, dtype=np.int64), len(whole) > self.max_length

    def texts(self, request: Request, of: Requests) -> list[list[Text]]:
        """The decoder's first token and the continuation, of every choice."""
        made: list[Text] = []
        for choice in request.choices:
            ids: list[int] = self.tokenizer(text_target=choice)["input_ids"]
            _check_length(choice, ids, self.max_length)
            made.append(([self.start(ids)], ids))
        return [made]


def count_texts(requests: Requests, encoded: EncodedRequests) -> np.ndarray:
    """Tokens, characters, bytes and words of every continuation, int64 ``[examples, continuations, 4]``.

    Only the tokens include the delimiter before a choice.
    """
    counts = np.zeros((len(requests), encoded.n_continuations, 4), dtype=np.int64)
    counts[..., 0] = encoded.n_tokens
    for example, request in enumerate(requests.rows):
        measured = request.counts or tuple(map(measure_text, request.choices))
        counts[example, : len(measured), 1:] = measured
    return counts


def measure_text(text: str) -> tuple[int, int, int]:
    """Numbers of characters, bytes and words, words being separated by white space."""
    return len(text), len(text.encode()), len(re.split(r"\s+", text))
