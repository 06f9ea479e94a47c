"""Numbers and scores in the words that figures print. Minus signs are real ones."""

from __future__ import annotations

import numpy as np

from adapter_probe import metrics
from adapter_probe.analysis.deltas import removed_row
from adapter_probe.analysis.summary import summary
from adapter_probe.results.ablation import AblationResults
from adapter_probe.spans import SITES_PER_LAYER

IN_PERCENT = ("accuracy", "f1", "macro_f1")  # the others are correlations, which are not shares of anything


def cell_text(drop: float) -> str:
    """A drop in a cell: `1.2`, from 10 on `12`; a gain has a plus, `+0.3`."""
    size = f"{abs(drop):.1f}" if abs(drop) < 9.95 else f"{abs(drop):.0f}"
    return f"+{size}" if drop < 0 else size


def signed(points: float) -> str:
    """A difference with its sign: `−5.1`, `+0.3`, and `0.0` for what rounds to nothing."""
    text = f"{points:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def score_text(score: float, metric: str) -> str:
    """A score with its name: `74.2% accuracy`, `Matthews correlation 0.362`."""
    name = metrics.metric_label(metric)
    return (
        f"{bare_score(score, metric)} {name}"
        if metric in IN_PERCENT
        else f"{name} {bare_score(score, metric)}"
    )


def bare_score(score: float, metric: str) -> str:
    """A score without its name: `74.2%`, `0.362`."""
    return f"{100 * score:.1f}%" if metric in IN_PERCENT else f"{score:.3f}".replace("-", "−")


def drop_label(metric: str | None, split: str, tolerance: float) -> str:
    """What a colour bar of drops says; `metric` None where the panels differ in it."""
    name = "score" if metric is None else metrics.metric_label(metric)
    unit = "percentage points" if metric in IN_PERCENT else "points of 0.01"
    line = f"{tolerance:g} point{'' if tolerance == 1 else 's'}"
    return f"drop in {split} {name} ({unit}); black line = {line}"


def ablation_notes(results: AblationResults, task: str) -> tuple[str, ...]:
    """The lines beside a grid: the task, the intact score, all removed, the majority class."""
    found = summary(results)
    intact, removed, majority = (found[f"{name}_score"] for name in ("intact", "removed", "majority"))
    score = "undefined" if intact is None else score_text(intact, results.metric)
    difference = "undefined" if removed is None else signed(found["removed_delta_points"])
    notes = [
        task.replace("$", r"\$"),  # no name is a formula
        f"intact {score}, n = {found['n_examples']:,}",
        f"{_removed(results)}: {difference}",
    ]
    if majority is not None:
        notes.append(f"majority class {bare_score(majority, results.metric)}")
    return tuple(notes)


def _removed(results: AblationResults) -> str:
    """What the row with the fewest adapters has lost."""
    off = ~results.masks[removed_row(results)].reshape(-1, SITES_PER_LAYER)  # [layers, 2]
    attention, feed_forward = off.any(axis=0)
    if np.all(off):
        return "all removed"
    if attention and feed_forward:
        return "most removed"
    return "all attention removed" if attention else "all feed-forward removed"
