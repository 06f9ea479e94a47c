"""What figures of ablations say: names of panels, notes in grids, and the sentences that captions share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from adapter_probe import wording
from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.deltas import StudyKind, section_of, tested_spans
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.analysis.summary import NOT_DIFFERENT, NOT_WORSE, AblationSummary
from adapter_probe.settings import texts_of
from adapter_probe.wording import (
    common_value,
    drop_text,
    examples_text,
    metric_name,
    named_score,
    printable,
    score_text,
    significance_test,
    task_label,
)

from .style import escape_mathtext

_IN_PLACE = ("full", "top_layers", "layernorm_only", "bitfit")  # methods that train the base's own tensors
_MCNEMAR = "an exact two-sided McNemar test of its predictions against the intact model's"


def study_label(record: AblationRecord) -> str:
    """Name of an ablation in a figure: its label, or by default its task, and its stack of several."""
    name = printable(record.label) or task_label(record.summary.task)
    return f"{name}, {record.stack}" if record.stack else name


def done_to_span(study: StudyKind, strength: float | str = 0.0) -> str:
    """What was done to the adapters of a span, as a clause."""
    if study == "ablated":
        done = wording.done_text(study, strength)
        return f"the adapters in a contiguous span of layers are {done}, without retraining"
    others = f" and the others {wording.done_text('ablated', strength)}" if strength else ""
    return f"only the adapters in a contiguous span of layers are kept on{others}, without retraining"


def common_metric(records: Iterable[AblationRecord]) -> str | None:
    """The common metric of the ablations; None if it differs."""
    return common_value(record.summary.metric for record in records)


def scored(records: Sequence[AblationRecord], metric: str | None) -> str:
    """The metric with its data, where the studies agree: `validation accuracy`, `accuracy on test.tsv`."""
    name, own = metric_name(metric), [record.summary for record in records]
    if data := common_value(one.data for one in own):
        return f"{name} on {data_label(data)}"
    split = "" if any(one.data for one in own) else common_value(one.split for one in own)
    return f"{split or ''} {name}".strip()


def data_label(name: str) -> str:
    """The printed name of given data: file names as they are, tasks of a harness as papers print them."""
    return printable(name) if "." in name or not name else task_label(name)


def drop_label(records: Sequence[AblationRecord], metric: str | None) -> str:
    """Label of drops in the metric on the studies' data; see `adapter_probe.wording.drop_label`."""
    return wording.drop_label(metric, scored(records, metric))


def ablation_notes(record: AblationRecord) -> list[str]:
    """The notes in a grid: the task, the intact score, everything switched off, the majority class."""
    said, delta = record.summary, record.summary.removed_delta_points
    lost = None if delta is None else -delta
    intact = f"intact {named_score(said.intact_score, said.metric)}"
    notes = [
        f"{escape_mathtext(study_label(record))}, n = {said.n_examples:,}",
        *([] if wording.is_distance(said.metric) else [intact]),
        f"{said.removed}: {drop_text(lost, said.metric).removesuffix(' points')}",
    ]
    if said.majority_score is not None:
        notes.append(f"{said.baseline} {score_text(said.majority_score, said.metric)}")
    reason = why_spans_mean_nothing(said)
    return notes + ([f"{reason}:", "spans not informative"] if reason else [])


def settings_text(study: AblationRecord) -> str:
    """The non-default settings of an ablation as text: `ffn only, groups of 3 layers`."""
    chosen = texts_of(AblationSettings, section_of(study.identity, "settings"), "note").values()
    said = study.summary
    split = "" if said.split == "validation" else said.split
    return ", ".join(part for part in (*chosen, split, data_label(said.data or "")) if part)


