"""`adapter-probe init-sweep`: does the initialisation's scale matter?"""

from __future__ import annotations

from adapter_probe.figure_settings import Paper
from adapter_probe.studies.training_arguments import RunInitSweep

from . import options
from .console import command, show_plan, show_study


@command
def init_sweep(
    asked: RunInitSweep,
    look: Paper,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Retrain adapters or a LoRA over a range of initialisation stds (Houlsby et al. 2019, Figure 6).

    Every trial is kept: the same command resumes an interrupted sweep, and a wider range only adds the
    missing trials.

    Example: adapter-probe init-sweep --base bert-base-uncased --task cola --data cola/ --out sweep
    """
    from adapter_probe.studies.init_sweep import init_sweep as run

    if dry_run:
        show_plan(run.plan(**vars(asked)), json)
        return
    from adapter_probe.studies.draw import sweep_report

    study = run(**vars(asked))
    show_study(study, sweep_report(study, look.paper), json)
