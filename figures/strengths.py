"""Score against the strength of the adapters, or the directions that they keep: of all, and of spans alone.

Beside the directions stand the singular values that order them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from adapter_probe import metrics, wording
from adapter_probe.analysis.study_records import RankRecord, StrengthRecord, StudyRecord
from adapter_probe.results.schema import span_columns

from . import style
from .ablation_words import question_sentences
from .curves import LOG, MarkerStyle, line_props, tidy_axes
from .drawing import Drawing, caption_of, identity_of, of_kind, undefined_text
from .layout import one_panel, size_in_points
from .legends import LegendEntry, PointLabel, label_points, with_legend
from .venues import FigureOptions

_WHOLE = MarkerStyle("#0072b2", "o", "-", 3.4)
_BAND = 0.2
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 3)))  # spans in the legend
_MOST_LABELLED = 3  # of more spans, those that are named in the axes
_MOST_TICKS = 8
_COLOURS = ListedColormap(colormaps["viridis_r"](np.linspace(0.12, 1, 256)))  # without the pale yellows


def strengths(record: StrengthRecord | RankRecord, ax: Axes | None = None) -> Axes:
    """Draw the score against the strength or the kept directions, with a legend on the axes."""
    return with_legend(ax, partial(_draw, record))


def spectra(record: RankRecord, ax: Axes | None = None) -> Axes:
    """Draw the singular values of every layer's change, with a legend on the axes; see `strengths`."""
    return with_legend(ax, partial(_draw_spectra, record))


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of each study of strengths and the two of each of ranks, with their CSVs and captions."""
    for record, suffix in (*of_kind(studies, StrengthRecord), *of_kind(studies, RankRecord)):
        task, identity = wording.task_label(record.summary.task), identity_of([record])
        stem = "ranks" if isinstance(record, RankRecord) else "strength"
        title = f"{task}: {wording.metric_name(record.summary.metric)} by {record.by}"
        figure = one_panel(partial(_draw, record), options, 0.7, 0.45)
        yield Drawing(f"{stem}{suffix}", title, figure, record.table, _caption(record), identity)
        if isinstance(record, RankRecord):
            figure = one_panel(partial(_draw_spectra, record), options, 0.7, 0.45)
            summary, n_maps = record.summary, record.spectra["module"].nunique()
            model = f" ({summary.model})" if summary.model else ""
            said = (
                f"{task}{model}: the singular values of what the {record.parts} add to {n_maps} weight"
                " matrices, in each layer the root of the mean of their squares, the largest first. The"
                " effective rank of a matrix (Roy and Vetterli 2007) is"
                f" {wording.rounded(summary.effective)} of {summary.largest} in the mean of the matrices. It"
                " says how evenly the change is spread, not what it is needed for."
            )
            title = f"{task}: singular values"
            yield Drawing(f"spectra{suffix}", title, figure, record.spectra, said, identity)


def _draw(record: StrengthRecord | RankRecord, ax: Axes) -> list[LegendEntry]:
    said = record.summary
    factor, label = wording.score_axis(said.metric)
    tidy_axes(ax)
    frame = record.table.rename(columns={record.degree: "strength"})
    if isinstance(record, RankRecord):
        intact, done = record.summary.largest, "cut"
        axis = f"directions kept{LOG}, and their energy"
        ax.set_xscale("log", base=2)
    else:
        intact, done = 1, "scaled"
        axis = f"strength of the {record.parts}"
    dashes, entries = style.dashed(style.FAINT, 0.7), []
    if isinstance(record, StrengthRecord):
        ax.axvline(1.0, **dashes)
        entries.append((Line2D([], [], **dashes), "as trained"))
    entries += _draw_spans(frame[~frame["whole"]], factor, ax, done)
    whole = frame[frame["whole"]].sort_values("strength")
    low, high = (factor * end for end in _band(whole, said.metric, intact))
    ax.fill_between(whole["strength"], low, high, color=_WHOLE.colour, alpha=_BAND, linewidth=0, zorder=1)
    ax.plot(whole["strength"], factor * whole["score"], zorder=3, **line_props(_WHOLE))
    if isinstance(record, RankRecord):
        ranks, energy = whole["strength"].to_list(), whole["energy"].to_list()
        ticks = list(zip(ranks, energy))[
            :: -1 - (len(ranks) - 1) // _MOST_TICKS
        ]  # some of many, the last too
        ax.xaxis.set_major_locator(FixedLocator([rank for rank, _ in reversed(ticks)]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticklabels([f"{rank}\n{wording.rounded(100 * share, 0)}%" for rank, share in reversed(ticks)])
    else:
        _tick_strengths(ax, whole["strength"].to_numpy(float))
    ax.set_xlabel(axis)
    ax.set_ylabel(label)
    return [
        (Line2D([], [], **line_props(_WHOLE)), f"all {record.parts}"),
        (Patch(facecolor=_WHOLE.colour, alpha=_BAND, linewidth=0), f"95% interval against {record.against}"),
        *entries,
    ]


def _tick_strengths(ax: Axes, strengths: np.ndarray) -> None:
    """Ticks at the strengths that were tried; numbers that would overlap are left out, that of 1 last."""
    reach, size = max(float(np.ptp(strengths)), 1e-9), style.tick_size()
    shown: list[float] = []
    first = (1.0, strengths[-1], strengths[0])
    for value in sorted(strengths, key=lambda one: (one not in first, one)):
        wide = style.text_width(wording.strength_text(float(value)), size) + size
        if all(abs(value - one) / reach * 0.8 * size_in_points(ax)[0] >= wide for one in shown):
            shown.append(float(value))
    ax.xaxis.set_major_locator(FixedLocator(sorted(shown)))
    ax.xaxis.set_minor_locator(FixedLocator([one for one in strengths if one not in shown]))
    ax.xaxis.set_major_formatter(lambda value, _: wording.strength_text(value))


def _draw_spans(frame: pd.DataFrame, factor: float, ax: Axes, done: str) -> list[LegendEntry]:
    """A curve for every span alone: a few by their dashes, many by the colours of their layers.

    Of many, those that depart most from the intact model have their names next to them.
    """
    spans = [(_name(span), own) for span, own in frame.groupby(span_columns(frame))]
    few = len(spans) <= len(_DASHES)
    middles = [float(own[["first", "last"]].iloc[0].mean()) for _, own in spans]
    scale = Normalize(min(middles, default=0), max(middles, default=1))
    entries: list[LegendEntry] = []
    for (name, own), middle, dashes in zip(spans, middles, [*_DASHES, *("-",) * len(spans)]):
        props = {"color": _COLOURS(scale(middle)), "linewidth": 0.8 * style.scale_factor(), "zorder": 2}
        props["linestyle"] = dashes if few else "-"
        ax.plot(own["strength"], factor * own["score"], **props)
        if few:
            entries.append((Line2D([], [], **props), f"{name} alone"))
    if not few:
        one = "layer" if (frame["n_layers"] == 1).all() else "span"
        _layer_bar(ax, scale, f"{one if one == 'layer' else 'middle layer'} alone")
        label_points(ax, _farthest(spans, factor))
        entries.append((Line2D([], [], color=_COLOURS(0.6), linewidth=0.8), f"one {one} {done} alone"))
    return entries


def _layer_bar(ax: Axes, scale: Normalize, label: str) -> None:
    bar = ax.figure.colorbar(
        ScalarMappable(scale, _COLOURS), ax=ax, shrink=0.8, aspect=25, ticks=MaxNLocator(5, integer=True)
    )
    bar.outline.set_linewidth(0.6 * style.scale_factor())
    bar.set_label(label)


def _name(span: tuple) -> str:
    *of, first, last, _ = span  # a stack, a module, or both
    return f"{wording.layers_text(first, last)} of {' '.join(of)}" if of else wording.layers_text(first, last)


def _farthest(spans: Sequence[tuple[str, pd.DataFrame]], factor: float) -> list[PointLabel]:
    """The names of the spans that change the score most, each where it does so, if none is beyond it."""
    scores = pd.concat([own.set_index("strength")["score"].rename(name) for name, own in spans], axis=1)
    found = []
    for name, own in spans:
        if (away := own["delta_points"].abs()).notna().any():
            row = own.loc[away.idxmax()]
            others = scores.drop(columns=name).loc[row["strength"]].dropna()
            if (row["score"] < others).all() or (row["score"] > others).all():
                at = row["strength"], factor * row["score"]
                found.append((away.max(), PointLabel(name, *at, style.INK)))
    return [label for _, label in sorted(found, key=lambda one: -one[0])[:_MOST_LABELLED]]


def _band(frame: pd.DataFrame, metric: str, intact_at: float) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the interval of the difference to the intact model, at the height of the scores."""
    intact = float(frame.loc[frame["strength"] == intact_at, "score"].iloc[0])
    unit = float(metrics.to_points(metric, np.float64(1.0)))  # of a loss, more is worse
    ends = [intact + frame[name].to_numpy(float) / unit for name in ("ci_low_points", "ci_high_points")]
    return np.minimum(*ends), np.maximum(*ends)


