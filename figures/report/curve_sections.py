"""The sections of studies without a slider: the project's figures, and every number behind them.

Sweeps, whose runs the script filters, studies of strengths and ranks, and maps of layers and modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes

from adapter_probe import wording
from adapter_probe.analysis.study_records import (
    AblationRecord,
    DegreeRecord,
    StudyRecord,
    SweepRecord,
    TradeoffRecord,
)
from adapter_probe.analysis.sweeps import SWEEP_POINT, TRADEOFF_POINT, chosen_trials, with_inits
from adapter_probe.figures import gallery, style
from adapter_probe.figures.ablation_words import study_label
from adapter_probe.figures.aggregate import tasks_of
from adapter_probe.figures.curves import FOOT, METHODS, SERIES, marks_of, positions
from adapter_probe.figures.drawing import Drawing
from adapter_probe.figures.init_sweep import placed_inits
from adapter_probe.figures.tables import score_cell
from adapter_probe.figures.venues import FigureOptions, Venue
from adapter_probe.spans import ALL_MODULES

from .maps import INK, inline, places
from .markup import NONE, Numbers, render, settings, short_name

Curves = SweepRecord | TradeoffRecord | DegreeRecord | AblationRecord
"""A study whose figure the page shows: of curves, or a map of layers and modules."""
WIDE = FigureOptions(Venue("page", 8.5, 8.5, 9.0, 8.5, tallest=40.0, sans=True), formats=("svg",))
_PHONE = FigureOptions(Venue("phone", 3.9, 3.9, 9.0, 8.5, tallest=80.0, sans=True), formats=("svg",))
_SPREAD = {
    "mean": "mean", "sem": "standard error", "min": "lowest", "max": "highest", "n": "runs",
    "diverged": "diverged", "majority_score": "majority class", "learning_rate": "learning rate",
    "epochs": "epochs",
}  # fmt: skip
_SIZE = {"trained_parameters_without_head": "parameters without the head", "percent_of_base": "% of the base"}
_SWEEP = {
    "task": "task", "size": "size", "init_std": "initialisation std", "init": "initialisation", **_SPREAD,
}  # fmt: skip
_TRADEOFF = {"task": "task", "label": "method", **_SIZE, **_SPREAD}
_AGGREGATE = {
    "label": "method", "n_tasks": "tasks", **_SIZE, "p20_points": "20th percentile",
    "p50_points": "median (points)", "p80_points": "80th percentile", "iqm_points": "interquartile mean",
    "iqm_low_points": "from", "iqm_high_points": "to (95%)", "on_frontier": "on the frontier",
}  # fmt: skip
_TRIALS = {
    "task": "task", "label": "method", "size": "size", "init_std": "initialisation std",
    "init": "initialisation", "learning_rate": "learning rate", "epochs": "epochs", "seed": "seed",
    "score": "score", "best_epoch": "best epoch", "diverged": "diverged", "chosen": "in the mean",
}  # fmt: skip
_MOST_NAMED = 3  # tasks in a heading
_FILTERS = ("task", "label", "size", "init_std", "init", "learning_rate", "seed")
_SCORES = ("mean", "min", "max", "score", "majority_score")
_WHOLE = ("trained_parameters_without_head", "best_epoch")
_SHORT = ("init_std", "learning_rate")


def curves_title(record: Curves) -> str:
    """Heading of a study's section, and name in the contents."""
    if isinstance(record, AblationRecord):
        return f"{study_label(record)}: {wording.drop_name(record.summary.metric)} by layer and module"
    if not isinstance(record, (SweepRecord, TradeoffRecord)):
        task, metric = wording.task_label(record.summary.task), wording.metric_name(record.summary.metric)
        return f"{task}: {metric} by {record.by} of the {record.parts}"
    tasks = record.table["task"].drop_duplicates()
    what = "initialisation scale" if isinstance(record, SweepRecord) else "trained parameters"
    names = ", ".join(map(wording.task_label, tasks)) if len(tasks) <= _MOST_NAMED else f"{len(tasks)} tasks"
    return f"{names}: score by {what}"


