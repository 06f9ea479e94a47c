"""Studies, scores, drops, durations and paths as plain text for the terminal, notebooks and `repr`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe import wording

if TYPE_CHECKING:
    import pandas as pd

    from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord, DataComparisonRecord
    from adapter_probe.analysis.summary import AblationSummary
    from adapter_probe.analysis.summary_parts import LayerDrop, ModuleDrop, SpanDrop


def aligned_columns(rows: list[tuple[str, str]]) -> str:
    """(name, value) pairs as two aligned columns."""
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"{left:<{width}}  {right}".rstrip() for left, right in rows)


def plain_text(text: str) -> str:
    """Text for the terminal, whose encoding may lack the signs of a figure."""
    return text.replace("−", "-").replace("–", "-")


def score_text(score: float | None, metric: str) -> str:
    """A score as text; see `adapter_probe.wording.score_text`."""
    return plain_text(wording.score_text(score, metric))


def change_text(delta: float | None, metric: str) -> str:
    """A change of a score, in points, as a drop or a gain; see `adapter_probe.wording.drop_text`."""
    return plain_text(wording.drop_text(None if delta is None else -delta, metric))


def change_interval_text(delta: float | None, interval: Sequence[float | None], metric: str) -> str:
    """A change of a score with its interval, in points, as a drop: `drop 1.2 points, 95% interval ...`."""
    if None in interval:
        return change_text(delta, metric)
    low, high = (-end for end in reversed(interval))  # type: ignore[operator]
    drop, ends = wording.drop_name(metric), plain_text(wording.interval_text(low, high, metric))
    change = change_text(delta, metric)
    of = "" if change.startswith(drop) else f" of the {drop}"
    return f"{change}, 95% interval{of} {ends}"


def file_lists(groups: Iterable[Iterable[str | Path]]) -> str:
    """Paths, those that differ only in the suffix on one line: ``folder/heatmap.{pdf,png}``."""
    endings: dict[Path, list[str]] = {}
    for path in (Path(path) for group in groups for path in group):
        endings.setdefault(path.with_suffix(""), []).append(path.suffix[1:])
    return "\n".join(
        f"{stem}.{found[0]}" if len(found) == 1 else f"{stem}.{{{','.join(found)}}}"
        for stem, found in endings.items()
    )


def duration_text(seconds: float) -> str:
    """A duration in seconds, minutes or hours, as text."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_MOST_LISTED, _MOST_GROUPS, _MOST_DIFFERENCES = 5, 12, 3


def _plain(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(plain_text(name), plain_text(said)) for name, said in rows]


def _first_rows(record: Any, name: str, told: str, intact: str) -> list[tuple[str, str]]:
    """Why the record recommends nothing, what it is, and the intact scores if these say anything."""
    rows = [] if record.warning is None else [("note", record.warning)]
    examples = wording.examples_text(record.n_examples, record.metric)
    rows.append((name, f"{told}, {record.metric} on the same {examples}"))
    return rows if wording.is_distance(record.metric) else [*rows, ("intact", intact)]


def _signed_amount(points: float, metric: str) -> str:
    text = wording.amount_text(points, metric)
    return f"+{text}" if points > 0 and float(plain_text(text).split()[0]) else text


def _place_text(row: Any) -> str:
    """The layers of a table's row, with their stack and the module if it has these."""
    layers = wording.layers_text(int(row["first"]), int(row["last"]))
    layers += f" of the {row['stack']}" if "stack" in row else ""
    return f"{row['module']} in {layers}" if "module" in row else layers


def span_drop_text(span: SpanDrop | None, metric: str = "") -> str:
    """A span and its drop, as text."""
    if span is None:
        return "none"
    layers = wording.layers_text(span.first, span.last)
    layers += "" if span.n_layers == 1 else f" ({span.n_layers} layers)"
    ends = span.ci_low_points, span.ci_high_points
    return plain_text(f"{layers}, {change_interval_text(span.delta_points, ends, metric)}")


def ablation_rows(summary: AblationSummary) -> list[tuple[str, str]]:
    """The main results of an ablation as (name, value) pairs of text."""
    metric, warning = summary.metric, summary.warning
    part = f", {summary.switched} only" if summary.switched else ""
    removed = change_text(summary.removed_delta_points, metric)
    counted = wording.examples_text(summary.n_examples, metric)
    names = dict.fromkeys((summary.task, summary.evaluated))  # one name of a model in memory
    rows = [
        *([] if warning is None else [("note", warning)]),
        ("task", ", ".join([*names, counted, wording.metric_name(metric)])),
    ]
    if wording.is_distance(metric):
        rows += [("compared with", "the intact model's outputs"), (summary.all_off, f"{removed}{part}")]
    else:
        rows.append(("intact", score_text(summary.intact_score, metric)))
        score = score_text(summary.removed_score, metric)
        score += "" if summary.removed_score is None else f" ({removed})"
        rows.append((summary.all_off, f"{score}{part}"))
    if summary.majority_score is not None or summary.is_of_numbers:
        rows.append((summary.baseline, score_text(summary.majority_score, metric)))
    if summary.positive_class is not None:
        rows.append(("positive class", summary.positive_class))
    if summary.stacks:
        rows += _significant(summary)
    for name, own in (summary.stacks or {"": summary}).items():
        rows += _stack_rows(own, summary.is_informative and own.is_informative, name)
    rows += _group_rows(summary)
    if nonfinite := summary.nonfinite_examples:
        listed = ", ".join(f"{name} ({n:,})" for name, n in list(nonfinite.items())[:_MOST_LISTED])
        more = ", ..." if len(nonfinite) > _MOST_LISTED else ""
        counted = f"{len(nonfinite)} variants have NaN or infinite outputs (examples): {listed}{more}"
        rows.append(("undefined scores", counted))
    if summary.base_weights:
        rows.append(("weights of the base", summary.base_weights))
    return _plain(rows + (guard_rows(summary.guard) if summary.guard else []))


