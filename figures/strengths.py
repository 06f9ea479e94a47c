"""Score against the strength of the adapters: of all together, and of spans alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from adapter_probe import metrics
from adapter_probe.analysis.study_records import StrengthRecord, StudyRecord
from adapter_probe.results.schema import span_columns
from adapter_probe.wording import (
    count_text,
    drawn_units,
    exact_note,
    examples_text,
    is_distance,
    layers_text,
    metric_name,
    score_axis,
    sentence,
    task_label,
)

from . import style
from .curves import MarkerStyle, line_props, tidy_axes
from .drawing import Drawing, caption_of, identity_of, undefined_text
from .layout import one_panel
from .legends import LegendEntry, with_legend
from .naming import suffix_of
from .point_labels import PointLabel, label_points
from .venues import FigureOptions

WHOLE = MarkerStyle("#0072b2", "o", "-", 3.4)
BAND = 0.2
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 3)))  # spans in the legend
_MOST_LABELLED = 3  # of more spans, those that are named in the axes
COLOURS = ListedColormap(colormaps["viridis_r"](np.linspace(0.12, 1, 256)))  # without the pale yellows


def strengths(record: StrengthRecord, ax: Axes | None = None) -> Axes:
    """Draw the score against the strength, with a legend on the axes.

    Args:
        ax: Axes to draw on; by default the current Axes. The current rcParams apply.
    """
    return with_legend(ax, lambda own: _draw(record, own))


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of each study of strengths, with its CSV and caption."""
    found = [study for study in studies if isinstance(study, StrengthRecord)]
    for record in found:
        figure = one_panel(lambda ax, record=record: _draw(record, ax), options, 0.7, 0.45)
        title = f"{task_label(record.summary.task)}: {metric_name(record.summary.metric)} by strength"
        made = Drawing("strength", title, figure, record.strengths, _caption(record), identity_of([record]))
        yield made.renamed(suffix_of(record, found))


def _draw(record: StrengthRecord, ax: Axes) -> list[LegendEntry]:
    said, frame = record.summary, record.strengths
    factor, label = score_axis(said.metric)
    tidy_axes(ax)
    ax.axvline(1.0, **_trained_props())
    entries = draw_spans(frame[~frame["whole"]], factor, ax)
    whole = frame[frame["whole"]]
    low, high = (factor * end for end in band_of(whole, said.metric))
    ax.fill_between(whole["strength"], low, high, color=WHOLE.colour, alpha=BAND, linewidth=0, zorder=1)
    ax.plot(whole["strength"], factor * whole["score"], zorder=3, **line_props(WHOLE))
    ax.set_xlabel("strength of the adapters")
    ax.set_ylabel(label)
    lead: list[LegendEntry] = [
        (Line2D([], [], **line_props(WHOLE)), "all adapters"),
        (Patch(facecolor=WHOLE.colour, alpha=BAND, linewidth=0), "95% interval against strength 1"),
        (Line2D([], [], **_trained_props()), "as trained"),
    ]
    return lead + entries


def draw_spans(frame: pd.DataFrame, factor: float, ax: Axes, done: str = "scaled") -> list[LegendEntry]:
    """A curve for every span alone: a few by their dashes, many by the colours of their layers.

    Of many, those that depart most from the intact model have their names next to them.

    Args:
        frame: the rows of spans alone, with what is drawn along the axis as `strength`.
        factor: of the scores.
        ax: the axes.
        done: what is done to a span.
    """
    spans = [(_name(span), own) for span, own in frame.groupby(span_columns(frame))]
    few = len(spans) <= len(_DASHES)
    middles = [float(own[["first", "last"]].iloc[0].mean()) for _, own in spans]
    scale = Normalize(min(middles, default=0), max(middles, default=1))
    entries: list[LegendEntry] = []
    for (name, own), middle, dashes in zip(spans, middles, [*_DASHES, *("-",) * len(spans)]):
        colour = COLOURS(scale(middle))
        props = {"color": colour, "linewidth": 0.8 * style.scale_factor(), "zorder": 2}
        props["linestyle"] = dashes if few else "-"
        ax.plot(own["strength"], factor * own["score"], **props)
        if few:
            entries.append((Line2D([], [], **props), f"{name} alone"))
    if not few:
        bar = ax.figure.colorbar(
            ScalarMappable(scale, COLOURS), ax=ax, shrink=0.8, aspect=25, ticks=MaxNLocator(5, integer=True)
        )
        bar.outline.set_linewidth(0.6 * style.scale_factor())
        one = "layer" if (frame["n_layers"] == 1).all() else "span"
        bar.set_label(f"{'layer' if one == 'layer' else 'middle layer of the span'} {done} alone")
        label_points(ax, _farthest(spans, factor))
        entries.append((Line2D([], [], color=COLOURS(0.6), linewidth=0.8), f"one {one} alone"))
    return entries


def _name(span: tuple) -> str:
    *stack, first, last, _ = span
    return f"{layers_text(first, last)} of the {stack[0]}" if stack else layers_text(first, last)


def _farthest(spans: Sequence[tuple[str, pd.DataFrame]], factor: float) -> list[PointLabel]:
    """The names of the spans that change the score most, each where it does so."""
    found = []
    for name, own in spans:
        if (away := own["delta_points"].abs()).notna().any():
            row = own.loc[away.idxmax()]
            found.append((away.max(), PointLabel(name, row["strength"], factor * row["score"], style.INK)))
    return [label for _, label in sorted(found, key=lambda one: -one[0])[:_MOST_LABELLED]]


def band_of(frame: pd.DataFrame, metric: str, intact_at: float = 1) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the interval of the difference to the intact model, at the height of the scores."""
    intact = float(frame.loc[frame["strength"] == intact_at, "score"].iloc[0])
    unit = float(metrics.to_points(metric, np.float64(1.0)))  # of a loss, more is worse
    ends = [intact + frame[name].to_numpy(float) / unit for name in ("ci_low_points", "ci_high_points")]
    return np.minimum(*ends), np.maximum(*ends)


def _trained_props() -> dict[str, object]:
    return {"color": style.FAINT, "linewidth": 0.7 * style.scale_factor(), "linestyle": (0, (4, 2))}


def _caption(record: StrengthRecord) -> str:
    said, frame = record.summary, record.strengths
    n_spans = len(frame[~frame["whole"]].drop_duplicates(span_columns(frame)))
    spans = f"; thin lines: those of {count_text(n_spans, 'span')} of layers alone" if n_spans else ""
    if n_spans > len(_DASHES):
        spans += f", of which the {_MOST_LABELLED} that change the score most are named where there is room"
    asked = "" if is_distance(said.metric) else "Is another strength better? "
    return caption_of(
        [
            f"{task_label(said.task)}: {metric_name(said.metric)} on {said.data} "
            f"({examples_text(said.n_examples, said.metric)}) when the change that the adapters make is"
            " multiplied by the strength on the axis, without retraining; 0 switches them off, 1 is the model"
            f" as it was trained. Thick line: the adapters of all layers{spans}.",
            f"The band is the 95% paired bootstrap interval over {drawn_units(said.metric)} of the difference"
            f" to strength 1{exact_note(said.metric)}.",
            f"{asked}{sentence(said.verdict)}.",
            undefined_text(int(frame["score"].isna().sum()), "Scores left out"),
        ]
    )
