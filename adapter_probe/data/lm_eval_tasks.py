"""Tasks of lm-evaluation-harness, read as the requests that the library's task objects build.

The right choice and the counts are those of the task's `process_results`. Before anything runs, it and the
task's aggregation are compared with this project's metrics on random log-likelihoods, row by row; metrics
that differ are not offered.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from adapter_probe.data.generating import Generation, Prompting, chat_writer
from adapter_probe.data.lm_eval_written import OUTPUT_TYPE, WrittenDocument, read_written
from adapter_probe.data.request_rows import Request
from adapter_probe.data.requests import Requests, requests_with_fingerprint
from adapter_probe.data.requests_encoding import measure_text
from adapter_probe.data.sources import subset
from adapter_probe.errors import DataError, install_extra, listed, one_line
from adapter_probe.kinds.likelihoods import predictions_from_likelihoods
from adapter_probe.kinds.row_forms import ROW_FORMS, Form, RowForm
from adapter_probe.metrics import about, score
from adapter_probe.reads import report_unknown
from adapter_probe.startup import import_needed

PREFIX = "lm-eval:"
_FEWSHOT_SEED = 1234  # the library's own default
_FORMS: dict[str, Form] = {
    "multiple_choice": "choice", "loglikelihood": "completion", "loglikelihood_rolling": "text",
    OUTPUT_TYPE: "generation",
}  # fmt: skip
THEIR_NAMES: dict[Form, dict[str, str]] = {
    "choice": {"acc": "accuracy", "acc_norm": "acc_norm", "acc_bytes": "acc_bytes"},
    "completion": {"acc": "greedy_accuracy", "perplexity": "continuation_perplexity"},
    "text": {name: name for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")},
}
"""Names in this project of the library's metrics, by the form of the rows."""
_MEASURES = {"acc_norm": 0, "acc_bytes": 1, "byte_perplexity": 1, "bits_per_byte": 1, "word_perplexity": 2}
_DRAWS = 4


def is_task(entry: str) -> bool:
    """Whether an entry names tasks of lm-evaluation-harness instead of a file."""
    return entry.startswith(PREFIX)


def with_absolute_paths(entry: str) -> str:
    """A file or tasks by names that are valid from every working directory."""
    if not is_task(entry):
        return os.path.abspath(entry)  # not resolved: a link's own name says of what type the file is
    names = entry.removeprefix(PREFIX).split(",")
    return PREFIX + ",".join(os.path.abspath(name) if _is_path(name) else name for name in names)


def load_tasks(
    entries: Sequence[str],
    name: str,
    max_examples: int | None = None,
    tokenizer: Any = None,
    prompting: Prompting | None = None,
) -> Requests:
    """The rows of one or several tasks; several tasks are groups of one study.

    Args:
        entries: ``lm-eval:NAME[,NAME]``: names the library knows, task files (``.yaml``), or folders with
            such files (written with a ``/``). A task file may run Python code of its folder.
        max_examples: see `subset`.
        prompting: settings of the prompts; None for the tasks' own.
    """
    report_unknown()  # a task may read anything
    prompting = prompting or Prompting()
    asked: dict[str, Any] = {"fewshot_as_multiturn": prompting.as_multiturn}
    asked |= {one: getattr(prompting, one) for one in ("apply_chat_template", "system_instruction")}
    if prompting.apply_chat_template:
        asked["chat_template"] = chat_writer(tokenizer, ", ".join(entries))
    opened = _opened(entries, prompting.num_fewshot)
    read = {task_name: _read(task_name, task, asked, tokenizer) for task_name, task in opened.items()}
    form, metrics = _in_common({one: (of_task[0], of_task[3]) for one, of_task in read.items()})
    rows = [
        replace(row, group=task_name if len(read) > 1 else "")
        for task_name, (_, own, *_) in read.items()
        for row in own
    ]
    documents = [one for _, _, of_task, _ in read.values() for one in of_task]
    documents = [documents[number] for number in subset(len(rows), max_examples)]
    made = requests_with_fingerprint(form, rows, name, max_examples)
    return replace(
        made, metrics=tuple(metrics), templated=prompting.apply_chat_template, documents=tuple(documents),
        generation=_generation_of(documents) if ROW_FORMS[form].are_written else None,
    )  # fmt: skip


