"""`adapter-probe ablate`: switch adapters off over every contiguous layer span, and draw the heatmap."""

from __future__ import annotations

from typing import Any

import adapter_probe
from adapter_probe.ablation_settings import RaceSettings
from adapter_probe.analysis.summary_text import aligned_columns, data_comparison_rows
from adapter_probe.errors import ResultsError
from adapter_probe.figure_settings import Tolerance
from adapter_probe.settings import as_points, fields_of, flag_of
from adapter_probe.studies.checkpoint_arguments import Ablate, RunRace

from . import options
from .console import command, show, show_study
from .studies import run


@command
def ablate(
    asked: Ablate,
    race: RaceSettings,
    look: Tolerance,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Switch adapters off over every contiguous span of layers, without retraining.

    A fully fine-tuned model is studied with --base: its layers get the tensors of the model that it was
    trained from.

    Deep models have many spans: select some with --spans, --group and --layers, and estimate the cost with
    --dry-run. With --race, spans are decided without all examples.

    Writes spans.csv, predictions.npz and heatmap.pdf, .svg and .png into the results folder, and with
    --generate generations.jsonl. Run the same command again to resume an interrupted run.

    Example: adapter-probe ablate my-checkpoint --spans single --data reviews.csv
    """
    as_points("--tolerance", look.tolerance)  # before anything is computed
    if race.goal:
        from adapter_probe.studies.draw import study_report

        found = adapter_probe.race(**_for_race(asked, look, dry_run), **vars(race))
        show_study(found, study_report(found), json)
        return
    study = run(adapter_probe.ablate, asked, json, dry_run, **vars(look))
    if study is not None and study.against is not None and not json:
        both = adapter_probe.compare_data(study, study.against)
        show("\n" + aligned_columns(data_comparison_rows(both.record)))


def _for_race(asked: Ablate, look: Tolerance, dry_run: bool) -> dict[str, Any]:
    """The arguments of a race among those of an ablation."""
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
