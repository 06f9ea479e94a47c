"""`adapter-probe ablate`: switch adapters off over every contiguous layer span, and draw the heatmap."""

from __future__ import annotations

from typing import Any

from adapter_probe.ablation_settings import RaceSettings
from adapter_probe.analysis.summary_text import aligned_columns, data_comparison_rows
from adapter_probe.errors import ResultsError
from adapter_probe.figure_settings import Tolerance
from adapter_probe.settings import as_points, fields_of, flag_of
from adapter_probe.studies.checkpoint_arguments import Ablate, RunRace

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

    A whole fine-tuned model is studied with --base: its layers get the tensors of the model that it was
    trained from.

    Deep models have many spans: select some with --spans, --group and --layers, and estimate the cost with
    --dry-run. With --race, spans are decided without all examples.

    Writes spans.csv, predictions.npz and heatmap.pdf, .svg and .png into the results folder, and with
    --generate generations.jsonl. Run the same command again to resume an interrupted run.

    Example: adapter-probe ablate my-checkpoint --spans single --data reviews.csv
    """
    as_points("--tolerance", look.tolerance)  # before anything is computed
    if race.goal:
        from adapter_probe.studies.draw import race_report
        from adapter_probe.studies.race import race as run_race

        found = run_race(**_for_race(asked, look, dry_run), **vars(race))
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


def _for_race(asked: Ablate, look: Tolerance, dry_run: bool) -> dict[str, Any]:
    """The arguments of a race among those of an ablation.

    Raises:
        ResultsError: an option that is given does not apply to a race.
    """
    names = {one.name for one in fields_of(RunRace)}
    for one in fields_of(Ablate):
        if one.name not in names and getattr(asked, one.name) != one.default:
            flag = "--slurm" if one.name == "cluster" else flag_of(one.name)
            raise ResultsError(f"{flag} does not apply to a race; omit it or --race")
    if look.tolerance != Tolerance().tolerance:
        given = f"--tolerance {look.tolerance:g}"
        raise ResultsError(f"{given} does not apply to a race, which is decided at --within")
    if dry_run:
        raise ResultsError(
            "--dry-run is not possible with --race, whose cost depends on what it finds; without --race it "
            "says what all spans cost on all examples"
        )
    return {name: value for name, value in vars(asked).items() if name in names}
