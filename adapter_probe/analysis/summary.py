"""The main results of an ablation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.analysis.ablation_tables import AblationTables
from adapter_probe.analysis.deltas import (
    StudyKind,
    drop_points,
    finite_or_none,
    intact_row,
    removed_row,
    row_scores,
    span_scores,
    span_units,
    study_kind,
    switched_layers,
)
from adapter_probe.analysis.removable import (
    TOLERANCES,
    longest_removable,
    shortest_sufficient,
    spans_with_adapters,
)
from adapter_probe.analysis.significance import ALPHA
from adapter_probe.results.ablation_files import AblationResults
from adapter_probe.spans import SITES_PER_LAYER

_GUESSES = {
    "classification": "always answering with the most frequent class",
    "regression": "a constant answer",
    "causal": "a choice at random",
}
NOT_WORSE = "The model is not worse with all of these adapters off"
_NOTHING = "at the 5% level, so the differences between spans are not informative."


def summarise(results: AblationResults, tables: AblationTables | None = None) -> dict[str, object]:
    """The summary of an ablation as plain JSON, with None for undefined numbers.

    Args:
        results: the ablation.
        tables: tables of the ablation, for the keys with statistics.

    Returns:
        `study`, `metric`, `kind`, `n_examples`, `n_layers`; `intact_score`, `removed_score`, `majority_score`
        (fractions; removed = every adapter that the study switches is off), `removed_delta_points`;
        `nonfinite_examples`, by variant, how many of its outputs are NaN or infinite, which leaves it
        without a score (empty where all is well); `layer_parameters`, in the adapters of each layer that the
        study switches (None where layers share adapters, or unknown); and the keys of :func:`span_summary`.
        With tables also, as the first, `warning` (why the differences between spans mean nothing; None where
        they mean something), `significant_spans` and `tested_spans`, how many drops or gains are
        beyond chance, of how many, and for an ablation `longest_removable_surely`, judged by the lower
        95% confidence bound, and `layer_shares_points`.
    """
    scores = row_scores(results)
    intact, removed = scores[intact_row(results)], scores[removed_row(results)]
    study = study_kind(results)
    frame = span_scores(results)
    if study == "ablated":
        frame = spans_with_adapters(frame, switched_layers(results))
    return {
        **({} if tables is None else {"warning": _warning(tables, intact, removed, results)}),
        "study": study,
        "metric": results.metric,
        "kind": results.kind,
        "n_examples": len(results.labels),
        "n_layers": results.masks.shape[1] // SITES_PER_LAYER,
        "intact_score": finite_or_none(intact),
        "removed_score": finite_or_none(removed),
        "removed_delta_points": finite_or_none(metrics.to_points(results.metric, removed - intact)),
        "majority_score": finite_or_none(results.chance_score),
        "nonfinite_examples": {
            name: int(count) for name, count in zip(results.row_names, results.nonfinite) if count
        },
        "layer_parameters": _layer_parameters(results),
        **span_summary(frame, study),
        **({} if tables is None else _statistics(tables, study)),
    }


def _warning(tables: AblationTables, intact: float, removed: float, results: AblationResults) -> str | None:
    """Why the spans are not informative, or None; shown to readers first."""
    if tables.chance_p >= ALPHA or intact < results.chance_score:
        return f"The intact model is not better than {_GUESSES[results.kind]} {_NOTHING}"
    if tables.removed_p >= ALPHA or metrics.to_points(results.metric, removed - intact) > 0:
        return f"{NOT_WORSE} {_NOTHING}"
    return None


def _layer_parameters(results: AblationResults) -> list[int] | None:
    """Parameters by layer at the sites that some variant switches off."""
    counts = results.settings.get("site_parameters")
    if counts is None:
        return None
    switched = (~results.masks).any(axis=0)
    return (switched * np.array(counts)).reshape(-1, SITES_PER_LAYER).sum(axis=1).tolist()


def _statistics(tables: AblationTables, study: StudyKind) -> dict[str, object]:
    removable = tables.removable
    tested = int(tables.spans["p_holm"].count())
    counts = {"significant_spans": int(tables.spans["significant"].sum()), "tested_spans": tested}
    if study != "ablated":
        return counts
    sure = removable[removable["basis"] == "interval"]
    surely = {f"{row['tolerance_points']:g}": _span(row) for _, row in sure.iterrows()}
    shares = [finite_or_none(share) for share in tables.layers["share_points"]]
    return {**counts, "longest_removable_surely": surely, "layer_shares_points": shares}


def span_summary(
    frame: pd.DataFrame, study: StudyKind = "ablated", tolerances: Sequence[float] = TOLERANCES
) -> dict[str, object]:
    """The notable spans of a grid.

    Args:
        frame: columns `first`, `last`, `n_layers`, `delta_points`.
        study: what was done to the spans.
        tolerances: drops in points.

    Returns:
        For `ablated`: `largest_single_layer_drop` `{layer, delta_points}` (of groups of layers also
        `last_layer`; None unless every layer was studied alone) and `longest_removable`
        `{tolerance: span or None}`, the longest span that costs at most the tolerance. For `kept`:
        `best_single_layer` and `shortest_sufficient`, the shortest span that, alone, is at most the
        tolerance below the intact model. A span is `{first, last, n_layers, delta_points}`; ties go to the
        smaller drop, then to the lower first layer.
    """
    frame = frame.assign(drop=drop_points(frame["delta_points"]))
    ablated = study == "ablated"
    units = span_units(frame)
    known = frame[frame["drop"].notna()]
    singles = known.iloc[:0] if units is None else known.merge(pd.DataFrame(units, columns=["first", "last"]))
    single = singles.sort_values(["drop", "first"], ascending=[not ablated, True])
    best = longest_removable if ablated else shortest_sufficient
    spans = {f"{t:g}": _span(best(frame, t)) for t in tolerances}
    found = None if single.empty else _span(single.iloc[0])
    layer = found and {"layer": found["first"], "delta_points": found["delta_points"]}
    if found and found["n_layers"] > 1:
        layer["last_layer"] = found["last"]
    if ablated:
        return {"largest_single_layer_drop": layer, "longest_removable": spans}
    return {"best_single_layer": layer, "shortest_sufficient": spans}


def _span(row: pd.Series | None) -> dict[str, float] | None:
    if row is None or row.isna()["first"]:
        return None
    whole = {name: int(row[name]) for name in ("first", "last", "n_layers")}
    return {**whole, "delta_points": float(row["delta_points"])}
