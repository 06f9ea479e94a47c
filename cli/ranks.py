"""`adapter-probe ranks`: score the model against the directions of its adapters, and draw the curve."""

from __future__ import annotations

from adapter_probe.studies.checkpoint_arguments import RunRanks

from . import options
from .console import command, show_plan, show_study


@command
def ranks(asked: RunRanks, json: options.Json = False, dry_run: options.DryRun = False) -> None:
    """Score the model with the largest directions of its adapters only: how large a rank is needed?

    What an adapter adds to a map is a matrix; its directions are its singular vectors, the largest first. All
    adapters, and with --spans those of spans of layers alone, keep so many of them, without retraining. The
    fewest that cost at most --within points are chosen on one half of the examples and judged on the other.

    Writes ranks.csv, spectra.csv and ranks and spectra as .pdf, .svg and .png into the results folder. Run
    the same command again to resume an interrupted run, or with more ranks to add them.

    Example: adapter-probe ranks my-lora --data reviews.csv
    """
    from adapter_probe.studies.ranks import ranks as run

    if dry_run:
        show_plan(run.plan(**vars(asked)), json)
        return
    from adapter_probe.studies.draw import rank_report

    study = run(**vars(asked))
    show_study(study, rank_report(study), json)
