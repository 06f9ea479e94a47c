"""An ablation on disk: every example's outputs under every variant, and the table of spans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.errors import ResultsError, one_line
from adapter_probe.kinds.table import scored_of
from adapter_probe.results.atomic import read_arrays, write_arrays, write_csv, write_text
from adapter_probe.results.fingerprints import canonical_json
from adapter_probe.results.manifests import refuse_newer
from adapter_probe.results.schema import (
    GENERATIONS,
    MOST_LAYERS,
    OPTIONAL_SPANS_COLUMNS,
    PREDICTIONS,
    SPANS_COLUMNS,
    SPANS_CSV,
    read_columns,
    span_columns,
)

SCHEMA = 1
_NAMES = {"outputs": "logits", "scored_with": "labels"}
"""Names of arrays in the file, where they are not those of the attributes."""
_TEXTS = ("row_names", "metric", "kind", "label_names", "identity", "settings")


def save_predictions(folder: str | Path, results: AblationResults) -> None:
    """Writes ``predictions.npz``: the arrays, and the rest as JSON under the name ``about``.

    Equal results give equal bytes.
    """
    about = {"schema": SCHEMA, **{name: getattr(results, name) for name in _TEXTS}}
    arrays = {_NAMES.get(name, name): values for name, values in results.arrays().items()}
    write_arrays(Path(folder) / PREDICTIONS, {**arrays, "about": np.array(canonical_json(about))})


def load_ablation(folder: str | Path) -> AblationResults:
    """The ablation that `save_predictions` stored.

    Raises:
        ResultsError: the folder contains no ablation, or a damaged or newer one.
    """
    path = Path(folder) / PREDICTIONS
    if not path.exists():
        raise ResultsError(f"{folder} contains no finished ablation: there is no {PREDICTIONS} in it")
    arrays = read_arrays(path)
    try:
        about = json.loads(str(arrays["about"]))
        refuse_newer(path, about["schema"], SCHEMA)
        texts = {name: about[name] for name in _TEXTS}
        scored = {**arrays, **{name: arrays[stored] for name, stored in _NAMES.items()}}
        own = scored_of(texts["kind"], texts["metric"], tuple(texts["label_names"]), scored)
        return AblationResults(
            arrays["masks"], arrays["spans"], tuple(texts["row_names"]), own, texts["identity"],
            texts["settings"], *map(arrays.get, ("groups", "stacks", "modules")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{path} does not contain an ablation: {one_line(error)}") from error


def write_generations(
    folder: str | Path, results: AblationResults, texts: Sequence[Sequence[str | None]]
) -> None:
    """Writes ``generations.jsonl``: `variant`, `row` from 1, `text` (null for NaN) and `score`."""
    lines = [
        {"variant": name, "row": row + 1, "text": text, "score": float(score)}
        for name, own, scores in zip(results.row_names, texts, results.outputs[..., 0])
        for row, (text, score) in enumerate(zip(own, np.nan_to_num(scores)))
    ]
    made = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    write_text(Path(folder) / GENERATIONS, made)


def read_generations(folder: str | Path) -> pd.DataFrame | None:
    """The table that `write_generations` stored; None if there is none.

    Raises:
        ResultsError: it is damaged.
    """
    path = Path(folder) / GENERATIONS
    if not path.is_file():
        return None
    try:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # and not at U+2028
        frame = pd.DataFrame([json.loads(line) for line in lines])
        return frame[["variant", "row", "text", "score"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path} does not contain written texts: {one_line(error)}") from error


_WHOLE = tuple(name for name, held in SPANS_COLUMNS.items() if held == "count")


def write_spans(folder: str | Path, frame: pd.DataFrame) -> None:
    """Writes ``spans.csv``: `SPANS_COLUMNS` first, further columns after them, rows as given.

    Raises:
        ResultsError: a column is missing or wrong, or the file cannot be written.
    """
    path = Path(folder) / SPANS_CSV
    _check_spans(frame, path)
    first = [*span_columns(frame), *(name for name in SPANS_COLUMNS if name not in span_columns(frame))]
    write_csv(path, frame[[*first, *(name for name in frame if name not in first)]])


def read_spans(folder: str | Path) -> pd.DataFrame:
    """The table of spans, with numbers exactly as written.

    Raises:
        ResultsError: there is no ``spans.csv``, or it is not a table of spans.
    """
    path = Path(folder) / SPANS_CSV
    if not path.exists():
        raise ResultsError(f"{folder} contains no finished ablation: there is no {SPANS_CSV} in it")
    frame = read_columns(path, SPANS_COLUMNS, OPTIONAL_SPANS_COLUMNS)
    whole = list(_WHOLE)
    if frame[whole].isna().any(axis=None):
        raise ResultsError(f"{path}: {', '.join(whole)} should contain whole numbers, but one is empty")
    frame = frame.astype(dict.fromkeys(whole, "int64"))
    _check_spans(frame, path)
    return frame


def _check_spans(frame: pd.DataFrame, path: Path) -> None:
    if missing := [name for name in SPANS_COLUMNS if name not in frame]:
        found = ", ".join(map(str, frame.columns)) or "none"
        raise ResultsError(f"{path}: no column {', '.join(missing)} in the table of spans (found: {found})")
    for name in SPANS_COLUMNS:
        wanted = "integers" if name in _WHOLE else "floats"
        if frame[name].dtype.kind != wanted[0]:
            raise ResultsError(f"{path}: column {name} should contain {wanted}, got {frame[name].dtype}")
    first, last, n_layers = frame["first"], frame["last"], frame["n_layers"]
    wrong = (first < 0) | (last < first) | (n_layers != last - first + 1)
    wrong |= (last >= MOST_LAYERS) | frame.duplicated(span_columns(frame))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        span = f"first {first.iloc[row]}, last {last.iloc[row]}, n_layers {n_layers.iloc[row]}"
        raise ResultsError(f"{path}: data row {row + 1} is an invalid or repeated span ({span})")
