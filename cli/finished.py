"""The commands that draw, compare and report finished studies, from their results folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import adapter_probe
from adapter_probe.analysis.summary_text import file_lists
from adapter_probe.errors import ResultsError
from adapter_probe.progress import print_message
from adapter_probe.studies.figure_arguments import Compare, Draw, Report

from . import options
from .console import command, show, show_json

if TYPE_CHECKING:
    from adapter_probe.figures.gallery import GalleryItem


@command
def compare(asked: Compare, json: options.Json = False) -> None:
    """Compare two ablations span by span, with paired intervals, and draw the difference of the drops.

    A positive difference means that the second model loses more when the span is switched off.

    Example: adapter-probe compare first/ablation second/ablation --out comparison
    """
    comparison = adapter_probe.compare(asked.a, asked.b)
    files = comparison.save(asked.out, style=asked.style, formats=asked.formats)
    if json:
        record = comparison.record
        show_json(
            {
                "a": record.names[0], "b": record.names[1], "metric": record.metric,
                "warning": record.warning,
                "n_examples": record.n_examples, "intact_scores": record.intact_scores,
                "spans": record.spans, "files": files,
            }
        )  # fmt: skip
        return
    show(f"{comparison}\n\n{file_lists([files])}")


@command
def figures(asked: Draw, json: options.Json = False) -> None:
    """Redraw the figures and tables of finished studies from their results folders.

    Several ablations are drawn as panels of one figure, several initialisation sweeps as lines in one plot.
    Each figure is written with its numbers (CSV) and a caption; tables are written as LaTeX, Markdown and
    CSV. With --average, ablations that differ in the training seed are averaged, and their spread is shown.

    Example: adapter-probe figures my-checkpoint/ablation --style neurips --format pdf
    """
    made: list[GalleryItem] = adapter_probe.draw(**vars(asked))
    if asked.paper and not any("Houlsby et al. (2019)" in one.caption for one in made):
        print_message(
            "Houlsby et al. (2019) published no values for these tasks and metrics; --paper is ignored"
        )
    if not json:
        show(file_lists(one.files for one in made))
        return
    told: dict[str, list[dict[str, Any]]] = {"figure": [], "table": []}
    for one in made:
        files = [str(path) for path in one.files]
        told[one.kind].append({one.kind: one.stem, "caption": one.caption, "files": files})
    folder = str(made[0].files[0].parent)
    show_json({"folder": folder, "figures": told["figure"], "tables": told["table"]})


@command
def report(
    asked: Report,
    model_card: Annotated[
        bool,
        typer.Option(
            "--model-card",
            help="Write Markdown for a model card instead, by default to standard output: scores as "
            "model-index metadata, heatmap, removable spans.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
) -> None:
    """Write a self-contained interactive HTML report of one or more studies.

    The report has maps with the numbers of every span, a tolerance slider that shows which layers can be
    pruned at what cost, confusion matrices, layer attributions, sweeps and trade-offs with their runs, curves
    of strengths, and all settings. Ablations of the same spans stand side by side: a span selected in one is
    selected in all.

    Example: adapter-probe report my-checkpoint/ablation --out report.html
    """
    if model_card:
        if asked.examples or asked.checkpoints or asked.data or asked.average or asked.compare:
            raise ResultsError(
                "--model-card cannot be combined with --examples, --checkpoint, --data, --average, "
                "or --compare"
            )
        text = adapter_probe.model_card(asked.folders, asked.out, tolerance=asked.tolerance)
        show(text if asked.out is None else str(asked.out))
        return
    made = adapter_probe.report(**vars(asked))
    show(str(made.path))
    if made.n_texts:
        where = "share it only with people who may see the data"
        print_message(
            f"the page contains texts of examples whose prediction changes (of {made.n_texts:,}); {where}"
        )
    elif asked.examples:
        print_message(
            "--examples applies only to labels, tags, choices and question answering; the page contains no "
            "texts"
        )