def curves_section(record: Curves, number: int, heading: str) -> Markup:
    """The section of a study; of a sweep, the script filters the runs, and in others nothing moves."""
    about, warning, verdict, trials = short_name(record.folder), None, "", None
    question: Sequence[str] = getattr(getattr(record, "summary", None), "question", None) or ()
    if isinstance(record, (SweepRecord, TradeoffRecord)):
        trials, noted = _runs(record), record.identity.get("study")
        figures = drawn(record, f"s{number}", lambda one: _runs_over(one, record, trials))
        tables, noted = _sweep_tables(record, trials), dict(noted) if isinstance(noted, Mapping) else {}
        noted = {name: value for name, value in noted.items() if name not in ("tasks", "checksum")}
    else:
        said, figures, noted = record.summary, drawn(record, f"s{number}"), record.identity
        metric, drop = wording.metric_name(said.metric), wording.drop_name(said.metric)
        examples = wording.examples_text(said.n_examples, said.metric)
        ends = {"ci_high_points": "from", "ci_low_points": "to (95%)"}
        if isinstance(record, AblationRecord):
            about, warning = f"{about}: {metric} on {said.evaluated}, {examples}", said.warning
            heads = {"module": "module", "where": "layers", "score": "score", "delta_points": drop, **ends}
            tables = [_spans_table(record.spans, said.metric, "cells", heads | {"p_holm": "Holm p"})]
            noted = {"identity": record.identity, "created_with": record.created_with}
        else:
            about += f": {metric} on {said.data}, {examples}"
            verdict = f"{record.asked} {wording.sentence(said.verdict)}."
            heads = {"where": record.parts, record.degree: record.degree, "score": "score"}
            heads |= {"delta_points": f"{drop} against {record.against}", **ends}
            tables = [_spans_table(record.table, said.metric, "scores", heads)]
            noted = record.identity.get("identity")
    return render(
        "curves", number=number, heading=heading, about=about, question=question, warning=warning,
        verdict=verdict, figures=figures, tables=tables, n_runs=0 if trials is None else len(trials),
        filters=None if trials is None else _filters(trials),
        is_sweep=isinstance(record, (SweepRecord, TradeoffRecord)),
        kind="drawn" if isinstance(record, AblationRecord) else "drawn lines",
        settings=settings(noted if isinstance(noted, Mapping) else {}),
    )  # fmt: skip


def drawn(
    record: StudyRecord, prefix: str, runs_of: Callable[[Drawing], Callable[[], Markup] | None] | None = None
) -> list[dict[str, object]]:
    """The figures of a study with their captions, each drawn again in one column for a narrow window."""
    found = []
    pairs = zip(gallery.figures_of([record], WIDE), gallery.figures_of([record], _PHONE))
    for number, (wide, phone) in enumerate(pairs):
        runs = runs_of and runs_of(wide)
        found.append({
            "wide": inline(wide.figure, f"{prefix}-{number}", wide.title, below=runs),
            "phone": inline(phone.figure, f"{prefix}-{number}p", phone.title),
            "caption": wide.caption,
        })  # fmt: skip
    return found


def _runs(record: SweepRecord | TradeoffRecord) -> pd.DataFrame | None:
    """All runs, with their method's name, and whether each is included in the mean of its point."""
    if record.trials is None:
        return None
    init = isinstance(record, SweepRecord)
    point, rows = (SWEEP_POINT, with_inits(record.trials)) if init else (TRADEOFF_POINT, record.trials)
    rows = rows.assign(chosen=rows.index.isin(chosen_trials(rows, point).index))
    if init:
        return rows.reset_index(drop=True)
    names = record.tradeoff[["method", "size", "k", "label"]].drop_duplicates()
    return rows.merge(names, how="left", on=["method", "size", "k"])


