"""Rows that a language model is evaluated on: continuations to score, given a context.

The columns of the rows determine their form; scoring follows lm-evaluation-harness.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from adapter_probe.data.formats import READERS, Rows, is_text
from adapter_probe.data.readers import read_rows, read_text
from adapter_probe.data.sources import subset
from adapter_probe.errors import DataError, listed, one_line, shown
from adapter_probe.metrics import LANGUAGE_METRICS

Form = Literal["choice", "completion", "text"]
_DEFAULTS: dict[Form, str] = {"choice": "accuracy", "completion": "nll", "text": "bits_per_byte"}
FORM_METRICS = {
    form: tuple(dict.fromkeys((default, *(n for n, one in LANGUAGE_METRICS.items() if form in one.forms))))
    for form, default in _DEFAULTS.items()
}
"""Metrics that fit each form; the first is the default."""


@dataclass(frozen=True)
class Request:
    """One example.

    Attributes:
        context: text before the continuations; may be empty.
        choices: the continuations, without the delimiter before them.
        delimiter: text between context and continuation.
        gold: index of the right choice.
        group: group of the example in the data, or "".
        framed: whether the tokenizer adds its first token; a chat template has written it already.
        counts: characters, bytes and words of every choice, if they differ from those of its text.
        turns: of a chat to train on, where every turn of the assistant begins and ends, in characters of
            context and choice together.
    """

    context: str
    choices: tuple[str, ...]
    delimiter: str = ""
    gold: int = 0
    group: str = ""
    framed: bool = True
    counts: tuple[tuple[int, int, int], ...] = ()
    turns: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Requests:
    """The examples of a language model.

    Attributes:
        form: one right choice of several, a completion, or a whole text.
        rows: the examples.
        name: name of the split.
        fingerprint: SHA-256 of the rows in order.
        metrics: metrics that fit the rows, the default first; empty for all metrics of the form.
        templated: whether all rows went through a chat template.
        documents: of tasks of lm-evaluation-harness, the document of each row; else empty.
    """

    form: Form
    rows: tuple[Request, ...]
    name: str
    fingerprint: str
    metrics: tuple[str, ...] = ()
    templated: bool = False
    documents: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


def load_requests(
    tokenizer: Any,
    files: Sequence[str | Path],
    name: str,
    max_examples: int | None = None,
    encoding: str = "utf-8",
) -> Requests:
    """Read the rows of some files, all of one form.

    Forms by their columns: `context`, `choices`, `gold` (or `question`, `choices`, `answer`, put to the model
    as ``Question: ... Answer:``), `sentence_good` and `sentence_bad`, `prompt` and `completion`, `messages`
    of a chat, `prompt` alone, `text`. A prompt alone and a ``.txt`` file are one text each.

    Args:
        tokenizer: writes chats by its template.
        files: ``.jsonl``, ``.json``, ``.csv``, ``.tsv`` or ``.txt``.
        name: name of the split.
        max_examples: keep at most this many rows: always the same ones, drawn at random, in the files' order.
        encoding: character encoding of the files.

    Raises:
        DataError: a file cannot be read, holds rows of no known form or of several, or a row is damaged.
    """
    return requests_of(tokenizer, read_tables(files, encoding), name, max_examples)


def read_tables(files: Sequence[str | Path], encoding: str = "utf-8") -> list[Rows]:
    """The rows of some files as they are, a ``.txt`` file as one text; see `load_requests`."""
    return [_read(path, encoding) for path in map(Path, files)]


def form_of(table: Rows) -> tuple[str, Form]:
    """The columns that determine the form of a table's first row, and the form.

    Raises:
        DataError: the row is of no known form, or of several.
    """
    columns, _ = _reader_of(_Row(table.places[0], table.records[0]))
    return listed(columns), _FORMS[columns][0]


def is_of_language_model(table: Rows) -> bool:
    """Whether the columns are those of questions with choices, pairs, completions or chats."""
    names = set(table.names)
    return any(set(columns) <= names for columns, (form, _) in _FORMS.items() if form != "text")


def requests_of(
    tokenizer: Any, tables: Sequence[Rows], name: str, max_examples: int | None = None, turns: bool = False
) -> Requests:
    """The requests in some tables, all of one form.

    Args:
        tokenizer: writes chats by its template.
        tables: the rows.
        name: name of the split.
        max_examples: see `load_requests`.
        turns: whether chats are to have the turns of the assistant.

    Raises:
        DataError: see `load_requests`; or the template does not write the turns of a chat in sequence.
    """
    forms: dict[str, str] = {}  # the columns of a form, and where it was met first
    requests: list[Request] = []
    for rows in tables:
        for row in map(_Row, rows.places, rows.records):
            columns, reader = _reader_of(row)
            forms.setdefault(listed(columns), row.place)
            requests.append(reader(row, tokenizer))
            if turns and reader is _chat:
                requests[-1] = replace(requests[-1], turns=_turns(row, tokenizer))
        if len(forms) > 1:
            (one, here), (other, there), *_ = forms.items()
            raise DataError(f"{there}: has {other}, but {here} has {one}; give rows of one kind at a time")
    return requests_with_fingerprint(_FORMS[columns][0], requests, name, max_examples)


def requests_with_fingerprint(
    form: Form, requests: Sequence[Request], name: str, max_examples: int | None = None
) -> Requests:
    """Requests, or a fixed random subset of them, together with their fingerprint."""
    if (keep := subset(len(requests), max_examples)) is not None:
        requests = [requests[i] for i in keep]
    records = [{k: v for k, v in asdict(request).items() if k != "turns"} for request in requests]
    content = json.dumps([form, records]).encode()
    templated = not any(request.framed for request in requests)
    return Requests(form, tuple(requests), name, hashlib.sha256(content).hexdigest(), templated=templated)


def choose_metric(asked: str | None, requests: Requests) -> str:
    """The given metric, or the default metric of the rows.

    Raises:
        DataError: the metric does not fit the rows.
    """
    allowed, form = requests.metrics or FORM_METRICS[requests.form], requests.form
    if asked not in (None, *allowed):
        raise DataError(f"metric {asked!r} does not fit rows of form {form!r}; allowed: {', '.join(allowed)}")
    return asked or allowed[0]


def _read(path: Path, encoding: str) -> Rows:
    if path.suffix.lower() != ".txt":
        return read_rows(path, encoding=encoding)
    text = read_text(path, encoding)
    return Rows(path, ("text",), [{"text": text}], [f"{path} text 1"])


@dataclass(frozen=True)
class _Row:
    """One row with checked access to its fields."""

    place: str
    record: Mapping[str, object]

    def error(self, column: str, expected: str) -> DataError:
        value = shown(self.record[column])
        return DataError(f"{self.place}: column {column!r} contains {value}, expected {expected}")

    def text(self, column: str) -> str:
        value = self.record[column]
        if not is_text(value):
            raise self.error(column, "a string of complete Unicode characters")
        return value

    def filled(self, column: str) -> str:
        """A text that must not be empty."""
        if not self.text(column):
            raise self.error(column, "some text")
        return self.text(column)

    def label(self, column: str) -> str:
        """The name of a part of the data; nothing where it is missing."""
        value = self.record[column]
        if value is None:
            return ""
        if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).isprintable():
            raise self.error(column, "a name in printable characters")
        return str(value)

    def choices(self, column: str) -> tuple[str, ...]:
        value = self.record[column]
        good = isinstance(value, list) and len(value) > 1
        if not good or not all(choice and is_text(choice) for choice in value):
            raise self.error(column, "a list of two or more texts")
        return tuple(value)

    def index(self, column: str, n: int) -> int:
        value = self.record[column]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n:
            raise self.error(column, f"the number of the right choice, 0 to {n - 1}")
        return value


def _asked(row: _Row, tokenizer: Any) -> Request:
    choices = row.choices("choices")
    return Request(row.text("context"), choices, " ", row.index("gold", len(choices)))


def _question(row: _Row, tokenizer: Any) -> Request:
    if row.record.get("context"):
        raise row.error("context", "no text beside a question; write it into the question")
    choices = row.choices("choices")
    context = f"Question: {row.text('question')}\nAnswer:"  # the prompt of ARC in lm-evaluation-harness
    return Request(context, choices, " ", row.index("answer", len(choices)))


def _pair(row: _Row, tokenizer: Any) -> Request:
    sentences = row.filled("sentence_good"), row.filled("sentence_bad")
    parts = (row.label(name) for name in ("field", "UID") if name in row.record)
    return Request("", sentences, " ", 0, "/".join(part for part in parts if part))


def _completion(row: _Row, tokenizer: Any) -> Request:
    return Request(row.text("prompt"), (row.filled("completion"),))


def _chat(row: _Row, tokenizer: Any) -> Request:
    """The last turn is the completion of all turns before it, formatted by the tokenizer's template."""
    messages = row.record["messages"]
    good = isinstance(messages, list) and len(messages) > 1 and all(isinstance(m, dict) for m in messages)
    if not good or messages[-1].get("role") != "assistant":
        raise row.error("messages", "two or more messages, the last one of the assistant")
    if not all(is_text(m.get("content")) for m in messages):
        raise row.error("messages", "messages whose content is a text each")
    if not tokenizer.chat_template:
        raise DataError(f"{row.place}: the base's tokenizer has no chat template for messages")
    try:
        before = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception as error:  # templates are programs and may raise anything
        raise row.error("messages", f"messages for the chat template ({one_line(error)})") from None
    if not whole.startswith(before) or whole == before:
        raise row.error("messages", "turns that the tokenizer's chat template writes in sequence")
    return Request(before, (whole[len(before) :],), framed=False)


