"""Prompts whose answers a language model writes: the rows, and their tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from adapter_probe.data.encoding import Items, add_arrays
from adapter_probe.data.forms import DataForm, Role, parts_in, prompt_role, refuse_unread
from adapter_probe.data.generating import Generation
from adapter_probe.data.messages import chat_prompt
from adapter_probe.data.naming import ANSWERED, how_to_read
from adapter_probe.data.request_rows import Request
from adapter_probe.data.requests import Requests, requests_with_fingerprint
from adapter_probe.data.requests_encoding import Encoder, Start, encoder_of
from adapter_probe.data.rows import RowOf, Rows, is_text
from adapter_probe.errors import DataError, listed, shown

_MEANS = (
    "answer answers target targets label labels gold golds completion completions choice choices options "
)
_MEANS += "ending endings candidate candidates expected truth reference references"
WRITTEN = DataForm(
    "prompts whose answers are written", "what the model writes",
    (
        Role("what is right", _MEANS, "name it answer (a text or a number, not the number of a choice), or "
             "answers with a list; choices are scored without --generate, as context, choices and gold"),
        prompt_role(),
    ),
    also=(("prompt", " after `prompt`"), ("messages", " after `messages`"), ("answer", ", beside `answer`"),
          ("answers", ", beside `answers`")), layouts=ANSWERED,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class EncodedPrompts(Items):
    """Prompts as tokens.

    Attributes:
        input_ids: int64 ``[tokens]`` of every prompt.
        new_tokens: the most tokens that are written after each.
        reads: whether an encoder reads them, so that they are padded at their ends.
        fingerprint: SHA-256 of all tokens.
    """

    input_ids: tuple[np.ndarray, ...]
    new_tokens: int
    reads: bool
    fingerprint: str

    def __len__(self) -> int:
        return len(self.input_ids)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The most tokens of each prompt with its text: int64 ``[prompts]``."""
        return np.array([len(ids) + self.new_tokens for ids in self.input_ids], dtype=np.int64)


def prompts_of(
    tokenizer: Any, tables: Sequence[Rows], name: str, generation: Generation, max_examples: int | None = None
) -> Requests:
    """The rows of some tables as prompts, whose continuations are the accepted answers.

    The prompt is a text in a column `prompt`, or messages there or in `messages` whose last turn is a
    user's; what is right is in a column `answer` or, where several answers are, in a list `answers`.

    Args:
        tokenizer: needed for messages only.
    """
    rows = [_prompt(row, tokenizer) for table in tables for row in table]
    refuse_unread(WRITTEN, tables)
    made = requests_with_fingerprint("generation", rows, name, max_examples)
    return replace(made, generation=generation, about=WRITTEN)


def _prompt(row: RowOf, tokenizer: Any) -> Request:
    record = row.record
    if {"prompt", "messages"} <= set(record):
        raise DataError(f"{row.place}: has both prompt and messages; --generate needs one of them")
    if not {"prompt", "messages"} & set(record):
        hint = how_to_read(dict(record), ANSWERED, parts_in(record))
        raise DataError(
            f"{row.place}: --generate needs a column prompt or messages; the row has {listed(record)}{hint}"
        )
    answers, column = _answers(row), "prompt" if "prompt" in record else "messages"
    if column == "prompt" and not isinstance(record[column], list):
        return Request(row.filled(column), answers)
    return Request(chat_prompt(row, column, tokenizer), answers, framed=False)


def _answers(row: RowOf) -> tuple[str, ...]:
    names = [name for name in ("answers", "answer") if name in row.record]
    if not names:
        raise DataError(
            f"{row.place}: --generate needs a column answer, or answers with several; the row has "
            f"{listed(row.record)}{how_to_read(dict(row.record), ANSWERED, parts_in(row.record))}"
        )
    value = row.record[names[0]]
    found = value if names[0] == "answers" or isinstance(value, list) else [value]
    if isinstance(found, Mapping):  # as SQuAD has them on the hub
        found = found.get("text")
    if not isinstance(found, list) or not found or not all(map(_is_answer, found)):
        raise row.error(names[0], "a text or a number, or a list of them")
    return tuple(map(str, found))


def _is_answer(value: object) -> bool:
    if isinstance(value, (int, float)):
        return not isinstance(value, bool)
    return is_text(value) and bool(str(value).strip())


def encode_prompts(
    tokenizer: Any, requests: Requests, max_length: int, start: Start | None = None
) -> EncodedPrompts:
    """Tokenise prompts.

    Args:
        max_length: maximum number of tokens that the model reads at once.
    """
    generation = requests.generation
    assert generation is not None, "rows whose answers are written say how"
    encoder, new = encoder_of(tokenizer, requests, max_length, start), generation.max_new_tokens
    if start is not None and new > max_length:
        raise DataError(f"--max-new-tokens {new} are more than the {max_length} tokens that the model writes")
    room, prompts = max_length if start is not None else max_length - new, []
    for number, request in enumerate(requests.rows):
        if isinstance(encoder, Encoder):
            ids = encoder.tokens(request.context, request.framed)
        else:
            ids = tokenizer(request.context, add_special_tokens=request.framed)["input_ids"]
        if requests.documents and room > 0:  # as lm-evaluation-harness cuts them
            ids = ids[-room:]
        if not ids or len(ids) > room:
            also = "" if start is not None else f", and with --max-new-tokens {new} {len(ids) + new}"
            raise DataError(
                f"{requests.name} row {number + 1}: the prompt {shown(request.context)} has {len(ids)} "
                f"tokens{also}; 1 to {max_length} are allowed"
            )
        prompts.append(np.array(ids, dtype=np.int64))
    digest = hashlib.sha256(f"{new}".encode())
    add_arrays(digest, prompts)
    return EncodedPrompts(tuple(prompts), new, start is not None, digest.hexdigest())
