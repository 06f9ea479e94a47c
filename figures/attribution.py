"""Attribution of the drop to layers: each layer's share and its drop alone, and a grid of span interactions.

Both are defined in `adapter_probe.analysis.attribution`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from adapter_probe.analysis.score_changes import are_groups, last_layers
from adapter_probe.analysis.significance import ALPHA
from adapter_probe.analysis.study_records import AblationRecord, StudyRecord
from adapter_probe.errors import ResultsError
from adapter_probe.wording import drop_name, drop_text, interval_method, is_distance, number_text, unit_name

from . import ablation_words, style
from .ablation_words import Words
from .drawing import Drawing, caption_of, identity_of, suffix_of, undefined_text
from .grid import Cells, draw_cells, forms_of, number_layers, numbers_sentence, write_notes
from .layout import LOWEST_ROW, WIDE, fit_height, legend_below, name_above, new_figure, shape_of
from .legends import LegendEntry, with_legend
from .levels import DIVERGING_EDGES, Scale, difference_scale, draw_colorbar
from .style import escape_mathtext
from .venues import FigureOptions

_HATCHES = ("", "/////", ".....", "xxxxx")
_GROUP, _BAR_SHARE = 0.86, 0.62  # of a layer's place, and of a task's part of it
_NAME = 0.5  # inches: the lines of a name above its grid


def shares_of(record: AblationRecord) -> pd.DataFrame:
    """The table of layer shares.

    Raises:
        ResultsError: there is none; shares require an ablation of every span with defined scores.
    """
    if record.shares is None:
        raise ResultsError(
            f"{record.folder}: layer shares are not available; they require an ablation of every span,"
            " with all scores defined"
        )
    return record.shares


def total_drop(record: AblationRecord) -> float:
    """The drop of all layers together: the sum of their shares, in points."""
    return float(shares_of(record)["share_points"].sum(skipna=False))


def interaction_map(record: AblationRecord, ax: Axes, scale: Scale, place: float = np.inf) -> None:
    """Draw the grid of interactions: the part of each span's drop that shorter spans do not explain.

    An interaction counts as clear if its interval excludes 0, or without intervals if it is at least half a
    point. Clear interactions show their value where it fits; the others are small squares, and NaN is crossed
    out. A name that is too long for the corner of a grid of `place` points stands above it.
    """
    frame, about = record.spans, record.summary
    cells = Cells.of(frame)
    values = frame["interaction_points"].to_numpy(float)
    clear = is_clear(frame)
    draw_cells(cells, forms_of(values, about.metric), ax, scale=scale, studied=about.done, small=~clear)
    said = [escape_mathtext(ablation_words.study_label(record))]
    if record.shares is not None:
        said.append(f"{about.removed}: {drop_text(total_drop(record), about.metric)}")
    if _has_intervals(frame, "interaction") and not clear[~np.isnan(values)].all():
        said.append("small: 95% interval includes 0")
    said += ["crossed out: undefined"] * bool(np.isnan(values).any())
    write_notes(ax, name_above(ax, said, place), cells)


def is_clear(frame: pd.DataFrame) -> np.ndarray:
    """Whether an interaction differs from 0 by its interval, or by size without one, bool `[rows]`."""
    if not _has_intervals(frame, "interaction"):
        return frame["interaction_points"].abs().to_numpy(float) >= DIVERGING_EDGES[0]
    low, high = (frame[f"interaction_{end}_points"].to_numpy(float) for end in ("low", "high"))
    return (low > 0) | (high < 0)


def _has_intervals(frame: pd.DataFrame, of: str) -> bool:
    """Whether there are intervals of this quantity; a single example has none."""
    return f"{of}_low_points" in frame and bool(frame[f"{of}_low_points"].notna().any())


def attribution(
    records: AblationRecord | Sequence[AblationRecord], ax: Axes | None = None, *, legend: bool = True
) -> Axes:
    """Draw each layer's share as a bar with its interval, next to the drop of the layer alone.

    Raises:
        ResultsError: a study has no shares.
    """
    records = [records] if isinstance(records, AblationRecord) else records
    parts = [part for record in records for part in record.in_stacks]
    if legend:
        return with_legend(ax, partial(draw_shares, parts))
    ax = plt.gca() if ax is None else ax
    draw_shares(parts, ax)
    return ax


def draw_shares(records: Sequence[AblationRecord], ax: Axes) -> list[LegendEntry]:
    """Draw the shares without a legend; its entries: bars by task, then the diamonds."""
    tables, unit, ink = [shares_of(record) for record in records], style.scale_factor(), style.line_colour()
    layers, metric = pd.concat(tables), ablation_words.common_metric(records)
    names, slot = np.unique(layers["layer"].to_numpy(int)), _GROUP / len(records)
    interval = ", 95% interval" if _has_intervals(layers, "share") else ""
    entries: list[LegendEntry] = []
    for index, (record, table) in enumerate(zip(records, tables)):
        left = np.searchsorted(names, table["layer"].to_numpy(int)) - _GROUP / 2 + index * slot
        width, look = _BAR_SHARE * slot, {"edgecolor": style.WHITE, "linewidth": 0.0}
        look |= {"facecolor": style.FILLS[index % len(style.FILLS)], "hatch": _HATCHES[index % len(_HATCHES)]}
        x = left + width / 2
        ax.bar(x, table["share_points"], width, **look)
        if "share_low_points" in table:
            ends = table["share_low_points"], table["share_high_points"]
            ax.vlines(x, *ends, color=ink, linewidth=0.7 * unit, zorder=3)
        _draw_alone(ax, table, left + (1 + _BAR_SHARE) * slot / 2)
        name = f"share of the {drop_name(record.summary.metric)}{interval}"
        if len(records) > 1:
            total = number_text(total_drop(record), record.summary.metric)
            name = f"{escape_mathtext(ablation_words.study_label(record))} ({total} in total)"
        entries.append((Patch(**look), name))
    ax.axhline(0, color=ink, linewidth=0.6 * unit)
    ax.set_axisbelow(True)
    ax.grid(True, axis="y", **style.grid_props())
    ax.grid(False, axis="x")
    ax.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))  # as many in any height
    ax.set_xlim(-0.6, len(names) - 0.4)
    number_layers(ax.xaxis, names, 0.0)
    ax.tick_params(axis="x", length=0)
    one = "group" if are_groups(layers) else "layer"
    ax.set_xlabel("first layer of the group" if one == "group" else "layer")
    ax.set_ylabel(f"{drop_name(metric)} ({unit_name(metric)})")
    dot = {"linestyle": "", "marker": "D", "color": ink}
    dot |= {"markersize": 2.6 * unit, "markeredgewidth": 0.5 * unit}
    sure = _is_sure(layers)
    for fill, present, word in ((ink, sure, "significant"), ("none", ~sure, "not significant")):
        if present.any():
            said = f"{one} alone, {word}" if "p_holm" in layers else f"{one} alone"
            entries.append((Line2D([], [], markerfacecolor=fill, **dot), said))
    return entries


def _is_sure(layers: pd.DataFrame) -> np.ndarray:
    """Whether the drop of each layer alone is significant, bool ``[layers]``; True if no test was made."""
    return layers["p_holm"].to_numpy() < ALPHA if "p_holm" in layers else np.ones(len(layers), bool)


def _draw_alone(ax: Axes, layers: pd.DataFrame, x: np.ndarray) -> None:
    """One diamond per layer, open if its drop is not significant."""
    unit, ink = style.scale_factor(), style.line_colour()
    if "ci_low_points" in layers:
        ends = -layers["ci_high_points"], -layers["ci_low_points"]
        ax.vlines(x, *ends, color=style.FAINT, linewidth=0.5 * unit, zorder=3)
    fill = [ink if sure else ax.get_facecolor() for sure in _is_sure(layers)]
    props = {"marker": "D", "s": (2.6 * unit) ** 2, "edgecolors": ink, "linewidths": 0.5 * unit}
    ax.scatter(x, -layers["delta_points"], facecolors=fill, zorder=4, label="alone", **props)


def drawings(studies: Sequence[StudyRecord], options: FigureOptions) -> Iterator[Drawing]:
    """The figure of the ablations with layer shares, with its CSV and caption; of many ablations one each."""
    for suffix, ablations in ablation_words.alike_ablations(studies):
        shared = [record for record in ablations if record.shares is not None]
        groups = [shared] if len(shared) <= len(_HATCHES) else [[record] for record in shared]
        for group in filter(None, groups):
            own = suffix_of(group[0], shared) if len(groups) > 1 else ""
            names = [ablation_words.study_label(record) for record in group]
            numbers = pd.concat([_shares_drawn(*pair) for pair in zip(group, names)], ignore_index=True)
            stem, figure = f"attribution{own}{suffix}", attribution_figure(group, options)
            printed = any(is_clear(record.spans).any() for record in group)
            caption = caption_of([_caption(group), printed and numbers_sentence(figure, stem)])
            whose = " and ".join(dict.fromkeys(names))
            title = f"{whose}: shares of the drop by layer, interactions of spans"
            yield Drawing(stem, title, figure, numbers, caption, identity_of(group))


def attribution_figure(records: Sequence[AblationRecord], options: FigureOptions) -> Figure:
    """Grids above the shares, or a single grid next to the shares in a wide figure."""
    width = options.width("full")
    values = np.concatenate([record.spans["interaction_points"].to_numpy(float) for record in records])
    scale = difference_scale(values, [record.summary.metric for record in records])
    with style.paper_style(options.venue):
        figure = new_figure(width, 3 * width)
        beside = len(records) == 1 and width >= WIDE
        low = 0.3 if width >= WIDE else 0.5  # height of the shares over width
        rows, columns = (1, 1) if beside else shape_of(len(records), width)
        heights = [1] if beside else [1] * rows + [low * columns]
        spec = figure.add_gridspec(len(heights), 2 if beside else columns, height_ratios=heights)
        axes = [figure.add_subplot(spec[divmod(index, columns)]) for index in range(len(records))]
        shares = figure.add_subplot(spec[0, 1] if beside else spec[rows, :])
        shares.set_box_aspect(1.0 if beside else low)
        for index, (record, ax) in enumerate(zip(records, axes)):
            interaction_map(record, ax, scale, 72 * width / max(columns, 1 + beside))
            ax.set_ylabel("" if index % columns else ax.get_ylabel())
        label = f"interaction ({unit_name(ablation_words.common_metric(records))})"
        draw_colorbar(scale, axes, label, location="bottom", length=np.inf)
        legend_below(figure, draw_shares(records, shares))
        named = _NAME * sum(bool(ax.get_title("left")) for ax in axes[::columns])  # above their grids
        return fit_height(figure, max(options.venue.tallest, len(heights) * LOWEST_ROW + named))


def _shares_drawn(record: AblationRecord, name: str) -> pd.DataFrame:
    """All drawn values in long form: quantity, span, value and interval; drops are positive."""
    layers, spans = shares_of(record), record.spans
    alone = {"low": -layers.get("ci_high_points", np.nan), "high": -layers.get("ci_low_points", np.nan)}
    share = {end: layers.get(f"share_{end}_points", np.nan) for end in ("low", "high")}
    apart = {end: spans.get(f"interaction_{end}_points", np.nan) for end in ("low", "high")}
    kinds = (
        ("layer share", layers["layer"], last_layers(layers), layers["share_points"], share),
        ("layer alone", layers["layer"], last_layers(layers), -layers["delta_points"], alone),
        ("interaction", spans["first"], spans["last"], spans["interaction_points"], apart),
    )
    parts = [
        pd.DataFrame({"task": name, "quantity": kind, "first": first, "last": last, "drop_points": value,
                      "low_points": ends["low"], "high_points": ends["high"]})
        for kind, first, last, value, ends in kinds
    ]  # fmt: skip
    frame = pd.concat(parts, ignore_index=True)
    if record.stack:
        frame.insert(2, "stack", record.stack)
    return frame


def _caption(records: Sequence[AblationRecord]) -> str:
    layers = pd.concat([record.shares for record in records], ignore_index=True)
    frames = [record.spans for record in records]
    metric, words = ablation_words.common_metric(records), Words.of(records[0])
    metrics = dict.fromkeys(record.summary.metric for record in records)
    one, chain, numbered = "layer", "layers", ""
    if are_groups(layers):
        one, chain, numbered = "group of layers", "groups", ", where a and b are numbers of groups"
    drop, loss = drop_name(metric), "" if is_distance(metric) else " loss"
    told = dict.fromkeys(record.summary.removed for record in records)
    whole = " or ".join(text.replace("all s", f"all {words.adapters} s", 1) for text in told)
    counts = sorted({int(frame["interaction_points"].notna().sum()) for frame in frames})
    chance = f"about {ALPHA * counts[-1]:.0f}" if ALPHA * counts[-1] >= 1 else "fewer than 1"
    intervals = [
        f"Error bars are 95% intervals {interval_method(*metrics, parts=True)}; in the grid, squares"
        " whose interval includes 0 are small, and the others show their value where it fits.",
        f"The {' or '.join(map(str, counts))} intervals of a grid are not corrected for their number:"
        f" {chance} would exclude 0 by chance alone.",
    ]
    missing = layers["share_points"].isna().sum()
    missing += sum(frame["interaction_points"].isna().sum() for frame in frames)
    return caption_of(
        [
            *ablation_words.warnings_of(records),
            f"Attribution to layers of the {ablation_words.drop_label(records, metric)} with {whole}.",
            f"Grid: interaction of each span of layers, the part of its {drop} that shorter spans do not "
            f"explain, m(a,b) = d(a,b) − d(a+1,b) − d(a,b−1) + d(a+1,b−1) with d(a,b) the {drop} of span a to"
            f" b{numbered}; red: more{loss} than additive, blue: less{loss} than additive.",
            f"Bars: the share of each {one}, the sum of m(a,b)/(b−a+1) over the spans that contain it (the"
            f" Myerson value on the chain of {chain}); the shares sum to the total {drop}.",
            f"Diamonds: the {drop} of the {one} alone.",
            *ablation_words.checkpoint_sentences(records),
            *(intervals if _has_intervals(layers, "share") else []),
            "p_holm" in layers
            and layers["p_holm"].notna().any()
            and f"Filled diamonds: significant at 0.05 by {ablation_words.tests_of(records)}, Holm-corrected"
            " over all spans.",
            undefined_text(missing, "Values left out"),
        ]
    )
