"""`adapter-probe suite`: all studies listed in a TOML file, over tasks, methods and seeds."""

from __future__ import annotations

from adapter_probe.analysis.summary_text import aligned_columns
from adapter_probe.figure_settings import Paper
from adapter_probe.studies.training_arguments import RunSuite

from . import options
from .console import command, show, show_json, show_plan


@command
def suite(
    asked: RunSuite,
    look: Paper,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Train and ablate over the tasks, methods and seeds of a file, and make the tables and figures.

    The file names a base, tasks ([[tasks]]) and studies ([tradeoff], [init_sweep], [ablation]) with the
    options of the commands of these names. The same command resumes an interrupted run, and a longer file
    only adds the missing trials.

    Example: adapter-probe suite suite.toml --out studies
    """
    from adapter_probe.studies.suite import suite as run

    if dry_run:
        show_plan(run.plan(**vars(asked)), json)
        return
    from adapter_probe.studies.draw import suite_report

    study = run(**vars(asked))
    report = suite_report(study, look.paper)
    if json:
        show_json(report)
    else:
        written = f"figures and tables: {len(report['files'])} files in {study.folder}"
        show(f"{aligned_columns(study.rows())}\n\n{written}")
