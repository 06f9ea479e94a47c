"""Score against adapter size, by task (Houlsby et al. 2019, section 3.6)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.ticker import NullLocator

from adapter_probe.analysis.published import published_sizes
from adapter_probe.results.schema import SIZES_COLUMNS

from . import style
from .curves import METHODS, LegendEntry, MarkerStyle, line_props, tidy_axes, with_published
from .drawing import Drawing
from .layout import one_panel
from .sweep_captions import size_robustness_caption
from .venues import FigureOptions
from .wording import escape_mathtext, task_label

STEM = "size-robustness"
_MEAN = MarkerStyle("#000000", "o", "-", 3.8)


def size_robustness_drawing(
    frame: pd.DataFrame, options: FigureOptions, identity: Mapping[str, object]
) -> Drawing:
    """The figure, with its CSV and caption.

    Args:
        frame: columns of ``sizes.csv``: those of `SIZES_COLUMNS` in the results schema, then one per task.
        options: sizes.
        identity: identity of the results, written to the files' metadata.
    """
    published = published_sizes() if options.paper else None
    figure = one_panel(lambda ax: draw(frame, ax, published), options, 0.8, 0.5, lowest=3.4)
    caption = size_robustness_caption(frame, tasks_of(frame), published is not None)
    numbers = with_published(frame, published)
    return Drawing(STEM, "score against adapter size", figure, numbers, caption, identity)


def tasks_of(frame: pd.DataFrame) -> list[str]:
    """The columns of the tasks."""
    return [str(name) for name in frame.columns if name not in SIZES_COLUMNS]


def draw(frame: pd.DataFrame, ax: Axes, published: pd.DataFrame | None) -> list[LegendEntry]:
    """Draw the score against adapter size: one line per task, and their mean with its standard error.

    Args:
        frame: columns of ``sizes.csv``, scores as fractions.
        ax: Axes to draw on.
        published: the paper's means, or None.

    Returns:
        the legend's handles and labels, the mean first.
    """
    frame, tasks = frame.sort_values("size"), tasks_of(frame)
    names = {task: escape_mathtext(task_label(task)) for task in tasks}
    mean = "mean over tasks ± s.e.m." if len(tasks) != 1 else f"{names[tasks[0]]}, mean ± s.e.m."
    tidy_axes(ax)
    ax.grid(False, axis="x")
    ax.set_xscale("log", base=2)
    x, known = frame["size"].astype(float), frame["mean_score"].notna()
    bars = {
        "elinewidth": 0.8 * style.scale_factor(),
        "zorder": 4,
        **line_props(_MEAN),
        "color": style.line_colour(),
    }
    if known.any():
        ax.errorbar(x[known], 100 * frame["mean_score"][known], 100 * frame["sem"][known], label=mean, **bars)
    if published is not None:
        props = line_props(METHODS["adapters"], published=True) | {"color": style.line_colour()}
        label = "Houlsby et al. 2019, 8 GLUE tasks"
        ax.plot(published["size"], 100 * published["mean_score"], zorder=3, label=label, **props)
    if len(tasks) > 1:  # one task is the mean
        lines = frame.melt("size", tasks, "task", "score").dropna()
        lines = lines.assign(size=lines["size"].astype(float), score=100 * lines["score"].astype(float))
        lines["task"] = lines["task"].map(names)
        sns.lineplot(
            lines, x="size", y="score", hue="task", style="task", estimator=None, zorder=2, ax=ax,
            palette=sns.color_palette("colorblind", len(tasks)), linewidth=0.9 * style.scale_factor(),
        )  # fmt: skip
        ax.get_legend().remove()
    sizes = np.unique(np.concatenate([x, [] if published is None else published["size"].astype(float)]))
    ax.set_xlim(sizes[0] / 1.35, sizes[-1] * 1.35)
    shown = sizes[:: -1 - len(sizes) // 9]  # from the greatest down, few enough not to touch
    ax.set_xticks(shown, labels=[f"{size:.0f}" for size in shown])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("adapter size")
    ax.set_ylabel("validation score × 100")
    entries = zip(*ax.get_legend_handles_labels())
    return sorted(entries, key=lambda entry: not isinstance(entry[0], ErrorbarContainer))
