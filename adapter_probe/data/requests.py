"""Rows that a language model is evaluated on: continuations to score, given a context.

The columns of the rows determine their form; scoring follows lm-evaluation-harness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from adapter_probe.data.forms import DataForm, ExampleRows, refuse_unread
from adapter_probe.data.generating import Generation
from adapter_probe.data.request_rows import FORMS, Request, columns_of, request_of
from adapter_probe.data.rows import Rows, fingerprint_of
from adapter_probe.data.sources import subset
from adapter_probe.errors import DataError, listed
from adapter_probe.kinds.row_forms import ROW_FORMS, Form, RowForm
from adapter_probe.metrics import BY_NAME, PER_TEXT


@dataclass(frozen=True, eq=False)
class Requests(ExampleRows):
    """The examples of a language model.

    Attributes:
        form: one right choice of several, a completion, a whole text, or a chosen and a rejected answer.
        rows: the examples.
        name: name of the split.
        fingerprint: SHA-256 of the rows in order.
        metrics: metrics that fit the rows, the default first; empty for all metrics of the form.
        templated: whether all rows went through a chat template.
        documents: of tasks of lm-evaluation-harness, the document of each row; else empty.
        generation: how the answers are written; None of rows whose continuations are scored.
        about: what the rows read; None of tasks of lm-evaluation-harness, which know it themselves.
    """

    form: Form
    rows: tuple[Request, ...]
    name: str
    fingerprint: str
    metrics: tuple[str, ...] = ()
    templated: bool = False
    documents: tuple[Any, ...] = ()
    generation: Generation | None = None
    about: DataForm | None = None

    @property
    def scored(self) -> RowForm:  # type: ignore[override]
        """See `ExampleRows`."""
        return ROW_FORMS[self.form]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> np.ndarray:
        """Int64 ``[rows]``: the right choices."""
        return np.array([row.gold for row in self.rows], dtype=np.int64)

    @property
    def groups(self) -> list[str]:
        """See `ExampleRows.groups`."""
        return [row.group for row in self.rows]

    def right(self, task: Any) -> str:
        """See `ExampleRows.right`."""
        if self.generation is not None:
            return listed(self.rows[0].choices)
        return f"number {self.rows[0].gold + 1}" if len(self.rows[0].choices) > 1 else ""


def form_of(table: Rows) -> tuple[str, RowForm]:
    """The columns that determine the form of a table's first row, and the form."""
    columns = columns_of(next(iter(table)))
    return listed(columns), FORMS[columns].scored


def is_of_language_model(table: Rows) -> bool:
    """Whether the columns are those of questions with choices, pairs, completions or chats."""
    names = set(table.names)
    return any(set(columns) <= names for columns, own in FORMS.items() if not own.scored.are_texts)


def requests_of(
    tokenizer: Any, tables: Sequence[Rows], name: str, max_examples: int | None = None, turns: bool = False
) -> Requests:
    """The requests in some tables, all of one of `FORMS`.

    Args:
        max_examples: see `subset`.
        turns: whether chats are to have the turns of the assistant.
    """
    forms: dict[str, str] = {}  # the columns of a form, and where it was met first
    requests: list[Request] = []
    for rows in tables:
        for row in rows:
            columns, request = request_of(row, tokenizer, turns)
            forms.setdefault(listed(columns), row.place)
            requests.append(request)
        if len(forms) > 1:
            (one, here), (other, there), *_ = forms.items()
            raise DataError(f"{there}: has {other}, but {here} has {one}; give rows of one kind at a time")
    refuse_unread(FORMS[columns].about, tables)
    if any("prompt" in table.asked for table in tables):
        _refuse_repeated(requests, tables)
    made = requests_with_fingerprint(FORMS[columns].form, requests, name, max_examples)
    return replace(made, about=FORMS[columns].about)


def _refuse_repeated(requests: Sequence[Request], tables: Sequence[Rows]) -> None:
    """Refuse texts that begin with their prompt in every row, so that the model would read it twice."""
    framed = [row for row in requests if row.framed and row.context.strip()]
    if framed and all(text.startswith(row.context) for row in framed for text in row.choices):
        own = [name for name in ("completion", "chosen", "rejected") if name in tables[0].asked]
        rest = "--columns chosen,rejected" if "chosen" in own else "--columns text=completion for whole texts"
        raise DataError(
            f"{tables[0].path}: {listed(own)} begin with the column prompt in every row, which would be read "
            f"twice; cut it off, or give {rest}"
        )


def requests_with_fingerprint(
    form: Form, requests: Sequence[Request], name: str, max_examples: int | None = None
) -> Requests:
    """Requests, or a fixed random subset of them, together with their fingerprint."""
    requests = [requests[i] for i in subset(len(requests), max_examples)]
    records = [
        {k: v for k, v in asdict(request).items() if k != "turns" and (k != "reference" or v)}
        for request in requests
    ]
    templated = not any(request.framed for request in requests)
    return Requests(form, tuple(requests), name, fingerprint_of([form, records]), templated=templated)


def choose_metric(asked: str | None, requests: Requests) -> str:
    """The given metric, or the default metric of the rows."""
    allowed, form = requests.metrics or requests.scored.metrics, requests.form
    writes = requests.generation is not None
    if writes and requests.metrics:  # of a task, with or without the name of a filter
        found = [one for one in allowed if asked in (name := one.removeprefix(PER_TEXT), name.split(",")[0])]
        asked = found[0] if found else asked
    own = writes and str(asked).startswith(PER_TEXT)  # a function of the user's
    if asked not in (None, *allowed) and not (own and not requests.metrics):
        scored = asked in BY_NAME and BY_NAME[str(asked)].is_written
        hint = " (it scores what the model writes, with --generate)" if scored else ""
        raise DataError(
            f"metric {asked!r} does not fit rows of form {form!r}{hint}; allowed: {', '.join(allowed)}"
        )
    return asked or allowed[0]