def _opened(entries: Sequence[str], num_fewshot: int | None) -> dict[str, Any]:
    """The library's tasks by their names."""
    tasks: dict[str, Any] = {}
    for entry in entries:
        if not is_task(entry):
            raise DataError(f"{entry}: files and tasks of lm-eval cannot be combined; give one kind")
        for wanted in entry.removeprefix(PREFIX).split(","):
            found = _open(wanted, num_fewshot)
            if twice := tasks.keys() & found.keys():
                raise DataError(f"{entry}: lm-eval task {min(twice)!r} is given twice; give every task once")
            tasks |= found
    return tasks


def _in_common(tasks: Mapping[str, tuple[Form, Sequence[str]]]) -> tuple[Form, list[str]]:
    """The form of rows and the metrics that tasks have in common."""
    forms = {form: name for name, (form, _) in tasks.items()}
    if len(forms) > 1:
        raise DataError(
            f"lm-eval tasks {listed(forms.values())} have rows of form {listed(forms)}; give one at a time"
        )
    ((form, first),) = forms.items()
    metrics = [one for one in tasks[first][1] if all(one in own for _, own in tasks.values())]
    if not metrics:
        raise DataError(f"lm-eval tasks {listed(tasks)} have no metric in common; give one at a time")
    return form, metrics


def _generation_of(documents: Sequence[Any]) -> Generation:
    found: dict[Generation, str] = {}
    for document in documents:
        found.setdefault(document.generation, document.name)
    if len(found) > 1:
        one, other = list(found.values())[:2]
        raise DataError(
            f"lm-eval tasks {one!r} and {other!r} let the model write differently; give one at a time"
        )
    return next(iter(found))


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.endswith((".yaml", ".yml"))


def _open(wanted: str, num_fewshot: int | None = None) -> dict[str, Any]:
    try:
        tasks = import_needed("lm_eval.tasks")
    except ModuleNotFoundError as error:
        raise DataError(
            f"{PREFIX}{wanted}: {error.name} is not installed; {install_extra('lm-eval')}"
        ) from None
    if not wanted or (_is_path(wanted) and not os.path.exists(wanted)):
        raise DataError(f"{PREFIX}{wanted}: no such task file or folder")
    try:
        if _is_path(wanted) and os.path.isdir(wanted):
            manager = tasks.TaskManager(include_path=wanted, include_defaults=False)
            found: dict[str, Any] = manager.load(list(manager.all_subtasks))["tasks"]
        else:
            manager = tasks.TaskManager(include_defaults=not _is_path(wanted))
            found = manager.load([wanted])["tasks"]
        for task in found.values():
            if num_fewshot is not None and task.get_config("num_fewshot") != 0:
                task.set_config(key="num_fewshot", value=num_fewshot)
            task.set_fewshot_seed(_FEWSHOT_SEED)
    except Exception as error:  # of lm-eval, datasets, the hub's library, or a task's own code
        raise DataError(f"{PREFIX}{wanted}: lm-eval cannot open it: {one_line(error)}") from error
    if not found:
        raise DataError(f"{PREFIX}{wanted}: the folder contains no task file")
    return found


def _read(
    name: str, task: Any, asked: Mapping[str, Any], tokenizer: Any
) -> tuple[Form, list[Request], Sequence[_Document | WrittenDocument], list[str]]:
    """A task's form, its rows and their documents, and the metrics on which this project and it agree."""
    form = _FORMS.get(task.OUTPUT_TYPE)
    if form is None:
        raise DataError(
            f"lm-eval task {name!r} has output type {task.OUTPUT_TYPE!r}, allowed are {', '.join(_FORMS)}"
        )
    writes = ROW_FORMS[form].are_written
    if task.get_config("filter_list") and not writes:
        raise DataError(f"lm-eval task {name!r} filters the model's answers, which is not supported")
    try:
        task.build_all_requests(rank=0, world_size=1, **asked)
        if writes:
            return form, *read_written(name, task, tokenizer)
        rows = [
            _Document(name, task, ROW_FORMS[form], number + 1, list(of_doc))
            for number, (_, of_doc) in enumerate(groupby(task.instances, key=lambda one: one.doc_id))
        ]
        offered = [theirs for theirs in THEIR_NAMES[form] if theirs in rows[0].scored(rows[0].drawn(0))]
        requests = [row.request(offered) for row in rows] if offered else []
        metrics = [THEIR_NAMES[form][m] for m in offered if _scores_agree(rows, m, requests)]
    except DataError:
        raise
    except Exception as error:  # of lm-eval, datasets, or a task's own code
        raise DataError(f"lm-eval task {name!r} cannot be built: {one_line(error)}") from error
    if not metrics:
        raise DataError(
            f"lm-eval task {name!r} uses the metrics {listed(task.aggregation())}, none supported; for "
            f"output type {task.OUTPUT_TYPE!r}, the library's {', '.join(THEIR_NAMES[form])} are allowed"
        )
    return form, requests, rows, metrics


