"""The GLUE tasks and SQuAD v1.1 by name: printed names, labels, metrics, and where their data are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from adapter_probe.metrics import Kind

_ENTAILS = ("entailment", "not_entailment")


@dataclass(frozen=True)
class KnownTask:
    """One named task.

    Attributes:
        name: name in lower case, as on the hub.
        label: name as printed in papers.
        kind: classification, regression or extractive.
        metric: metric in the figures of Houlsby et al.: it selects the best epoch and is drawn in figures.
        table_metrics: metrics reported in tables, most important first.
        label_names: the classes in the hub's order: a file's 0 is the first, its 1 the second. Where the
            metric is F1, the last is the positive one.
        texts: the hub's columns of the text, or of both texts of a pair, or of question and context.
        target: the hub's column of what is right.
        collection: name of the collection on the hub.
        config: its configuration on the hub; the name of the task if it is empty.
        validation: the hub's name of the validation split.
    """

    name: str
    label: str
    kind: Kind
    metric: str
    table_metrics: tuple[str, ...]
    label_names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ("sentence1", "sentence2")
    target: str = "label"
    collection: str = "nyu-mll/glue"
    config: str = ""
    validation: str = "validation"

    @property
    def in_glue(self) -> bool:
        """Whether the task belongs to GLUE, as both parts of MNLI do."""
        return self.collection == "nyu-mll/glue"


def _classified(name: str, label: str, metric: str, label_names: tuple[str, ...], *texts: str) -> KnownTask:
    texts = texts or ("sentence1", "sentence2")
    return KnownTask(name, label, "classification", metric, (metric,), label_names, texts)


def _mnli(name: str, label: str, genres: str) -> KnownTask:
    own = _classified(
        name, label, "accuracy", ("entailment", "neutral", "contradiction"), "premise", "hypothesis"
    )
    return replace(own, config="mnli", validation=f"validation_{genres}")


# The paper's figures have CoLA's accuracy; its tables have the Matthews correlation.
_COLA = _classified("cola", "CoLA", "accuracy", ("unacceptable", "acceptable"), "sentence")
KNOWN_TASKS = {
    task.name: task
    for task in (
        replace(_COLA, table_metrics=("mcc",)),
        _classified("sst2", "SST-2", "accuracy", ("negative", "positive"), "sentence"),
        _classified("mrpc", "MRPC", "f1", ("not_equivalent", "equivalent")),
        KnownTask("stsb", "STS-B", "regression", "spearman", ("spearman",)),
        _classified("qqp", "QQP", "f1", ("not_duplicate", "duplicate"), "question1", "question2"),
        _mnli("mnli", "MNLI-m", "matched"),
        _mnli("mnli-mm", "MNLI-mm", "mismatched"),
        _classified("qnli", "QNLI", "accuracy", _ENTAILS, "question", "sentence"),
        _classified("rte", "RTE", "accuracy", _ENTAILS),
        KnownTask(
            "squad", "SQuAD", "extractive", "squad_f1", ("squad_f1", "exact_match"), (),
            ("question", "context"), "answers", "rajpurkar/squad", "plain_text",
        ),
    )
}  # fmt: skip
"""By name, GLUE in the order of the paper's Table 1."""

_ALIASES = {
    "sst-2": "sst2", "sts-b": "stsb", "mnli-m": "mnli", "mnli-matched": "mnli", "mnli-mismatched": "mnli-mm",
}  # fmt: skip


def known_task(name: str) -> KnownTask | None:
    """The task of a name, or None; ``cola``, ``CoLA``, ``glue/cola``, ``nyu-mll/glue/cola`` are equal."""
    owner, _, short = name.lower().replace("_", "-").rpartition("/")
    task = KNOWN_TASKS.get(_ALIASES.get(short, short))
    owners = ("", "glue", "nyu-mll/glue") if task is not None and task.in_glue else ("", "rajpurkar")
    return task if owner in owners else None
