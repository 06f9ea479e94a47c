"""What is known of the GLUE tasks and SQuAD v1.1 by name: how papers print, label and score them."""

from __future__ import annotations

from dataclasses import dataclass

from adapter_probe.metrics import Kind

_NLI = ("entailment", "neutral", "contradiction")
_ENTAILS = ("entailment", "not_entailment")


@dataclass(frozen=True)
class KnownTask:
    """One named task.

    Attributes:
        name: in small letters, as on the hub.
        label: as papers print it.
        kind: classification, regression or extractive.
        metric: the task's score in Houlsby et al.'s figures: it chooses the best epoch and is drawn in ours.
        table_metrics: what tables of results report, most important first.
        label_names: the classes in the hub's order: a file's 0 is the first, its 1 the second. Where the
            metric is F1, the last is the positive one.
        collection: the hub's data sets that it is one of.
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
        """Whether it is one of GLUE's; both halves of MNLI are."""
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
    """The task that a name means, or None: ``cola``, ``CoLA``, ``glue/cola`` and ``nyu-mll/glue/cola``."""
    owner, _, short = name.lower().replace("_", "-").rpartition("/")
    task = KNOWN_TASKS.get(_ALIASES.get(short, short))
    owners = ("", "glue", "nyu-mll/glue") if task is not None and task.in_glue else ("", "rajpurkar")
    return task if owner in owners else None
