"""The results schema: the name of every file in a results folder, its columns with their units, its reader.

Everything that writes, reads, draws or reports results takes the names from here.

Units: columns that end in ``_points`` are percentage points of the score (hundredths). ``delta_points`` and
its interval ``ci_low_points``, ``ci_high_points`` are score minus intact score: a loss is negative. What is
attributed is the drop, its negative: ``interaction_points``, ``share_points`` and their own intervals are
positive for a loss. Scores are fractions in the metric's own units; parameters are counts.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from adapter_probe.errors import ResultsError, one_line, other_delimiter
from adapter_probe.results.atomic import read_json
from adapter_probe.results.manifests import MANIFEST as MANIFEST
from adapter_probe.results.manifests import STUDY as STUDY

SUMMARY, PREDICTIONS = "summary.json", "predictions.npz"
"""Files of an ablation besides `MANIFEST`: the main results, and all outputs of every variant."""

GUARD = "guard.json"
"""Errors measured by mixed precision, if requested."""

SPANS_CSV, LAYERS_CSV, REMOVABLE_CSV = "spans.csv", "layers.csv", "removable.csv"
"""The tables of an ablation."""

GENERATIONS = "generations.jsonl"
"""What every variant writes to every row, where texts are written: one JSON object a line."""

GROUPS_CSV = "groups.csv"
"""Table of an ablation whose examples have groups."""

TRIAL, TRIALS_FOLDER = "trial.json", "trials"
"""Files of a sweep besides `STUDY`: the record of a trial, and the folder of the trials."""

TRIALS_CSV, SWEEP_CSV, TRADEOFF_CSV = "trials.csv", "sweep.csv", "tradeoff.csv"
AGGREGATE_CSV, SIZES_CSV, COSTS_CSV = "aggregate.csv", "sizes.csv", "costs.csv"
"""The tables of a sweep."""

STRENGTHS_CSV = "strengths.csv"
"""The table of a study of strengths."""

RANKS_CSV, SPECTRA_CSV = "ranks.csv", "spectra.csv"
"""The tables of a study of ranks."""

PARAMETERS_CSV = "parameters.csv"
"""Table of a suite: the parameters of its checkpoints."""

SWEEP_TABLES = (SWEEP_CSV, TRADEOFF_CSV, AGGREGATE_CSV, SIZES_CSV, TRIALS_CSV)

ColumnKind = str
"""``text``, ``number`` (NaN allowed), ``count`` (whole, may be empty) or ``flag`` (true or false)."""

SWEEP_COLUMNS = {
    "task": "text", "metric": "text", "init_std": "number", "n": "count", "mean": "number", "sem": "number",
    "min": "number", "max": "number", "diverged": "count", "majority_score": "number",
    "learning_rate": "number", "epochs": "count", "size": "count", "method": "text", "init": "text",
}  # fmt: skip
TRADEOFF_COLUMNS = {
    "task": "text", "metric": "text", "method": "text", "size": "count", "k": "count", "label": "text",
    "n": "count", "mean": "number", "sem": "number", "min": "number", "max": "number", "diverged": "count",
    "trained_parameters": "count", "trained_parameters_without_head": "count", "percent_of_base": "number",
    "majority_score": "number", "learning_rate": "number", "epochs": "count",
}  # fmt: skip
AGGREGATE_COLUMNS = {
    "method": "text", "size": "count", "k": "count", "label": "text", "n_tasks": "count",
    "trained_parameters_without_head": "number", "percent_of_base": "number", "p20_points": "number",
    "p50_points": "number", "p80_points": "number", "iqm_points": "number", "iqm_low_points": "number",
    "iqm_high_points": "number", "on_frontier": "flag",
}  # fmt: skip
SIZES_COLUMNS = {"size": "count", "n_tasks": "count", "mean_score": "number", "sem": "number"}
COSTS_COLUMNS = {
    "trial": "text", "seconds_per_step": "number", "peak_memory_bytes": "count", "checkpoint_bytes": "count",
}  # fmt: skip
TRIALS_COLUMNS = {
    "trial": "text", "task": "text", "metric": "text", "method": "text", "size": "count",
    "init_std": "number", "activation": "text", "sites": "text", "k": "count", "learning_rate": "number",
    "epochs": "count", "batch_size": "count", "seed": "count", "score": "number", "diverged": "flag",
    "trained_parameters": "count",
}  # fmt: skip
SPANS_COLUMNS = {
    "first": "count", "last": "count", "n_layers": "count", "score": "number", "delta_points": "number",
    "n_examples": "count",
}  # fmt: skip
STACK_COLUMN = {"stack": "text"}
"""The first column of an ablation's tables if the model has several stacks of layers."""
MODULE_COLUMN = {"module": "text"}
"""The column of a map of layers and modules after it: the module that is switched, or ``all``."""
OPTIONAL_SPANS_COLUMNS = {
    "significant": "flag", "non_monotone": "flag", "decision": "text", **STACK_COLUMN, **MODULE_COLUMN,
}  # fmt: skip
MOST_LAYERS = 1000
"""More than any Transformer has; tables are laid out as matrices of that many layers."""
LAYERS_COLUMNS = {"layer": "count", "delta_points": "number", "share_points": "number"}
REMOVABLE_COLUMNS = {
    "tolerance_points": "number", "basis": "text", "first": "count", "last": "count", "n_layers": "count",
    "delta_points": "number", "bound_low_points": "number",
}  # fmt: skip
GROUPS_COLUMNS = {
    "group": "text", "n_examples": "count", "variant": "text", "first": "count", "last": "count",
    "score": "number", "delta_points": "number",
}  # fmt: skip