def _turns(row: _Row, tokenizer: Any) -> tuple[tuple[int, int], ...]:
    """Where the turns of the assistant begin and end in a chat that `_chat` has read."""
    messages: Any = row.record["messages"]
    own = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    try:
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
        parts = [
            (
                tokenizer.apply_chat_template(messages[:place], tokenize=False, add_generation_prompt=True),
                tokenizer.apply_chat_template(messages[: place + 1], tokenize=False),
            )
            for place in own
        ]
    except Exception as error:  # templates are programs and may raise anything
        raise row.error("messages", f"messages for the chat template ({one_line(error)})") from None
    if not all(whole.startswith(after) and after.startswith(before) for before, after in parts):
        raise row.error("messages", "turns that the tokenizer's chat template writes in sequence")
    return tuple((len(before), len(after)) for before, after in parts)


def _text(row: _Row, tokenizer: Any) -> Request:
    return Request("", (row.filled("text"),))


def _prompt(row: _Row, tokenizer: Any) -> Request:
    return Request("", (row.filled("prompt"),))


_Reader = Callable[[_Row, Any], Request]
_FORMS: dict[tuple[str, ...], tuple[Form, _Reader]] = {
    ("context", "choices", "gold"): ("choice", _asked),
    ("question", "choices", "answer"): ("choice", _question),
    ("sentence_good", "sentence_bad"): ("choice", _pair),
    ("prompt", "completion"): ("completion", _completion),
    ("messages",): ("completion", _chat),
    ("text",): ("text", _text),
    ("prompt",): ("text", _prompt),
}


def _reader_of(row: _Row) -> tuple[tuple[str, ...], _Reader]:
    found = [columns for columns in _FORMS if set(columns) <= set(row.record)]
    # If there are the columns of another kind, a text or prompt column often repeats their content.
    found = [columns for columns in found if _FORMS[columns][0] != "text"] or found[:1]
    if len(found) > 1:
        kinds = " and ".join(f"({listed(columns)})" for columns in found)
        raise DataError(
            f"{row.place}: the columns fit several kinds of row, {kinds}; remove the columns "
            "of all kinds but one"
        )
    if found:
        return found[0], _FORMS[found[0]][1]
    allowed = "; ".join(", ".join(columns) for columns in _FORMS)
    raise DataError(
        f"{row.place}: columns {listed(row.record)} match no form of language model data: {allowed}"
        f" (or a .txt file among {', '.join(READERS)})"
    )
