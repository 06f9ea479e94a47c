"""Which layers carry the drop: interactions of spans as a grid, and each layer's share beside its drop alone.

With d(a, b) the drop of span a..b and empty spans 0, the interaction of a span is what it costs beyond its
parts, m(a, b) = d(a, b) - d(a+1, b) - d(a, b-1) + d(a+1, b-1); a layer's share is the sum of m(a, b)/(b-a+1)
over the spans that contain it, the Myerson value on the chain of layers. Shares sum to the drop of all
layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from adapter_probe.analysis.significance import ALPHA
from adapter_probe.analysis.studies import AblationOverview

from . import interactions, style
from .ablation import WIDE, Layout, lay_out
from .captions import attribution_caption
from .curves import Entry, legend_height, place_legend, tidy_axes
from .drawing import Drawing, Place, add_axes
from .interactions import InteractionScale, draw_interaction_scale
from .venues import Look
from .wording import literal, signed, task_label, unit_name

STEM = "attribution"
_LEFT, _TALL, _BELOW, _GAP, _RIGHT = 36.0, 105.0, 25.0, 10.0, 2.0  # units, around the shares
_BARS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7")  # Okabe and Ito
_HATCHES = ("", "/////", ".....", "xxxxx")
_GROUP, _BAR_SHARE = 0.86, 0.62  # of a layer's place, and of a task's part of it


@dataclass(frozen=True, eq=False)
class Attributed:
    """One ablation's attribution.

    Attributes:
        spans: columns `first`, `last`, `interaction_points` and, optionally, its interval.
        layers: columns of ``layers.csv``.
        facts: whose they are.
    """

    spans: pd.DataFrame
    layers: pd.DataFrame
    facts: AblationOverview


def attribution(panels: Sequence[Attributed], look: Look, identity: Mapping[str, object]) -> Drawing:
    """The figure of one or several ablations, with its CSV and caption.

    Raises:
        ResultsError: a frame is not a grid of spans.
        ValueError: the grids do not fit the width.
    """
    names = [task_label(panel.facts.task) for panel in panels]
    figure = attribution_figure(panels, look)
    numbers = pd.concat([_numbers(panel, name) for panel, name in zip(panels, names)], ignore_index=True)
    title = f"{' and '.join(dict.fromkeys(names))}: shares of the drop by layer, interactions of spans"
    return Drawing(STEM, title, figure, numbers, attribution_caption(panels), identity)


def attribution_figure(panels: Sequence[Attributed], look: Look) -> Figure:
    """Grids above the shares; a single grid in a wide figure has them beside it."""
    width = look.width("full")
    metrics = {panel.facts.metric for panel in panels}
    metric = metrics.pop() if len(metrics) == 1 else None
    values = [panel.spans["interaction_points"].to_numpy(float) for panel in panels]
    scale = InteractionScale.spanning(np.concatenate(values))
    with style.paper_style(look.venue):
        plan = _plan(panels, 72 * width, 72 * look.venue.tallest, f"interaction ({unit_name(metric)})")
        figure = Figure(figsize=(width, plan.height / 72))
        for index, (panel, (x, y, w, h)) in enumerate(zip(panels, plan.block.grids)):
            notes = [literal(task_label(panel.facts.task)), *_definition(panel)]
            ax = add_axes(figure, (x, y + plan.lift, w, h))
            interactions.draw(panel.spans, ax, notes=notes, scale=scale)
            if index % plan.block.columns:
                ax.set_ylabel("")
        draw_interaction_scale(scale, add_axes(figure, plan.bar), plan.block.label)
        draw_shares(panels, add_axes(figure, plan.shares), metric=metric)
        place_legend(figure, plan.legend, *plan.legend_at)
    return figure


@dataclass(frozen=True)
class _Plan:
    height: float
    lift: float  # of the grids and their bar
    block: Layout
    bar: Place
    shares: Place
    legend: list[Entry]
    legend_at: tuple[float, float, float]


def _plan(panels: Sequence[Attributed], width: float, tallest: float, label: str) -> _Plan:
    """Places in points."""
    u = style.unit()
    legend = legend_of(panels)
    beside = len(panels) == 1 and width >= 72 * WIDE
    start = 0.5 * width if beside else 0.0
    across = width - start - u * (_LEFT + _RIGHT)
    words = legend_height(legend, across)
    below = words + u * _BELOW
    if beside:
        block = lay_out(1, start - u * _GAP, tallest, False, label)
        _, bottom, side, _ = block.grids[0]
        lift = max(0.0, below - bottom)
        shares = (start + u * _LEFT, bottom + lift, across, side)
        at = (start, bottom + lift - below, width - start)
    else:
        shares = (u * _LEFT, below, across, u * _TALL)
        lift = below + u * (_TALL + _GAP)
        block = lay_out(len(panels), width, tallest - lift, False, label)
        at = (0.0, 0.0, width)
    bar = _bar_below(block, lift)
    return _Plan(block.height + lift, lift, block, bar, shares, legend, at)


def _bar_below(block: Layout, lift: float) -> Place:
    """The colour bar, centred below the grids."""
    left = block.grids[0][0]
    right = max(x + side for x, _, side, _ in block.grids)
    length = min(right - left, 330.0 * style.unit())
    return (left + right - length) / 2, block.bar[1] + lift, length, block.bar[3]


def draw_shares(panels: Sequence[Attributed], ax: Axes, *, metric: str | None) -> Axes:
    """Draw each layer's share as a bar with its interval, and beside it the drop of the layer alone.

    Args:
        panels: one or several ablations; `layers` has `layer`, `share_points`, `delta_points` and,
            optionally, the intervals and `p_holm`.
        ax: within `style.paper_style`, already at its place.
        metric: what the drops are of; None if the panels differ in it.
    """
    tidy_axes(ax)
    ax.grid(False, axis="x")
    n_layers = 1 + max(int(panel.layers["layer"].max()) for panel in panels)
    for index, panel in enumerate(panels):
        slot = _GROUP / len(panels)
        left = panel.layers["layer"].to_numpy(float) - _GROUP / 2 + index * slot
        _draw_bars(ax, panel.layers, left + _BAR_SHARE * slot / 2, _BAR_SHARE * slot, index)
        _draw_alone(ax, panel.layers, left + (1 + _BAR_SHARE) * slot / 2)
    ax.axhline(0, color=style.INK, linewidth=0.6 * style.unit())
    ax.set_xlim(-0.6, n_layers - 0.4)
    cell = 72 * ax.get_position().width * ax.figure.get_figwidth() / n_layers
    room = 1.3 * style.text_width("00", style.tick_size())
    step = next(step for step in (1, 2, 4, 8, 16, n_layers) if step * cell >= room or step >= n_layers)
    ax.set_xticks(range(0, n_layers, step))
    ax.tick_params(axis="x", length=0)
    ax.spines["bottom"].set_visible(False)
    ax.set_xlabel("layer")
    ax.set_ylabel(f"drop ({unit_name(metric)})")
    return ax


def _draw_bars(ax: Axes, layers: pd.DataFrame, x: np.ndarray, width: float, index: int) -> None:
    look = _bar_look(index)
    ax.bar(x, layers["share_points"], width, **look)
    if "share_low_points" in layers:
        ends = layers["share_low_points"], layers["share_high_points"]
        ax.vlines(x, *ends, color=style.INK, linewidth=0.7 * style.unit(), zorder=3)


def _bar_look(index: int) -> dict[str, object]:
    return {
        "facecolor": _BARS[index % len(_BARS)], "hatch": _HATCHES[index % len(_HATCHES)],
        "edgecolor": style.WHITE, "linewidth": 0.0,
    }  # fmt: skip


def _draw_alone(ax: Axes, layers: pd.DataFrame, x: np.ndarray) -> None:
    """A diamond a layer: filled where its drop is significant, open where it is not, grey where none says."""
    unit = style.unit()
    if "ci_low_points" in layers:
        ends = -layers["ci_high_points"], -layers["ci_low_points"]
        ax.vlines(x, *ends, color=style.FAINT, linewidth=0.5 * unit, zorder=3)
    fill = [style.INK] * len(x)
    if "p_holm" in layers:
        fill = [style.INK if p < ALPHA else style.WHITE for p in layers["p_holm"]]
    look = {"marker": "D", "s": (2.6 * unit) ** 2, "edgecolors": style.INK, "linewidths": 0.5 * unit}
    ax.scatter(x, -layers["delta_points"], facecolors=fill, zorder=4, label="alone", **look)


def legend_of(panels: Sequence[Attributed]) -> list[Entry]:
    """The legend's entries: bars by task, then the diamonds."""
    interval = ", 95% interval" if "share_low_points" in panels[0].layers else ""
    entries: list[Entry] = []
    for index, panel in enumerate(panels):
        name = "share of the drop"
        if len(panels) > 1:
            total = signed(float(panel.layers["share_points"].sum()))
            name = f"{literal(task_label(panel.facts.task))} ({total.removeprefix('+')} in all)"
        entries.append((Patch(**_bar_look(index)), name + (interval if len(panels) == 1 else "")))
    tested = "p_holm" in panels[0].layers
    sure = pd.concat([panel.layers for panel in panels])["p_holm"] < ALPHA if tested else np.array([True])
    for fill, present, word in ((style.INK, sure, "significant"), (style.WHITE, ~sure, "not significant")):
        if present.any():
            handle = Line2D([], [], linestyle="", marker="D", markersize=2.6 * style.unit(), color=style.INK,
                            markerfacecolor=fill, markeredgewidth=0.5 * style.unit())  # fmt: skip
            entries.append((handle, f"layer alone, {word}" if tested else "layer alone"))
    return entries


