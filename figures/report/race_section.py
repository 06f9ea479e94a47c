"""The section of a race: what was decided, with which certainty, and every verdict."""

from __future__ import annotations

from adapter_probe.analysis.race_tables import race_rows
from adapter_probe.analysis.study_records import RaceRecord
from adapter_probe.wording import amount_text, drop_name, layers_text, metric_name, sentence, task_label

from .curve_sections import drawn
from .markup import Html, settings, short_name, table, tag
from .span_words import NONE


def race_section(record: RaceRecord, number: int, heading: str) -> Html:
    """The section; nothing in it moves."""
    said = record.summary
    facts = [f"{sentence(name)}: {text}." for name, text in race_rows(said)]
    return tag(
        "section", {"class": "study", "aria-labelledby": f"sweep-{number}"},
        tag("header", None, tag("h2", {"id": f"sweep-{number}"}, heading),
            tag("p", {"class": "note"}, f"{short_name(record.folder)}: {said.data or said.split}")),
        [tag("p", None, fact) for fact in facts],
        drawn(record, f"s{number}"), _verdicts(record), settings(record.identity),
    )  # fmt: skip


def race_title(record: RaceRecord) -> str:
    """Heading, and name in the contents."""
    said = record.summary
    return f"{task_label(said.task)}: race of spans by {metric_name(said.metric)}"


def _verdicts(record: RaceRecord) -> Html:
    metric, rows = record.summary.metric, []
    for row in record.spans.to_dict("records"):
        ends = [-row[name] for name in ("delta_points", "bound_high_points", "bound_low_points")]
        amounts = [NONE if end != end else amount_text(end, metric) for end in ends]
        verdict = [layers_text(row["first"], row["last"]), row["decision"], f"{row['n_examples']:,}"]
        rows.append([*verdict, *amounts])
    drop = drop_name(metric)
    heads = ["adapters", "verdict", "examples", f"{drop} on these", f"{drop} on all from", "to"]
    return table(f"{len(rows)} verdicts as a table", heads, rows)
