"""Score against adapter size, by task (Houlsby et al. 2019, section 3.6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.ticker import NullLocator

from adapter_probe.analysis.published import published_sizes
from adapter_probe.analysis.study_records import StudyRecord, TradeoffRecord
from adapter_probe.results.schema import SIZES_COLUMNS
from adapter_probe.wording import count_text, task_label

from . import style
from .curves import METHODS, MarkerStyle, line_props, tidy_axes, with_published
from .drawing import SOURCE, Drawing, caption_of, identity_of, undefined_text
from .layout import one_panel
from .legends import LegendEntry
from .naming import suffix_of
from .style import escape_mathtext
from .venues import FigureOptions

_MEAN = MarkerStyle("#000000", "o", "-", 3.8)


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of each trade-off with several adapter sizes, with its CSV and caption."""
    tradeoffs = [study for study in studies if isinstance(study, TradeoffRecord)]
    for study in tradeoffs:
        if study.sizes is None or len(study.sizes) < 2:
            continue
        published = published_sizes() if options.paper else None
        panel = partial(draw, study.sizes, published=published)
        figure = one_panel(panel, options, 0.8, 0.5, lowest=3.4)
        caption, numbers = _caption(study.sizes, options.paper), with_published(study.sizes, published)
        title = "score against adapter size"
        made = Drawing("size-robustness", title, figure, numbers, caption, identity_of([study]))
        yield made.renamed(suffix_of(study, tradeoffs))


def tasks_of(frame: pd.DataFrame) -> list[str]:
    """The columns of the tasks."""
    return [str(name) for name in frame.columns if name not in SIZES_COLUMNS]


def draw(frame: pd.DataFrame, ax: Axes, *, published: pd.DataFrame | None) -> list[LegendEntry]:
    """Draw the score against adapter size: one line per task, and their mean with its standard error.

    Args:
        frame: columns of ``sizes.csv``, scores as fractions.
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


def _caption(frame: pd.DataFrame, paper: bool) -> str:
    tasks = tasks_of(frame)
    mean = f"their mean over {count_text(len(tasks), 'task')}"
    if frame["mean_score"].isna().any():
        mean += " at the sizes that all of them have"
    return caption_of(
        [
            f"Validation score against adapter size, one line per task and {mean}; bars show the standard"
            " error of the mean over seeds, propagated from the tasks.",
            f"Thin line with hollow marks: {SOURCE}, section 3.6, mean over eight GLUE tasks, BERT-large."
            if paper
            else "",
            undefined_text(int(frame[[*tasks]].isna().to_numpy().sum()), "Values left out"),
        ]
    )
