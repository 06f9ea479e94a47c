"""The commands that train and that run studies, which also say with ``--dry-run`` what they would take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import adapter_probe
from adapter_probe.analysis.summary_text import aligned_columns, score_text
from adapter_probe.figure_settings import Paper, Tolerance
from adapter_probe.settings import as_points
from adapter_probe.studies.checkpoint_arguments import Ablate
from adapter_probe.studies.training_arguments import RunSuite, Train
from adapter_probe.wording import metric_name

from . import options
from .console import command, show, show_json, show_plan, show_study


def study(name: str, arguments: type, look: type | None = None) -> Callable[..., None]:
    """The command of a study, whose options and help are the fields and the docstring of its arguments.

    Args:
        name: of the public function, which has a `plan`.
        arguments: what it takes.
        look: how its figures look, if that can be chosen.
    """

    # A default of None would make the hint optional on Python 3.10, and so hide the options of the figures.
    def run_study(asked: Any, json: bool, dry_run: bool, look: Any = False) -> None:
        run(getattr(adapter_probe, name), asked, json, dry_run, **vars(look) if look else {})

    hints = {"asked": arguments, "look": look, "json": options.Json, "dry_run": options.DryRun}
    hints = {key: hint for key, hint in hints.items() if hint is not None}
    made: Any = run_study
    made.__name__, made.__doc__, made.__annotations__ = name, arguments.__doc__, hints
    made.__signature__ = inspect.Signature(
        [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=False) for key in hints]
    )
    return command(run_study)


@command
def ablate(
    asked: Ablate,
    look: Tolerance,
    json: options.Json = False,
    dry_run: options.DryRun = False,
) -> None:
    """Switch adapters off over every contiguous span of layers, without retraining.

    A fully fine-tuned model is studied with --base: its layers get the tensors of the model that it was
    trained from.

    Deep models have many spans: select some with --spans, --group and --layers, and estimate the cost with
    --dry-run.

    Writes spans.csv, predictions.npz and heatmap.pdf, .svg and .png into the results folder, and with
    --generate generations.jsonl. Run the same command again to resume an interrupted run.

    Example: adapter-probe ablate my-checkpoint --spans single --data reviews.csv
    """
    as_points("--tolerance", look.tolerance)  # before anything is computed
    study = run(adapter_probe.ablate, asked, json, dry_run, **vars(look))
    if study is not None and study.against is not None and not json:
        both = adapter_probe.compare_data(study, study.against)
        show(f"\n{both}")


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


@command
def train(asked: Train, json: options.Json = False) -> None:
    """Train bottleneck adapters, LayerNorms and head on a frozen base (Houlsby et al. 2019), or a baseline.

    The checkpoint of the epoch with the best validation score is kept. Run the same command again to resume
    an interrupted training.

    Example: adapter-probe train --base bert-base-uncased --task cola --data cola/ --out cola-adapters
    """
    done = adapter_probe.train(**vars(asked))
    names = ("task", "metric", "score", "majority_score", "validation_scores", "checkpoint")
    outcome = {name: getattr(done, name) for name in names}
    show_json(outcome) if json else show(_training_text(outcome))


def _training_text(outcome: dict[str, Any]) -> str:
    metric, score, majority = outcome["metric"], outcome["score"], outcome["majority_score"]
    epochs = ", ".join(score_text(score, metric) for score in outcome["validation_scores"])
    no_better = majority is not None and (score is None or score <= majority)
    warning = "; the model scores no higher, so an ablation would not be informative" if no_better else ""
    return aligned_columns(
        [
            ("task", outcome["task"]),
            (f"best {metric_name(metric)}", f"{score_text(score, metric)} (epochs: {epochs})"),
            *([] if majority is None else [("majority class", f"{score_text(majority, metric)}{warning}")]),
            ("checkpoint", str(outcome["checkpoint"])),
        ]
    )
