"""Sentences that the captions of sweeps and trade-offs share: runs, settings, the meaning of marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from adapter_probe.wording import count_text, range_text

from .curves import ScoreSeries, has_dots

MEANS = "Marks show means over seeds, bars their standard errors (no bar for a single run)"
ARROWS = "Hollow marks with an arrow lie below the range of the axis; their values are printed next to them."
BASELINE_WORDS = (
    "TF-IDF: a linear model of TF-IDF features, without pretraining, tuned by cross-validation on the"
    " training data; shown as a horizontal line, or in the notes if it lies below the range of the axis."
)


def runs_text(points: pd.DataFrame, tables: Iterable[pd.DataFrame | None], tried: int = 1) -> str:
    """How many seeds a point has, which ones, and their settings.

    Args:
        tried: the most learning rates that were tried for a point.
    """
    counted = range_text((points["n"] + points["diverged"]).astype(int).tolist(), "seed")
    return f"{counted} per point{_seeds(tables)}{_settings(points, tried)}"


def rates_tried(trials: pd.DataFrame | None, point: Sequence[str]) -> int:
    """The most learning rates that all trials of a point have."""
    if trials is None or trials.empty:
        return 1
    return int(trials.groupby(list(point), dropna=False)["learning_rate"].nunique().max())


def _seeds(tables: Iterable[pd.DataFrame | None]) -> str:
    """The seeds, if the trials record them."""
    known = sorted({int(seed) for trials in tables if trials is not None for seed in trials["seed"].dropna()})
    if len(known) == 1:
        return f" (seed {known[0]})"
    return f" ({', '.join(map(str, known))})" if known else ""


def dots_text(series: Sequence[ScoreSeries]) -> str:
    """What the small dots mean; empty if there are none."""
    return "Small dots are single trials, each at its best epoch." if has_dots(series) else ""


def _settings(points: pd.DataFrame, tried: int) -> str:
    """The chosen learning rate and epochs, and how they were chosen."""
    rates = points["learning_rate"].dropna().unique()
    epochs = points["epochs"].dropna().unique()
    of = f" out of up to {tried} learning rates" if tried > 1 else ""
    if len(rates) == 1 and len(epochs) == 1:
        chosen = f" (chosen per point on validation data{of}, and the same for all)" if of else ""
        return f", learning rate {rates[0]:g}{chosen}, {count_text(int(epochs[0]), 'epoch')}"
    return (
        f", learning rate and number of epochs chosen per point{of} (largest share of seeds that did not"
        " diverge, then best mean)"
    )


def diverged_text(lost: int) -> str:
    """What the crosses mean, with the number of diverged trials; empty if there are none."""
    if not lost:
        return ""
    return (
        "Crosses at the bottom: points with diverged trials, which are excluded from the mean"
        f" ({count_text(lost, 'trial')} in total)."
    )