_DEGREE_COLUMNS = {
    "first": "count", "last": "count", "n_layers": "count", "whole": "flag", "score": "number",
    "delta_points": "number", "ci_low_points": "number", "ci_high_points": "number", "n_examples": "count",
}  # fmt: skip
STRENGTHS_COLUMNS = {"strength": "number", **_DEGREE_COLUMNS}
RANKS_COLUMNS = {"rank": "count", **_DEGREE_COLUMNS, "energy": "number"}
SPECTRA_COLUMNS = {
    "layer": "count", "module": "text", "expert": "count", "direction": "count", "value": "number",
}  # fmt: skip

_LARGEST_COUNT = 2**53  # beyond, floats skip whole numbers
_WHOLE = r"-?\d{1,15}"
_FLAGS = {"true": True, "false": False}


def span_columns(frame: pd.DataFrame) -> list[str]:
    """The columns that name a span: first and last layer and their number, after its stack and its module."""
    return [name for name in (*STACK_COLUMN, *MODULE_COLUMN, "first", "last", "n_layers") if name in frame]


def read_columns(
    path: Path, columns: Mapping[str, ColumnKind], optional: Mapping[str, ColumnKind] | None = None
) -> pd.DataFrame:
    """A CSV table with at least the given columns; others are read as by pandas.

    Args:
        optional: columns that are checked if present.

    Raises:
        ResultsError: it cannot be read, is empty, lacks a column, or a field has the wrong type.
    """
    text = _read_fields(path)
    if missing := [name for name in columns if name not in text]:
        found = ", ".join(map(str, text.columns)) or "none"
        raise ResultsError(
            f"{path}: no column {', '.join(missing)} (found: {found}){other_delimiter(list(text.columns))}"
        )
    if text.empty:
        raise ResultsError(f"{path} has no rows")
    known = {**columns, **(optional or {})}
    for name in text.columns:
        text[name] = _READERS[known.get(name)](path, text[name])
    return text


def read_summary(folder: str | Path) -> dict[str, Any]:
    """``summary.json`` of a study's folder.

    Raises:
        ResultsError: it is missing or damaged.
    """
    path = Path(folder) / SUMMARY
    if not path.is_file():
        raise ResultsError(f"{path} is missing; run `adapter-probe ablate` with this --out to write it again")
    return read_json(path)


def _read_fields(path: Path) -> pd.DataFrame:
    """Every field as text, with rows checked to be as long as the header."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = [row for row in csv.reader(file, strict=True) if row] or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise ResultsError(f"cannot read {path}: {one_line(error)}") from error
    if len(set(header)) < len(header):
        raise ResultsError(f"{path}: the header names a column twice ({', '.join(header)})")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ResultsError(f"{path}: data row {number} has {len(row)} fields, the header {len(header)}")
    return pd.DataFrame(rows, columns=header, dtype=str)


def _flags(path: Path, column: pd.Series) -> pd.Series:
    values = column.str.strip().str.lower().map(_FLAGS)
    return _checked(path, column, values, values.notna(), "true or false").astype(bool)


def _numbers(path: Path, column: pd.Series) -> pd.Series:
    values, known = _parsed(column)
    return _checked(path, column, values, known & ~values.isin([math.inf, -math.inf]), "a number")


def _counts(path: Path, column: pd.Series) -> pd.Series:
    values = _numbers(path, column)
    whole = (values % 1 == 0) & (values.abs() <= _LARGEST_COUNT)
    return _checked(path, column, values, values.isna() | whole, "a whole number").astype("Int64")


def _as_written(path: Path, column: pd.Series) -> pd.Series:
    values, known = _parsed(column)
    if len(column) and column.str.strip().str.fullmatch(_WHOLE).all():
        return values.astype("int64")  # as written: a float has a decimal point
    return values if known.all() else column


def _parsed(column: pd.Series) -> tuple[pd.Series, pd.Series]:
    """The numbers of a column, and where a field is one, or empty."""
    fields = column.str.strip()
    values = fields.map(_number)  # Python's float: exact in every version of pandas
    return values, values.notna() | fields.isin(["", "nan", "NaN"])


def _number(field: str) -> float:
    try:
        return math.nan if "_" in field else float(field)  # Python alone reads 1_0 as a number
    except ValueError:
        return math.nan


def _checked(path: Path, column: pd.Series, values: pd.Series, good: pd.Series, wanted: str) -> pd.Series:
    if not good.all():
        row = int((~good).to_numpy().argmax())
        raise ResultsError(
            f"{path}: data row {row + 1}: {column.name} is {column.iloc[row]!r}; give {wanted}"
        )
    return values


_READERS: dict[ColumnKind | None, Callable[[Path, pd.Series], pd.Series]] = {
    "text": lambda path, column: column, "flag": _flags, "number": _numbers, "count": _counts,
    None: _as_written,
}  # fmt: skip
"""What reads the fields of a kind of column; of none, as pandas does."""


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table as a list of rows for JSON, with null for missing values."""
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records", double_precision=15))
    return rows
