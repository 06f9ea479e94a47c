"""What summaries hold: how one is read back, and the spans that stand out in a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from adapter_probe.analysis.removable import TOLERANCES, longest_removable
from adapter_probe.analysis.score_changes import StudyKind, drop_points, span_units
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.metrics import metric_label
from adapter_probe.records import RecordError, from_record, to_record
from adapter_probe.spans import ALL_MODULES

Summary = TypeVar("Summary", bound="StoredSummary")


class StoredSummary:
    """A summary of scores by one metric, which ``summary.json`` holds."""

    metric: str

    @classmethod
    def from_dict(cls: type[Summary], found: Mapping[str, Any], path: Path) -> Summary:
        """The summary from what is in a file.

        Raises:
            ResultsError: it, read from `path`, is damaged.
        """
        try:
            summary = from_record(cls, found)
            metric_label(summary.metric)
            return summary
        except (RecordError, DataError, ResultsError) as error:
            raise ResultsError(f"{path} is damaged: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The contents of the file."""
        return to_record(self)


@dataclass(frozen=True)
class SpanDrop:
    """A span of layers, and the score without its adapters minus the intact score, in points.

    Attributes:
        ci_low_points, ci_high_points: ends of the 95% interval of the difference; None where it is not known.
    """

    first: int
    last: int
    n_layers: int
    delta_points: float
    ci_low_points: float | None = None
    ci_high_points: float | None = None


@dataclass(frozen=True)
class LayerDrop:
    """A layer alone, or a group of layers up to `last_layer`; `delta_points` as of a span."""

    layer: int
    delta_points: float
    last_layer: int | None = None


@dataclass(frozen=True)
class ModuleDrop:
    """A module off in all layers, and the layer in which alone it costs most; `delta_points` as of a span.

    Where modules are kept on, the layer in which alone it is best.
    """

    delta_points: float | None
    layer: LayerDrop | None


def notable_modules(frame: pd.DataFrame, study: StudyKind = "ablated") -> dict[str, ModuleDrop]:
    """The modules of a map of layers and modules, by name.

    Args:
        frame: columns `module`, `first`, `last`, `n_layers`, `delta_points`.
    """
    found = {}
    for name, own in frame[frame["module"] != ALL_MODULES].groupby("module", sort=False):
        whole = own.iloc[int(own["n_layers"].argmax())]
        singles = own[own["n_layers"] < whole["n_layers"]] if len(own) > 1 else own
        single = notable_spans(singles, study)
        delta = whole["delta_points"]
        found[str(name)] = ModuleDrop(
            None if pd.isna(delta) else float(delta),
            single["best_single_layer" if study == "kept" else "largest_single_layer_drop"],
        )
    return found


def notable_spans(frame: pd.DataFrame, study: StudyKind = "ablated") -> dict[str, Any]:
    """The notable spans of a grid.

    Args:
        frame: columns `first`, `last`, `n_layers`, `delta_points`.

    Returns:
        the fields `largest_single_layer_drop` and `longest_removable` of the summary, or for `kept`
        `best_single_layer` and `shortest_sufficient`. Ties go to the smaller drop, then to the lower first
        layer.
    """
    frame = frame.assign(drop=drop_points(frame["delta_points"]))
    ablated = study == "ablated"
    units = span_units(frame)
    known = frame[frame["drop"].notna()]
    singles = known.iloc[:0] if units is None else known.merge(pd.DataFrame(units, columns=["first", "last"]))
    single = singles.sort_values(["drop", "first"], ascending=[not ablated, True])
    spans = {f"{t:g}": span_of(longest_removable(frame, t, study=study)) for t in TOLERANCES}
    found = None if single.empty else span_of(single.iloc[0])
    layer = found and LayerDrop(found.first, found.delta_points, found.last if found.n_layers > 1 else None)
    if ablated:
        return {"largest_single_layer_drop": layer, "longest_removable": spans}
    return {"best_single_layer": layer, "shortest_sufficient": spans}


def span_of(row: pd.Series | None) -> SpanDrop | None:
    """The span of a table's row, None if it has none."""
    if row is None or row.isna()["first"]:
        return None
    whole = (int(row[name]) for name in ("first", "last", "n_layers"))
    ends = {end: float(row[end]) for end in ("ci_low_points", "ci_high_points") if pd.notna(row.get(end))}
    return SpanDrop(*whole, delta_points=float(row["delta_points"]), **(ends if len(ends) == 2 else {}))
