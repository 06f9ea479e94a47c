"""`adapter-probe ablate`: switch adapters off over every contiguous layer span, and draw the heatmap."""

from __future__ import annotations

from adapter_probe.analysis.summary_text import aligned_columns, data_comparison_rows
from adapter_probe.figure_settings import Tolerance
from adapter_probe.race_settings import RaceSettings
from adapter_probe.settings import as_points
from adapter_probe.studies.checkpoint_arguments import Ablate

from . import options
from .console import command, show, show_plan, show_study


@command
def ablate(
    asked: Ablate,
    race: RaceSettings,
    look: Tolerance,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Switch adapters off over every contiguous span of layers, without retraining.

    Deep models have many spans: select some with --spans, --group and --layers, and estimate the cost with
    --dry-run. With --race, spans are decided without all examples.

    Writes spans.csv, predictions.npz and heatmap.pdf, .svg and .png into the results folder. Run the same
    command again to resume an interrupted run.

    Example: adapter-probe ablate my-checkpoint --spans single --data reviews.csv
    """
    as_points("--tolerance", look.tolerance)  # before anything is computed
    if race.goal:
        from adapter_probe.studies.draw import race_report
        from adapter_probe.studies.race import race_instead

        found = race_instead(asked, race, look.tolerance, dry_run)
        show_study(found, race_report(found), json)
        return
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
