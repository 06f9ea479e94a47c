"""The section of an ablation: its spans, layers, changed predictions and settings as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.analysis.deltas import drop_points, span_order, span_units
from adapter_probe.analysis.removable import (
    longest_removable,
    shortest_sufficient,
    tolerance_border,
    tolerance_steps,
)
from adapter_probe.analysis.studies import AblationRecord, section_of
from adapter_probe.figures.attribution import drawings
from adapter_probe.figures.levels import DropScale
from adapter_probe.metrics import IN_PERCENT, LOSS_UNITS, LOSSES
from adapter_probe.results.ablation_files import AblationResults
from adapter_probe.wording import drop_label, drop_name, metric_name, unit_name

from .changed_examples import ExampleTexts, examples_content, flip_counts
from .embedded_figures import SVG, image_of, text_table
from .json_tables import json_cell, json_table, settings_rows, short_name

_SPAN_COLUMNS = (
    "first", "last", "down", "across", "score", "delta_points", "drop", "level", "ci_low_points",
    "ci_high_points", "p_value", "p_holm", "significant", "interaction_points", "interaction_low_points",
    "interaction_high_points", "interaction_level", "non_monotone", "to_wrong", "to_right",
)  # fmt: skip
_DESCRIBED = ("method", "base", "max_length", "training", "scores")


@dataclass(frozen=True, eq=False)
class ReportedAblation:
    """One ablation together with data from outside its results folder.

    Attributes:
        record: tables of the ablation.
        results: predictions, or None if the folder has none.
        checkpoint: description of the checkpoint as plain JSON; empty if the checkpoint was not found.
        texts: texts of the examples, in the order of the predictions; None to leave them out.
    """

    record: AblationRecord
    results: AblationResults | None = None
    checkpoint: Mapping[str, Any] | None = None
    texts: ExampleTexts | None = None

    @property
    def drops(self) -> np.ndarray:
        """Drop of every span in points, `[spans]`, positive = loss."""
        return drop_points(self.record.spans["delta_points"])

    @property
    def interactions(self) -> np.ndarray:
        """Interaction of every span in points of drop, `[spans]`; NaN where unknown."""
        column = self.record.spans.get("interaction_points")
        return np.full(len(self.record.spans), np.nan) if column is None else column.to_numpy(float)


def ablation_content(
    ablation: ReportedAblation, scale: DropScale, interaction_scale: DropScale, tolerance: float
) -> dict[str, Any]:
    """The ablation as plain JSON, ready for the page.

    Args:
        ablation: the ablation to show.
        scale: colour levels of drops, shared by all grids of the page.
        interaction_scale: colour levels of interactions, shared by all grids of the page.
        tolerance: initial position of the slider, points.
    """
    record, results = ablation.record, ablation.results
    said = record.overview
    intact, removed = json_cell(said.intact), json_cell(said.removed_delta)
    hundred = -100 if said.metric in LOSSES else 100  # a loss that rises is a negative number of points
    return {
        "name": short_name(record.folder),
        "task": said.task if said.metric else short_name(record.folder),
        "split": said.split,
        "study": said.study,
        "sites": _sites(record),
        "studied": section_of(record.identity, "settings").get("layers") or None,
        "metric": metric_name(said.metric),
        "percent": said.metric in IN_PERCENT,
        "lossUnit": LOSS_UNITS.get(str(said.metric), "") if said.metric in LOSSES else None,
        "unit": unit_name(said.metric),
        "dropName": drop_name(said.metric),
        "dropLabel": drop_label(said.metric),
        "warning": record.summary.get("warning"),
        "nLayers": int(record.summary.get("n_layers") or record.spans["last"].max() + 1),
        "units": _units(record.spans).tolist(),
        "order": span_order(record.spans),
        "nExamples": said.n_examples,
        "intact_score": intact,
        "removed_score": None if None in (intact, removed) else json_cell(intact + removed / hundred),
        "removed_delta_points": removed,
        "majority_score": json_cell(said.majority),
        "baseline": said.baseline,
        "spans": _spans_table(ablation, scale, interaction_scale),
        "steps": slider_steps(_counted(record), said.study, tolerance),
        "layers": _layers(record),
        "parameters": said.layer_parameters,
        "labels": list(results.label_names) if results else [],
        "exactMatch": results is not None and results.kind == "extractive",
        "examples": results and ablation.texts and examples_content(results, record.spans, ablation.texts),
        "settings": _settings(ablation),
    }


def slider_steps(spans: pd.DataFrame, study: str, start: float) -> list[dict[str, Any]]:
    """What the page shows at each position of its slider.

    Returns:
        by ascending `tolerance` in points: `estimate` and `bound`, rows of the longest removable span (or, if
        spans were kept on, the shortest sufficient one) by either basis, None if there is none; `within`,
        number of spans within the tolerance by the estimate; `stairs`, the border between these and the
        others, as an SVG path through corners of cells.
    """
    spans, drops = spans.reset_index(drop=True), drop_points(spans["delta_points"])
    spans = spans if "ci_low_points" in spans else spans.assign(ci_low_points=np.nan)
    best = shortest_sufficient if study == "kept" else longest_removable
    down, across = _places(spans)
    grid = np.full((max(across) + 1, max(across) + 1), np.nan)
    grid[down, across] = drops
    steps = []
    for tolerance in tolerance_steps(drops, start):
        found = [best(spans, tolerance, basis) for basis in ("estimate", "interval")]
        rows = [None if row is None else int(row.name) for row in found]
        path = "".join(
            f"M{x} {y}V{below}" if x == right else f"M{x} {y}H{right}"
            for (x, y), (right, below) in tolerance_border(grid, tolerance)
        )
        within = int((drops <= tolerance).sum())
        steps.append(
            {"tolerance": tolerance, "estimate": rows[0], "bound": rows[1], "within": within, "stairs": path}
        )
    return steps


def _spans_table(
    ablation: ReportedAblation, scale: DropScale, interaction_scale: DropScale
) -> dict[str, list]:
    down, across = _places(ablation.record.spans)
    frame = ablation.record.spans.assign(
        down=down,
        across=across,
        drop=ablation.drops,
        level=_levels(ablation.drops, scale),
        interaction_level=_levels(ablation.interactions, interaction_scale),
    )
    if ablation.results is not None:
        frame = frame.join(flip_counts(ablation.results).set_index(["first", "last"]), on=["first", "last"])
    return json_table(
        frame, [name for name in _SPAN_COLUMNS if name not in frame or not frame[name].isna().all()]
    )


def _counted(record: AblationRecord) -> pd.DataFrame:
    """The spans, of which `n_layers` counts the layers with adapters if they are switched off."""
    spans, parameters = record.spans, record.overview.layer_parameters
    if record.overview.study == "kept" or parameters is None:
        return spans
    below = np.concatenate([[0], np.cumsum(np.array(parameters) > 0)])
    return spans.assign(n_layers=below[spans["last"] + 1] - below[spans["first"]])


def _units(spans: pd.DataFrame) -> np.ndarray:
    """The layers or groups of layers of the grid, ``[units, 2]``; all layers if the spans give none."""
    units = span_units(spans)
    return np.repeat(np.arange(spans["last"].max() + 1)[:, None], 2, axis=1) if units is None else units


def _places(spans: pd.DataFrame) -> tuple[list[int], list[int]]:
    """Row and column of each span in the grid of units, ``[spans]`` each."""
    first, last = ({layer: place for place, layer in enumerate(ends)} for ends in _units(spans).T.tolist())
    return [first[layer] for layer in spans["first"]], [last[layer] for layer in spans["last"]]


def _layers(record: AblationRecord) -> dict[str, Any] | None:
    """Heading, figure (None without layer shares) and table of the single layers."""
    if record.layers is None:
        return None
    alone, metric = f"{'on' if record.overview.study == 'kept' else 'off'} alone", record.overview.metric
    drop, unit = drop_name(metric), unit_name(metric) if metric in LOSSES else "points"
    heads = {
        "layer": "layer", "delta_points": f"change {alone} ({unit})", "ci_low_points": "from",
        "ci_high_points": "to (95 %)", "p_holm": "Holm p", "share_points": f"share of the {drop} ({unit})",
        "share_low_points": "from", "share_high_points": "to (95 %)",
    }  # fmt: skip
    frame = _rises(record.layers) if metric in LOSSES else record.layers
    shares = next(drawings([record], SVG), None)
    return {
        "heading": f"Each layer {alone}" if record.shares is None else f"Which layers carry the {drop}",
        "figure": shares and image_of(shares),
        "table": text_table(f"{len(record.layers)} layers as a table", frame, heads),
    }


def _rises(layers: pd.DataFrame) -> pd.DataFrame:
    """The layers with changes of a loss as they are: a rise, which is for the worse, is positive."""
    ends = {"ci_low_points": "ci_high_points", "ci_high_points": "ci_low_points"}
    sources = {"delta_points": "delta_points", **ends}
    return layers.assign(**{name: -layers[source] for name, source in sources.items() if source in layers})


def _levels(values: np.ndarray, scale: DropScale) -> pd.Series:
    """Level of each value as `Int64`, missing where the value is missing."""
    levels = pd.Series(pd.NA, index=range(len(values)), dtype="Int64")
    known = ~np.isnan(values)
    levels[known] = scale.levels(values[known])
    return levels


def _sites(record: AblationRecord) -> str:
    """Which adapters of each layer were switched off."""
    sites = section_of(record.identity, "settings").get("sites")
    return str(sites) if sites in ("attention", "ffn") else "both"


def _settings(ablation: ReportedAblation) -> list[list[str]]:
    """Settings behind the numbers: the checkpoint's description, the run's identity, library versions."""
    record, described = ablation.record, ablation.checkpoint or {}
    run = {"identity": record.identity, "created_with": record.created_with}
    own = {name: described[name] for name in _DESCRIBED if name in described}
    return settings_rows({"checkpoint": own, "run": run} if own else run)


def joint_scale(values: Sequence[np.ndarray]) -> DropScale:
    """The smallest scale that covers every array."""
    return DropScale.spanning(np.concatenate(values) if values else np.zeros(0))