@dataclass(frozen=True, eq=False)
class _Document:
    name: str
    task: Any
    form: RowForm
    number: int
    instances: list[Any]

    def request(self, offered: Sequence[str]) -> Request:
        """The document as a request of this project, with the task's right choice or counts."""
        arguments = [instance.args for instance in self.instances]
        if self.form.are_texts:
            ((text,),) = arguments
            return Request("", (text,), counts=(self._counts(text),))
        contexts, continuations = {one[0] for one in arguments}, [one[1] for one in arguments]
        if len(contexts) > 1 or any(len(one) != 2 for one in arguments):
            raise self.error("has more than one context, or images or sound, which is not supported")
        (context,) = contexts
        if self.form.are_completions:
            return Request(context, tuple(continuations))
        delimiter = self.task.get_config("target_delimiter") or ""
        if not all(text.startswith(delimiter) for text in continuations):
            delimiter = ""
        choices = tuple(text[len(delimiter) :] for text in continuations)
        return Request(context, choices, delimiter, self._gold(offered[0]))

    def error(self, what: str) -> DataError:
        return DataError(f"lm-eval task {self.name!r} row {self.number}: {what}")

    def scored(self, sums: Sequence[float], greedy: bool = False) -> Mapping[str, Any]:
        """The result of the task's `process_results` for log-likelihoods."""
        results = list(sums) if self.form.are_texts else [(value, greedy) for value in sums]
        return self.task.process_results(self.instances[0].doc, results)

    def drawn(self, draw: int) -> list[float]:
        """Random log-likelihoods, in proportion to the choices' lengths, so that each choice can win."""
        values = -np.random.default_rng([self.number, draw]).uniform(0.1, 5, len(self.instances))
        if self.form.are_choices:
            values *= [len(instance.args[1]) for instance in self.instances]
        return values.tolist()

    def greedy(self, draw: int) -> bool:
        """Random values for whether the continuation is the most likely one."""
        return bool(np.random.default_rng([self.number, draw, 1]).random() < 0.5)

    def _gold(self, metric: str) -> int:
        n = len(self.instances)
        likely = [[-1e-3 if other == one else -1e9 for other in range(n)] for one in range(n)]
        right = [number for number in range(n) if self.scored(likely[number])[metric] == 1]
        if len(right) != 1:
            raise self.error(f"has {len(right)} right choices of {n}; exactly 1 is allowed")
        return right[0]

    def _counts(self, text: str) -> tuple[int, int, int]:
        """Characters, bytes and words as counted by the task, possibly of another text."""
        characters, n_bytes, words = measure_text(text)
        made = self.scored([-1.0])
        for name in ("byte_perplexity", "bits_per_byte"):
            n_bytes = made[name][1] if name in made else n_bytes
        return characters, n_bytes, made["word_perplexity"][1] if "word_perplexity" in made else words


def _scores_agree(rows: Sequence[_Document], theirs: str, requests: Sequence[Request]) -> bool:
    """Whether task and project score rows, individually and aggregated, equally on random log-likelihoods."""
    ours, aggregate = THEIR_NAMES[rows[0].form.name][theirs], rows[0].task.aggregation()[theirs]
    for draw in range(_DRAWS):
        items = [row.scored(row.drawn(draw), row.greedy(draw))[theirs] for row in rows]
        said = [_prediction_and_label(ours, row, request, draw) for row, request in zip(rows, requests)]
        predictions, labels = (np.array(values) for values in zip(*said))
        if about(ours).is_proportion and [float(item) for item in items] != (predictions == labels).tolist():
            return False
        if not np.isclose(aggregate(items), score(ours, predictions, labels), rtol=1e-9):
            return False
    return True


def _prediction_and_label(ours: str, row: _Document, request: Request, draw: int) -> tuple[float, int]:
    if ours == "greedy_accuracy":
        return int(not row.greedy(draw)), request.gold
    measured = request.counts or tuple(map(measure_text, request.choices))
    sizes = np.array([one[_MEASURES[ours]] if ours in _MEASURES else 1 for one in measured])
    prediction = predictions_from_likelihoods(ours, np.array([row.drawn(draw)]), sizes[None])[0]
    return prediction, int(sizes[0]) if about(ours).less_is_better else request.gold
