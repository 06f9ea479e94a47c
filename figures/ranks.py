"""Score against the directions that adapters keep, and the singular values that order the directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from adapter_probe.analysis.study_records import RankRecord, StudyRecord
from adapter_probe.results.schema import span_columns
from adapter_probe.wording import (
    count_text,
    drawn_units,
    exact_note,
    examples_text,
    metric_name,
    score_axis,
    sentence,
    task_label,
)

from . import style
from .curves import line_props, tidy_axes
from .drawing import Drawing, caption_of, identity_of, undefined_text
from .layout import one_panel
from .legends import LegendEntry, with_legend
from .naming import suffix_of
from .strengths import BAND, COLOURS, WHOLE, band_of, draw_spans
from .venues import FigureOptions

_MOST_TICKS = 8


def ranks(record: RankRecord, ax: Axes | None = None) -> Axes:
    """Draw the score against the kept directions, with a legend on the axes.

    Args:
        ax: Axes to draw on; by default the current Axes. The current rcParams apply.
    """
    return with_legend(ax, lambda own: _draw(record, own))


def spectra(record: RankRecord, ax: Axes | None = None) -> Axes:
    """Draw the singular values of every layer's change, with a legend on the axes; see `ranks`."""
    return with_legend(ax, lambda own: _draw_spectra(record, own))


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The two figures of each study of ranks, with their CSVs and captions."""
    found = [study for study in studies if isinstance(study, RankRecord)]
    for record in found:
        task, identity = task_label(record.summary.task), identity_of([record])
        figure = one_panel(lambda ax, record=record: _draw(record, ax), options, 0.7, 0.45)
        title = f"{task}: {metric_name(record.summary.metric)} by kept directions"
        made = Drawing("ranks", title, figure, record.ranks, _caption(record), identity)
        yield made.renamed(suffix_of(record, found))
        figure = one_panel(lambda ax, record=record: _draw_spectra(record, ax), options, 0.7, 0.45)
        said = _spectra_caption(record)
        made = Drawing("spectra", f"{task}: singular values", figure, record.spectra, said, identity)
        yield made.renamed(suffix_of(record, found))


def _draw(record: RankRecord, ax: Axes) -> list[LegendEntry]:
    said, frame = record.summary, record.ranks.rename(columns={"rank": "strength"})
    factor, label = score_axis(said.metric)
    tidy_axes(ax)
    ax.set_xscale("log", base=2)
    ax.axvline(said.effective, **_effective_props())
    entries = draw_spans(frame[~frame["whole"]], factor, ax, "cut")
    whole = frame[frame["whole"]].sort_values("strength")
    low, high = (factor * end for end in band_of(whole, said.metric, said.largest))
    ax.fill_between(whole["strength"], low, high, color=WHOLE.colour, alpha=BAND, linewidth=0, zorder=1)
    ax.plot(whole["strength"], factor * whole["score"], zorder=3, **line_props(WHOLE))
    _ticks(ax, whole["strength"].to_list(), whole["energy"].to_list())
    ax.set_xlabel("directions kept, and energy")
    ax.set_ylabel(label)
    return [
        (Line2D([], [], **line_props(WHOLE)), "all adapters"),
        (Patch(facecolor=WHOLE.colour, alpha=BAND, linewidth=0), "95% interval against all directions"),
        (Line2D([], [], **_effective_props()), "effective rank, mean of the maps"),
        *entries,
    ]


def _ticks(ax: Axes, ranks: list[int], energy: list[float]) -> None:
    """A tick at every rank, or at some of many, with the share of energy below."""
    step = -(-len(ranks) // _MOST_TICKS)
    chosen = sorted({*range(len(ranks) - 1, -1, -step)})
    ax.xaxis.set_major_locator(FixedLocator([ranks[n] for n in chosen]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([f"{ranks[n]}\n{100 * energy[n]:.0f}%" for n in chosen])


def _draw_spectra(record: RankRecord, ax: Axes) -> list[LegendEntry]:
    """Of every layer the root mean square of its maps' singular values, by direction."""
    frame = record.spectra.assign(square=record.spectra["value"] ** 2)
    by_layer = frame.groupby(["layer", "direction"])["square"].mean().pow(0.5).unstack("layer")
    scale = Normalize(int(by_layer.columns.min()), max(int(by_layer.columns.max()), 1))
    tidy_axes(ax)
    for layer in by_layer:
        values = by_layer[layer].dropna()
        ax.plot(values.index, values, color=COLOURS(scale(layer)), linewidth=0.8 * style.scale_factor())
    ax.axvline(record.summary.effective, **_effective_props())
    bar = ax.figure.colorbar(
        ScalarMappable(scale, COLOURS), ax=ax, shrink=0.8, aspect=25, ticks=MaxNLocator(5, integer=True)
    )
    bar.outline.set_linewidth(0.6 * style.scale_factor())
    bar.set_label("layer")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("direction")
    ax.set_ylabel("singular value")
    return [
        (Line2D([], [], color=COLOURS(0.6), linewidth=0.8), "one layer"),
        (Line2D([], [], **_effective_props()), "effective rank, mean of the maps"),
    ]


def _effective_props() -> dict[str, object]:
    return {"color": style.FAINT, "linewidth": 0.7 * style.scale_factor(), "linestyle": (0, (4, 2))}


def _caption(record: RankRecord) -> str:
    said, frame = record.summary, record.ranks
    n_spans = len(frame[~frame["whole"]].drop_duplicates(span_columns(frame)))
    spans = f"; thin lines: those of {count_text(n_spans, 'span')} of layers alone" if n_spans else ""
    return caption_of(
        [
            f"{task_label(said.task)}: {metric_name(said.metric)} on {said.data} "
            f"({examples_text(said.n_examples, said.metric)}) when what the adapters add to each map keeps "
            "only its largest singular values, as many as the axis says, without retraining; "
            f"{said.largest} are all. Thick line: the adapters of all layers{spans}. Below the axis: the "
            "share of the squared singular values that is kept. Dashed line: the effective rank (Roy and "
            "Vetterli 2007), the mean of the tuned maps.",
            f"The band is the 95% paired bootstrap interval over {drawn_units(said.metric)} of the difference"
            f" to all directions{exact_note(said.metric)}.",
            f"How many are needed? {sentence(said.verdict)}.",
            undefined_text(int(frame["score"].isna().sum()), "Scores left out"),
        ]
    )


def _spectra_caption(record: RankRecord) -> str:
    said, frame = record.summary, record.spectra
    n_maps = int(np.unique(frame["module"]).size)
    return caption_of(
        [
            f"{task_label(said.task)}: the singular values of what the adapters add to {n_maps} maps, in "
            "each layer the root of the mean of their squares, the largest first. Dashed line: the effective "
            f"rank (Roy and Vetterli 2007), {said.effective:.1f} of {said.largest} in the mean of the maps. "
            "It says how evenly the change is spread, not what it is needed for."
        ]
    )
