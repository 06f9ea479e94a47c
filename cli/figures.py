"""`adapter-probe figures`: draw every figure and table of finished studies again, from their tables alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapter_probe.analysis.summary_text import file_lists
from adapter_probe.progress import print_message
from adapter_probe.studies.figure_arguments import Draw

from . import options
from .console import command, show, show_json

if TYPE_CHECKING:
    from adapter_probe.figures.gallery import GalleryItem


@command
def figures(asked: Draw, json: options.Json = False) -> None:
    """Redraw the figures and tables of finished studies from their results folders.

    Several ablations are drawn as panels of one figure, several initialisation sweeps as lines in one plot.
    Each figure is written with its numbers (CSV) and a caption; tables are written as LaTeX, Markdown and
    CSV. With --average, ablations that differ in the training seed are averaged, and their spread is shown.

    Example: adapter-probe figures my-checkpoint/ablation --style neurips --format pdf
    """
    from adapter_probe.studies.draw import draw

    made = draw(**vars(asked))
    if asked.paper and not any("Houlsby et al. (2019)" in one.caption for one in made):
        print_message(
            "Houlsby et al. (2019) published no values for these tasks and metrics; --paper is ignored"
        )
    show_json(_report(made)) if json else show(file_lists(one.files for one in made))


def _report(made: list[GalleryItem]) -> dict[str, Any]:
    def told(kind: str) -> list[dict[str, Any]]:
        return [
            {kind: one.stem, "caption": one.caption, "files": [str(path) for path in one.files]}
            for one in made
            if one.kind == kind
        ]

    return {"folder": str(made[0].files[0].parent), "figures": told("figure"), "tables": told("table")}
