"""The section of a map of layers and modules: the figure, and every number behind it."""

from __future__ import annotations

from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.figures.ablation_words import study_label
from adapter_probe.spans import ALL_MODULES
from adapter_probe.wording import amount_text, drop_name, examples_text, metric_name, score_text, span_text

from .curve_sections import drawn
from .markup import Html, settings, short_name, table, tag
from .span_words import NONE


def module_section(record: AblationRecord, number: int, heading: str) -> Html:
    """The section; nothing in it moves."""
    said = record.summary
    on = f"{metric_name(said.metric)} on {said.evaluated}, {examples_text(said.n_examples, said.metric)}"
    return tag(
        "section", {"class": "study", "aria-labelledby": f"sweep-{number}"},
        tag("header", None, tag("h2", {"id": f"sweep-{number}"}, heading),
            tag("p", {"class": "note"}, f"{short_name(record.folder)}: {on}"),
            said.warning and tag("p", {"class": "warning", "role": "note"}, said.warning)),
        drawn(record, f"s{number}"), _table(record),
        settings({"identity": record.identity, "created_with": record.created_with}),
    )  # fmt: skip


def module_title(record: AblationRecord) -> str:
    """Heading, and name in the contents."""
    return f"{study_label(record)}: {drop_name(record.summary.metric)} by layer and module"


def _table(record: AblationRecord) -> Html:
    frame, metric = record.spans, record.summary.metric
    rows = []
    for row in frame.to_dict("records"):
        module = "all modules" if row["module"] == ALL_MODULES else row["module"]
        ends = [-row.get(name, float("nan")) for name in ("delta_points", "ci_high_points", "ci_low_points")]
        amounts = [NONE if end != end else amount_text(end, metric) for end in ends]
        holm = f"{row['p_holm']:.3f}" if row.get("p_holm", float("nan")) >= 0 else NONE
        of = [f"{module} of the {row['stack']}" if "stack" in row else module]
        of += [span_text(row["first"], row["last"]), score_text(row["score"], metric)]
        rows.append([*of, *amounts, holm])
    heads = ["module", "layers", "score", drop_name(metric), "from", "to (95%)", "Holm p"]
    return table(f"{len(rows)} cells as a table", heads, rows)