def _definition(panel: Attributed) -> list[str]:
    """The whole drop, in the words of the grid's corner."""
    total = panel.layers["share_points"].sum(skipna=False)
    return [] if np.isnan(total) else [f"drop of all layers: {signed(float(total)).removeprefix('+')}"]


def _numbers(panel: Attributed, name: str) -> pd.DataFrame:
    """Everything drawn, in rows: what it is, of which span, with its interval; drops are positive."""
    layers, spans = panel.layers, panel.spans
    alone = {"low": -layers.get("ci_high_points", np.nan), "high": -layers.get("ci_low_points", np.nan)}
    share = {end: layers.get(f"share_{end}_points", np.nan) for end in ("low", "high")}
    apart = {end: spans.get(f"interaction_{end}_points", np.nan) for end in ("low", "high")}
    kinds = (
        ("layer share", layers["layer"], layers["layer"], layers["share_points"], share),
        ("layer alone", layers["layer"], layers["layer"], -layers["delta_points"], alone),
        ("interaction", spans["first"], spans["last"], spans["interaction_points"], apart),
    )
    parts = [
        pd.DataFrame({"task": name, "quantity": kind, "first": first, "last": last, "drop_points": value,
                      "low_points": ends["low"], "high_points": ends["high"]})
        for kind, first, last, value, ends in kinds
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)
