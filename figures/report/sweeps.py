"""A sweep's part of the page: its charts as points with the trials behind them, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from adapter_probe import metrics
from adapter_probe.figures.wording import IN_PERCENT
from adapter_probe.results.atomic import read_json
from adapter_probe.results.schema import MANIFEST, STUDY

from .sources import short_name
from .tables import number, read_table, settings_rows, significant, table, true_or_none

_NEEDED = {
    "sweep": ("task", "init_std", "mean"),
    "tradeoff": ("task", "method", "mean", "trained_parameters_without_head"),
    "aggregate": ("method", "label", "trained_parameters_without_head", "p50_points"),
    "sizes": ("size",),
    "trials": ("task", "method", "score"),
}
_TRIAL_COLUMNS = ("trial", "learning_rate", "epochs", "seed", "best_epoch")
_SERIES = {
    "adapters": "adapters",
    "top_layers": "top layers",
    "layernorm_only": "LayerNorm only",
    "head_only": "head only",
    "full": "full fine-tuning",
}


@dataclass(frozen=True, eq=False)
class Sweep:
    """One folder of a sweep, read.

    Attributes:
        folder: where it lies.
        tables: by the name of the file without its ending: sweep, tradeoff, aggregate, sizes, trials, each
            if there is one.
        about: what the folder says about its study; may be empty.
    """

    folder: Path
    tables: Mapping[str, pd.DataFrame]
    about: Mapping[str, Any]


def read_sweep(folder: str | Path) -> Sweep:
    """Read a folder that `adapter-probe init-sweep` or `tradeoff` wrote; any of its tables will do.

    Raises:
        ResultsError: a table cannot be read, or lacks a column that its chart cannot do without.
    """
    folder = Path(folder)
    read = {name: read_table(folder / f"{name}.csv", needed) for name, needed in _NEEDED.items()}
    about = next((folder / name for name in (STUDY, MANIFEST) if (folder / name).is_file()), None)
    tables = {name: frame for name, frame in read.items() if frame is not None}
    return Sweep(folder, tables, {} if about is None else read_json(about))


def sweep_content(sweep: Sweep) -> dict[str, Any]:
    """The sweep as plain JSON, ready for the page."""
    tables = sweep.tables
    trials = tables.get("trials")
    charts = [
        *_task_charts("init", tables.get("sweep"), trials),
        *_task_charts("tradeoff", tables.get("tradeoff"), trials),
    ]
    if not charts and trials is not None:
        charts = _task_charts(*_as_summary(trials), trials)
    if "aggregate" in tables:
        charts.append(_aggregate_chart(tables["aggregate"]))
    about = {name: value for name, value in sweep.about.items() if name not in ("tasks", "checksum")}
    return {
        "name": short_name(sweep.folder),
        "charts": charts,
        "sizes": table(tables["sizes"], list(tables["sizes"].columns)) if "sizes" in tables else None,
        "settings": settings_rows(about),
    }


def _task_charts(kind: str, frame: pd.DataFrame | None, trials: pd.DataFrame | None) -> list[dict[str, Any]]:
    """One chart a task, in the order of the table."""
    if frame is None:
        return []
    if "method" not in frame:
        frame = frame.assign(method="adapters")
    return [_task_chart(kind, str(task), rows, trials) for task, rows in frame.groupby("task", sort=False)]


def _task_chart(kind: str, task: str, frame: pd.DataFrame, trials: pd.DataFrame | None) -> dict[str, Any]:
    metric = str(frame["metric"].iloc[0]) if "metric" in frame else None
    x = "init_std" if kind == "init" else "trained_parameters_without_head"
    frame = frame[frame[x] > 0].sort_values(x, kind="stable")
    own = None if trials is None else trials[trials["task"].astype(str) == task]
    series = [
        {
            "method": str(method),
            "label": _SERIES.get(str(method), str(method)),
            "points": [_point(row, x, own) for row in rows.to_dict("records")],
        }
        for method, rows in frame.groupby("method", sort=False)
    ]
    majority = frame["majority_score"].dropna() if "majority_score" in frame else []
    return {
        "kind": kind,
        "task": task,
        "metric": metrics.metric_label(metric) if metric else "score",
        "percent": metric in IN_PERCENT,
        "majority": number(majority.iloc[0]) if len(majority) else None,
        "series": series,
    }


def _point(row: Mapping[str, Any], x: str, trials: pd.DataFrame | None) -> dict[str, Any]:
    plain = {name: number(row.get(name)) for name in ("n", "mean", "sem", "min", "max", "diverged", "epochs")}
    return {
        "x": significant(row[x], 7),
        "label": None if pd.isna(row.get("label")) else str(row["label"]),
        **plain,
        "learning_rate": significant(row.get("learning_rate")),
        "percentOfBase": number(row.get("percent_of_base")),
        "trials": [] if trials is None else _trials(row, x, trials),
    }


def _trials(row: Mapping[str, Any], x: str, trials: pd.DataFrame) -> list[dict[str, Any]]:
    """The trials of a point; `chosen` are those of the learning rate and epochs that its mean is of."""
    own = trials[trials["method"] == row["method"]]
    for name in ("init_std",) if x == "init_std" else ("size", "k"):
        if name in own and not pd.isna(row.get(name)):
            own = own[own[name] == row[name]]
    chosen = pd.Series(True, index=own.index)
    for name in ("learning_rate", "epochs"):
        if name in own and not pd.isna(row.get(name)):
            chosen &= own[name] == row[name]
    return [
        {
            **{name: _trial_field(name, trial.get(name)) for name in _TRIAL_COLUMNS},
            "score": number(trial["score"]),
            "diverged": bool(true_or_none(trial.get("diverged"))),
            "chosen": bool(is_chosen),
        }
        for trial, is_chosen in zip(own.to_dict("records"), chosen)
    ]


def _trial_field(name: str, value: object) -> object:
    return significant(value) if name == "learning_rate" else number(value)


def _as_summary(trials: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """What can be drawn of the trials alone: the points without means, and the kind of study."""
    stds = trials["init_std"].nunique() if "init_std" in trials else 0
    kind = "init" if stds > 1 and set(trials["method"]) == {"adapters"} else "tradeoff"
    x = "init_std" if kind == "init" else "trained_parameters_without_head"
    keys = [name for name in ("task", "method", "size", "k", x) if name in trials]
    points = trials.drop_duplicates(keys)
    kept = [
        name
        for name in (*dict.fromkeys(keys), "metric", "majority_score", "percent_of_base")
        if name in points
    ]
    frame = points[kept] if x in points else points[kept].iloc[:0].assign(**{x: pd.Series(dtype=float)})
    return kind, frame if kind == "init" else frame.assign(
        label=[_label(row) for row in frame.to_dict("records")]
    )


def _label(row: Mapping[str, Any]) -> str:
    detail = next((row[name] for name in ("size", "k") if not pd.isna(row.get(name))), None)
    label = _SERIES.get(str(row["method"]), str(row["method"]))
    return label if detail is None else f"{label} {int(detail)}"


def _aggregate_chart(frame: pd.DataFrame) -> dict[str, Any]:
    """Percentiles over tasks of the score minus full fine-tuning's."""
    names = ("p20_points", "p50_points", "p80_points", "iqm_points", "iqm_low_points", "iqm_high_points",
             "n_tasks")  # fmt: skip
    x = "trained_parameters_without_head"
    frame = frame[frame[x] > 0].sort_values(x, kind="stable")
    return {
        "kind": "aggregate",
        "series": [
            {
                "method": str(method),
                "label": _SERIES.get(str(method), str(method)),
                "points": [
                    {
                        "x": significant(row[x], 7),
                        "label": str(row["label"]),
                        **{name: number(row.get(name)) for name in names},
                        "percentOfBase": number(row.get("percent_of_base")),
                        "frontier": true_or_none(row.get("on_frontier")),
                    }
                    for row in rows.to_dict("records")
                ],
            }
            for method, rows in frame.groupby("method", sort=False)
        ],
    }
