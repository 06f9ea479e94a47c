"""`adapter-probe compare`: what each span costs in one ablation beyond what it costs in another."""

from __future__ import annotations

from adapter_probe.analysis.summary_text import aligned_columns, comparison_rows, file_lists
from adapter_probe.studies.figure_arguments import Compare

from . import options
from .console import command, show, show_json


@command
def compare(asked: Compare, json: options.Json = False) -> None:
    """Compare two ablations span by span, with paired intervals, and draw the difference of the drops.

    A positive difference means that the second model loses more when the span is switched off.

    Example: adapter-probe compare first/ablation second/ablation --out comparison
    """
    from adapter_probe.studies.comparison import compare as compare_ablations

    comparison = compare_ablations(asked.a, asked.b)
    files = comparison.save(asked.out, style=asked.style, formats=asked.formats)
    if json:
        record = comparison.record
        show_json(
            {
                "a": record.names[0], "b": record.names[1], "metric": record.metric,
                "warning": record.warning,
                "n_examples": record.n_examples, "intact_scores": record.intact_scores,
                "spans": record.spans, "files": files,
            }
        )  # fmt: skip
        return
    show(f"{aligned_columns(comparison_rows(comparison.record))}\n\n{file_lists([files])}")