def _runs_over(
    drawing: Drawing, record: SweepRecord | TradeoffRecord, trials: pd.DataFrame | None
) -> Callable[[], Markup] | None:
    """Makes a point for every run, below the means and in place of the figure's dots; None if it has none."""
    kind = drawing.stem.startswith(("init-sweep", "tradeoff")) and "aggregate" not in drawing.stem
    if trials is None or not kind:
        return None
    init = isinstance(record, SweepRecord)
    rows = placed_inits(record.sweep, trials) if isinstance(record, SweepRecord) else trials
    tasks = list(dict.fromkeys(record.table["task"]))
    column = "init_std" if init else "place"
    if not init:
        rows = rows.assign(place=positions(rows["trained_parameters_without_head"]))
    axes = drawing.figure.axes[:1] * len(tasks) if init else drawing.figure.axes[: len(tasks)]
    for collection in (own for ax in axes for own in ax.collections):
        if collection.get_label() == "trials":
            collection.set_visible(False)
    metrics = rows["metric"].unique()

    def points() -> Markup:
        shapes: list[dict[str, str]] = []
        for index, (task, ax) in enumerate(zip(tasks, axes)):
            runs = rows[rows["task"] == task]
            metric = (metrics[0] if len(metrics) == 1 else None) if init else runs["metric"].iloc[0]
            own = (
                {name: SERIES[index % len(SERIES)] for name in (*METHODS, *rows["method"])}
                if init and len(tasks) > 1
                else marks_of(rows["method"])
            )
            shapes += _points(ax, runs, column, wording.score_axis(metric)[0], own)
        return render("runs", shapes=shapes)

    return points


def _points(ax: Axes, runs: pd.DataFrame, column: str, factor: float, marks: Mapping) -> list[dict[str, str]]:
    """A point for every run; of runs without a score, or with one below the axis, at the foot."""
    low, high = ax.get_ylim()
    heights = (factor * runs["score"]).to_numpy(float)
    heights = np.where(heights >= low, np.minimum(heights, high), low + FOOT * (high - low))
    at = places(ax, np.column_stack([runs[column].to_numpy(float), heights]))
    shapes = []
    for (x, y), (_, run) in zip(at, runs.iterrows()):
        colour = marks[run["method"]].colour if run["method"] in marks else "#666666"
        colour = INK if colour == style.INK else colour
        kind = "run" + (" chosen" if run["chosen"] else "") + (" lost" if pd.isna(run["score"]) else "")
        told = [
            f"{_TRIALS[name]} {cell_text(name, run[name], None)}"
            for name in (*_FILTERS, "epochs")
            if name in run and pd.notna(run[name])
        ]
        score = (
            "diverged" if pd.isna(run["score"]) else wording.score_text(float(run["score"]), run["metric"])
        )
        label = f"{score}: {', '.join(told)}" + ("" if run["chosen"] else "; not in the mean")
        place = {"cx": f"{x:g}", "cy": f"{y:g}", "stroke": colour, "fill": colour}
        shapes.append({"class": kind, "aria-label": label, **place, **_data(run)})
    return shapes


def _data(run: pd.Series) -> dict[str, str]:
    """The values by which a run is filtered."""
    return {
        f"data-{name.replace('_', '-')}": cell_text(name, run[name], None)
        for name in _FILTERS
        if name in run and pd.notna(run[name])
    }


