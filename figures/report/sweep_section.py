"""The section of a sweep: the project's figures, and all numbers behind them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from adapter_probe.analysis.studies import SweepRecord, TradeoffRecord
from adapter_probe.analysis.sweeps import SWEEP_POINT, TRADEOFF_POINT, chosen_trials

from .embedded_figures import embedded_figures, text_table
from .json_tables import settings_rows, short_name

_SPREAD = {
    "mean": "mean", "sem": "standard error", "min": "lowest", "max": "highest", "n": "runs",
    "diverged": "diverged", "majority_score": "majority class", "learning_rate": "learning rate",
    "epochs": "epochs",
}  # fmt: skip
_SIZE = {"trained_parameters_without_head": "parameters without the head", "percent_of_base": "% of the base"}
_SWEEP = {"task": "task", "size": "adapter size", "init_std": "initialisation std", **_SPREAD}
_TRADEOFF = {"task": "task", "label": "method", **_SIZE, **_SPREAD}
_AGGREGATE = {
    "label": "method", "n_tasks": "tasks", **_SIZE, "p20_points": "20th percentile",
    "p50_points": "median (points)", "p80_points": "80th percentile", "iqm_points": "interquartile mean",
    "iqm_low_points": "from", "iqm_high_points": "to (95 %)", "on_frontier": "on the frontier",
}  # fmt: skip
_TRIALS = {
    "task": "task", "label": "method", "size": "adapter size", "init_std": "initialisation std",
    "learning_rate": "learning rate", "epochs": "epochs", "seed": "seed", "score": "score",
    "best_epoch": "best epoch", "diverged": "diverged", "chosen": "in the mean",
}  # fmt: skip


def sweep_content(record: SweepRecord | TradeoffRecord) -> dict[str, Any]:
    """The sweep as plain JSON, ready for the page."""
    init = isinstance(record, SweepRecord)
    points = record.sweep if init else record.tradeoff
    about = dict(record.identity.get("study", {}))  # type: ignore[call-overload]
    return {
        "name": short_name(record.folder),
        "kind": "init" if init else "tradeoff",
        "tasks": points["task"].drop_duplicates().tolist(),
        "figures": embedded_figures(record),
        "tables": _tables(record, points),
        "settings": settings_rows({name: about[name] for name in about if name not in ("tasks", "checksum")}),
    }


def _tables(record: SweepRecord | TradeoffRecord, points: pd.DataFrame) -> list[dict[str, Any]]:
    init = isinstance(record, SweepRecord)
    found = [text_table(f"{len(points)} points as a table", points, _SWEEP if init else _TRADEOFF)]
    if not init and record.aggregate is not None:
        found.append(
            text_table("Over all tasks, in points relative to full fine-tuning", record.aggregate, _AGGREGATE)
        )
    if not init and record.sizes is not None:
        heads = {name: name.replace("_", " ") for name in record.sizes}
        found.append(text_table("Adapter sizes over all tasks, scores × 100", record.sizes, heads))
    if record.trials is not None:
        found.append(_trials(record.trials, points, list(SWEEP_POINT if init else TRADEOFF_POINT)))
    return found


def _trials(trials: pd.DataFrame, points: pd.DataFrame, point: list[str]) -> dict[str, Any]:
    """All runs, and whether each is included in the mean of its point."""
    rows = trials.assign(chosen=trials.index.isin(chosen_trials(trials, point).index))
    if "label" in points:
        names = points[["method", "size", "k", "label"]].drop_duplicates()
        rows = rows.merge(names, how="left", on=["method", "size", "k"])
    return text_table(f"{len(rows)} runs as a table", rows, _TRIALS)