def _stack_rows(summary: AblationSummary, informative: bool, stack: str) -> list[tuple[str, str]]:
    """The notable layers and spans of the model, or of one of its stacks."""
    metric, kept, rows = summary.metric, summary.study == "kept", []
    if stack and summary.warning is not None:
        rows.append(("note", summary.warning))
    if stack:
        rows.append((summary.all_off, change_text(summary.removed_delta_points, metric)))
    if (single := summary.single_layer) is not None:
        unit = "layer" if single.last_layer is None else "group"
        name = f"best single {unit}" if kept else f"largest single-{unit} {wording.drop_name(metric)}"
        telling = kept or single.delta_points < 0  # without any drop, there is no largest one
        rows.append((name, _layer_text(single, metric) if telling else "none"))
    if not stack:
        rows += _significant(summary)
    said = "only {} kept on" if kept else f"all of {{}} {summary.all_off.removeprefix('all ')}"
    for name, own in (summary.modules or {}).items():
        rows.append((said.format(name), _module_text(own, kept, metric)))
    if informative:
        rows += _span_rows(summary)
    if not stack:
        return rows
    return [(f"{'  ' * what.startswith('  ')}{stack}: {what.strip()}", said) for what, said in rows]


def _significant(summary: AblationSummary) -> list[tuple[str, str]]:
    if summary.significant_spans is None:
        return []
    parts = [summary, *(summary.stacks or {}).values()]
    what = "cells" if any(part.modules for part in parts) else "spans"
    counted = f"{summary.significant_spans} of {summary.tested_spans} {what} (p < 0.05 after Holm)"
    return [("significant changes", counted)]


def _module_text(found: ModuleDrop, kept: bool, metric: str) -> str:
    """A module off in all layers, or the only one that is on, and the layer in which that matters most."""
    said = change_text(found.delta_points, metric)
    single = found.layer
    if single is None or not (kept or single.delta_points < 0):
        return said
    return f"{said}; {'best alone' if kept else 'most'} in {_layer_text(single, metric)}"


def _layer_text(found: LayerDrop, metric: str) -> str:
    last = found.layer if found.last_layer is None else found.last_layer
    return f"{wording.layers_text(found.layer, last)}, {change_text(found.delta_points, metric)}"


def both_scores(summary: AblationSummary) -> str:
    """The intact score, if it says anything, and that with everything off, as in `ablation_rows`."""
    rows = dict(ablation_rows(summary))
    return ", ".join(f"{name} {rows[name]}" for name in ("intact", summary.all_off) if name in rows)


def _group_rows(summary: AblationSummary) -> list[tuple[str, str]]:
    """One row per top-level group of the data; all groups are in ``groups.csv``."""
    groups, metric = summary.groups or {}, summary.metric
    wholes = {name: own for name, own in groups.items() if name.rpartition("/")[0] not in groups}
    rows = [
        (
            f"on {name}",
            f"{'' if wording.is_distance(metric) else score_text(own.intact_score, metric) + ' of '}"
            f"{wording.examples_text(own.n_examples, metric)}, {summary.all_off} "
            f"{change_text(own.removed_delta_points, metric)}",
        )
        for name, own in list(wholes.items())[:_MOST_GROUPS]
    ]
    more = len(wholes) - _MOST_GROUPS
    return rows if more <= 0 else [*rows, ("more groups", f"{more} in groups.csv")]


def _span_rows(summary: AblationSummary) -> list[tuple[str, str]]:
    """The longest or shortest spans by the estimate, and those by the bound."""
    metric = summary.metric
    what = wording.best_span_text(summary.study, summary.strength or 0.0, summary.rank or 0)
    rows = [
        (f"{what} within {wording.tolerance_text(float(tolerance), metric)}", span_drop_text(span, metric))
        for tolerance, span in summary.best_spans.items()
    ]
    for tolerance, span in (summary.longest_removable_surely or {}).items():
        within = f"  by the 95% bound, within {wording.tolerance_text(float(tolerance), metric)}"
        rows.append((within, span_drop_text(span, metric)))
    return rows


