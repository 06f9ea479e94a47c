"""Scores of spans, and their differences from the intact model.

Signs: `delta_points` is score minus intact score in points (1 point = 0.01), so a loss is negative; a
*drop* is its negative, so a loss is positive. Figures and tolerances use drops. If a lower score is
better, as for the loss of a language model, `delta_points` is intact score minus score: negative is still
worse, and the drop is the rise of the loss, in hundredths of nats or bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.ablation_settings import BY_LAYER
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.results.schema import MODULE_COLUMN, SPANS_COLUMNS, STACK_COLUMN, span_columns
from adapter_probe.wording import model_text

StudyKind = Literal["ablated", "kept"]
"""`ablated`: the span's adapters are off. `kept`: only the span's adapters are on (the complement)."""

SpanOrder = Literal["prefix", "suffix", "apart"]
"""Spans that have their first layer in common, their last one, or neither with any other span."""

# Scores are ratios of small integers times 100: a drop of one point in exact arithmetic can come out as
# 1.0000000000000009. Nine decimals are far below any real difference (one example in 10,000 is 0.01).
_DECIMALS = 9


def row_scores(results: AblationResults) -> np.ndarray:
    """Score of every variant, float64 `[variants]`, in the metric's own units (a fraction).

    Raises:
        DataError: a user's metric gives no finite number for the intact model.
    """
    if isinstance(own := results.metric, CustomMetric):
        scores = own.scores(results.taken_by_metric, results.scored_with, results.row_names)
        if np.isnan(scores[intact_row(results)]):
            raise DataError(
                f"the metric {own.own_name} returned NaN or infinity for the intact model, so there is no "
                "score to compare the spans with"
            )
        return scores
    return np.asarray(
        metrics.score(results.metric, results.predictions, results.scored_with), dtype=np.float64
    )


def intact_row(results: AblationResults) -> int:
    """The first row with every adapter on.

    Raises:
        ResultsError: no row has every adapter on, or its outputs are not all finite.
    """
    rows = np.flatnonzero(results.masks.all(axis=1))
    if rows.size == 0:
        raise ResultsError("the ablation has no row with every adapter on, so there is no reference score")
    if bad := results.nonfinite[rows[0]]:
        raise ResultsError(
            f"the intact model's outputs are NaN or infinite for {bad} of {results.n_examples} examples, so "
            "there is no score to compare the spans with"
        )
    return int(rows[0])


def intact_score(results: AblationResults) -> float:
    """Score of the intact model."""
    return float(row_scores(results)[intact_row(results)])


def removed_row(results: AblationResults) -> int:
    """The row with the fewest adapters on, in which all adapters of the study are off."""
    return int(np.argmin(results.masks.sum(axis=1)))


def switched_layers(results: AblationResults) -> np.ndarray:
    """Bool ``[layers]``: which layers have an adapter that some variant switches off."""
    return np.asarray(results.switched.any(axis=1))


def study_kind(results: AblationResults) -> StudyKind:
    """Whether the spans were ablated or kept on."""
    return "kept" if results.settings.get("complement") else "ablated"


def section_of(identity: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """A section of an ablation's identity, such as its settings; empty where the identity lacks it."""
    section = identity.get(name)
    return section if isinstance(section, Mapping) else {}


def unit_of(identity: Mapping[str, Any]) -> str:
    """The unit of a map of layers and modules, from an ablation's identity."""
    return str(section_of(identity, "settings").get("by") or "module")


def strength_of(identity: Mapping[str, Any]) -> float | str:
    """What the adapters were multiplied by where a variant has them off, from an ablation's identity."""
    settings = section_of(identity, "settings")
    strength = settings.get("strength", 0.0)
    if isinstance(strength, str):
        return BY_LAYER
    return float(strength) if isinstance(strength, (int, float)) else 0.0


def span_scores(results: AblationResults) -> pd.DataFrame:
    """One row per span: its score and its difference from the intact score.

    Returns:
        Columns `first`, `last`, `n_layers`, `score` (a fraction, or a loss), `delta_points` = 100 (score -
        intact score), of a loss its negative, `n_examples`; sorted by first, then last layer. Of a model
        with several stacks of layers, `stack` before them, and in a map of layers and modules `module`.

    Raises:
        ResultsError: there is no intact row, or a span is in two rows.
    """
    scores = row_scores(results)
    intact = scores[intact_row(results)]
    rows = np.flatnonzero(results.spans[:, 0] >= 0)
    first, last = results.spans[rows].astype(np.int64).T
    frame = pd.DataFrame(
        {
            "first": first,
            "last": last,
            "n_layers": last - first + 1,
            "score": scores[rows],
            "delta_points": metrics.to_points(results.metric, scores[rows] - intact),
            "n_examples": results.n_examples,
        }
    )
    order = ["first", "last"]
    if results.modules is not None:
        frame.insert(0, "module", results.modules[rows])
        frame["number"] = frame["module"].map({name: n for n, name in enumerate(results.sites)})
        order = ["number", "n_layers", *order]
    if results.stacks is not None:
        frame.insert(0, "stack", results.stacks[rows])
        frame["place"] = frame["stack"].map(
            {name: n for n, (name, *_) in enumerate(results.settings["stacks"])}
        )
        order = ["place", *order]
    repeated = frame[frame.duplicated(span_columns(frame))]
    if len(repeated):
        raise ResultsError(f"span {repeated['first'].iloc[0]}-{repeated['last'].iloc[0]} is in two rows")
    frame = frame.sort_values(order, ignore_index=True)
    return frame[[*(name for name in (*STACK_COLUMN, *MODULE_COLUMN) if name in frame), *SPANS_COLUMNS]]


