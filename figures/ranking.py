"""Points lost by pruning the span that a cheap score selects, by number of layers removed."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from adapter_probe.analysis.ranking import SCORE_LABELS

from .curves import SERIES, line_props, tidy_axes

NULL_SCORES = ("length", "depth")
"""Scores that ignore the model; `length` selects the lowest span of each length, as `depth` does."""


def draw(regret: pd.DataFrame, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """Draw the regret of every score, one line per score.

    Args:
        regret: columns of `adapter_probe.analysis.ranking.regret_table`.
        ax: Axes to draw on; by default the current Axes.
        legend: whether to draw a legend.
    """
    ax = plt.gca() if ax is None else ax
    tidy_axes(ax)
    shown = [score for score in SCORE_LABELS if score in set(regret["score"]) and score != "length"]
    for number, score in enumerate(shown):
        rows = regret[regret["score"] == score].sort_values("n_layers")
        props = line_props(SERIES[number % len(SERIES)])
        if score in NULL_SCORES:
            props |= {"color": "#8a8a8a", "linestyle": ":"}
        ax.plot(rows["n_layers"], rows["regret_points"], label=SCORE_LABELS[score], **props)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    ax.set_xlabel("layers switched off")
    ax.set_ylabel("points lost beyond the best span")
    if legend:
        ax.legend(frameon=False)
    return ax
