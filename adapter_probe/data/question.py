"""What a study asks, in the words that come before its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapter_probe.data.forms import DataForm
from adapter_probe.data.requests import Requests
from adapter_probe.data.requests_encoding import Start, start_token, whole_texts
from adapter_probe.data.rows import Rows
from adapter_probe.data.token_trees import sequences_of

_MOST_NAMED = 12  # columns in a line
_MANY = 10  # rows among which every choice should be right once
_LONGEST = 400  # characters of a row that is shown


@dataclass(frozen=True)
class Question:
    """What a study asks of which rows.

    Attributes:
        asks: what is asked of an example, with the columns in backquotes.
        n_rows: number of rows that are evaluated.
        n_there: number of rows that are there.
        source: the files, without folders.
        read, unread: the columns that are read, and those that hold something and are not.
        changes: what is cut, left out or added on the way from a row to the model, one phrase each.
        first: the first row as the model gets it.
        what: what is counted.
    """

    asks: str
    n_rows: int
    n_there: int
    source: str = ""
    read: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    first: str = ""
    what: str = "rows"

    def lines(self, metric: str) -> tuple[str, ...]:
        """The question in two or three lines; `metric` is its printed name."""
        of = f" of {self.n_there:,}" if self.n_there != self.n_rows else ""
        what = self.what if self.n_there != 1 else self.what.removesuffix("s")
        said = [f"{self.n_rows:,}{of} {what} of {self.source}: {self.asks}; {metric}"]
        if self.changes:
            said.append("; ".join(self.changes))
        if self.unread:
            more = f" and {len(self.unread) - _MOST_NAMED} more" if len(self.unread) > _MOST_NAMED else ""
            said.append(f"not read: {', '.join(self.unread[:_MOST_NAMED])}{more}")
        return tuple(said)


def question_of(
    form: DataForm, tables: Sequence[Rows], n_rows: int, n_there: int = 0, tokenizer: Any = None
) -> Question:
    """The question of rows that have been read.

    Args:
        n_there: number of examples, where it is not that of the rows.
        tokenizer: whose chat template is given messages, if the rows have any.
    """
    there = n_there or sum(len(table.records) for table in tables)
    held = [(table, name) for table in tables for name in table.first_values]
    read = dict.fromkeys(name for table, name in held if name in table.asked)
    lost = dict.fromkeys(name for table, name in held if name not in table.asked)
    unread = (*lost, *_unread_by(str(getattr(tokenizer, "chat_template", None)), tables))
    return Question(form.asked(read), n_rows, there, read=tuple(read), unread=unread)


def _unread_by(template: str, tables: Sequence[Rows]) -> tuple[str, ...]:
    """What a chat template is given and never names: fields of messages, tools, arguments of its own."""
    given: dict[str, str] = {}
    rows = ((table.asked, row) for table in tables for row in table.records)
    for name, value in ((name, row[name]) for asked, row in rows for name in row if name in asked):
        if name == "tools" and value:
            given[name] = name
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and ("role" in one or name == "chat_template_kwargs"):
                given |= {f"{name}.{field}": field for field in one if one[field] not in (None, "", [])}
    named = set(re.findall(r"\w+", template))
    by_field = bool(named & {"role", "content"})  # else it writes whole messages
    return tuple(
        name
        for name, field in given.items()
        if field not in named and (by_field or name == "tools" or name.startswith("chat_template_kwargs."))
    )


def frame_of(tokenizer: Any, pair: bool = False) -> str:
    """What the tokenizer adds to a text, or a pair: ``[CLS] text [SEP]``; empty for nothing."""
    given = ("text", "text") if pair else ("text",)
    found = tokenizer(*given, return_special_tokens_mask=True)
    names: list[str] = []
    for token, added in zip(
        tokenizer.convert_ids_to_tokens(found["input_ids"]), found["special_tokens_mask"]
    ):
        if added or not names or names[-1] != "text":
            names.append(token if added else "text")
    return " ".join(names) if any(found["special_tokens_mask"]) else ""


def cut_note(n_cut: int, n: int, most: int, side: str) -> str:
    """How many texts lose tokens."""
    return f"{n_cut:,} of {n:,} texts are cut to {most:,} tokens at their {side}"


def cut_texts(
    tokenizer: Any,
    texts: Sequence[Any],
    second: Sequence[Any] | None,
    lengths: np.ndarray,
    most: int,
    words: bool = False,
    framed: bool = True,
) -> tuple[str, ...]:
    """What to say of texts that were cut: only those of the full length can have been.

    Args:
        lengths: ``[texts]``, numbers of tokens.
        words: whether texts are lists of words.
        framed: whether the tokenizer adds its special tokens.
    """
    full = np.flatnonzero(lengths >= most)
    if not len(full):
        return ()
    given = [[one[i] for i in full] for one in (texts, second) if one is not None]
    found = tokenizer(
        *given, add_special_tokens=framed, truncation=False, is_split_into_words=words, verbose=False
    )
    n_cut = sum(len(ids) > most for ids in found["input_ids"])
    side = "beginning" if getattr(tokenizer, "truncation_side", "right") == "left" else "end"
    return (cut_note(n_cut, len(texts), most, side),) if n_cut else ()


def changes_of(
    tokenizer: Any, requests: Requests, encoded: Any, most: int, start: Start | None
) -> tuple[str, ...]:
    """What becomes of a language model's rows on the way to it; `start` as of `encode_requests`."""
    said = ["written by the chat template"] if requests.templated else [_begin(tokenizer, requests, start)]
    if requests.scored.are_preferences:
        end = tokenizer.eos_token if not requests.templated else None
        said.append(f"each answer ended by {end}" if end else "no end token is added")
    elif requests.generation is not None:
        how = requests.generation
        drawn = f"drawn at temperature {how.temperature:g}" if how.temperature else "the likeliest each time"
        said.append(f"at most {how.max_new_tokens:,} tokens are written, {drawn}")
    elif start is None and not requests.templated:
        said.append("no end token is scored")
    golds = [row.gold for row in requests.rows] if requests.scored.are_choices else []
    if len(golds) >= _MANY and 0 not in golds and not requests.documents and len({*golds}) > 1:
        said.append("no row's right choice is the first one, which has the number 0")
    if n_cut := getattr(encoded, "n_cut", 0):
        said.append(cut_note(n_cut, len(requests), most, "beginning" if start is None else "end"))
    if requests.scored.are_texts and len(encoded) > len(requests):
        said.append(f"read in {len(encoded):,} windows of {most:,} tokens")
    return tuple(said)