def _draw_spectra(record: RankRecord, ax: Axes) -> list[LegendEntry]:
    """Of every layer the root mean square of its matrices' singular values, by direction."""
    frame = record.spectra.assign(square=record.spectra["value"] ** 2)
    own = [name for name in ("stack", "layer") if name in frame]
    by_layer = frame.groupby([*own, "direction"])["square"].mean().pow(0.5)
    scale = Normalize(int(frame["layer"].min()), max(int(frame["layer"].max()), 1))
    tidy_axes(ax)
    for _, values in by_layer.groupby(own):
        place = values.index.get_level_values
        colour = _COLOURS(scale(place("layer")[0]))
        ax.plot(place("direction"), values, color=colour, linewidth=0.8 * style.scale_factor())
    _layer_bar(ax, scale, "layer")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("direction")
    ax.set_ylabel("singular value")
    return [(Line2D([], [], color=_COLOURS(0.6), linewidth=0.8), "one layer")]


def _caption(record: StrengthRecord | RankRecord) -> str:
    said = record.summary
    if isinstance(record, RankRecord):
        asked = "How many are needed? "
        changed = (
            f"what the {record.parts} add to each weight matrix keeps only its largest singular values, as "
            f"many as the axis{LOG} says, without retraining; {record.summary.largest} are all"
        )
        more = " Below the axis, their energy: the share of the squared singular values that they have."
    else:
        more, asked = "", "" if wording.is_distance(said.metric) else "Is another strength better? "
        own = record.parts == "adapters"
        made = "the change that the adapters make" if own else "the difference to the base"
        changed = (
            f"{made} is multiplied by the strength on the axis, without retraining;"
            f" 0 switches the {record.parts} off, 1 is the model as it was trained"
        )
    about = (said.model and f"{said.model}; ") or ""
    about += wording.examples_text(said.n_examples, said.metric)
    frame = record.table
    n_spans = len(frame[~frame["whole"]].drop_duplicates(span_columns(frame)))
    spans = f"; thin lines: those of {wording.count_text(n_spans, 'span')} of layers alone" if n_spans else ""
    if n_spans > len(_DASHES):
        spans += f"; up to {_MOST_LABELLED}, those that change the score most, are named where there is room"
    return caption_of(
        [
            f"{wording.task_label(said.task)}: {wording.metric_name(said.metric)} on {said.data} "
            f"({about}) when {changed}. Thick line: the"
            f" {record.parts} of all layers{spans}.{more}",
            *question_sentences(said.question),
            f"The band is the 95% interval of the difference to {record.against}, "
            f"{wording.interval_method(said.metric)}.",
            f"{asked}{wording.sentence(said.verdict)}.",
            undefined_text(frame["score"].isna().sum(), "Scores left out"),
        ]
    )
