"""What each trained parameter buys: score against parameters, task by task (Houlsby et al. 2019, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from adapter_probe.analysis.published import PUBLISHED_CURVES, published_tradeoff
from adapter_probe.analysis.sweeps import METHOD_LABELS, chosen_trials

from . import style
from .captions import tradeoff_caption
from .curves import (
    METHODS,
    Entry,
    dot_of,
    legend_height,
    line_of,
    look_of,
    place_legend,
)
from .drawing import Drawing, Place, add_axes
from .labels import Room
from .tradeoff_panel import TaskCurve, draw, limits_of
from .venues import Look
from .wording import known_task, score_axis, task_label

STEM = "tradeoff-tasks"
CURVES = ("adapters", "top_layers")  # methods that a line joins
_LEFT, _RIGHT, _TOP, _TOP_AXIS, _BELOW = 32.0, 5.0, 4.0, 21.0, 25.0  # units
_BETWEEN, _BETWEEN_LABELS, _BETWEEN_ROWS, _ASPECT = 22.0, 33.0, 16.0, 0.68
_LOWEST = 60.0  # units: of a panel, even if the figure is then taller than was asked for
_SHARES = (0.01, 0.1, 1.0, 10.0, 100.0)  # % of the base, on the upper axis
_SIZES_SHOWN, _FEW = (1, 8, 64, 512), 5  # of many adapter sizes; how many are not many
_METRICS_PUBLISHED = {"mnli": "accuracy", "cola": "accuracy", "squad": "squad_f1"}


def task_curves(tradeoff: pd.DataFrame, trials: pd.DataFrame | None, paper: bool) -> list[TaskCurve]:
    """A trade-off's tables, task by task, with the paper's curve beside its own tasks and metric."""
    chosen, found = None if trials is None else chosen_trials(trials), []
    for (task, metric), points in tradeoff.groupby(["task", "metric"], sort=False):
        known = known_task(str(task))
        beside = paper and known in PUBLISHED_CURVES and metric == _METRICS_PUBLISHED[known]
        own = chosen is not None and (chosen["task"] == task) & (chosen["metric"] == metric)
        found.append(
            TaskCurve(
                task_label(str(task)),
                points.sort_values("trained_parameters", ignore_index=True),
                None if chosen is None else chosen[own],
                published_tradeoff(known) if beside else None,
            )
        )
    return found


def tradeoff(curves: Sequence[TaskCurve], look: Look, identity: Mapping[str, object]) -> Drawing:
    """The figure of all tasks, with its CSV and caption."""
    names = " and ".join(dict.fromkeys(curve.name for curve in curves))
    title = f"{names}: score against trained parameters"
    figure = tradeoff_figure(curves, look)
    return Drawing(STEM, title, figure, _numbers(curves), tradeoff_caption(curves), identity)


def tradeoff_figure(curves: Sequence[TaskCurve], look: Look) -> Figure:
    """A panel a task, all over the same parameters, the legend below."""
    width = look.width("half" if len(curves) == 1 else "full")
    metrics = {curve.metric for curve in curves}
    with style.paper_style(look.venue):
        legend = legend_of(curves)
        plan = _lay_out(len(curves), 72 * width, 72 * look.venue.tallest, legend, len(metrics) > 1)
        figure = Figure(figsize=(width, plan.height / 72))
        limits = limits_of(curves)
        for index, (curve, place) in enumerate(zip(curves, plan.panels)):
            ax = draw(curve, add_axes(figure, place), limits=limits, top_axis=index < plan.columns)
            last = index + plan.columns >= len(curves)
            ax.set_xlabel("trained parameters per task" if last else "")
            ax.tick_params(axis="x", labelbottom=last)
            ax.set_ylabel(_own_label(ax, curve, len(metrics) > 1))
        if len(metrics) == 1:
            middle = (plan.panels[0][1] + plan.panels[0][3] + plan.panels[-1][1]) / 2
            label, room = score_axis(curves[0].metric)[1], 2 * min(middle, plan.height - middle)
            text = style.fitting([f"validation {label}", label], style.label_size(), room)
            up = middle / 72 / figure.get_figheight()
            figure.text(1.0 * style.unit() / 72 / width, up, text, rotation=90, ha="left", va="center")
        place_legend(figure, legend, 0.0, 0.0, 72 * width)
    return figure


def _own_label(ax: Axes, curve: TaskCurve, needed: bool) -> str:
    """What stands left of a panel, if not one label left of all: as much as its height holds."""
    label = score_axis(curve.metric)[1] if needed else ""
    fits = style.text_width(f"validation {label}", style.label_size()) < 1.1 * Room(ax).height
    return f"validation {label}" if needed and fits else label


@dataclass(frozen=True)
class _Plan:
    height: float
    columns: int
    panels: tuple[Place, ...]


def _lay_out(n: int, width: float, tallest: float, legend: Sequence[Entry], labelled: bool) -> _Plan:
    """Places in points; `labelled`: every panel has a label of its own on the left."""
    u = style.unit()
    columns = 1 if width < 72 * 4.5 else (2 if n in (2, 4) else min(n, 3))
    rows = -(-n // columns)
    between = u * (_BETWEEN_LABELS if labelled else _BETWEEN)
    across = (width - u * (_LEFT + _RIGHT) - between * (columns - 1)) / columns
    foot = legend_height(legend, width) + u * _BELOW
    head = u * (_TOP + _TOP_AXIS)
    spare = tallest - foot - head - u * _BETWEEN_ROWS * (rows - 1)
    tall = max(min(_ASPECT * across, 165 * u, spare / rows), _LOWEST * u)
    height = foot + rows * tall + u * _BETWEEN_ROWS * (rows - 1) + head
    places = []
    for index in range(n):
        row, column = divmod(index, columns)
        y = height - head - (row + 1) * tall - row * u * _BETWEEN_ROWS
        places.append((u * _LEFT + column * (across + between), y, across, tall))
    return _Plan(height, columns, tuple(places))


def legend_of(curves: Sequence[TaskCurve]) -> list[Entry]:
    """The legend's entries: methods, then what else is drawn."""
    points = pd.concat([curve.points for curve in curves], ignore_index=True)
    unit = style.unit()
    entries: list[Entry] = [
        (line_of(mark), METHOD_LABELS[name])
        for name, mark in METHODS.items()
        if (points["method"] == name).any()
    ]
    grey = Line2D([], [], color=style.INK, alpha=0.55, linewidth=0.6 * unit)
    entries.append((grey, "Pareto frontier"))
    if any(curve.trials is not None and len(curve.trials) for curve in curves):
        entries.append((dot_of(), "single trial"))
    if points["diverged"].sum():
        look = {"markersize": 3.4 * unit, "markeredgewidth": 0.9 * unit, "color": style.FAINT}
        entries.append((Line2D([], [], linestyle="", marker="x", **look), "trials diverged"))
    if any(curve.published is not None for curve in curves):
        look = look_of(METHODS["adapters"], published=True) | {"color": style.FAINT}
        entries.append((Line2D([], [], **look), "Houlsby et al. 2019"))
    return entries


def _numbers(curves: Sequence[TaskCurve]) -> pd.DataFrame:
    """The means, then the paper's."""
    parts = [curve.points.assign(source="this run") for curve in curves]
    parts += [
        curve.published.assign(task=curve.name, metric=curve.metric, source="Houlsby et al. 2019")
        for curve in curves
        if curve.published is not None
    ]
    return pd.concat(parts, ignore_index=True)
