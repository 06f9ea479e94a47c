"""The commands that run a study, and show what it would take with ``--dry-run``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import adapter_probe
from adapter_probe.analysis.summary_text import aligned_columns
from adapter_probe.figure_settings import Paper
from adapter_probe.studies.ranks import RunRanks
from adapter_probe.studies.strength import RunStrength
from adapter_probe.studies.training_arguments import RunInitSweep, RunSuite, RunTradeoff

from . import options
from .console import command, show, show_json, show_plan, show_study


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
    run(adapter_probe.strength, asked, json, dry_run)


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
    run(adapter_probe.ranks, asked, json, dry_run)


@command
def init_sweep(
    asked: RunInitSweep, look: Paper, json: options.Json = False, dry_run: options.DryRun = False
) -> None:
    """Retrain adapters or a LoRA over a range of initialisation stds (Houlsby et al. 2019, Figure 6).

    Every trial is kept: the same command resumes an interrupted sweep, and a wider range only adds the
    missing trials.

    Example: adapter-probe init-sweep --base bert-base-uncased --task cola --data cola/ --out sweep
    """
    run(adapter_probe.init_sweep, asked, json, dry_run, **vars(look))


@command
def tradeoff(
    asked: RunTradeoff, look: Paper, json: options.Json = False, dry_run: options.DryRun = False
) -> None:
    """Compare the scores of adapters of many sizes, top-k fine-tuning, LayerNorm-only and full tuning.

    The learning rate and number of epochs of each method are chosen on validation data (Houlsby et al. 2019,
    Figures 1, 3, 4 and 5). Every trial is kept: the same command resumes an interrupted study, and a wider
    grid only adds the missing trials.

    Example: adapter-probe tradeoff --base bert-base-uncased --task cola --data cola/ --out tradeoff
    """
    run(adapter_probe.tradeoff, asked, json, dry_run, **vars(look))


@command
def suite(asked: RunSuite, look: Paper, json: options.Json = False, dry_run: options.DryRun = False) -> None:
    """Train and ablate over the tasks, methods and seeds of a file, and make the tables and figures.

    The file names a base, tasks ([[tasks]]) and studies ([tradeoff], [init_sweep], [ablation]) with the
    options of the commands of these names. The same command resumes an interrupted run, and a longer file
    only adds the missing trials.

    Example: adapter-probe suite suite.toml --out studies
    """
    if dry_run:
        show_plan(adapter_probe.suite.plan(**vars(asked)), json)
        return
    study = adapter_probe.suite(**vars(asked))
    report = study.report(paper=look.paper)
    if json:
        show_json(report)
    else:
        written = f"figures and tables: {len(report['files'])} files in {study.folder}"
        show(f"{aligned_columns(study.rows())}\n\n{written}")


def run(function: Callable[..., Any], asked: Any, json: bool, dry_run: bool, **look: Any) -> Any:
    """Run a study and show it, or what it would take; return the study.

    Args:
        function: the public function, which has a `plan`.
        asked: its arguments.
        json: whether to print JSON.
        dry_run: whether to estimate the cost only.
        look: how its figures look, see `adapter_probe.studies.draw.study_report`.
    """
    if dry_run:
        plan: Any = function
        show_plan(plan.plan(**vars(asked)), json)
        return None
    from adapter_probe.studies.draw import study_report

    study = function(**vars(asked))
    show_study(study, study_report(study, **look), json)
    return study
