"""Formatting of numbers, names and scores in figures, with true minus signs (−)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from adapter_probe import metrics
from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.studies import ALL_REMOVED, AblationOverview, AblationRecord, section_of
from adapter_probe.analysis.summary import NOT_WORSE
from adapter_probe.known_tasks import known_task
from adapter_probe.metrics import IN_PERCENT


def task_label(name: str) -> str:
    """A task's name as papers print it, on one line; control characters, invalid in SVG, are replaced."""
    known = known_task(name)
    return known.label if known else _printed(name) or "task"


def study_label(overview: AblationOverview) -> str:
    """Name of an ablation in a figure: its label, or by default its task."""
    return _printed(overview.label) or task_label(overview.task)


def _printed(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in " ".join(name.split()))


def escape_mathtext(text: str) -> str:
    """Text escaped so that Matplotlib prints it literally and not as a formula."""
    return text.replace("$", r"\$")


def drop_text(drop: float) -> str:
    """A drop in a cell: `1.2`, or `12` from 10 points; a gain is a negative drop, `−0.3`. Empty for NaN."""
    if math.isnan(drop):
        return ""
    size = f"{abs(drop):.1f}" if abs(drop) < 9.95 else f"{abs(drop):.0f}"
    return f"−{size}" if drop < 0 and float(size) else size


def one_decimal(points: float) -> str:
    """A number of points: `13.5`, `−0.3`, and `0.0` for values that round to zero."""
    text = f"{points:.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def signed_points(points: float) -> str:
    """A signed difference: `−5.1`, `+0.3`, and `0.0` for values that round to zero."""
    text = one_decimal(points)
    return f"+{text}" if points > 0 and text != "0.0" else text


def named_score(score: float, metric: str | None) -> str:
    """A score with its name: `74.2 % accuracy`, `Matthews correlation 0.362`."""
    name = metric_name(metric)
    return (
        f"{bare_score(score, metric)} {name}"
        if metric in IN_PERCENT
        else f"{name} {bare_score(score, metric)}"
    )


def bare_score(score: float, metric: str | None) -> str:
    """A score without its name: `74.2 %`, `0.362`."""
    return f"{100 * score:.1f} %" if metric in IN_PERCENT else f"{score:.3f}".replace("-", "−")


def metric_name(metric: str | None) -> str:
    """The name of the metric; `score` if it is unknown or differs between studies."""
    return "score" if metric is None else metrics.metric_label(metric)


def unit_name(metric: str | None) -> str:
    """The name of a hundredth of the score."""
    if metric in metrics.LOSSES:
        return f"0.01 {metrics.LOSS_UNITS.get(metric, '')}".rstrip()
    return "percentage points" if metric in IN_PERCENT else "points of 0.01"


def drop_name(metric: str | None) -> str:
    """The name of a deterioration: a drop in a score, or a rise in a loss."""
    return "rise" if metric in metrics.LOSSES else "drop"


def score_axis(metric: str | None) -> tuple[float, str]:
    """The factor of a score on an axis, and the axis label without the split."""
    if metric is None:
        return 100.0, "score × 100"
    return (100.0, f"{metric_name(metric)} (%)") if metric in IN_PERCENT else (1.0, metric_name(metric))


def points_text(points: float) -> str:
    """A number of points: `1 point`, `0.5 points`."""
    return f"{points:g} point{'' if points == 1 else 's'}"


def count_text(n: int, noun: str) -> str:
    """A count with its noun: `1 seed`, `9,815 examples`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def span_text(first: int, last: int) -> str:
    """The layers of a span: `3`, `3–5`."""
    return str(first) if first == last else f"{first}–{last}"


def range_text(values: list[int], noun: str) -> str:
    """A range of counts with its noun: `3 seeds`, `2–3 seeds`."""
    low, high = min(values), max(values)
    return count_text(high, noun) if low == high else f"{low}–{high} {noun}s"


def drop_label(metric: str | None, split: str = "") -> str:
    """Label of a colour bar of drops; `metric` is None if it differs between panels."""
    return f"{drop_name(metric)} in {f'{split} {metric_name(metric)}'.strip()} ({unit_name(metric)})"


def common_value(values: Iterable[str | None]) -> str | None:
    """The value that all have in common; None if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def common_metric(records: Iterable[AblationRecord]) -> str | None:
    """The common metric of the ablations; None if it differs."""
    return common_value(record.overview.metric for record in records)


def test_name(metric: str | None) -> str | None:
    """The test behind the p-values of an ablation, as `adapter_probe.analysis.significance` chooses it."""
    if metric is None:
        return None
    return "McNemar" if metric in metrics.CHOICES else "bootstrap"


def ablation_notes(overview: AblationOverview) -> list[str]:
    """The notes in a grid: the task, the intact score, all removed, the majority class."""
    score = "undefined" if overview.intact is None else named_score(overview.intact, overview.metric)
    notes = [f"{escape_mathtext(study_label(overview))}, n = {overview.n_examples:,}", f"intact {score}"]
    lost = "undefined" if overview.removed_delta is None else one_decimal(-overview.removed_delta)
    notes.append(f"{overview.removed}: {drop_name(overview.metric)} {lost}")
    if overview.majority is not None:
        notes.append(f"{overview.baseline} {bare_score(overview.majority, overview.metric)}")
    reason = why_spans_mean_nothing(overview)
    return notes + ([f"{reason}:", "spans not informative"] if reason else [])


def settings_text(study: AblationRecord) -> str:
    """The non-default settings of an ablation as text: `ffn only, groups of 3 layers`."""
    settings, split = section_of(study.identity, "settings"), study.overview.split
    sites, spans = settings.get("sites", "both"), settings.get("spans", "all")
    group, layers, precision = (settings.get(name) for name in ("group", "layers", "precision"))
    said = [
        "" if sites == "both" else f"{sites} only",
        "span kept on" if settings.get("complement") else "",
        "pretrained LayerNorms" if settings.get("layernorm") == "pretrained" else "",
        "" if spans == "all" else f"spans {spans}",
        "" if group in (None, 1) else f"groups of {group} layers",
        f"layers {layers}" if layers else "",
        "" if precision in (None, "float32") else str(precision),
        "" if split == "validation" else split,
    ]
    return ", ".join(part for part in said if part)


def joint_notes(record: AverageRecord | ComparisonRecord) -> list[str]:
    """The notes in a grid of means or differences: studies, number of examples, intact scores."""
    if isinstance(record, ComparisonRecord):
        scores = [bare_score(score, record.metric) for score in record.intact_scores]
        names = [escape_mathtext(name) for name in record.names]
        notes = [f"{names[1]} minus {names[0]}", f"n = {record.n_examples:,}, {metric_name(record.metric)}"]
        return notes + [f"{name}: intact {score}" for name, score in zip(names, scores)]
    ends = min(record.intact_scores), max(record.intact_scores)
    low, high = (bare_score(score, record.metric) for score in ends)
    intact = low if low == high else f"{low} to {high}"
    return [f"mean ± s.d. of {len(record.names)} studies", f"n = {record.n_examples:,}",
            f"intact {metric_name(record.metric)} {intact}"]  # fmt: skip


def why_spans_mean_nothing(overview: AblationOverview) -> str | None:
    """Why the spans of a study are not informative by its tests; None if they are."""
    if overview.warning is None:
        return None
    if overview.warning.startswith(NOT_WORSE):
        return f"no better than with {'all off' if overview.removed == ALL_REMOVED else overview.removed}"
    article = "the" if overview.baseline == "majority class" else "a"
    return f"no better than {article} {overview.baseline}"
