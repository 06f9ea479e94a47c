"""`adapter-probe strength`: score the model against the strength of its adapters, and draw the curve."""

from __future__ import annotations

from adapter_probe.studies.checkpoint_arguments import RunStrength

from . import options
from .console import command, show_plan, show_study


@command
def strength(asked: RunStrength, json: options.Json = False, dry_run: options.DryRun = False) -> None:
    """Score the model with its adapters scaled: are they too strong, or too weak?

    The change of all adapters, and with --spans that of spans of layers alone, is multiplied by each
    strength, without retraining. The best strength is chosen on one half of the examples and judged on the
    other.

    Writes strengths.csv and strength.pdf, .svg and .png into the results folder. Run the same command again
    to resume an interrupted run, or with more strengths to add them.

    Example: adapter-probe strength my-lora --data reviews.csv
    """
    from adapter_probe.studies.strength import strength as run

    if dry_run:
        show_plan(run.plan(**vars(asked)), json)
        return
    from adapter_probe.studies.draw import strength_report

    study = run(**vars(asked))
    show_study(study, strength_report(study), json)
