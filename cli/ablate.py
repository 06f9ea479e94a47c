"""`adapter-probe ablate`: switch adapters off over every contiguous layer span, and draw the heatmap."""

from __future__ import annotations

from adapter_probe.analysis.summary_text import aligned_columns, data_comparison_rows
from adapter_probe.figure_settings import Tolerance
from adapter_probe.settings import as_points
from adapter_probe.studies.checkpoint_arguments import Ablate

from . import options
from .console import command, show, show_plan, show_study


@command
def ablate(
    asked: Ablate,
    look: Tolerance,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Switch adapters off over every contiguous span of layers, without retraining.

    A whole fine-tuned model is studied with --base: its layers get the tensors of the model that it was
    trained from.

    Deep models have many spans: select some with --spans, --group and --layers, and estimate the cost with
    --dry-run.

    Writes spans.csv, predictions.npz and heatmap.pdf, .svg and .png into the results folder, and with
    --generate generations.jsonl. Run the same command again to resume an interrupted run.

    Example: adapter-probe ablate my-checkpoint --spans single --data reviews.csv
    """
    as_points("--tolerance", look.tolerance)  # before anything is computed
    from adapter_probe.studies.ablate import ablate as run

    if dry_run:
        show_plan(run.plan(**vars(asked)), json)
        return
    from adapter_probe.studies.comparison import compare_data
    from adapter_probe.studies.draw import ablation_report

    study = run(**vars(asked))
    show_study(study, ablation_report(study, look.tolerance), json)
    if study.against is not None and not json:
        show("\n" + aligned_columns(data_comparison_rows(compare_data(study, study.against).record)))
