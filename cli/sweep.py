"""Output of the sweep commands: the estimated cost of a study, or its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapter_probe.studies.summaries import aligned_columns, file_lists

from .console import show, show_json

if TYPE_CHECKING:
    from adapter_probe.studies.sweeps import Sweep


def show_sweep(study: Sweep, paper: bool, json: bool) -> None:
    """Print the points of a finished study and the paths of its files."""
    from adapter_probe.studies.gallery import sweep_report

    report = sweep_report(study, paper)
    if json:
        show_json(report)
    else:
        show(f"{aligned_columns(study.rows())}\n\n{file_lists([report['files'].values()])}")