def _begin(tokenizer: Any, requests: Requests, start: Start | None) -> str:
    """What the tokenizer puts before a text, or a prompt."""
    what = "texts" if requests.scored.are_texts else "prompts"
    if start is not None:
        frame = frame_of(tokenizer)
        return f"{what} as {frame}" if frame else "no special token is added"
    first = start_token(tokenizer)
    before, there, _ = frame_of(tokenizer).partition(" text")
    before = before if there else ""
    alone = requests.scored.are_texts or not any(row.context for row in requests.rows)
    token = tokenizer.convert_ids_to_tokens(first) if alone and first is not None else before
    if requests.scored.are_texts and token and before == token:  # as lm-evaluation-harness does
        return f"{what} begin with {token} after another {token}, and are scored from the second one on"
    return f"{what} begin with {token}" if token else f"no token is put before {what}"


def cut_preferences(tokenizer: Any, requests: Requests, most: int) -> tuple[str, ...]:
    """What to say of the texts of preferences that a reward model does not read to the end."""
    texts = [text for row in requests.rows for text in whole_texts(tokenizer, row)]
    return cut_texts(tokenizer, texts, None, np.full(len(texts), most), most, framed=not requests.templated)


def first_row(tokenizer: Any, encoded: Any, items: Sequence[int] = (0,)) -> str:
    """The first row as the model gets it, what is scored in double brackets; `items` are its own."""
    if not encoded.in_trees:
        return " beside ".join(_shown(tokenizer, encoded.input_ids[item]) for item in items)
    found = [(tokens[:-n], tokens[-n:]) for tokens, n in sequences_of(encoded.trees[0])]
    source = encoded.trees[0].source
    begins = ["" if source is not None else _shown(tokenizer, before) for before, _ in found]
    scored = [f"[[{_shown(tokenizer, own)}]]" for _, own in found]
    whole = [*map("".join, zip(begins, scored))]
    said = f"{begins[0]}{' or '.join(scored)}" if len({*begins}) == 1 else " or ".join(whole)
    return said if source is None else f"{_shown(tokenizer, source)} -> {said}"


def _shown(tokenizer: Any, ids: Iterable[int]) -> str:
    """Tokens as the text that the model reads, shortened in the middle."""
    text, half = tokenizer.decode([int(one) for one in ids]), _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"
