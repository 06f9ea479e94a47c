"""An ablation's part of the page: its spans, layers, flips and settings as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.analysis.deltas import drop_points, span_grid
from adapter_probe.analysis.summary import summary
from adapter_probe.figures.levels import DropScale
from adapter_probe.figures.wording import IN_PERCENT
from adapter_probe.results.ablation import AblationResults, load_ablation, read_spans
from adapter_probe.results.atomic import read_json
from adapter_probe.results.schema import LAYERS_CSV, MANIFEST, PREDICTIONS, SUMMARY

from .examples import Texts, examples_content, flip_counts
from .sources import short_name
from .tables import number, read_table, settings_rows, table, true_or_none

_SPAN_COLUMNS = (
    "first", "last", "score", "delta_points", "drop", "level", "ci_low_points", "ci_high_points", "p_value",
    "p_holm", "significant", "interaction_points", "interaction_low_points", "interaction_high_points",
    "interaction_level", "non_monotone", "to_wrong", "to_right",
)  # fmt: skip
_LAYER_COLUMNS = (
    "layer", "delta_points", "ci_low_points", "ci_high_points", "p_holm", "share_points", "share_low_points",
    "share_high_points",
)  # fmt: skip
_SUMMARY_KEYS = ("intact_score", "removed_score", "removed_delta_points", "majority_score")


@dataclass(frozen=True)
class CheckpointFacts:
    """What a checkpoint's folder says about itself.

    Attributes:
        record: its description, as plain JSON.
        adapter_parameters: parameters in adapters of every layer `[layers]`, each as (after attention, after
            feed-forward); None where unknown.
    """

    record: Mapping[str, Any]
    adapter_parameters: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, eq=False)
class Ablation:
    """One ablation folder, read.

    Attributes:
        folder: where it lies.
        spans: the table of spans, with whatever further columns it has.
        layers: the table of layers, or None.
        results: the predictions, or None where the folder has none.
        summary: `summary.json`, or what can be computed in its place.
        manifest: `manifest.json`, or empty.
        checkpoint: what was ablated, or None.
        texts: the examples' texts, in the predictions' order, where they are to be shown.
    """

    folder: Path
    spans: pd.DataFrame
    layers: pd.DataFrame | None
    results: AblationResults | None
    summary: Mapping[str, Any]
    manifest: Mapping[str, Any]
    checkpoint: CheckpointFacts | None = None
    texts: Texts | None = None

    @property
    def drops(self) -> np.ndarray:
        """Drop of every span in points, `[spans]`, positive = loss."""
        return drop_points(self.spans["delta_points"])

    @property
    def interactions(self) -> np.ndarray:
        """Interaction of every span in points of drop, `[spans]`; NaN where unknown."""
        column = self.spans.get("interaction_points")
        return np.full(len(self.spans), np.nan) if column is None else column.to_numpy(float)


def read_ablation(folder: str | Path) -> Ablation:
    """Read a folder that `adapter-probe ablate` wrote, by any version; only the table of spans must be there.

    Raises:
        ResultsError: there is no table of spans, it is no grid, or a file is damaged.
    """
    folder = Path(folder)
    spans = read_spans(folder)
    span_grid(spans)  # refuses what is no grid
    results = load_ablation(folder) if (folder / PREDICTIONS).is_file() else None
    if (folder / SUMMARY).is_file():
        said = read_json(folder / SUMMARY)
    else:
        said = {} if results is None else {**results.settings, **summary(results)}
    return Ablation(
        folder,
        spans,
        read_table(folder / LAYERS_CSV, ("layer",)),
        results,
        said,
        read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {},
    )


def ablation_content(ablation: Ablation, scale: DropScale, interaction_scale: DropScale) -> dict[str, Any]:
    """The ablation as plain JSON, ready for the page.

    Args:
        ablation: the folder.
        scale: levels of the drops, shared by all grids of the page.
        interaction_scale: levels of the interactions, likewise.
    """
    said, results = ablation.summary, ablation.results
    metric = said.get("metric") or (results.metric if results else None)
    study = said.get("study", "ablated")
    parameters = _switched_parameters(ablation)
    return {
        "name": short_name(ablation.folder),
        "task": str(said.get("task") or short_name(ablation.folder)),
        "split": said.get("split"),
        "study": study,
        "sites": _sites(ablation),
        "metric": _metric_words(metric),
        "percent": metric in IN_PERCENT,
        "nLayers": int(ablation.spans["last"].max()) + 1,
        "nExamples": int(ablation.spans["n_examples"].iloc[0]),
        **{name: number(said.get(name)) for name in _SUMMARY_KEYS},
        "spans": _spans_table(ablation, scale, interaction_scale),
        "layers": None if ablation.layers is None else table(ablation.layers, _LAYER_COLUMNS),
        "parameters": parameters,
        "labels": list(results.label_names) if results else [],
        "exactMatch": results is not None and results.kind == "extractive",
        "examples": results and ablation.texts and examples_content(results, ablation.spans, ablation.texts),
        "settings": _settings(ablation),
    }


def _metric_words(metric: str | None) -> str:
    return metrics.metric_label(metric) if metric else "score"


def _spans_table(ablation: Ablation, scale: DropScale, interaction_scale: DropScale) -> dict[str, list]:
    frame = ablation.spans.assign(
        drop=ablation.drops,
        level=_levels(ablation.drops, scale),
        interaction_level=_levels(ablation.interactions, interaction_scale),
    )
    for name in {"significant", "non_monotone"} & set(frame.columns):
        frame[name] = pd.Series([true_or_none(value) for value in frame[name]], dtype=object)
    if ablation.results is not None:
        frame = frame.join(flip_counts(ablation.results).set_index(["first", "last"]), on=["first", "last"])
    return table(frame, [name for name in _SPAN_COLUMNS if name not in frame or not frame[name].isna().all()])


def _levels(values: np.ndarray, scale: DropScale) -> pd.Series:
    """Level of each value as `Int64`, missing where the value is."""
    levels = pd.Series(pd.NA, index=range(len(values)), dtype="Int64")
    known = ~np.isnan(values)
    levels[known] = scale.levels(values[known])
    return levels


def _sites(ablation: Ablation) -> str:
    """Which of a layer's two adapters were switched."""
    identity = ablation.manifest.get("identity")
    settings = identity.get("settings") if isinstance(identity, Mapping) else None
    if isinstance(settings, Mapping) and settings.get("sites") in ("both", "attention", "ffn"):
        return settings["sites"]
    return "both"


def _switched_parameters(ablation: Ablation) -> list[int] | None:
    """Parameters of each layer's adapters at the sites that the study switches, `[layers]`."""
    counts = ablation.checkpoint.adapter_parameters if ablation.checkpoint else None
    if counts is None:
        return None
    chosen = {"both": (0, 1), "attention": (0,), "ffn": (1,)}[_sites(ablation)]
    return [sum(pair[place] for place in chosen) for pair in counts]


def _settings(ablation: Ablation) -> list[list[str]]:
    """What made the numbers: the checkpoint's own account, the run's identity, the versions."""
    manifest = {
        name: ablation.manifest[name] for name in ("identity", "created_with") if name in ablation.manifest
    }
    record: dict[str, Any] = {}
    if ablation.checkpoint is not None:
        described = ablation.checkpoint.record
        kept = ("method", "base", "max_length", "training", "scores")
        record = {name: described[name] for name in kept if name in described}
    return settings_rows({"checkpoint": record, "run": manifest} if record else manifest)


def joint_scale(values: Sequence[np.ndarray]) -> DropScale:
    """The smallest scale that is true of every array."""
    return DropScale.spanning(np.concatenate(values) if values else np.zeros(0))
