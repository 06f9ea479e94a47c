"""Attribution of the drop to layers: each layer's share and its drop alone, and a grid of span interactions.

Both are defined in `adapter_probe.analysis.attribution`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from adapter_probe.analysis.significance import ALPHA
from adapter_probe.analysis.studies import AblationRecord
from adapter_probe.errors import ResultsError

from . import style
from .grid import Cells, draw_cells, number_layers
from .levels import DIVERGING_EDGES, DivergingScale, draw_colorbar
from .marks import write_notes
from .wording import common_metric, drop_name, drop_text, escape_mathtext, one_decimal, study_label, unit_name

STEM = "attribution"
_HATCHES = ("", "/////", ".....", "xxxxx")
_GROUP, _BAR_SHARE = 0.86, 0.62  # of a layer's place, and of a task's part of it


def attribution(
    records: AblationRecord | Sequence[AblationRecord], ax: Axes | None = None, *, legend: bool = True
) -> Axes:
    """Draw each layer's share as a bar with its interval, next to the drop of the layer alone.

    Args:
        records: one or several ablations.
        ax: Axes to draw on; by default the current Axes.
        legend: whether to draw the legend of bars and diamonds.

    Raises:
        ResultsError: a study has no shares.
    """
    records = [records] if isinstance(records, AblationRecord) else list(records)
    ax = plt.gca() if ax is None else ax
    layers = [shares_of(record) for record in records]
    names = np.unique(np.concatenate([table["layer"].to_numpy(int) for table in layers]))
    slot = _GROUP / len(records)
    for index, table in enumerate(layers):
        left = np.searchsorted(names, table["layer"].to_numpy(int)) - _GROUP / 2 + index * slot
        _draw_bars(ax, table, left + _BAR_SHARE * slot / 2, _BAR_SHARE * slot, index)
        _draw_alone(ax, table, left + (1 + _BAR_SHARE) * slot / 2)
    ax.axhline(0, color=style.line_colour(), linewidth=0.6 * style.scale_factor())
    ax.set_axisbelow(True)
    ax.grid(True, axis="y", color=style.GRID, linewidth=0.5 * style.scale_factor())
    ax.grid(False, axis="x")
    ax.set_xlim(-0.6, len(names) - 0.4)
    number_layers(ax.xaxis, names, 0.0)
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("layer")
    metric = common_metric(records)
    ax.set_ylabel(f"{drop_name(metric)} ({unit_name(metric)})")
    if legend:
        handles, words = zip(*legend_entries(records))
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.08 * len(words) * (high - low))  # "best" ignores intervals
        ax.legend(handles, words, frameon=False)
    return ax


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


def _draw_bars(ax: Axes, layers: pd.DataFrame, x: np.ndarray, width: float, index: int) -> None:
    ax.bar(x, layers["share_points"], width, **_bar_style(index))
    if "share_low_points" in layers:
        ends = layers["share_low_points"], layers["share_high_points"]
        ax.vlines(x, *ends, color=style.line_colour(), linewidth=0.7 * style.scale_factor(), zorder=3)


def _bar_style(index: int) -> dict[str, object]:
    return {
        "facecolor": style.FILLS[index % len(style.FILLS)], "hatch": _HATCHES[index % len(_HATCHES)],
        "edgecolor": style.WHITE, "linewidth": 0.0,
    }  # fmt: skip


def _draw_alone(ax: Axes, layers: pd.DataFrame, x: np.ndarray) -> None:
    """One diamond per layer, open if its drop is not significant."""
    unit = style.scale_factor()
    if "ci_low_points" in layers:
        ends = -layers["ci_high_points"], -layers["ci_low_points"]
        ax.vlines(x, *ends, color=style.FAINT, linewidth=0.5 * unit, zorder=3)
    ink, sure = style.line_colour(), np.ones(len(x), bool)
    if "p_holm" in layers:
        sure = layers["p_holm"].to_numpy() < ALPHA
    fill = [ink if one else ax.get_facecolor() for one in sure]
    props = {"marker": "D", "s": (2.6 * unit) ** 2, "edgecolors": ink, "linewidths": 0.5 * unit}
    ax.scatter(x, -layers["delta_points"], facecolors=fill, zorder=4, label="alone", **props)


def legend_entries(records: Sequence[AblationRecord]) -> list[tuple[Artist, str]]:
    """Legend handles and labels: bars by task, then the diamonds."""
    layers = pd.concat([shares_of(record) for record in records])
    interval = ", 95 % interval" if "share_low_points" in layers else ""
    entries: list[tuple[Artist, str]] = []
    for index, record in enumerate(records):
        name = f"share of the {drop_name(record.overview.metric)}{interval}"
        if len(records) > 1:
            name = f"{escape_mathtext(study_label(record.overview))} ({one_decimal(_total(record))} in total)"
        entries.append((Patch(**_bar_style(index)), name))
    tested = "p_holm" in layers
    sure = layers["p_holm"].to_numpy() < ALPHA if tested else np.array([True])
    ink = style.line_colour()
    for fill, present, word in ((ink, sure, "significant"), ("none", ~sure, "not significant")):
        if present.any():
            props = {"markersize": 2.6 * style.scale_factor(), "markeredgewidth": 0.5 * style.scale_factor()}
            handle = Line2D([], [], linestyle="", marker="D", color=ink, markerfacecolor=fill, **props)
            entries.append((handle, f"layer alone, {word}" if tested else "layer alone"))
    return entries


def _total(record: AblationRecord) -> float:
    return float(shares_of(record)["share_points"].sum(skipna=False))


def interaction_map(
    record: AblationRecord,
    ax: Axes | None = None,
    *,
    colorbar: bool = True,
    scale: DivergingScale | None = None,
) -> Axes:
    """Draw the grid of interactions: the part of each span's drop that shorter spans do not explain.

    An interaction counts as clear if its interval excludes 0, or without intervals if it is at least half a
    point. Clear interactions show their value where it fits; the others are small squares.

    Args:
        record: an ablation with the column `interaction_points`, and optionally its interval; NaN is crossed
            out.
        ax: Axes to draw on; by default the current Axes. A colour bar takes its room from it.
        colorbar: whether to draw one.
        scale: colour levels; by default the smallest scale that covers the record.
    """
    ax = plt.gca() if ax is None else ax
    frame, overview = record.spans, record.overview
    cells = Cells.of(frame)
    values = frame["interaction_points"].to_numpy(float)
    scale = DivergingScale.spanning(values) if scale is None else scale
    clear = is_clear(frame)
    texts = [drop_text(value) if sure else "" for value, sure in zip(values, clear)]
    draw_cells(cells, values, ax, scale=scale, texts=texts, studied=overview.study, small=~clear)
    said = [escape_mathtext(study_label(overview))]
    if record.shares is not None:
        said.append(f"{drop_name(overview.metric)} of all layers: {one_decimal(_total(record))}")
    if "interaction_low_points" in frame and not clear[~np.isnan(values)].all():
        said.append("small: 95 % interval includes 0")
    write_notes(ax, said + ["crossed out: undefined"] * bool(np.isnan(values).any()), cells)
    if colorbar:
        draw_colorbar(scale, [ax], interaction_label(overview.metric))
    return ax


def interaction_label(metric: str | None) -> str:
    """Label of the colour bar of interactions."""
    return f"interaction ({unit_name(metric)})"


def is_clear(frame: pd.DataFrame) -> np.ndarray:
    """Whether an interaction differs from 0 by its interval, or by size without one, bool `[rows]`."""
    if "interaction_low_points" not in frame:
        return frame["interaction_points"].abs().to_numpy(float) >= DIVERGING_EDGES[0]
    low, high = (frame[f"interaction_{end}_points"].to_numpy(float) for end in ("low", "high"))
    return (low > 0) | (high < 0)
