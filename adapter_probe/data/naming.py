"""The columns of a form that rows of another layout have under other names, as `--columns` takes them.

Refusals end with them: what is missing is then a name, and no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapter_probe.errors import listed

_SAY_LITTLE = ("text", "texts", "string", "str", "raw", "content", "name", "key", "column")
"""Words at the end of a column's name that do not change what it has."""


@dataclass(frozen=True)
class Part:
    """What a column of a form may be called elsewhere.

    Attributes:
        words: last words of such names, the likeliest first.
        fits: whether a value may be one of the column's.
        anywhere: whether the word may be any of the name's.
    """

    words: tuple[str, ...]
    fits: Callable[[Any], bool]
    anywhere: bool = False


def _are_turns(value: Any) -> bool:
    """Messages of a conversation."""
    turns = value if isinstance(value, list) else []
    return bool(turns) and all(isinstance(one, dict) and {"role", "content"} <= {*one} for one in turns)


def _is_text(value: Any) -> bool:
    """A text, or messages."""
    return _are_turns(value) or (isinstance(value, str) and bool(value.strip()))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(one, str) for one in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_right(value: Any) -> bool:
    """A text or number, or several, or SQuAD's mapping of them."""
    value = value.get("text") if isinstance(value, dict) else value
    found = value if isinstance(value, list) else [value]
    kinds = {type(one) for one in found} <= {str, int, float}
    return bool(found) and kinds and all(str(one).strip() for one in found)


def _part(words: str, fits: Callable[[Any], bool] = _is_text, anywhere: bool = False) -> Part:
    return Part(tuple(words.split()), fits, anywhere)


_PROMPT = _part(
    "prompt question instruction query problem input inputs goal document article dialogue dialog passage "
    "context source ctx history conversation text sentence system"
)
_ANSWER = _part(
    "completion response output answer target outputs targets solution summary highlights reply code "
    "reference gold generation label"
)
_TEXT = _part(
    "text sentence review comment tweet content body message utterance headline question prompt input utt"
)
_CHOICES = _part("choices options endings candidates alternatives", _are_texts)
_GOLD = _part("answer label gold target correct", _is_number, anywhere=True)
_RIGHT = _part(
    "answer answers output target response solution completion summary highlights reference", _is_right
)
_LABEL = _part(
    "label labels class category target sentiment score rating stars emotion intent",
    lambda value: value is not None,
)
_QUERY = _part("query anchor question prompt claim")
_SIMILAR = _part("positive pos answer response passage document context", anywhere=True)
_NEGATIVE = _part("negative neg negatives", lambda value: _is_text(value) or _are_texts(value), anywhere=True)
_CHOSEN = _part("chosen preferred accepted winner win better positive", anywhere=True)
_REJECTED = _part("rejected dispreferred loser lose worse negative", anywhere=True)

_OF_CHOICES = {"choice", "choices", "option", "options", "ending", "endings", "distractor", "candidates"}

Layout = Mapping[str, Part]
"""By the names of a form's columns, what they may be called elsewhere."""
PREFERENCES: tuple[Layout, ...] = (
    {"prompt": _PROMPT, "chosen": _CHOSEN, "rejected": _REJECTED},
    {"chosen": _CHOSEN, "rejected": _REJECTED},
)
SCORED: tuple[Layout, ...] = (
    {"question": _part("question stem"), "choices": _CHOICES, "answer": _GOLD},
    {"context": _PROMPT, "choices": _CHOICES, "gold": _GOLD},
    *PREFERENCES,
    {"prompt": _PROMPT, "completion": _ANSWER},
    {"messages": _part("conversations conversation dialog dialogue turns", _are_turns)},
)
ANSWERED: tuple[Layout, ...] = (
    {"prompt": _PROMPT, "answer": _RIGHT},
    {"prompt": _PROMPT, "answers": _RIGHT},
)
LABELLED: tuple[Layout, ...] = (
    {
        "text_a": _part("claim premise query"), "text_b": _part("evidence hypothesis document"),
        "label": _LABEL,
    },
    {"text": _TEXT, "label": _LABEL},
)  # fmt: skip
COMPARED: tuple[Layout, ...] = (
    {"anchor": _QUERY, "positive": _SIMILAR, "negative": _NEGATIVE},
    {"query": _QUERY, "positive": _SIMILAR, "negative": _NEGATIVE},
    {"query": _QUERY, "positive": _SIMILAR},
    {
        "sentence1": _QUERY,
        "sentence2": _SIMILAR,
        "score": _part("score label similarity relevance", _is_right),
    },
)


def words_of(column: str) -> list[str]:
    """The words of a column's name, in lower case, without those at its end that say little."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", column) if len(word) > 1]
    while len(words) > 1 and words[-1] in _SAY_LITTLE:
        words.pop()
    return words


def right_columns(record: Mapping[str, Any], layouts: Sequence[Layout], needed: str = "") -> tuple[str, ...]:
    """What `--columns` has to be for a row to be read in the layout that it fits best; nothing if none does.

    Args:
        needed: a column that has to be read.
    """
    best: tuple[str, ...] = ()
    several = are_choices(record)
    for layout in layouts:
        found = _named(record, layout)
        one_of_several = (
            several and found.keys() & {"completion", "answer", "answers"} and "choices" not in found
        )
        if one_of_several or (needed and needed not in found.values()):
            continue
        said = tuple(new if new == old else f"{new}={old}" for new, old in found.items())
        if (len(said), -len("".join(said))) > (len(best), -len("".join(best))):
            best = said
    return best


def how_to_read(
    record: Mapping[str, Any], layouts: Sequence[Layout], beside: Collection[str] = (), also: str = ""
) -> str:
    """The end of an error that names `--columns` for rows; empty where no layout fits.

    Args:
        beside: columns of the rows that the line names if they would still not be read.
        also: another option that is needed.
    """
    said = right_columns(record, layouts)
    left = [name for name in beside if name not in sources(said)]
    without = f"without {listed(left)} " if left else ""
    return f"; {without}the rows are read with {also}--columns {','.join(said)}" if said else ""


def sources(columns: Sequence[str]) -> set[str]:
    """The names in the file of columns as `--columns` takes them."""
    return {one.rpartition("=")[2] for one in columns}


def are_choices(record: Mapping[str, Any]) -> bool:
    """Whether a row has choices, in a list or in columns of their own, so that one text is no answer."""
    stems = [re.sub(r"_?(\d+|[A-E])$", "", name) for name in record if re.search(r"\d$|[a-z_][A-E]$", name)]
    return bool(_OF_CHOICES & {word for name in record for word in words_of(name)}) or len({*stems}) < len(
        stems
    )


def _named(record: Mapping[str, Any], layout: Layout) -> dict[str, str]:
    """By the columns of a layout, those of a row that it has them in; nothing if one has none."""
    found: dict[str, str] = {}
    for new, part in layout.items():
        free = [name for name in record if name not in (*layout, *found.values()) and part.fits(record[name])]
        ranks = {name: rank for name in free if (rank := _rank(name, part)) is not None}
        if new in record:
            ranks = {new: (False, 0)} if part.fits(record[new]) else {}
        if not ranks:
            return {}
        found[new] = min(ranks, key=ranks.__getitem__)
    return found


def _rank(name: str, part: Part) -> tuple[bool, int] | None:
    """How likely a column of this name is meant, the least first; None if it is not."""
    words = words_of(name)
    if words and words[-1] in part.words:
        return len(words) > 1, part.words.index(words[-1])
    found = [n for n, word in enumerate(part.words) if part.anywhere and word in words and words[-1] != "id"]
    return (True, len(part.words) + found[0]) if found else None
