"""The section of a study of strengths: the answer, the project's figure, and every number behind it."""

from __future__ import annotations

from collections.abc import Mapping

from adapter_probe.analysis.study_records import StrengthRecord
from adapter_probe.wording import (
    amount_text,
    drop_name,
    examples_text,
    layers_text,
    metric_name,
    score_text,
    sentence,
    strength_text,
    task_label,
)

from .markup import Html, settings, short_name, table, tag
from .span_words import NONE
from .sweep_section import drawn


def strength_section(record: StrengthRecord, number: int, heading: str) -> Html:
    """The section; nothing in it moves."""
    said = record.summary
    on = f"{metric_name(said.metric)} on {said.data}, {examples_text(said.n_examples, said.metric)}"
    about = record.identity.get("identity")
    return tag(
        "section", {"class": "study", "aria-labelledby": f"sweep-{number}"},
        tag("header", None, tag("h2", {"id": f"sweep-{number}"}, heading),
            tag("p", {"class": "note"}, f"{short_name(record.folder)}: {on}")),
        tag("p", None, f"Too strong or too weak? {sentence(said.verdict)}."),
        drawn(record, f"s{number}"), _table(record),
        settings(about if isinstance(about, Mapping) else {}),
    )  # fmt: skip


def strength_title(record: StrengthRecord) -> str:
    """Heading, and name in the contents."""
    said = record.summary
    return f"{task_label(said.task)}: {metric_name(said.metric)} by strength of the adapters"


def _table(record: StrengthRecord) -> Html:
    frame, metric = record.strengths, record.summary.metric
    rows = []
    for row in frame.to_dict("records"):
        where = "all" if row["whole"] else layers_text(row["first"], row["last"])
        stack = f" of the {row['stack']}" if row.get("stack") and not row["whole"] else ""
        ends = [-row[name] for name in ("delta_points", "ci_high_points", "ci_low_points")]
        amounts = [NONE if end != end else amount_text(end, metric) for end in ends]
        own = [f"{where}{stack}", strength_text(row["strength"]), score_text(row["score"], metric)]
        rows.append([*own, *amounts])
    change = f"{drop_name(metric)} against strength 1"
    heads = ["adapters", "strength", "score", change, "from", "to (95%)"]
    return table(f"{len(rows)} scores as a table", heads, rows)
