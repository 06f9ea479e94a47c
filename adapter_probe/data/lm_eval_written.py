"""Tasks of lm-evaluation-harness whose answers are written: the library's requests, filters and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from adapter_probe.data.generating import Generation
from adapter_probe.data.request_rows import Request
from adapter_probe.errors import DataError, listed, one_line, shown
from adapter_probe.metrics import PER_TEXT

OUTPUT_TYPE = "generate_until"
_MOST_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_MOST = 256  # the library's own default
_GREEDY = ("until", "do_sample", "temperature", *_MOST_TOKENS)


@dataclass(frozen=True, eq=False)
class WrittenDocument:
    """One document of a task, with the library's request for it.

    Attributes:
        name, task: the task.
        number: of the document, from 1.
        instance: the request.
        last: the text of the tokenizer's last token, which ends a text too.
    """

    name: str
    task: Any
    number: int
    instance: Any
    last: str

    @property
    def request(self) -> Request:
        """The document as a request of this project; the task itself knows what is right."""
        return Request(str(self.instance.args[0]), (str(self.task.doc_to_target(self.instance.doc)),))

    @property
    def generation(self) -> Generation:
        """How the task lets the model write."""
        asked: Mapping[str, Any] = self.instance.args[1]
        until = asked.get("until") or []
        until = [until] if isinstance(until, str) else list(until)
        most = next((asked[name] for name in _MOST_TOKENS if asked.get(name) is not None), _MOST)
        drawn = asked.get("do_sample", float(asked.get("temperature") or 0) > 0)
        others = [name for name in asked if name not in _GREEDY]
        if drawn or others:
            what = f"with {listed(others)}" if others else "drawn at a temperature"
            raise DataError(
                f"lm-eval task {self.name!r} lets the model write {what}; only the likeliest tokens up to "
                "its until are supported"
            )
        ends = dict.fromkeys(end for end in (*until, self.last) if end)
        return Generation(generate=True, max_new_tokens=int(most), until=tuple(ends))


def read_written(
    name: str, task: Any, tokenizer: Any
) -> tuple[list[Request], list[WrittenDocument], list[str]]:
    """The rows of a task, their documents, and the metrics that are means over rows."""
    last = tokenizer.decode(tokenizer.eos_token_id) if tokenizer.eos_token_id is not None else ""
    rows = []
    for number, (_, own) in enumerate(groupby(task.instances, key=lambda one: one.doc_id)):
        instances = list(own)
        if len(instances) > 1 or len(instances[0].args) != 2 or (instances[0].repeats or 1) > 1:
            raise DataError(
                f"lm-eval task {name!r} row {number + 1}: has several texts to write, or images or sound, "
                "which is not supported"
            )
        rows.append(WrittenDocument(name, task, number + 1, instances[0], last))
    metrics = _means(rows)
    if not metrics:
        raise DataError(
            f"lm-eval task {name!r} uses the metrics {listed(task.aggregation())}, none of which is the mean "
            "of a number per text of which more is better"
        )
    return [row.request for row in rows], rows, metrics


def _means(rows: Sequence[WrittenDocument]) -> list[str]:
    """The metrics with their filters that are means of a number per text."""
    task, found = rows[0].task, []
    for one, value in _scored(rows[:1], [rows[0].request.choices[0]])[0].items():
        name = one.rpartition(",")[0]
        better = task.higher_is_better().get(name, True)
        if isinstance(value, (int, float, np.number)) and better is not False and _is_mean(task, name):
            found.append(f"{PER_TEXT}{one}")
    return found


def _is_mean(task: Any, metric: str) -> bool:
    aggregate = task.aggregation().get(metric)
    values = [0.0, 1.0, 1.0, 0.25]
    try:
        return aggregate is None or bool(np.isclose(aggregate(values), np.mean(values)))
    except Exception:  # of an aggregation of something else
        return False


def _scored(rows: Sequence[WrittenDocument], texts: Sequence[str]) -> list[dict[str, Any]]:
    """What each row's text scores, by metric and filter, as the library computes it."""
    for row, text in zip(rows, texts):
        row.instance.resps, row.instance.filtered_resps = [text], {}
    task = rows[0].task
    for one in task._filters:
        one.apply([row.instance for row in rows])
    return [
        {
            f"{metric},{kept}": value
            for kept, response in row.instance.filtered_resps.items()
            for metric, value in task.process_results(row.instance.doc, [response]).items()
        }
        for row in rows
    ]


def scorer_of(
    documents: Sequence[WrittenDocument], metric: str
) -> Callable[[Sequence[Sequence[str | None]]], np.ndarray]:
    """What scores every variant's texts by a metric of the tasks: float32 ``[variants, rows]``."""
    wanted = metric.removeprefix(PER_TEXT)

    def scores(texts: Sequence[Sequence[str | None]]) -> np.ndarray:
        found = np.zeros((len(texts), len(documents)), np.float32)
        for name in dict.fromkeys(document.name for document in documents):
            places = [place for place, document in enumerate(documents) if document.name == name]
            rows = [documents[place] for place in places]
            for variant, own in enumerate(texts):
                try:
                    scored = _scored(rows, [own[place] or "" for place in places])
                except Exception as error:  # of the task's own code
                    raise DataError(
                        f"lm-eval task {name!r} cannot score the texts: {one_line(error)}; the first "
                        f"is {shown(own[places[0]])}"
                    ) from error
                found[variant, places] = [one[wanted] for one in scored]
        return found

    return scores
