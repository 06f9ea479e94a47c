"""The GLUE tasks and SQuAD v1.1 by name: printed names, labels and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from adapter_probe.metrics import Kind

_NLI = ("entailment", "neutral", "contradiction")
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
        collection: name of the collection on the hub.
    """

    name: str
    label: str
    kind: Kind
    metric: str
    table_metrics: tuple[str, ...]
    label_names: tuple[str, ...] = ()
    collection: str = "nyu-mll/glue"

    @property
    def in_glue(self) -> bool:
        """Whether the task belongs to GLUE, as both parts of MNLI do."""
        return self.collection == "nyu-mll/glue"


def _classified(name: str, label: str, metric: str, label_names: tuple[str, ...]) -> KnownTask:
    return KnownTask(name, label, "classification", metric, (metric,), label_names)


KNOWN_TASKS = {
    task.name: task
    for task in (
        # The paper's figures have CoLA's accuracy; its tables have the Matthews correlation.
        KnownTask("cola", "CoLA", "classification", "accuracy", ("mcc",), ("unacceptable", "acceptable")),
        _classified("sst2", "SST-2", "accuracy", ("negative", "positive")),
        _classified("mrpc", "MRPC", "f1", ("not_equivalent", "equivalent")),
        KnownTask("stsb", "STS-B", "regression", "spearman", ("spearman",)),
        _classified("qqp", "QQP", "f1", ("not_duplicate", "duplicate")),
        _classified("mnli", "MNLI-m", "accuracy", _NLI),
        _classified("mnli-mm", "MNLI-mm", "accuracy", _NLI),
        _classified("qnli", "QNLI", "accuracy", _ENTAILS),
        _classified("rte", "RTE", "accuracy", _ENTAILS),
        KnownTask(
            "squad", "SQuAD", "extractive", "squad_f1", ("squad_f1", "exact_match"), (), "rajpurkar/squad"
        ),
    )
}
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