def joint_notes(record: AverageRecord | ComparisonRecord) -> list[str]:
    """The notes in a grid of means or differences: studies, number of examples, intact scores."""
    stack = [record.stack] if record.stack else []
    stack += ["spans not informative"] if record.warnings else []
    if isinstance(record, ComparisonRecord):
        scores = [score_text(score, record.metric) for score in record.intact_scores]
        names = [escape_mathtext(name) for name in record.names]
        notes = [
            *stack,
            f"{names[1]} minus {names[0]}",
            f"n = {record.n_examples:,}, {metric_name(record.metric)}",
        ]
        if wording.is_distance(record.metric):
            return notes
        return notes + [f"{name}: intact {score}" for name, score in zip(names, scores)]
    ends = min(record.intact_scores), max(record.intact_scores)
    low, high = (score_text(score, record.metric) for score in ends)
    studies = [*stack, f"mean ± s.d. of {len(record.names)} studies"]
    if wording.is_distance(record.metric):
        return [*studies, f"n = {record.n_examples:,}"]
    intact = low if low == high else f"{low} to {high}"
    return [*studies, f"n = {record.n_examples:,}", f"intact {metric_name(record.metric)} {intact}"]


def why_spans_mean_nothing(summary: AblationSummary) -> str | None:
    """Why the spans of a study are not informative by its tests; None if they are."""
    if summary.warning is None:
        return None
    if summary.warning.startswith(NOT_DIFFERENT):
        return f"not different with {summary.removed}"
    if summary.warning.startswith(NOT_WORSE):
        return f"no better than with {summary.removed}"
    article = "the" if summary.baseline == "majority class" else "a"
    return f"no better than {article} {summary.baseline}"


def warnings_of(records: Iterable[AblationRecord]) -> list[str]:
    """A sentence for each study whose spans are not informative."""
    return [
        f"{study_label(one)}: the intact model is {reason}, so its spans are not informative."
        for one in records
        if (reason := why_spans_mean_nothing(one.summary))
    ]


def checkpoint_sentence(record: AblationRecord) -> str:
    """A sentence on one checkpoint."""
    found = record.summary
    intact = score_text(found.intact_score, found.metric)
    what = f"intact {metric_name(found.metric)} {intact}"
    if wording.is_distance(found.metric):
        what = "compared with its own intact outputs"
    said = [examples_text(found.n_examples, found.metric), what]
    if found.majority_score is not None:
        said.append(f"{found.baseline} {score_text(found.majority_score, found.metric)}")
    return f"{study_label(replace(record, stack=''))}: one trained checkpoint, {', '.join(said)}."


def checkpoint_sentences(records: Sequence[AblationRecord]) -> list[str]:
    """A sentence on every checkpoint, and on the stacks where grids are of one of several."""
    methods = [section_of(one.identity, "checkpoint").get("method") for one in records]
    found = list(dict.fromkeys(map(checkpoint_sentence, records)))
    stacks = list(dict.fromkeys(record.stack for record in records if record.stack))
    if stacks:
        if any(stack.endswith("adapters together") for stack in stacks):
            said = (
                "In each map the other adapters stay on; in the last one, all adapters are switched together."
            )
            return [said, *found]
        found.insert(
            0, f"Layers are numbered within {' and '.join(stacks)}, and the layers of the others stay on."
        )
    if any(isinstance(one, Mapping) and one.get("name") in _IN_PLACE for one in methods):
        found.append(
            "Of a fine-tuned model, the adapters of a layer are the differences of its tensors from those of "
            "the base."
        )
    return found


def tests_of(records: Iterable[AblationRecord]) -> str:
    """The names of the tests behind the p-values."""
    found = dict.fromkeys(
        _MCNEMAR
        if significance_test(one.summary.metric) == "McNemar"
        else f"a two-sided paired bootstrap test over {units_of([one])}"
        for one in records
    )
    return " or ".join(found) or "a two-sided test"


def units_of(records: Iterable[AblationRecord]) -> str:
    """Units that the bootstrap resamples; questions on one paragraph are not independent."""
    return " or ".join(dict.fromkeys(wording.drawn_units(one.summary.metric) for one in records))


def over_spans(frames: Iterable[pd.DataFrame], what: str = "spans") -> str:
    """The number of spans, or of what else there is, that the correction is over."""
    counts = {tested_spans(frame) for frame in frames if "p_holm" in frame}
    return f" over {' or '.join(map(str, sorted(counts)))} {what}" if counts else ""
