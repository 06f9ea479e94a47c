"""`adapter-probe tradeoff`: what does each trained parameter buy?"""

from __future__ import annotations

from adapter_probe.figure_settings import Paper
from adapter_probe.studies.training_arguments import RunTradeoff

from . import options
from .console import command, show_plan, show_study


@command
def tradeoff(
    asked: RunTradeoff,
    look: Paper,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Compare the scores of adapters of many sizes, top-k fine-tuning, LayerNorm-only and full tuning.

    The learning rate and number of epochs of each method are chosen on validation data (Houlsby et al. 2019,
    Figures 1, 3, 4 and 5). Every trial is kept: the same command resumes an interrupted study, and a wider
    grid only adds the missing trials.

    Example: adapter-probe tradeoff --base bert-base-uncased --task cola --data cola/ --out tradeoff
    """
    from adapter_probe.studies.tradeoff import tradeoff as run

    if dry_run:
        show_plan(run.plan(**vars(asked)), json)
        return
    from adapter_probe.studies.draw import sweep_report

    study = run(**vars(asked))
    show_study(study, sweep_report(study, look.paper), json)