def span_units(frame: pd.DataFrame) -> np.ndarray | None:
    """The layers, or groups of layers, of which the spans consist: int ``[units, 2]``, first and last layer.

    None unless all of them were studied alone, because otherwise their separate effects are not known. There
    may be layers without adapters between them.

    Args:
        frame: columns `first` and `last`.
    """
    first, last = np.unique(frame["first"]), np.unique(frame["last"])
    if len(first) != len(last) or (first[1:] <= last[:-1]).any() or (len(first) == 1 and (first != last)):
        return None
    units = np.stack([first, last], axis=1)
    studied = set(zip(frame["first"], frame["last"]))
    return units if all(tuple(unit) in studied for unit in units.tolist()) else None


def last_layers(layers: pd.DataFrame) -> pd.Series:
    """The last layer of each row of a table of layers, or of groups of layers."""
    return layers["last_layer"] if "last_layer" in layers else layers["layer"]


def are_groups(layers: pd.DataFrame) -> bool:
    """Whether a table of layers is one of groups of layers that were switched together."""
    return bool((last_layers(layers) > layers["layer"]).any())


def span_order(frame: pd.DataFrame) -> SpanOrder | None:
    """How spans form a line, so that they are drawn as a curve; None for a grid or a single span.

    Args:
        frame: columns `first` and `last`, no span twice.
    """
    n, n_firsts, n_lasts = len(frame), frame["first"].nunique(), frame["last"].nunique()
    if n < 2:
        return None
    if 1 in (n_firsts, n_lasts):
        return "prefix" if n_firsts == 1 else "suffix"
    return "apart" if n_firsts == n_lasts == n else None


def without_noise(points: np.ndarray | pd.Series) -> np.ndarray:
    """Points without float noise and minus zero; NaN stays NaN."""
    return np.round(np.asarray(points, dtype=np.float64), _DECIMALS) + 0.0


def drop_points(delta_points: np.ndarray | pd.Series) -> np.ndarray:
    """Drops in points (positive = loss), without float noise; NaN stays NaN."""
    return without_noise(-np.asarray(delta_points, dtype=np.float64))


def within_tolerance(delta_points: np.ndarray | pd.Series, tolerance: float) -> np.ndarray:
    """True where the drop is at most `tolerance` points; NaN is not within."""
    return drop_points(delta_points) <= tolerance


def model_of(results: AblationResults) -> str | None:
    """The base, and what was trained on it, in words; None where neither is known."""
    base = str(results.settings.get("base", ""))
    name = base if base.startswith("folder ") else PurePath(base).name
    return model_text(name, results.settings.get("method") or {}) or None


def finite_or_none(value: float) -> float | None:
    """A number for JSON, which has neither NaN nor infinity."""
    return float(value) if np.isfinite(value) else None


def of_stack(frame: pd.DataFrame | None, stack: str) -> Any:
    """The rows of a table that are about a stack of layers; None of none."""
    if frame is None:
        return None
    own = frame[frame["stack"] == stack].reset_index(drop=True)
    own.attrs["tested"] = tested_spans(frame)
    return own


def tested_spans(frame: pd.DataFrame) -> int:
    """The number of spans that Holm's correction is over: those of all stacks in a table of one of them."""
    own = int(frame["p_holm"].notna().sum()) if "p_holm" in frame else 0
    return int(frame.attrs.get("tested", own))


def rows_of(results: AblationResults, frame: pd.DataFrame) -> list[int]:
    """The variant of each row of a table of spans."""
    place = {key: row for row, key in enumerate(span_keys(results))}
    none = [""] * len(frame)
    own = zip(frame.get("stack", none), frame.get("module", none), frame["first"], frame["last"])
    return [place[key] for key in own]


def span_keys(results: AblationResults) -> list[tuple[str, str, int, int]]:
    """What tells the variants apart: stack, module, first and last layer."""
    none = [""] * len(results.spans)
    parts = (none if own is None else own.tolist() for own in (results.stacks, results.modules))
    return list(zip(*parts, *results.spans.T.tolist()))