def _filters(trials: pd.DataFrame) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Every setting in which the runs differ, with its values: name, words, options."""
    found = []
    for name in _FILTERS:
        values = trials[name].dropna().sort_values().unique() if name in trials else []
        texts = list(dict.fromkeys(cell_text(name, value, None) for value in values))
        if len(texts) > 1:
            options = [("", "all"), *((text, text) for text in texts)]
            found.append((name.replace("_", "-"), _TRIALS[name], options))
    return found


def _sweep_tables(record: SweepRecord | TradeoffRecord, trials: pd.DataFrame | None) -> list[Numbers]:
    points = record.table
    heads = _SWEEP if isinstance(record, SweepRecord) else _TRADEOFF
    found = [text_table(f"{len(points)} points as a table", points, heads)]
    if isinstance(record, TradeoffRecord) and record.aggregate is not None:
        title = "Over all tasks, in points relative to full fine-tuning"
        found.append(text_table(title, record.aggregate, _AGGREGATE))
    if isinstance(record, TradeoffRecord) and record.sizes is not None:
        heads, names = {name: name.replace("_", " ") for name in record.sizes}, tasks_of(record.sizes)
        scores = {name: record.sizes[name].map(score_cell) for name in ("mean_score", *names)}
        sizes = record.sizes.assign(**scores)
        found.append(text_table("Adapter sizes over all tasks, scores × 100", sizes, heads))
    if trials is not None:
        data = [{"class": "run", **_data(run)} for _, run in trials.iterrows()]
        found.append(text_table(f"{len(trials)} runs as a table", trials, _TRIALS, data))
    return found


def text_table(
    title: str,
    frame: pd.DataFrame,
    heads: Mapping[str, str],
    data: Sequence[Mapping[str, object]] | None = None,
) -> Numbers:
    """A table of numbers as text.

    Args:
        frame: numbers; scores are fractions, formatted by the row's `metric` if there is one.
        heads: headings by column; columns that are missing or empty are left out.
    """
    kept = [name for name in heads if name in frame and not frame[name].isna().all()]
    metrics: Sequence[str | None] = frame["metric"].tolist() if "metric" in frame else [None] * len(frame)
    columns = [[cell_text(name, v, m) for v, m in zip(frame[name].tolist(), metrics)] for name in kept]
    return Numbers(title, [heads[name] for name in kept], list(zip(*columns)), data)


def cell_text(name: str, value: object, metric: str | None) -> str:
    """A field of a results table as text, formatted by its column."""
    if value is None or value is pd.NA or value != value:
        return NONE
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    number = float(value)  # type: ignore[arg-type]
    if name in _SCORES:
        return wording.score_text(number, metric)
    if name == "sem":
        shares = metric is None or wording.is_percentage(metric)
        return wording.rounded(100 * number) if shares else wording.rounded(number, 3)
    if name.startswith("p_"):
        return "< 0.001" if number < 0.001 else wording.rounded(number, 3)
    if name.endswith("_points"):
        return wording.signed(number)
    if name == "percent_of_base":
        return wording.share_text(number)
    if name in _SHORT:
        return f"{number:.3g}"
    return f"{number:,.0f}" if number.is_integer() or name in _WHOLE else wording.rounded(100 * number)


def _spans_table(frame: pd.DataFrame, metric: str, rows: str, heads: Mapping[str, str]) -> Numbers:
    """A table of spans: where, what was tried or decided, and changes as drops with their unit."""
    named = wording.span_text if "module" in frame else wording.layers_text  # under the heading "layers"
    layers = [named(*ends) for ends in zip(frame["first"], frame["last"])]
    if "stack" in frame:
        layers = [f"{own} of the {stack}" for own, stack in zip(layers, frame["stack"])]
    shown: dict[str, object] = {"metric": metric, "where": layers}
    if "whole" in frame:
        shown["where"] = np.where(frame["whole"], "all", layers)
    if "module" in frame:
        shown["module"] = frame["module"].replace(ALL_MODULES, "all modules")
    for name in frame:
        if name.endswith("_points"):
            shown[name] = [NONE if v != v else wording.amount_text(-v, metric) for v in frame[name]]
        elif name == "strength":
            shown[name] = frame[name].map(wording.strength_text)
    return text_table(f"{len(frame)} {rows} as a table", frame.assign(**shown), heads)