def guard_rows(guard: dict[str, Any]) -> list[tuple[str, str]]:
    """Mixed precision: predictions repeated in float32, measured rounding errors, and remaining risk."""
    decided, band = 100 * guard["decided_in_float32"], guard["band"]
    share = f"{decided:.1f}% of the predictions, those with margins below {band:.2g}"
    evidence = f"largest error {guard['largest_error']:.2g} in {guard['pairs']:,} pairs"
    evidence += (
        f", {guard['sampled_pairs']:,} of them random; a tenth exceed {guard['threshold']:.2g}, by "
        f"{guard['scale']:.2g} on average"
    )
    most = max(0.1, 100 * guard["chance"])  # the errors beyond the band are not measured, so never none
    chance = f"at most {most:.1f}% that any other prediction differs, if the errors have this tail"
    return [("repeated in float32", share), ("  rounding error", evidence), ("  remaining risk", chance)]


def _counted(frame: pd.DataFrame) -> str:
    """How many rows of a table are significant."""
    n, what = int(frame["significant"].sum()), "cells" if "module" in frame else "spans"
    return f"{n} of {len(frame)} {what} (p < 0.05 after Holm)"


def comparison_rows(record: ComparisonRecord) -> list[tuple[str, str]]:
    """The main results of a comparison of two ablations as (name, value) pairs of text."""
    a, b = record.names
    scores = [score_text(score, record.metric) for score in record.intact_scores]
    frame = record.spans
    rows = _first_rows(record, "comparison", f"{a} (a) with {b} (b)", f"{scores[0]} (a), {scores[1]} (b)")
    rows.append(("significant differences", _counted(frame)))
    more = f"larger {wording.drop_name(record.metric)}"
    for name, sign in (("b", 1), ("a", -1)):
        found = frame[frame["significant"] & (sign * frame["difference_points"] > 0)]
        largest = found.sort_values("difference_points", ascending=sign < 0).head(_MOST_DIFFERENCES)
        said = [_difference_text(row, record.metric) for _, row in largest.iterrows()]
        said = said or ["none is significant"]
        said += [f"and {len(found) - len(largest)} more"] if len(found) > len(largest) else []
        rows += [("" if number else f"{more} in {name}", text) for number, text in enumerate(said)]
    return _plain(rows)


def _difference_text(row: pd.Series, metric: str) -> str:
    """A span with the difference of its drops and its interval."""
    ends = (row[f"{name}_points"] for name in ("difference", "ci_low", "ci_high"))
    difference, low, high = (_signed_amount(end, metric) for end in ends)
    return f"{_place_text(row)}, difference {difference}, 95% interval {low.split()[0]} to {high}"


def data_comparison_rows(record: DataComparisonRecord) -> list[tuple[str, str]]:
    """The main results of a comparison of two data sets as (name, value) pairs of text."""
    (task, other), frame = map(wording.task_label, record.names), record.spans
    told = [
        f"{name}: {wording.named_score(score, metric)}, {wording.examples_text(n, metric)}"
        for name, score, metric, n in zip(
            (task, other), record.intact_scores, record.metrics, record.n_examples
        )
    ]
    rows = [] if record.warning is None else [("note", record.warning)]
    rows.append(("intact", "; ".join(told)))
    if not frame["on_frontier"].any():
        rows.append(("frontier", "only the intact model"))
    best = frame[frame["on_frontier"]].sort_values(["task_points", "n_layers"], ascending=False)
    for (own, others), alike in best.groupby(["task_points", "other_points"], sort=False):
        row = alike.iloc[0]  # the longest of the spans with equal changes
        first, second = (change_text(*pair) for pair in zip((own, others), record.metrics))
        change = f"{first} on {task}, {second} on {other}"
        change += (
            f" (the same for {wording.count_text(len(alike) - 1, 'other span')})" if len(alike) > 1 else ""
        )
        done = wording.done_text(record.study, record.strength, record.rank)
        rows.append((f"frontier: {_place_text(row)} {done}", change))
    return _plain(rows)


def average_rows(record: AverageRecord) -> list[tuple[str, str]]:
    """The main results of an average of ablations as (name, value) pairs of text."""
    scores, frame, metric = record.intact_scores, record.spans, record.metric
    low, high = (score_text(score, metric) for score in (min(scores), max(scores)))
    removed, said = statistics.fmean(record.removed_points), "undefined"
    if not math.isnan(removed):
        spread = wording.amount_text(statistics.stdev(record.removed_points), metric)  # which takes no NaN
        said = f"{change_text(removed, metric)}, standard deviation over studies {spread}"
    spread = "undefined"
    if not frame["sd_points"].isna().all():
        amount = wording.amount_text(frame["sd_points"].median(), metric)
        spread = f"median standard deviation {amount} per {'cell' if record.by_module else 'span'}"
    rows = [
        *_first_rows(record, "average", f"{len(record.names)} studies", f"{low} to {high}"),
        (f"all {wording.done_text('ablated', record.strength, record.rank)}", said),
        ("spread over studies", spread),
    ]
    if "significant" in frame:
        rows.append(("beyond chance", _counted(frame)))
    return _plain(rows)
